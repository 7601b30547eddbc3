"""Quantise a checkpoint by llm-compressor, in compressed-tensors' format.  Runs in envs/llmcompressor.

For the schemes that read a text, and for families that Ingot has no table of.  The whole model is in
memory, in its own dtype, and one layer of it is worked on at a time.
"""

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.fields import read_json
from ingot.base.machine import memory
from ingot.base.options import TokenizerFiles, step
from ingot.base.progress import Progress
from ingot.base.refused import Refused
from ingot.model.checkpoint.files import Checkpoint, name_of
from ingot.model.checkpoint.quantised.schemes import ALL, CALIBRATED
from ingot.model.checkpoint.quantised.write import WEIGHT
from ingot.model.checkpoint.safetensors import INDEX, read_checkpoint
from ingot.model.checkpoint.upstream import in_its_words
from ingot.model.tensors.dtypes import STORED

WINDOW, LEAST = 512, 4  # tokens of a window; windows that a text must fill
MOST = {"w4a16_awq": 16}  # windows that are read: it runs each twenty times a layer
USUAL = 64
SHARD = "5GB"
EXPERTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # of Mixtral's layers
STRENGTH = 0.8  # how much of the outliers of what a layer is given its weights take over
SMOOTHED = ("w8a8_gptq", "w4a16_awq")  # which change norms and biases
BASE, PER_BYTE = 1.0e9, 1.3  # bytes of memory: the demo takes 0.6 GB, 0.23 GB of weights 1.25
# What stays as it is, beside heads: what chooses experts, and parts that see or hear
WHOLE = (
    r"re:.*mlp\.gate(\..*)?$", r"re:.*block_sparse_moe\.gate$", r"re:.*router.*",
    r"re:.*shared_expert_gate$", r"re:.*(vision|visual|image|audio|multi_modal|mm_).*",
)  # fmt: skip


def compress_safetensors(
    checkpoint: Checkpoint,
    tokenizer: TokenizerFiles,
    safetensors: Annotated[Path, "the folder to write"],
    scheme: Annotated[str, "of weights", tuple(ALL)],
    text: Annotated[list[Path], "that a scheme is calibrated on"] = (),
) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    hold_memory(checkpoint)
    said = read_text(text[0]) if scheme in CALIBRATED else ""
    with (
        Checkpoint([*{*checkpoint.files.values(), *tokenizer}]).as_folder() as folder,
        replacing(safetensors) as partial,
        stderr_to_log(f"{safetensors}: quantising by llm-compressor"),
        in_its_words("llm-compressor", checkpoint, folder),
    ):
        windows = windows_of(folder, text[0], said, scheme) if said else []
        run(folder, partial, scheme, windows, Progress(safetensors.name, 1, "layers"))
        for path in partial.iterdir():
            if path.suffix != ".safetensors" and path.name != INDEX:
                path.unlink()
            else:
                path.chmod(0o644)
        config = read_json(checkpoint["config.json"])
        config["quantization_config"] = ALL[scheme].config(left(partial, checkpoint))
        contents: sealed.Contents = {name_of(path): path for path in tokenizer}
        contents["config.json"] = json.dumps(config, indent=2) + "\n"
        sealed.fill(partial, contents)


def hold_memory(checkpoint: Checkpoint) -> None:
    """Refused: a checkpoint that this machine's memory cannot hold."""
    size = sum(tensor.nbytes for tensor in read_checkpoint(checkpoint).values())
    needed, has = BASE + PER_BYTE * size, memory()
    if needed > has:
        raise Refused(
            f"{checkpoint}: llm-compressor would need {needed / 1e9:.1f} GB of memory, and this machine "
            f"has {has / 1e9:.1f} GB; take a larger one, or a scheme without calibration"
        )


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(
            f"{path}: not a text in UTF-8 ({type(error).__name__}), expected one"
        ) from None


