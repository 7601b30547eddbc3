"""Time and memory of the converters beside cp, llama.cpp's converter and sharktank's tool.

    make bench                                     a random Llama of ~1.5 GB, and one of a third of that
    .venv/bin/python bench/convert.py --only q8_0  one row of it

Each command is a whole process writing to the page cache; wall times are the best of three (of one
for the slow peers), memory is the kernel's ru_maxrss.  Ratios are to `cp` of the same bytes in the
same run; the limits are those that the project promises.  Each output is hashed as it is written.
The input's digest is on record, as it is after a fetch; `first` is a conversion that takes it as well,
as of a local checkpoint never seen before.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]
import checkpoints  # noqa: E402
import families  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.model.tensors import few_bits  # noqa: E402

LIMITS = {"bf16": 3, "f16": 3, "q8_0": 7, "irpa": 2, "tp8": 2.5, "tp8 hf": 3}  # times cp
FASTER = {"irpa": 1, "tp8": 8, "tp8 hf": 8}  # than the peer
RSS_LIMIT = 150  # MB
PEER_LIMIT = 4  # times faster than llama.cpp's converter
LAYERS = 13  # of the large checkpoint
GGUF = ["bf16", "f16", "q8_0"]
TP = [2, 4, 8]


def run_once(command, folder, said=""):
    """Wall seconds and the kernel's rusage of a command that is `said` this; a failure ends the bench."""
    (folder / "said").write_text(said)
    start = time.perf_counter()
    with (folder / "log").open("w") as log, (folder / "said").open() as stdin:
        process = subprocess.Popen(
            [*map(str, command)], cwd=folder, stdin=stdin, stdout=log, stderr=log,
            env={**os.environ, "INGOT_STORE": str(folder / "store")},
        )  # fmt: skip
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        sys.exit(f"{' '.join(map(str, command[:3]))}: {(folder / 'log').read_text()[-800:]}")
    return seconds, usage


def measure(command, folder, repeats=3, said=""):
    """Best wall seconds, and the largest resident set in MB, of a command run several times."""
    return measure_all(command, folder, repeats, said)[:2]


def measure_all(command, folder, repeats=3, said=""):
    """The same, and the least CPU seconds."""
    runs = [run_once(command, folder, said) for _ in range(repeats)]
    used = min(usage.ru_utime + usage.ru_stime for _, usage in runs)
    return min(seconds for seconds, _ in runs), max(one.ru_maxrss for _, one in runs) / 1e3, used


def make_checkpoint(folder, layers, config=None):
    """A Llama 3.1 of hidden size 2048: 0.12 GB a layer in bfloat16, seeded; or of another `config`."""
    config = config or checkpoints.llama_config(
        hidden_size=2048, intermediate_size=7168, num_hidden_layers=layers,
        num_attention_heads=32, num_key_value_heads=8, rope_scaling=checkpoints.LLAMA3_ROPE,
    )  # fmt: skip
    folder.mkdir()
    checkpoints.write_json(folder / "config.json", config)
    checkpoints.tokenizer_of_demo(folder)
    rng = np.random.default_rng(0)
    noise = (rng.standard_normal(1 << 22, np.float32) * np.float32(0.05)).view(np.uint32) >> 16
    noise = noise.astype("<u2")
    codes = few_bits.e4m3(rng.standard_normal(1 << 20, np.float32) * np.float32(100))
    weight_map, shard, number = {}, {}, 1
    kinds = {name: (shape, None) for name, shape in checkpoints.shapes(config).items()}
    kinds = families.quantised(config, kinds | families.more(config))

    def flush():
        nonlocal shard, number
        part = f"model-{number:05d}-of-99999.safetensors"
        checkpoints.write_shard(folder / part, shard)
        weight_map.update(dict.fromkeys(shard, part))
        shard, number = {}, number + 1

    for name, (shape, only) in sorted(kinds.items()):
        if only == "U8":  # MXFP4's codes, and scales of 2^-6 to 2^-4
            most, least = (3, 121) if name.endswith("_scales") else (256, 0)
            values = rng.integers(least, least + most, int(np.prod(shape)), np.uint8)
            shard[name] = ("U8", shape, values.tobytes())
            continue
        if only == "F8_E4M3":  # of weights as others are, whose largest is about 448: few are tiny
            values = np.resize(np.roll(codes, len(shard)), int(np.prod(shape)))
            shard[name] = (only, shape, values.tobytes())
            continue
        if only == "F32":
            values = rng.uniform(2e-4, 8e-4, shape).astype(np.float32)
            shard[name] = (only, shape, values.tobytes())
            continue
        values = np.resize(np.roll(noise, len(weight_map) + len(shard)), int(np.prod(shape)))
        shard[name] = ("BF16", shape, values.tobytes())
        if sum(len(raw) for _, _, raw in shard.values()) > 500_000_000:
            flush()
    flush()
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def make_apart(folder, layers, config=None):
    """make_checkpoint in another process: a child's ru_maxrss starts at the size of the parent that
    forked it."""
    make = multiprocessing.get_context("spawn").Process(
        target=make_checkpoint, args=(folder, layers, config)
    )
    make.start()
    make.join()
    if make.exitcode:
        sys.exit(f"{folder}: the checkpoint was not made; is the disk full?")


