"""Quantise a float GGUF file to k-quants by libllama.  Runs in envs/llamacpp."""

import argparse
import ctypes
import os
import sys
from pathlib import Path

from ingot.entry import run
from ingot.files.atomic import replacing
from ingot.refused import Refused

FTYPE = {"q4_k_s": 14, "q4_k_m": 15, "q5_k_s": 16, "q5_k_m": 17, "q6_k": 18}  # enum llama_ftype


class Parameters(ctypes.Structure):
    """llama_model_quantize_params of llama.h at the commit in envs/llamacpp/build.py."""

    _fields_ = (
        ("nthread", ctypes.c_int32),
        ("ftype", ctypes.c_int),
        ("output_tensor_type", ctypes.c_int),
        ("token_embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.c_void_p),
        ("kv_overrides", ctypes.c_void_p),
        ("tt_overrides", ctypes.c_void_p),
        ("prune_layers", ctypes.c_void_p),
        ("max_buf_size", ctypes.c_size_t),
    )


def quantize_gguf(source: Path, gguf: Path, quant: str) -> None:
    library = load()
    log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(to_stdout)
    library.llama_log_set(log, None)
    parameters = library.llama_model_quantize_default_params()
    parameters.nthread = os.cpu_count() or 1
    parameters.ftype = FTYPE[quant]
    with replacing(gguf) as partial:
        status = library.llama_model_quantize(
            os.fsencode(source), os.fsencode(partial), ctypes.byref(parameters)
        )
        if status:
            raise Refused(f"{source}: libllama could not quantise it to {quant}; its log says why")


def load() -> ctypes.CDLL:
    folder = Path(sys.prefix) / "llama.cpp/lib"
    for name in ("libggml-base.so", "libggml-cpu.so", "libggml.so"):
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(str(folder / "libllama.so"))
    library.llama_model_quantize_default_params.restype = Parameters
    library.llama_model_quantize.restype = ctypes.c_uint32
    return library


def to_stdout(_level: int, text: bytes, _data) -> None:
    sys.stdout.write(text.decode(errors="replace"))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a GGUF file of floats")
    parser.add_argument("--gguf", type=Path, required=True, help="the file to write")
    parser.add_argument(
        "--quant", choices=sorted(FTYPE), required=True, help="the k-quant to write"
    )
    quantize_gguf(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