def windows_of(folder: Path, path: Path, text: str, scheme: str) -> list[list[int]]:
    """The token ids of a text in windows of one length, each begun as the tokenizer begins a text."""
    from transformers import AutoConfig, AutoTokenizer

    ours = {"trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(folder, **ours)
    said = AutoConfig.from_pretrained(folder, **ours).get_text_config()
    start = tokenizer("").input_ids[:1]
    size = min(WINDOW, getattr(said, "max_position_embeddings", None) or WINDOW) - len(start)
    ids = tokenizer(text, add_special_tokens=False).input_ids
    count = len(ids) // size
    if count < LEAST:
        raise Refused(
            f"{path}: {len(ids)} tokens, expected {LEAST * size} or more to calibrate on; name a longer "
            "text"
        )
    most = min(count, MOST.get(scheme, USUAL))  # spread evenly, where the text is longer
    chosen = [at * count // most for at in range(most)]
    return [start + ids[one * size : (one + 1) * size] for one in chosen]


def run(
    folder: Path, place: Path, scheme: str, windows: list[list[int]], progress: Progress
) -> None:
    """Write the shards in `place`."""
    import torch
    from llmcompressor import oneshot
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", use_safetensors=True, trust_remote_code=False
    )
    heads = {name for name, one in model.named_modules() if one is model.get_output_embeddings()}
    ignored = ["lm_head", *sorted(heads - {"lm_head"}), *WHOLE]
    progress.total = len(getattr(model.get_decoder(), "layers", ())) or 1
    asked: dict[str, Any] = {"pipeline": "datafree"}
    if windows:
        rows = [{"input_ids": torch.tensor(ids)} for ids in windows]
        loader = torch.utils.data.DataLoader(rows, batch_size=1)
        asked = {"pipeline": "sequential", "dataset": loader}
    with unpinned():
        oneshot(model=model, recipe=[*recipe(scheme, ignored), counting(progress)], **asked)
    model.save_pretrained(place, save_compressed=True, max_shard_size=SHARD)
    put_back(folder, place, norms=scheme not in SMOOTHED)


def put_back(folder: Path, place: Path, norms: bool) -> None:
    """What is not quantised as the checkpoint has it, `norms` and biases too, and all by its names.

    llm-compressor casts all to one dtype, a norm of 1 + w loses bits while it is a norm of w, and experts'
    layers are named as most families name them.
    """
    from contextlib import ExitStack

    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    places = {}
    with ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(path, "pt")) for path in folder.glob("*.safetensors")
        ]
        source = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        made = read_checkpoint(Checkpoint([place]), STORED)
        scales = {named(name, source) for name in made if name.endswith("_scale")}
        size = 0
        for shard in sorted(place.glob("*.safetensors")):
            tensors = {named(name, source): one for name, one in load_file(shard).items()}
            for name, found in tensors.items():
                whole = name in source and f"{name}_scale" not in scales
                if whole and (norms or found.ndim > 1):
                    tensors[name] = source[name].get_tensor(name)
            save_file(tensors, shard, {"format": "pt"})
            places |= dict.fromkeys(tensors, shard.name)
            size += sum(one.nbytes for one in tensors.values())
    if (index := place / INDEX).exists():
        about = {"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}
        index.write_text(json.dumps(about, indent=2) + "\n")


def named(name: str, source: Collection[str]) -> str:
    """A tensor's name as the checkpoint, whose names are `source`, would have it."""
    stem, _, end = name.rpartition(".")
    layer, _, last = stem.rpartition(".")
    other = f"{layer}.{EXPERTS.get(last, last)}"
    is_other = f"{stem}.weight" not in source and f"{other}.weight" in source
    return f"{other}.{end}" if is_other else name


def left(folder: Path, what: Checkpoint) -> list[str]:
    """For `ignore`: the layers whose matrices stay as they are; servers may compute them as linear ones."""
    tensors = read_checkpoint(Checkpoint([folder]), STORED)
    if not any(name.endswith("weight_scale") for name in tensors):
        raise Refused(
            f"{what}: llm-compressor quantises no layer of it, expected some; serve it as it is"
        )
    found = {"lm_head": None}  # in their order
    for name, tensor in tensors.items():
        if name.endswith(WEIGHT) and len(tensor.shape) > 1 and f"{name}_scale" not in tensors:
            found[name.removesuffix(WEIGHT)] = None
    return [*found]


def recipe(scheme: str, ignored: list[str]) -> list:
    """llm-compressor's modifiers, in their order."""
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    how = {"targets": "Linear", "scheme": ALL[scheme].preset, "ignore": ignored}
    if scheme == "w4a16_awq":
        return [AWQModifier(), QuantizationModifier(**how)]
    if scheme == "w8a8_gptq":
        return [SmoothQuantModifier(smoothing_strength=STRENGTH), GPTQModifier(**how)]
    return [GPTQModifier(**how) if scheme.endswith("_gptq") else QuantizationModifier(**how)]


@contextmanager
def unpinned() -> Iterator[None]:
    """Without a GPU AWQ stops at pinning what it keeps in memory (llm-compressor 0.14.0.1)."""
    import torch
    from compressed_tensors.utils import patch_attr
    from llmcompressor.pipelines.cache import IntermediatesCache

    if torch.accelerator.is_available():
        yield
        return
    with patch_attr(IntermediatesCache, "_pin_intermediate", classmethod(lambda cls, value: None)):
        yield


def counting(progress: Progress) -> Any:
    """A modifier that changes nothing, and counts the layers that are done."""
    from llmcompressor.modifiers import Modifier

    class Layers(Modifier):
        def on_initialize(self, state, **kwargs) -> bool:
            return True

        def on_sequential_epoch_end(self, state, event, **kwargs) -> None:
            if progress.done < progress.total:
                progress.add(1)

    return Layers()


if __name__ == "__main__":
    step(compress_safetensors)
