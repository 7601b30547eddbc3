"""Export a model's program as MLIR, from its config.json alone.  Runs in envs/iree.

No weight is read: the exporter gets archives of the right names, shapes and dtypes whose data are
holes in the file system.  It traces the first blocks of the model only; ingot/formats/iree/stitch.py
makes the whole program from them.  It equals the real archive's, traced whole: tests/pipeline/test_iree.
"""

import dataclasses
import functools
import os
import sys
import tempfile
from math import gcd
from pathlib import Path
from typing import Annotated, Any

from ingot.base.atomic import replacing
from ingot.base.console import stderr_to_log
from ingot.base.options import Architecture, step
from ingot.base.refused import Refused
from ingot.formats.gguf import metadata
from ingot.formats.iree import irpa, stitch, tensor_parallel
from ingot.model.config import ModelConfig, read_config, say_unknown
from ingot.model.families.llama import LLAMA
from ingot.model.rope import Llama3Rope
from ingot.model.specs import head_of_tied, specs_of
from ingot.model.tensors.layout import FileLayout


def export_mlir(
    config: Annotated[Path, "the checkpoint's config.json"],
    mlir: Annotated[Path, "the program to write"],
    server_config: Annotated[Path, "the server's config to write"],
    flags: Annotated[list[str], "after --: flags for sharktank's exporter"],
    dtype: Annotated[str, "dtype of the weights"] = "f16",
    architecture: Architecture = None,
    tp: Annotated[int, "tensor parallel size"] = 1,
    parameters: Annotated[Path | None, "a real archive, not the skeleton"] = None,
    whole: Annotated[bool, "trace every block, instead of a few and stitching"] = False,
) -> None:
    model = read_config(config, architecture, tensor_parallel.can(tp))
    say_unknown(config, model.family)
    if reason := tensor_parallel.why_not(model, tp):
        raise Refused(f"{config}: {reason}")
    if model.context % (stride := page_size(flags)):
        raise Refused(
            f"{config}: max_position_embeddings is {model.context}, expected a multiple of the page "
            f"size, {stride} tokens; choose {gcd(model.context, stride)} as block_seq_stride"
        )
    traced = model.layers if whole or model.layers <= stitch.TRACED else stitch.TRACED
    with (
        tempfile.TemporaryDirectory() as folder,
        replacing(mlir) as partial_mlir,
        replacing(server_config) as partial_config,
    ):
        program = partial_mlir if traced == model.layers else Path(folder, "traced.mlir")
        if parameters is None:
            parameters = Path(folder) / "skeleton.irpa"
            write_skeleton(model, dtype, tp, traced, parameters)
        argv = [
            f"--irpa-file={parameters}",
            f"--output-mlir={program}",
            f"--output-config={partial_config}",
            f"--tensor-parallelism-size={tp}",
            *([MASK] if tp > 1 and MASK not in flags else []),
            *([HALVES] if not any(one.heads for one in model.family.layer.values()) else []),
            *flags,
        ]
        with stderr_to_log(f"{mlir}: exporting"):
            run_exporter(argv, model, traced)
        if program != partial_mlir:
            write_stitched(program, model.layers, partial_mlir, mlir)


def page_size(flags: list[str]) -> int:
    """Tokens of a page of the KV cache."""
    sizes = [flag.partition("=")[2] for flag in flags if flag.startswith("--block-seq-stride=")]
    return int(sizes[-1]) if sizes else 32


# Without it, a program for several devices compiles and crashes at its first prefill.
MASK = "--use-attention-mask"
HALVES = "--use-hf"  # rope turns the halves of a head, as its GGUF has them, not pairs of rows


def write_stitched(program: Path, layers: int, partial: Path, mlir: Path) -> None:
    try:
        with partial.open("w") as file:
            file.writelines(f"{line}\n" for line in stitch.stitch(program.read_text(), layers))
    except stitch.Unlike as unlike:
        raise Refused(
            f"{mlir}: {unlike}, expected equal blocks; drop the export flag that makes them differ"
        ) from None


