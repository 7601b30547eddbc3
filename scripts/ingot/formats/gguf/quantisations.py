"""One row per quantisation that libllama makes: all that Ingot knows of it.

`quant` of the catalogue's schema, the targets' variants, sizes before a build and the limits of a record
are read from here.  Sources: enum llama_ftype; llama.cpp's tables of Llama 3 8B: bits per weight in
tools/quantize/README.md, divergence in tools/perplexity/README.md (by an importance matrix where it must).
"""

from dataclasses import dataclass
from pathlib import Path

from ingot.base.refused import Refused


@dataclass(frozen=True)
class Row:
    ftype: int  # of enum llama_ftype
    bits: float  # per weight, of a whole file
    mean_kl: float  # nats per token, from the model in float16
    by_imatrix: bool = False  # is it made only with an importance matrix?


ROWS = {
    "q4_0": Row(2, 4.6, 0.071940),
    "q4_1": Row(3, 5.1, 0.071683),
    "q5_0": Row(8, 5.6, 0.022239),
    "q5_1": Row(9, 6.0, 0.018045),
    "q2_k": Row(10, 3.2, 0.445132),
    "q3_k_s": Row(11, 3.6, 0.228217),
    "q3_k_m": Row(12, 4.0, 0.101913),
    "q3_k_l": Row(13, 4.3, 0.087176),
    "q4_k_s": Row(14, 4.7, 0.043136),
    "q4_k_m": Row(15, 4.9, 0.031273),
    "q5_k_s": Row(16, 5.6, 0.016595),
    "q5_k_m": Row(17, 5.7, 0.010762),
    "q6_k": Row(18, 6.6, 0.005452),
    "iq2_xxs": Row(19, 2.4, 0.812022, by_imatrix=True),
    "iq2_xs": Row(20, 2.6, 0.546290, by_imatrix=True),
    "iq3_xs": Row(22, 3.5, 0.138693, by_imatrix=True),
    "iq3_xxs": Row(23, 3.3, 0.183625, by_imatrix=True),
    "iq1_s": Row(24, 2.0, 2.254554, by_imatrix=True),
    "iq4_nl": Row(25, 4.7, 0.035742),
    "iq3_s": Row(26, 3.7, 0.111278),
    "iq3_m": Row(27, 3.8, 0.102534),
    "iq2_s": Row(28, 2.7, 0.439197, by_imatrix=True),
    "iq2_m": Row(29, 2.9, 0.325989, by_imatrix=True),
    "iq4_xs": Row(30, 4.4, 0.036334),
    "iq1_m": Row(31, 2.2, 1.393084, by_imatrix=True),
}

PACKED = "its experts are MXFP4 already, expected none of libllama's types: ask for bf16 or q8_0"


def stop_on_wrong_outputs(gguf: Path | None, folder: Path | None, quant: list[str]) -> None:
    """Refused: neither a file nor a folder to write, or both; several types for one file."""
    if (gguf is None) == (folder is None):
        raise Refused("--gguf and --folder: expected one of them, a file or a folder to write")
    if gguf and len(quant) > 1:
        raise Refused(f"--gguf: {len(quant)} types, expected one per file; give --folder")
