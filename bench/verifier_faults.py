"""Plant faults one at a time in every kind of artifact, and run the rule's own verification on each.

    python bench/verifier_faults.py [--json] [--kind gguf ...] [--most N [--seed N]]

`harmless` are those that change nothing a consumer reads, by the consumer's own answers: a record that
holds the very same numbers of the program, such as after a bit that no instruction reads; the very same
fields and tensors in gguf-py, JSON and tensors in the safetensors library.  What is neither is let pass,
and named.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]

import faults  # noqa: E402
import place as stand_ins  # noqa: E402
from forking import Forking  # noqa: E402
from ingot.driver.catalogue import schema  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.formats.iree.tensor_parallel import rank_files  # noqa: E402
from ingot.serving.rayserve import bundle  # noqa: E402

DEMO = ROOT / "models/demo"
TARGETS = {  # what is damaged, and the record of it
    "gguf": "demo.gguf",
    "k-quant": "demo.q4_k_m.gguf",
    "split": "demo.q6_k.split",
    "irpa": "demo.irpa",
    "ranks": "demo_tp2.irpa",
    "trtllm-ckpt": "demo_tp2.trtllm-ckpt",
    "trtllm-quantised": "demo_tp2.int4_awq.trtllm-ckpt",
    **{scheme: f"demo.{scheme}.safetensors" for scheme in faults.QUANTISED},
    "onnx": "demo.onnx",
    "int8 onnx": "demo.int8.onnx",
    "openvino": "demo.int8.openvino",
    "torchpipe": "demo.torchpipe",
    "vmfb": "demo_tp1.vmfb",
    "shortfin": "demo_tp1.shortfin",
    "triton": "demo_tp1.triton",
    "vllm-slurm": "demo_tp1.vllm-slurm",
    "rayserve": "demo_tp1.rayserve",
    "rtx": "demo.rtx",
}
BESIDE = {  # what else a kind's verification reads
    "irpa": ["demo.gguf.verified.json"],
    **{kind: ["demo.digests.json"] for kind in ("ranks", "trtllm-ckpt", "trtllm-quantised")},
    "vmfb": ["demo_tp1.f32.config.json"],
    "shortfin": ["demo_tp1.f32.config.json", "demo_tp1.vmfb"],
    "triton": ["demo_tp1.trtllm"],
    "rayserve": ["demo.int8.onnx", "demo.int8.openvino"],
    "rtx": ["demo.prefill.onnx", "demo.prefill.onnx.verified.json"],
}
VLLM = json.dumps(
    {
        "arguments": [],
        "device": "cpu",
        "dtype": "float32",
        "kv_cache_bytes": 1 << 26,
        "max_num_seqs": 4,
        "memory": 0,
    }
)
LOCK = [ROOT / "envs/vllm" / name for name in ("requirements.lock", "build.py")]
RAY = json.dumps(schema.load(ROOT)["models"]["demo"]["ray"])
HEADER = ("--name", "Ingot Demo", "--pre-tokenizer", "llama-bpe", "--license", "apache-2.0")
LIMIT = 300  # seconds that a damaged program may take
CATALOGUE = "models: {demo: {split: 3M}}"


def options(kind: str, place: Path, artifact: Path) -> tuple[str, list]:
    """The script and its options, as the rule gives them; `artifact` stands for the right one."""
    peers = [word for name, file in (
        ("reference", "reference.npz"), ("texts", "texts.json"), ("scores", "scores.npy"),
    ) for word in (f"--{name}", place / f"demo.{file}")]  # fmt: skip
    checkpoint, reading = ("--checkpoint", DEMO), ("--reading", place / "demo.reading.json")
    ranks = rank_files(artifact, 2)
    told = (*checkpoint, *reading)
    digests = ("--digests", place / "demo.digests.json", *reading)
    gguf = ("llamacpp", "verify_gguf.py", *told, *HEADER, *peers, "--gguf", artifact)
    trtllm = ("verify_trtllm.py", *digests, "--tp=2", "--trtllm-checkpoint", artifact)
    program = ("--config", place / "demo_tp1.f32.config.json", "--parameters", place / "demo.irpa")
    tokenizer = [DEMO / "tokenizer.json", DEMO / "tokenizer_config.json"]
    small = ("--tokenizer", DEMO / "config.json", DEMO / "generation_config.json", *tokenizer)
    return {
        "gguf": (*gguf, "--dtype", "f16"),
        "k-quant": (*gguf, "--dtype", "q4_k_m"),
        "split": (
            "llamacpp", "verify_split.py", *peers[:2], "--gguf", place / "demo.q6_k.gguf",
            "--split", artifact,
        ),
        "irpa": (
            "iree", "verify_irpa.py", "--gguf", place / "demo.gguf",
            "--gguf-record", place / "demo.gguf.verified.json", "--irpa", artifact,
        ),
        "ranks": (
            "iree", "verify_shards.py", *digests, "--dtype=f16", "--root", artifact, "--ranks", *ranks
        ),
        "trtllm-ckpt": ("convert", *trtllm),
        "trtllm-quantised": ("transformers", *trtllm, "--quant=int4_awq", *checkpoint, *peers[2:]),
        **{
            scheme: (
                "transformers", "verify_safetensors.py", *checkpoint, *small, *peers,
                f"--scheme={scheme}", "--safetensors", artifact,
            )
            for scheme in faults.QUANTISED
        },
        "shortfin": (
            "iree", "verify_shortfin.py", *peers[:4], *program, "--vmfb", place / "demo_tp1.vmfb",
            "--tokenizer", *tokenizer, "--lock", ROOT / "envs/iree/requirements.lock",
            "--device", "local-task", "--bundle", artifact,
        ),
        "triton": (
            "triton", "verify_triton.py", *peers[:4], "--engine", place / "demo_tp1.trtllm",
            "--tokenizer", *tokenizer, "--models",
            *(ROOT / "runtime/triton").glob("*/model.py"), "--repository", artifact,
        ),
        "vllm-slurm": (
            "vllm", "verify_vllm.py", *peers[:4], "--model=demo", "--tp=1",
            f"--settings={VLLM}", "--checkpoint", *DEMO.glob("model*"), DEMO / "config.json",
            *small, "--parts", *sorted((ROOT / "runtime/vllm").glob("*.py")),
            "--lock", *LOCK, "--bundle", artifact,
        ),
        "rayserve": (
            "vllm", "verify_rayserve.py", *peers[:4], "--model=demo", "--tp=1",
            f"--settings={VLLM}", f"--ray={RAY}", "--checkpoint", *DEMO.glob("model*"),
            DEMO / "config.json", *small, "--onnx", place / "demo.int8.onnx",
            "--openvino", place / "demo.int8.openvino",
            "--parts", *sorted((ROOT / "runtime/rayserve").glob("*.py")),
            *(ROOT / "runtime/vllm" / name for name in bundle.PARTS),
            "--lock", *LOCK, "--bundle", artifact,
        ),
        "rtx": (
            "rtx", "verify_rtx.py", "--onnx", place / "demo.prefill.onnx",
            "--onnx-record", place / "demo.prefill.onnx.verified.json", "--rtx", artifact,
        ),
        "onnx": ("onnx", "verify_onnx.py", *told, *small, *peers, "--onnx", artifact),
        "int8 onnx": (
            "onnx", "verify_onnx.py", *told, *small, *peers, "--dtype=int8", "--onnx", artifact
        ),
        "openvino": (
            "openvino", "verify_openvino.py", *checkpoint, *small, *peers, "--dtype=int8",
            "--openvino", artifact,
        ),
        "torchpipe": (
            "onnx", "verify_torchpipe.py", *checkpoint, *small, *peers[:2], "--torchpipe", artifact
        ),
        "vmfb": (
            "iree", "verify_vmfb.py", *peers, *program, "--vmfb", artifact, "--device", "local-task"
        ),
    }[kind]  # fmt: skip


interpreters: dict[str, Forking] = {}
beginning = threading.Lock()


def interpreter(toolchain: str) -> Forking:
    """That of a toolchain, which has imported what is slow to import; maybe one that tests have begun."""
    with beginning:
        if toolchain not in interpreters:
            shared = os.environ.get("INTERPRETERS")
            place = Path(shared, f"python-{toolchain}") if shared else None
            interpreters[toolchain] = Forking(toolchains.python(ROOT, toolchain), place=place)
        return interpreters[toolchain]


def verify(kind: str, place: Path, artifact: Path) -> subprocess.CompletedProcess:
    toolchain, script, *words = options(kind, place, artifact)
    record = artifact.with_name("record.json")
    record.unlink(missing_ok=True)
    path = ROOT / "scripts" / script
    return interpreter(toolchain).run(path, *words, "--record", record, seconds=LIMIT)


def copied(kind: str, artifact: Path, folder: Path) -> Path:
    copy = folder / artifact.name
    if artifact.is_dir():
        shutil.copytree(artifact, copy)
    else:
        shutil.copy(artifact, copy)
    if kind == "ranks":
        for path in rank_files(artifact, 2):
            shutil.copy(path, folder / path.name)
    return copy


def planted(kind: str, artifact: Path):
    """Every fault of a kind; of a set of ranks those of its rank files too."""
    yield from faults.of(kind, artifact)
    if kind == "ranks":
        for path in rank_files(artifact, 2):
            for name, plant in faults.of("irpa", path):
                if ": a byte" in name or "swapped" in name or "by bytes" in name:
                    yield (
                        f"{path.name} {name}",
                        lambda copy, n=path.name, p=plant: p(copy.with_name(n)),
                    )

        def exchanged(copy: Path) -> None:
            first, last = rank_files(copy, 2)
            first.rename(copy.with_name("x"))
            last.rename(first)
            copy.with_name("x").rename(last)

        yield "ranks 0 and 1 swapped", exchanged


def judged(kind: str, place: Path, artifact: Path, name: str, plant) -> dict:
    with tempfile.TemporaryDirectory(dir=place) as folder:
        copy = copied(kind, artifact, Path(folder))
        plant(copy)
        done = verify(kind, place, copy)
        record = copy.with_name("record.json")
        numbers = answers(kind, copy, record) if record.exists() else None
    lines = done.stderr.strip().splitlines()
    said = lines[-1] if lines else f"exit status {done.returncode}"
    caught = numbers is None and done.returncode == 1
    ended = numbers is None and done.returncode not in (
        0,
        1,
    )  # by a signal: of a crash, or of the limit
    return {"fault": name, "caught": caught, "ended": ended, "numbers": numbers, "said": said,
            "traceback": "Traceback" in done.stderr}  # fmt: skip


READ = """
import hashlib, json, sys
from pathlib import Path
import safetensors
folder = Path(sys.argv[1])
found = {"config.json": json.loads((folder / "config.json").read_bytes())}
for path in folder.glob("*.safetensors"):
    for name, said in safetensors.deserialize(path.read_bytes()):
        data = hashlib.sha256(said["data"]).hexdigest()
        found[f"{path.name} {name}"] = [said["dtype"], said["shape"], data]
