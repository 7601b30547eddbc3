"""Quantise a checkpoint by NVIDIA's ModelOpt into a TensorRT-LLM checkpoint.  Runs in envs/modelopt.

The tensors are ModelOpt's own; config.json is ours, as for unquantised checkpoints.  The whole model
is in memory, three times its size.
"""

import copy
import json
import shutil
from pathlib import Path
from typing import Annotated

from ingot.base import sealed
from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import Architecture, step
from ingot.base.refused import Refused
from ingot.formats.tensorrt import trtllm
from ingot.formats.tensorrt.checkpoint import GROUP
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import read_config

RECIPES = {  # ours -> ModelOpt's
    "fp8": "FP8_DEFAULT_CFG",
    "int4_awq": "INT4_AWQ_CFG",
    "int8_sq": "INT8_SMOOTHQUANT_CFG",
}
LONGEST = 512  # tokens of a text that are calibrated on


def quantize_trtllm(
    checkpoint: Checkpoint,
    calibration: Annotated[Path, "texts like those it will serve, one per line"],
    quant: Annotated[str, "what to quantise to", sorted(RECIPES)],
    mapping: trtllm.Mapping,
    trtllm_checkpoint: Annotated[Path, "the directory to write"],
    dtype: Annotated[str, "of the rest", ["f16", "bf16"]] = "f16",
    architecture: Architecture = None,
) -> None:
    config = read_config(checkpoint["config.json"], architecture, trtllm.CAN)
    if reason := trtllm.why_not(config, mapping) or why_not(config, mapping, quant):
        raise Refused(f"{checkpoint['config.json']}: {reason}")
    with stderr_to_log(f"{trtllm_checkpoint.name}: quantising by ModelOpt"):
        prompts = read_prompts(checkpoint, calibration, min(LONGEST, config.context))
        with replacing(trtllm_checkpoint) as partial:
            exported = partial / "modelopt"
            exported.mkdir(parents=True)
            export(checkpoint, prompts, quant, dtype, mapping, exported)
            theirs = json.loads((exported / "config.json").read_bytes())
            document = trtllm.document(config, mapping, dtype)
            document["quantization"] = theirs["quantization"]
            document["vocab_size"] = theirs["vocab_size"]  # int4_awq's is padded to 64
            for rank in range(mapping.world):
                name = f"rank{rank}.safetensors"
                (exported / name).rename(partial / name)
                (partial / name).chmod(0o644)
            shutil.rmtree(exported)
            (partial / "config.json").write_text(json.dumps(document, indent=2) + "\n")
            sealed.seal(partial)


def why_not(config, mapping: trtllm.Mapping, quant: str) -> str | None:
    """Why ModelOpt cannot write `quant` so; or None."""
    if config.experts:
        return trtllm.UNQUANTISED
    if mapping.embedding != "rows":
        return "ModelOpt splits the embedding by rows only; set trtllm.embedding to rows"
    inputs = {
        "hidden channels": config.hidden,
        "attention channels of a rank": config.heads * config.head_dim // mapping.tp,
        "feed-forward channels of a rank": config.ffn // mapping.tp,
    }
    for what, count in inputs.items():
        if quant == "int4_awq" and count % GROUP:
            return f"{count} {what} do not come in groups of {GROUP}, which int4_awq scales by"
    return None


def read_prompts(checkpoint: Checkpoint, calibration: Path, longest: int) -> list[list[int]]:
    """Token ids of the calibration's lines."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint["tokenizer.json"]))
    lines = calibration.read_text(encoding="utf-8").splitlines()
    found = [tokenizer.encode(line, add_special_tokens=False).ids[:longest] for line in lines]
    if not any(found):
        raise Refused(
            f"{calibration}: holds no text, expected one per line to calibrate on; add some"
        )
    return [ids for ids in found if ids]


def export(
    checkpoint: Checkpoint,
    prompts: list[list[int]],
    quant: str | None,
    dtype: str,
    mapping: trtllm.Mapping,
    place: Path,
) -> None:
    """ModelOpt's own export; unquantised when `quant` is None."""
    import modelopt.torch.quantization as quantization
    import torch
    from modelopt.torch.export import export_tensorrt_llm_checkpoint
    from transformers import AutoModelForCausalLM

    kind = getattr(torch, trtllm.DTYPES[dtype])
    with checkpoint.as_folder() as folder:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, use_safetensors=True)
    model = model.eval()

    def calibrate(model) -> None:
        with torch.no_grad():
            for number, ids in enumerate(prompts, 1):
                model(input_ids=torch.tensor([ids]), use_cache=False)
                print(f"text {number} of {len(prompts)}: {len(ids)} tokens", flush=True)

    if quant:
        recipe = copy.deepcopy(getattr(quantization, RECIPES[quant]))
        model = quantization.quantize(model, recipe, calibrate)
    export_tensorrt_llm_checkpoint(
        model,
        "llama",  # its word for Mistral and Qwen too: their tensors have the same names
        kind,
        place,
        inference_tensor_parallel=mapping.tp,
        inference_pipeline_parallel=mapping.pp,
    )
    wanted = {f"rank{rank}.safetensors" for rank in range(mapping.world)}
    if missing := sorted(wanted - {path.name for path in place.iterdir()}):
        raise Refused(f"{missing[0]}: not written by ModelOpt; its words in the log say why")


if __name__ == "__main__":
    step(quantize_trtllm)
