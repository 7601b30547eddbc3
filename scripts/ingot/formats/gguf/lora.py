"""The header of an adapter in llama.cpp's own format, by its converter (convert_lora_to_gguf.py)."""

from ingot.formats.gguf import metadata
from ingot.formats.gguf.kv import KV
from ingot.model.config import ModelConfig

PREFIX = "adapter.lora"
# of a base in FP8 nothing is merged; of a latent GGUF has the heads' weights apart
CANNOT = ("fp8", "latent")
CAN = tuple(word for word in metadata.CAN if word not in CANNOT)


def pairs(config: ModelConfig, name: str, license: str | None, alpha: float) -> list[KV]:
    """In its order; each pair's product is multiplied by `alpha` over its rank."""
    found = [
        KV("general.architecture", "str", config.family.gguf),
        KV("general.type", "str", "adapter"),
        KV("adapter.type", "str", "lora"),
        KV("general.name", "str", name),
    ]
    if license:
        found.append(KV("general.license", "str", license))
    return [
        *found,
        KV(f"{PREFIX}.alpha", "f32", alpha),
        KV("general.quantization_version", "u32", 2),
    ]