def write_skeleton(model: ModelConfig, dtype: str, tp: int, blocks: int, path: Path) -> None:
    """Archives of the first blocks of `model` whose tensors are holes: some kilobytes on disk."""
    llama = dataclasses.replace(model, architecture=LLAMA.architecture)  # sharktank knows no other
    properties = metadata.properties(llama, dtype)
    specs = specs_of(dataclasses.replace(model, layers=blocks), dtype)
    if tp > 1 and model.tied:
        specs.append(head_of_tied(model, dtype))
    tensors = [(spec.name, spec.type.name, spec.shape) for spec in specs]
    if tp == 1:
        write_holes(path, irpa.layout(properties, tensors))
        return
    cuts = tensor_parallel.splits(tensors)
    path.write_bytes(tensor_parallel.root_archive(properties, cuts, tp))
    for rank, file in enumerate(tensor_parallel.rank_files(path, tp)):
        write_holes(file, tensor_parallel.rank_layout(cuts, tp, rank))


def write_holes(path: Path, layout: FileLayout) -> None:
    """The file without its tensors' data, which are holes: they take no room and read as zeros."""
    with path.open("wb") as file:
        for offset, text in {0: layout.head, **layout.texts}.items():
            file.seek(offset)
            file.write(text)
        os.truncate(file.fileno(), layout.size)


def run_exporter(argv: list[str], model: ModelConfig, traced: int) -> None:
    """sharktank's exporter with eight changes, made from outside before it is imported."""
    trace_once()
    tell_rope_scaling(model.rope)
    norm_heads()
    round_biases()
    share_rotary_tables()
    share_replicas()
    divide_as_compiled()
    trace_blocks(model.layers, traced)
    from sharktank.examples import export_paged_llm_v1

    sys.argv = ["export_paged_llm_v1", *argv]
    export_paged_llm_v1.main()


def trace_once() -> None:
    """Trace each function into the operators that the compiler takes, and note no stack of a node.

    torch.export traces it into others first, and `run_decompositions` traces those, for assertions of
    dtypes that the compiler drops.  With the stack of each node, both took two fifths of an export.
    """
    import torch.fx
    from torch.export import _trace, exported_program

    torch.fx.config.do_not_emit_stack_traces = True
    stock = _trace._export_to_aten_ir

    class Later:
        """What is to be traced, until it is said which operators are to be left."""

        def __init__(self, *words: Any, **named: Any):
            self.words, self.named = words, named

        def run_decompositions(self, table: dict) -> Any:
            implicit, others = exported_program._split_decomp_table_to_cia_and_python_decomp(
                dict(table)
            )
            _trace._export_to_aten_ir = functools.partial(stock, decomp_table=others)
            with exported_program._override_composite_implicit_decomp(implicit):
                return _trace._export(*self.words, **self.named)

    torch.export.export = Later


def divide_as_compiled() -> None:
    """Divide by an operator that the compiler has code for: decomposed attention over several ranks
    does it by another name of the same."""
    import torch

    torch.true_divide = torch.div


def tell_rope_scaling(rope: Llama3Rope | None) -> None:
    """Pass on the rope scaling, which neither of sharktank's importers does."""
    from sharktank.layers.configs.llm_configs import LlamaHParams

    stock = LlamaHParams.from_gguf_props

    def from_gguf_props(properties: dict[str, Any]) -> LlamaHParams:
        hparams = stock(properties)
        if rope:  # named after yarn, but the layer computes the llama3 formula from them
            hparams.yarn_factor = rope.factor
            hparams.yarn_beta_slow = rope.low_freq_factor
            hparams.yarn_beta_fast = rope.high_freq_factor
            hparams.yarn_original_context_len = rope.original_context
        return hparams

    LlamaHParams.from_gguf_props = staticmethod(from_gguf_props)


