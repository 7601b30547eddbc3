"""Check what this machine's GPU can show of the demo, and say what it could not.

    python bench/gpu.py [--json FILE] [--driver cuda|hip|local-task] [--hardware NAME] [--vllm PYTHON]
                        [--libllama FILE]
    python KIT/bench/gpu.py --kit KIT ...      on a machine that reaches nothing (bench/gpu_kit.py)

Programs are compiled for the GPU, and run by the IREE runtime's own driver: tokens, logits and
distributions are checked against transformers', on one device and on two.  vLLM's tokens, of each
quantised form too, and its own count of its KV cache are checked where --vllm names an interpreter that
has it; GGUF types where --libllama names one for this GPU (bench/gpu_llama.py).  An engine of
TensorRT-LLM in Triton is built and asked where both are installed.
"""

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.base.refused import Refused  # noqa: E402

HARDWARE = {"cuda": "sm80", "hip": "gfx942", "local-task": "cpu"}  # of models.yaml, by driver
PROGRAM = {"sm80": ".decomposed", "cpu": ".f32"}  # that it needs
LIMIT = 1200  # seconds that a check may take
DEVICES = """
import json, iree.runtime as rt
found = {}
for name in ("cuda", "hip"):
    try:
        found[name] = [one["name"] for one in rt.get_driver(name).query_available_devices()]
    except Exception as error:
        said = str(error).splitlines()[0]
        found[name] = (said.partition("UNAVAILABLE; ")[2] or said)[:64]
print(json.dumps(found))
"""
TYPES = (  # of GGUF
    "f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "q2_k", "q4_k_m", "q6_k", "iq4_xs", "iq3_s",
)  # fmt: skip


class Impossible(Exception):
    """What this machine cannot show, and why."""


def needed(hardware: str, tp: int) -> dict[str, list[str]]:
    """The options of verify_vmfb.py, and the artifacts that they name."""
    ranks = [f"demo_tp{tp}.rank{rank}.irpa" for rank in range(tp)] if tp > 1 else []
    return {
        "vmfb": [f"demo_tp{tp}{'' if hardware == 'cpu' else f'.{hardware}'}.vmfb"],
        "config": [f"demo_tp{tp}{PROGRAM.get(hardware, '')}.config.json"],
        "parameters": [f"demo_tp{tp}.irpa", *ranks] if ranks else ["demo.irpa"],
        "reference": ["demo.reference.npz"],
        "texts": ["demo.texts.json"],
        "scores": ["demo.scores.npy"],
    }


def said(command: list, **more) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True, text=True, timeout=LIMIT, check=False, **more,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(lines[-1][:300])
    return done.stdout


