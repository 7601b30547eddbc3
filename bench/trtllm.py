"""Time and memory of TensorRT-LLM checkpoints at tp8 beside cp and ModelOpt.

    python bench/trtllm.py      a random Llama of ~1.5 GB, and one of a third of that

Measured as by bench/convert.py; every tensor is compared with ModelOpt's, bit for bit.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

from convert import LAYERS, ROOT, copy, make_both, measure

sys.path[:0] = [
    str(ROOT / "tests"),
    str(ROOT / "tests/steps"),
    str(ROOT / "tests/doubles"),
    str(ROOT / "scripts"),
]
from test_trtllm import ORACLE, differing  # noqa: E402

from ingot.driver.toolchains import toolchains  # noqa: E402

TP = 8
LIMIT, RSS_LIMIT, FASTER = 2.5, 100, 4  # times cp, MB, times faster than ModelOpt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of the large one ({LAYERS})")
    layers = parser.parse_args().layers
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("INGOT_BENCH_DIR")))
    try:
        sys.exit(0 if run(folder, layers) else 1)
    finally:
        shutil.rmtree(folder)


def run(folder, layers):
    python = toolchains.python(ROOT, "convert")
    small, large = make_both(folder, layers)
    size = sum(path.stat().st_size for path in large.glob("*.safetensors"))
    print(
        f"checkpoint {size / 1e9:.2f} GB of bfloat16, tp{TP}; limits: {LIMIT} x cp, {RSS_LIMIT} MB"
    )

    def ours(source, out, dtype):
        script = ROOT / "scripts/safetensors_to_trtllm.py"
        words = ["--checkpoint", source, "--dtype", dtype, "--tp", TP]
        return [python, script, *words, "--trtllm-checkpoint", folder / out]

    their = folder / "their"
    asked = json.dumps([[str(large), TP, 1, str(their)]])
    oracle = [toolchains.python(ROOT, "modelopt"), "-c", ORACLE, ROOT / "scripts", asked]
    peer, peer_rss = measure(oracle, folder, 1)
    print(f"ModelOpt 0.47.0, f16: {peer:.1f} s, {peer_rss:.0f} MB")
    kept = []
    for dtype in ("f16", "bf16"):
        shutil.rmtree(folder / "store", ignore_errors=True)
        first, _ = measure(ours(large, "out", dtype), folder, 1)
        before = copy(large, folder)
        seconds, rss = measure(ours(large, "out", dtype), folder)
        base = min(before, copy(large, folder))
        _, rss_small = measure(ours(small, "less", dtype), folder, 1)
        good = seconds <= LIMIT * base and rss <= RSS_LIMIT and rss <= 1.1 * rss_small
        good &= dtype != "f16" or peer >= FASTER * seconds
        kept.append(good)
        print(
            f"{dtype:5}{seconds:6.2f} s  {seconds / base:5.2f} x cp ({base:.2f} s)  {rss:.0f} MB, "
            f"at a third {rss_small:.0f} MB  {peer / seconds:.1f} x faster  first {first:.2f} s"
            f"{'' if good else '   OVER A LIMIT'}",
            flush=True,
        )
        if dtype == "f16":
            for rank in range(TP):
                name = f"rank{rank}.safetensors"
                if wrong := differing(folder / "out" / name, their / name):
                    sys.exit(f"{name}: {wrong[0]} is not ModelOpt's")
            print(f"     all tensors of {TP} ranks are ModelOpt's, bit for bit")
    return all(kept)


if __name__ == "__main__":
    main()