def norm_heads() -> None:
    """Norm each head of q and k behind its projection, where the archive holds the weights of that.

    sharktank's own `use_qk_norm` is Llama 4's: without weights, and after rope.
    """
    import torch
    from sharktank.layers import RMSNormLayer
    from sharktank.layers.paged_llama_attention_block import PagedLlamaAttentionBlock

    class Normed(torch.nn.Module):
        def __init__(self, linear: Any, norm: Any, size: int):
            super().__init__()
            self.linear, self.norm, self.size = linear, norm, size
            self.q_output = linear.q_output

        def forward(self, x: Any) -> Any:
            y = self.linear(x)
            return self.norm(y.unflatten(-1, (-1, self.size))).flatten(-2)

    stock = PagedLlamaAttentionBlock.__init__

    def init(self, theta: Any, **named: Any) -> None:
        stock(self, theta, **named)
        for name in ("attn_q", "attn_k"):
            if f"{name}_norm" in theta.keys:
                norm = RMSNormLayer(theta(f"{name}_norm"), epsilon=named["rms_epsilon"])
                setattr(self, name, Normed(getattr(self, name), norm, named["head_dim"]))

    PagedLlamaAttentionBlock.__init__ = init


def round_biases() -> None:
    """Add a bias in the dtype of what it is added to.

    An archive holds it in float32, as GGUF does.  sharktank adds it as it is, so that all behind it, every
    product of the program, becomes float32: slower, and iree-compile fails for sm80.
    """
    from sharktank import ops
    from sharktank.layers import LinearLayer

    stock = LinearLayer.forward
    quantised = (
        "premul_input",
        "q_input",
        "qdq_input",
        "qdq_output",
    )  # of archives of sharktank's own

    def forward(self, x: Any) -> Any:
        if self.bias is None or any(getattr(self, name) is not None for name in quantised):
            return stock(self, x)
        return ops.linear(x, self.weight, ops.to(self.bias, dtype=x.dtype))

    LinearLayer.forward = forward


def share_rotary_tables() -> None:
    """Compute a call's rotary tables once, and send them to each device once.

    sharktank computes a prefill's twice a block.  Their constants would give the compiler 22 initializers a
    block, each of which many of its passes hold against every weight: most of the 40 minutes that 126
    blocks on 8 devices took.
    A decode's it computes on each device, sends to all, and takes those that came to the first.  Rope,
    writing the cache and attention would then be of no device, which means the first: each call would move
    all other caches to it and back, and it alone would compute attention.
    """
    from sharktank.layers.rotary_embedding import ShardedRotaryLayer
    from sharktank.models.llm.llm import PagedLlmModelV1

    prefill, table, tables = PagedLlmModelV1.prefill, ShardedRotaryLayer.rotary_embed_table, {}
    decode_tables = ShardedRotaryLayer.compute_batch_mask

    def fresh_prefill(self, *arguments: Any, **named: Any) -> Any:
        tables.clear()  # they belong to one trace
        return prefill(self, *arguments, **named)

    def forward(self, *, xt: Any, start_index: int) -> Any:
        import torch

        key = (id(self), start_index)
        if key not in tables:
            positions = torch.arange(xt.shape[1], device=self._device).unsqueeze(0) + start_index
            tables[key] = table(self, positions)
        if hasattr(tables[key][0], "shards"):
            return self.apply_batched_mask(xt=xt, mask=tables[key])
        return self._rotary_layer(q=xt, sincos_cache=tables[key])

    def compute_batch_mask(self, start_positions: Any, batch_seq_len: int) -> Any:
        positions = getattr(start_positions, "shards", (start_positions,))[0]
        return decode_tables(self, positions, batch_seq_len)

    PagedLlmModelV1.prefill = fresh_prefill
    ShardedRotaryLayer.compute_batch_mask = compute_batch_mask
    ShardedRotaryLayer.forward = forward


def share_replicas() -> None:
    """Let replicas of a tensor share its storage; sharktank copies it, 29 GB for a 405B model."""
    import copy

    import torch
    from sharktank.types import tensors

    def shared(tensor: Any) -> Any:
        if type(tensor) is not torch.Tensor:
            return copy.deepcopy(tensor)
        replica = tensor.detach()
        replica.__dict__.update(tensor.__dict__)  # its name in the archive, its device
        return replica

    tensors.deepcopy = shared


def trace_blocks(layers: int, traced: int) -> None:
    """Build `traced` blocks of `layers`, but the KV cache of all: only the loop over them is cut."""
    from sharktank.models.llm import llm

    llm.range = lambda *bounds: range(*((traced,) if bounds == (layers,) else bounds))


if __name__ == "__main__":
    step(export_mlir)