class Here:
    """The repository: toolchains and artifacts are built as they are needed."""

    def __init__(self):
        from ingot.driver.toolchains import toolchains

        self.build = lambda name: toolchains.build(ROOT, name) / "bin/python"

    def python(self, folder: Path) -> Path:
        return self.build("iree")

    def artifacts(self, names: list[str], folder: Path, *words: str) -> Path:
        program = Path(sys.executable).parent / "snakemake"
        targets = [f"artifacts/{name}" for name in names]
        said([program, "-s", ROOT / "Snakefile", "-q", "all", *words, "--", *targets], cwd=folder)
        return folder / "artifacts"

    def libllama(self, folder: Path, library: Path) -> dict:
        names = [f"demo.{kind}.gguf" for kind in TYPES]
        known = {"reference": "npz", "scores": "npy", "texts": "json"}
        more = {"pre_tokenizer": "llama-bpe", "context": 512}
        files = {word: f"demo.{word}.{suffix}" for word, suffix in known.items()}
        place = self.artifacts([*names, *files.values()], folder)
        paths = {word: str(place / name) for word, name in files.items()}
        cases = [
            {"gguf": str(place / name), "dtype": kind, **paths, **more}
            for name, kind in zip(names, TYPES, strict=True)
        ]  # fmt: skip
        (folder / "cases.json").write_text(json.dumps(cases))
        words = [ROOT / "bench/gpu_llama.py", "ask", library, folder / "cases.json"]
        lines = said([self.build("llamacpp"), *words]).splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return {"files": len(found), "mean_kl": {one["gguf"]: one["mean_kl"] for one in found}}

    def triton(self, folder: Path) -> dict:
        from ingot.driver.catalogue import machine

        if not shutil.which("trtllm-build") or machine.triton_server() == machine.BUNDLED:
            raise Impossible("trtllm-build, or a Triton with its backend, is not installed")
        name = "demo_tp1.triton.verified.json"
        return checks_of(self.artifacts([name], folder) / name)

    def vllm(self, folder: Path, python: Path, scheme: str = "") -> dict:
        dot = scheme and f".{scheme}"
        made = [f"demo{dot}.safetensors"] if scheme else []
        place = self.artifacts(["demo.reading.json", f"demo{dot}.reference.npz", *made], folder)
        checkpoint = place / made[0] if made else ROOT / "models/demo"
        words = [checkpoint, place / "demo.reading.json", place / f"demo{dot}.reference.npz"]
        words += ["--dtype", "bfloat16"] if scheme else []  # that its kernels compute in
        found = json.loads(said([python, ROOT / "tests/doubles/vllm_answers.py", *words]))
        if why := found.get("why"):
            raise RuntimeError(why)
        if found["cache"] != found["planned"]:
            raise RuntimeError(f"{found['cache']} tokens of KV cache, planned {found['planned']}")
        return found


class Kit:
    """A folder of wheels and artifacts: nothing is built, and nothing is fetched."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        if not (self.folder / "kit.json").is_file():
            sys.exit(
                f"{folder}: has no kit.json, expected a kit of bench/gpu_kit.py; name its folder"
            )
        self.made = json.loads((self.folder / "kit.json").read_bytes())

    def python(self, folder: Path) -> Path:
        if platform.python_version_tuple()[:2] != tuple(self.made["python"]):
            wanted = ".".join(self.made["python"])
            raise Impossible(
                f"Python {platform.python_version()}, expected {wanted} for the wheels"
            )
        place = folder / "venv"
        said([sys.executable, "-m", "venv", "--without-pip", place])  # Debian has neither by itself
        packages = next(place.glob("lib/python*/site-packages"))
        for wheel in (self.folder / "wheels").glob("*.whl"):
            with zipfile.ZipFile(wheel) as found:
                found.extractall(packages)
        return place / "bin/python"

    def artifacts(self, names: list[str], folder: Path) -> Path:
        missing = [name for name in names if not (self.folder / "artifacts" / name).exists()]
        if missing:
            raise Impossible(
                f"{missing[0]} is not in the kit, which is for {self.made['hardware']}"
            )
        return self.folder / "artifacts"

    def libllama(self, folder: Path, *others: Path) -> dict:
        raise Impossible("not in the kit")

    triton = vllm = libllama


def schemes() -> list[str]:
    """Of quantised weights; a kit's Python has no numpy, which their table imports."""
    from ingot.model.checkpoint.quantised.schemes import ALL

    return [*ALL]


def checks_of(record: Path) -> dict:
    return json.loads(record.read_bytes())["checks"]


def program(where, python: Path, driver: str, hardware: str, tp: int, folder: Path) -> dict:
    options = needed(hardware, tp)
    place = where.artifacts([name for names in options.values() for name in names], folder)
    words = [
        word for key, names in options.items() for word in (f"--{key}", *(place / n for n in names))
    ]
    record = folder / f"tp{tp}.json"
    command = [python, ROOT / "scripts/verify_vmfb.py", *words, "--device", driver]
    started = time.monotonic()
    said([*command, "--record", record])
    checks = checks_of(record)
    shown = ("prompts", "greedy_equal", "greedy_ties", "largest_logit_difference", "largest_logit")
    return {
        **{key: checks[key] for key in shown},
        "mean_kl": checks["numbers"]["mean_kl"],
        "seconds": round(time.monotonic() - started, 1),
    }


