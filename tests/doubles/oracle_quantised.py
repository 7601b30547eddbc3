"""Quantise checkpoints by llm-compressor or by mlx-lm.  Runs in envs/llmcompressor, or in envs/mlx.

    python oracle_quantised.py llmcompressor <<< '[[CHECKPOINT, OUT, [SCHEME, ...]], ...]'
    python oracle_quantised.py mlx <<< '[[CHECKPOINT, OUT, [BITS, ...]], ...]'

Each gives OUT/SCHEME or OUT/BITS.  What a tool cannot do leaves no folder, and a line on stderr.
"""

import json
import sys
from pathlib import Path

IGNORED = ("lm_head", "re:.*embed_tokens$", "re:.*mlp\\.gate$", "re:.*block_sparse_moe\\.gate$")


def llmcompressor(checkpoint: str, place: str, scheme: str) -> None:
    from llmcompressor import model_free_ptq

    model_free_ptq(checkpoint, place, scheme=scheme, device="cpu", ignore=[*IGNORED], max_workers=1)


def mlx(checkpoint: str, place: str, bits: int) -> None:
    from mlx_lm import convert

    asked = {"q_bits": bits, "q_group_size": 64} if bits else {}
    convert(checkpoint, place, quantize=bool(bits), **asked)


tool = {"llmcompressor": llmcompressor, "mlx": mlx}[sys.argv[1]]
for source, out, asked in json.load(sys.stdin):
    Path(out).mkdir(parents=True, exist_ok=True)
    for word in asked:
        try:
            tool(source, f"{out}/{word}", word)
        except Exception as error:
            print(f"{source} as {word}: {error!r}", file=sys.stderr)
