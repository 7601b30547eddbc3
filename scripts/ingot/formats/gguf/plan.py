"""Which tensor of a model gets which type, as libllama plans it: by a file that holds no weights."""

import ctypes
import re
import sys
from pathlib import Path

from ingot.base.atomic import partial_of
from ingot.base.refused import Refused
from ingot.formats.gguf import libllama, quantisations
from ingot.formats.gguf.file import layout
from ingot.formats.gguf.kv import KV
from ingot.formats.gguf.quants import Imatrix
from ingot.formats.gguf.structures import ImatrixData, QuantizeParameters
from ingot.model.specs import TensorSpec
from ingot.model.tensors.dtypes import TYPES, TensorType

K_BLOCK = TYPES["Q4_K"].block  # as of all K and I types but one
KEPT = {"f32", "f16", "bf16", "mxfp4"}  # that no block of 256 was wanted of
PLANNED = re.compile(r"\[ *\d+/ *\d+\] +(\S+) +- .*, type = +(\w+), size = .*?(?:\((\w+)\))?\s*$")

FELL_BACK = re.compile(r"WARNING: (\d+) of (\d+) tensor\(s\) required fallback quantization")


def planned(
    named: Path, kvs: list[KV], specs: list[TensorSpec], quant: str, matrix: Imatrix | None
) -> dict[str, TensorType]:
    """Each tensor's type in the order of the file; `kvs` and `specs` are of the float32 file.

    `named` is the file of that type, beside which the stub lies meanwhile: a header, and holes.
    """
    head = layout(kvs, [(spec.name, spec.type, spec.shape) for spec in specs])
    said: list[str] = []
    lib = libllama.library()
    parameters = lib.llama_model_quantize_default_params()
    parameters.ftype, parameters.nthread, parameters.dry_run = (
        quantisations.ROWS[quant].ftype,
        1,
        True,
    )
    kept = _given(parameters, matrix)
    with partial_of(named.with_name(f"{named.name}.plan")) as stub:
        with stub.open("wb") as file:
            file.write(head.head)
            file.truncate(head.size)
        libllama.listen(lib, said.append)
        words = str(stub).encode()
        failed = lib.llama_model_quantize(words, words, ctypes.byref(parameters))
        libllama.listen(lib, libllama.to_stdout)
    del kept
    lines = "".join(said).splitlines()
    types = {m[1]: (m[3] or m[2]).upper() for m in map(PLANNED.match, lines) if m}
    if unknown := {*types.values()} - {*TYPES}:
        raise Refused(f"{quant}: has tensors of {min(unknown)}, expected a type of dtypes.py")
    found = {name: TYPES[kind] for name, kind in types.items()}
    if failed or sorted(found) != sorted(spec.name for spec in specs):
        word = lines[-1] if lines else "no word"
        raise Refused(f"{named}: libllama could not plan {quant}: {word}")
    if any("will require an imatrix" in line for line in lines):
        raise Refused(
            f"{named}: {quant} needs an importance matrix; set the model's `imatrix` in the catalogue to "
            "a text"
        )
    if fell := next(filter(None, map(FELL_BACK.search, lines)), None):
        odd = (one for one in specs if len(one.shape) > 1 and one.shape[-1] % K_BLOCK)
        others = ", ".join(sorted({found[one.name].name.lower() for one in odd} - KEPT))
        print(
            f"{named.name}: {fell[1]} of {fell[2]} tensors have rows that the blocks of {quant} do not "
            f"divide; libllama makes them {others}",
            file=sys.stderr,
        )
    return found


def _given(parameters: QuantizeParameters, matrix: Imatrix | None) -> list:
    """Set the importance matrix; what is returned must live as long as the parameters."""
    if not matrix:
        return []
    kept: list[bytes] = []
    entries = (ImatrixData * (len(matrix.columns) + 1))()
    for entry, (name, values) in zip(entries, matrix.columns.items(), strict=False):
        kept.append(name.encode())
        entry.name, entry.size = kept[-1], len(values)
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    parameters.imatrix = ctypes.cast(entries, ctypes.c_void_p)
    return [kept, entries]