def checked(what: str, check) -> dict:
    try:
        return {"what": what, "result": "passed", **check()}
    except Impossible as reason:
        return {"what": what, "result": "not possible", "why": str(reason)}
    except (RuntimeError, ValueError, OSError, Refused, subprocess.TimeoutExpired) as fault:
        return {"what": what, "result": "FAILED", "why": str(fault)}


def measure(
    where, driver: str, hardware: str, vllm: Path | None, libllama: Path | None
) -> Iterator[dict]:
    """A row for each check, as soon as it ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python: list[Path] = []

        def devices() -> dict:
            python.append(where.python(folder))
            found = json.loads(said([python[0], "-c", DEVICES]))
            if driver == "local-task":
                return {"driver": driver}
            asked = [driver] if driver else list(found)
            seen = [one for one in asked if found[one] and isinstance(found[one], list)]
            if not seen:
                reasons = "; ".join(f"{one}: {found[one] or 'no device'}" for one in asked)
                raise Impossible(f"no GPU: {reasons}")
            return {"driver": seen[0], "devices": found[seen[0]]}

        first = checked("the runtime's devices", devices)
        yield first
        mine = first.get("driver")
        kind = hardware or HARDWARE.get(mine, "")

        def on(tp: int) -> dict:
            if not mine:
                raise Impossible("no device")
            if len(first.get("devices", range(tp))) < tp:
                raise Impossible(f"one {mine} device")
            return program(where, python[0], mine, kind, tp, folder)

        def by_vllm(scheme: str = "") -> dict:
            if not vllm:
                raise Impossible("--vllm names no interpreter")
            if scheme and mine == "local-task":
                from ingot.serving.vllm.schemes import no_kernel

                if reason := no_kernel(scheme, None):
                    raise Impossible(reason)
            return where.vllm(folder, vllm, scheme)

        def by_libllama() -> dict:
            if not libllama:
                raise Impossible("--libllama names none; `gpu_llama.py build` makes one")
            return where.libllama(folder, libllama)

        for tp in (1, 2):
            yield checked(f"demo_tp{tp} for {kind or 'a GPU'}", lambda tp=tp: on(tp))
        yield checked("vLLM beside transformers and the plan", by_vllm)
        for scheme in schemes() if vllm else ():
            yield checked(f"demo.{scheme} by vLLM", lambda scheme=scheme: by_vllm(scheme))
        yield checked("GGUF by libllama for this GPU", by_libllama)
        yield checked("TensorRT-LLM's engine in Triton", lambda: where.triton(folder))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", type=Path, help="a folder that bench/gpu_kit.py collected")
    parser.add_argument(
        "--driver", choices=list(HARDWARE), help="by default the one that finds a GPU"
    )
    parser.add_argument("--hardware", default="", help="of models.yaml, by default the driver's")
    parser.add_argument("--vllm", type=Path, help="an interpreter that has vLLM for this GPU")
    parser.add_argument("--libllama", type=Path, help="one that bench/gpu_llama.py built")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="default: gpu.json")
    asked = parser.parse_args()
    rows = []
    print("| what | result | |\n|---|---|---|", flush=True)
    if asked.libllama and not asked.libllama.is_file():
        sys.exit(f"{asked.libllama}: missing, expected a libllama.so of bench/gpu_llama.py")
    where = Kit(asked.kit) if asked.kit else Here()
    for row in measure(where, asked.driver or "", asked.hardware, asked.vllm, asked.libllama):
        more = [f"{key} {value}" for key, value in row.items() if key not in ("what", "result")]
        print(f"| {row['what']} | {row['result']} | {', '.join(more)} |", flush=True)
        rows.append(row)
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["result"] == "FAILED" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