print(json.dumps(found, sort_keys=True))
"""


SCHEME = """
from compressed_tensors.quantization import QuantizationConfig
said = QuantizationConfig.model_validate(found["config.json"].pop("quantization_config"))
found["quantization_config"] = said.model_dump(mode="json", exclude={"version"})
print(json.dumps(found, sort_keys=True))
"""


GGUF = """
import hashlib, sys
from gguf import GGUFReader
reader = GGUFReader(sys.argv[1])
for name, field in sorted(reader.fields.items()):
    print(name, [kind.name for kind in field.types], field.contents())
for one in reader.tensors:
    print(one.name, one.tensor_type, list(one.shape), hashlib.sha256(one.data.tobytes()).hexdigest())
"""


def answers(kind: str, artifact: Path, record: Path) -> object:
    """What a consumer makes of an artifact that was verified; nothing of kinds whose every byte counts."""
    if kind == "vmfb":  # it was run: its record says what came of it
        return json.loads(record.read_text())["checks"]
    if kind in ("gguf", "k-quant"):
        command = [str(toolchains.python(ROOT, "convert")), "-c", GGUF, str(artifact)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    if kind in faults.QUANTISED:
        python = str(toolchains.python(ROOT, "transformers"))
        script = READ.replace("print(json.dumps(found, sort_keys=True))", SCHEME)
        return subprocess.run(
            [python, "-c", script, str(artifact)], capture_output=True, text=True, check=False
        ).stdout
    if kind.startswith("trtllm"):
        command = [str(toolchains.python(ROOT, "transformers")), "-c", READ, str(artifact)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return ""


def measure(kind: str, place: Path, most: int | None, seed: int | None, jobs: int) -> dict:
    artifact = place / TARGETS[kind]
    whole = copied_whole(kind, artifact, place)
    done = verify(kind, place, whole)
    if done.returncode:
        raise SystemExit(f"{artifact}: the right one is refused: {done.stderr[-300:]}")
    asked = list(planted(kind, artifact))
    if most and len(asked) > most:
        spread = [asked[n * len(asked) // most] for n in range(most)]
        asked = spread if seed is None else random.Random(seed).sample(asked, most)
    with ThreadPoolExecutor(jobs) as pool:
        rows = list(pool.map(lambda one: judged(kind, place, artifact, *one), asked))
    while interpreters:
        interpreters.popitem()[1].close()
    right = answers(kind, whole, whole.with_name("record.json"))
    harmless = [row for row in rows if right and row["numbers"] == right]
    passed = [row for row in rows if not row["caught"] and row not in harmless]
    found = {
        "faults": len(rows),
        "caught": sum(row["caught"] for row in rows),
        "harmless": len(harmless),
        "ended": sum(row["ended"] for row in rows),
        "tracebacks": sum(row["traceback"] for row in rows),
    }
    for row in passed:
        how = f"ended it ({row['said']})" if row["ended"] else "LET PASS"
        print(f"{kind}: {how}: {row['fault']}", file=sys.stderr)
    for row in rows:
        if row["traceback"]:
            print(f"{kind}: traceback: {row['fault']}: {row['said'][:200]}", file=sys.stderr)
    print(f"{kind}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def copied_whole(kind: str, artifact: Path, place: Path) -> Path:
    folder = place / f"whole-{kind}"
    folder.mkdir()
    return copied(kind, artifact, folder)


def build(folder: Path, kinds: list[str]) -> Path:
    (folder / "mine.yaml").write_text(CATALOGUE)
    needed = [
        "demo.reading.json",
        "demo.reference.npz",
        "demo.texts.json",
        "demo.scores.npy",
        "demo.gguf",
        "demo.irpa",
        "demo.q6_k.gguf",
    ]
    needed += [name for kind in kinds for name in BESIDE.get(kind, [])]
    targets = {f"artifacts/{name}" for name in [*needed, *(TARGETS[kind] for kind in kinds)]}
    program = Path(sys.executable).parent / "snakemake"
    words = [program, "-s", ROOT / "Snakefile", "-q", "all", "--configfile", "mine.yaml", "--"]
    words += sorted(targets)
    subprocess.run([str(word) for word in words], cwd=folder, check=True, stdout=sys.stderr)
    if "ranks" in kinds:
        for rank in range(2):
            assert (folder / f"artifacts/demo_tp2.rank{rank}.irpa").exists()
    return folder / "artifacts"


def gpu_machine(folder: Path) -> None:
    """trtllm-build and NVIDIA's backend of Triton need a GPU: stand-ins (tests/doubles/README.md)."""
    tools = stand_ins.toolchain(folder / "toolchain")
    backends = stand_ins.backends(folder / "backends", toolchains.python(ROOT, "triton"))
    os.environ |= {"PATH": f"{tools}:{os.environ['PATH']}", "INGOT_TRITON_BACKENDS": str(backends)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    parser.add_argument("--kind", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--most", type=int, help="faults per kind at most, spread over all")
    parser.add_argument("--seed", type=int, help="choose those by chance instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="verifications at once")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if "triton" in asked.kind:
            gpu_machine(Path(folder))
        place = build(Path(folder), asked.kind)
        found = {
            kind: measure(kind, place, asked.most, asked.seed, asked.jobs) for kind in asked.kind
        }
    if not asked.json:
        print("| kind | faults | caught | harmless |\n|---|---:|---:|---:|")
        for kind, row in found.items():
            print(f"| {kind} | {row['faults']} | {row['caught']} | {row['harmless']} |")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