def make_both(folder, layers=LAYERS):
    """A checkpoint of ~1.5 GB and one of a third of that: small, large."""
    small, large = folder / "small", folder / "large"
    for place, depth in ((small, max(1, layers // 3)), (large, layers)):
        make_apart(place, depth)
    return small, large


def copy(source, folder):
    files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    (folder / "copy").mkdir(exist_ok=True)
    seconds, _ = measure(["cp", "--reflink=never", *files, folder / "copy"], folder)
    shutil.rmtree(folder / "copy")
    return seconds


def theirs_sharded(iree, folder, tp):
    tool = [iree, "-m", "sharktank.examples.sharding.shard_llm_dataset"]
    files = ["--irpa-file", folder / "m.irpa", "--output-irpa-file", folder / "theirs.irpa"]
    return [*tool, *files, "--tensor-parallelism-size", tp]


def compare_sets(folder, tp):
    for name in ("", *(f".rank{rank}" for rank in range(tp))):
        pair = [folder / f"{whose}{name}.irpa" for whose in ("ours", "theirs")]
        if subprocess.run(["cmp", *pair]).returncode:
            sys.exit(f"tp{tp}: {pair[0].name} is not sharktank's")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of the large one ({LAYERS})")
    parser.add_argument("--only", nargs="+", choices=GGUF, default=GGUF, help="dtypes of GGUF")
    parser.add_argument(
        "--tp",
        nargs="*",
        type=int,
        choices=TP,
        default=TP,
        help="of the sets, of which tp8 has rows; none: no IRPA",
    )
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=os.environ.get("INGOT_BENCH_DIR")))
    try:
        run(folder, options)
    finally:
        shutil.rmtree(folder)


def run(folder, options):
    convert = toolchains.python(ROOT, "convert")
    iree = toolchains.python(ROOT, "iree")
    llama_cpp = toolchains.place(ROOT, "llamacpp") / "llama.cpp"
    small, large = make_both(folder, options.layers)
    size = sum(path.stat().st_size for path in large.glob("*.safetensors"))
    cp = copy(large, folder)
    print(f"checkpoint {size / 1e9:.2f} GB, cp {cp:.2f} s ({size / cp / 1e9:.1f} GB/s)\n")
    words = ("wall", "/ cp", "limit", "RSS", "a third", "limit", "peer", "faster")
    print(
        " " * 8 + "".join(f"{w:>{n}}" for w, n in zip(words, (8, 7, 7, 8, 9, 7, 9, 8), strict=True))
    )
    kept = []

    def row(word, seconds, base, rss, rss_small, peer, more=""):
        good = seconds <= LIMITS[word] * base and rss <= RSS_LIMIT and rss <= 1.1 * rss_small
        good &= peer >= FASTER.get(word, PEER_LIMIT) * seconds
        kept.append(good)
        print(
            f"{word:8}{seconds:7.2f}s{seconds / base:7.2f}{LIMITS[word]:7}{rss:6.0f}MB"
            f"{rss_small:7.0f}MB{RSS_LIMIT:7}{peer:8.1f}s{peer / seconds:7.1f}x"
            f"{more}{'' if good else '   OVER A LIMIT'}",
            flush=True,
        )

    for dtype in options.only:

        def ours(source, out, dtype=dtype):
            return [
                convert, ROOT / "scripts/safetensors_to_gguf.py", "--checkpoint", source,
                "--gguf", folder / out, "--dtype", dtype, "--name", "Bench", "--pre-tokenizer", "llama-bpe",
            ]  # fmt: skip

        base = copy(large, folder)
        shutil.rmtree(folder / "store", ignore_errors=True)
        first, _ = measure(ours(large, "m.gguf"), folder, 1)
        seconds, rss, used = measure_all(ours(large, "m.gguf"), folder)
        _, rss_small = measure(ours(small, "s.gguf"), folder, 1)
        oracle = [iree, ROOT / "tests/doubles/oracle.py", llama_cpp, "Bench", dtype]
        said = json.dumps([[str(large), str(folder), "llama-bpe"]])
        peer, _, their = measure_all(oracle, folder, 1, said)
        same = subprocess.run(["cmp", folder / "m.gguf", folder / f"{dtype}.gguf"]).returncode == 0
        more = f"   first {first:.2f}s   CPU {used:.2f}s {their / used:.1f}x"
        row(dtype, seconds, base, rss, rss_small, peer, more)
        if not same:
            sys.exit(f"{dtype}: not the bytes of llama.cpp's converter")
        (folder / f"{dtype}.gguf").unlink()
        if dtype == "f16":
            (folder / "m.gguf").rename(folder / "f16.gguf")
            (folder / "s.gguf").rename(folder / "f16-small.gguf")
    peers, said = "llama.cpp's converter", "All bytes equal theirs"
    if "f16" in options.only and options.tp:
        of_f16(folder, large, small, options.tp, row)
        peers += ", sharktank's dump_gguf and shard_llm_dataset (3.6.0)"
        said += f", those of the sets at tp {', '.join(map(str, options.tp))}"
    print(f"\npeers: {peers}.\n{said}.")
    sys.exit(0 if all(kept) else 1)


def of_f16(folder, large, small, sets, row):
    """The rows of what is made of the GGUF in f16: an archive, and sets of ranks."""
    convert, iree = (toolchains.python(ROOT, name) for name in ("convert", "iree"))

    def rewrite(source, out):
        script = ROOT / "scripts/gguf_to_irpa.py"
        return [convert, script, "--gguf", folder / source, "--irpa", folder / out]

    base = copy(folder / "f16.gguf", folder)
    seconds, rss = measure(rewrite("f16.gguf", "m.irpa"), folder)
    theirs = [iree, "-m", "sharktank.tools.dump_gguf", "--gguf-file", folder / "f16.gguf"]
    peer, _ = measure([*theirs, "--output-irpa", folder / "p.irpa"], folder, 1)
    if subprocess.run(["cmp", folder / "m.irpa", folder / "p.irpa"]).returncode:
        sys.exit("irpa: not the bytes of sharktank's dump_gguf")
    _, rss_small = measure(rewrite("f16-small.gguf", "small.irpa"), folder, 1)
    row("irpa", seconds, base, rss, rss_small, peer)
    (folder / "f16.gguf").unlink()

    (folder / "p.irpa").unlink()
    for tp in sets:
        peer, peer_rss = measure(theirs_sharded(iree, folder, tp), folder, 1)
        for word, source, less in (
            ("", ("--irpa", folder / "m.irpa"), ("--irpa", folder / "small.irpa")),
            (" hf", ("--checkpoint", large), ("--checkpoint", small)),
        ):
            script = [convert, ROOT / "scripts/shard_irpa.py", "--tp", tp, "--root"]
            base = copy(folder / "m.irpa", folder)
            seconds, rss = measure([*script, folder / "ours.irpa", *source], folder)
            compare_sets(folder, tp)
            _, rss_small = measure([*script, folder / "ours.irpa", *less], folder, 1)
            if tp == 8:
                row(f"tp8{word}", seconds, base, rss, rss_small, peer)
        for file in folder.glob("theirs*.irpa"):
            file.unlink()
    print(f"sharktank's shard_llm_dataset at tp{tp}: {peer_rss:.0f} MB")


if __name__ == "__main__":
    main()
