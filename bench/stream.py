"""`ingot stream` beside a build by snakemake of the same targets: network, disk, memory, time; then kills.

    .venv/bin/python bench/stream.py                            1.4 GB in five shards, to five targets
    .venv/bin/python bench/stream.py --gigabytes 0.02 --kills 40 [--seed 1]

    ... --ends _tp8.irpa.verified.json .q8_0.gguf               other targets

A stand-in hub on loopback serves a random model.  All files must be equal, and all keys.  For each kill
all processes of a stream get SIGKILL at a random moment; the next one must end with the same bytes, and
fetch no more than one shard again.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]
import checkpoints  # noqa: E402
from fake_hub import COMMIT, Hub  # noqa: E402
from ingot.base import digest, processes  # noqa: E402

SIZES = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": 1056,
}  # fmt: skip
SMALL = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8}
ENDS = ("_tp8.irpa", ".q8_0.gguf", ".q4_k_m.gguf", "_tp2.trtllm-ckpt", ".int8.onnx")
EACH = 0.05  # seconds between two looks at disk and memory
PATIENCE = 3600  # seconds


def model(folder: Path, gigabytes: float, shards: int, stages: int = 1) -> int:
    """ORG/NAME of a random model on the hub, and a catalogue; the bytes of its weights.

    `stages` divides its layers.
    """
    sizes = SIZES if gigabytes > 0.5 else SIZES | SMALL
    one = sizes["hidden_size"] * (2.75 * sizes["hidden_size"] + 3 * sizes["intermediate_size"])
    layers = stages * max(2 // stages, round(gigabytes * 1e9 / 2 / one / stages))
    config = checkpoints.llama_config(**sizes, num_hidden_layers=layers)
    (place := folder / "hub/org/made").mkdir(parents=True)
    checkpoints.write_json(place / "config.json", config)
    checkpoints.write_json(place / "generation_config.json", {})
    checkpoints.tokenizer_of_demo(place)
    checkpoints.write_weights(place, config, "BF16", "BF16", shards, tame=True)
    entry = {
        "hub": "org/made", "revision": COMMIT, "shards": shards, "name": "made",
        "pre_tokenizer": "llama-bpe", "architecture": "LlamaForCausalLM", "hardware": "cpu",
        "tp": [1, 2, 8],
    }  # fmt: skip
    (folder / "mine.yaml").write_text(yaml.safe_dump({"models": {"made": entry}}))
    return sum(path.stat().st_size for path in place.glob("*.safetensors"))


class Watch:
    """The most that a folder took on the disk, and that any process and all of them held, meanwhile."""

    def __init__(self, folder: Path):
        self.folder, self.disk, self.one, self.all = folder, 0, 0, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.over.wait(EACH):
            self.disk = max(self.disk, on_disk(self.folder))
            steps = [rss(pid) for pid in processes.below(os.getpid()) if step(pid)]
            self.one, self.all = max([self.one, *steps]), max(self.all, sum(steps))


def on_disk(folder: Path) -> int:
    """Bytes of all files below, each once, holes left out."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                state = Path(place, name).lstat()
                found[state.st_ino] = state.st_blocks * 512
    return sum(found.values())


def step(pid: int) -> str:
    """The file of the step that a process is, or nothing."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_text().split("\0")
    except OSError:
        return ""
    found = next((one for one in words[1:2] if one.endswith(".py") and "/scripts/" in one), "")
    return found.rpartition("/")[2]


def rss(pid: int) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
        return 1024 * int(next(one for one in lines if one.startswith("RssAnon")).split()[1])
    return 0


def command(way: str, folder: Path, hub: Hub, targets: list[str], window: float) -> dict:
    own = ["--configfile", str(folder.parent / "mine.yaml")]
    words = {
        "stream": ["ingot", "stream", "--window", str(window), *own, *targets],
        "snakemake": [
            "snakemake",
            "-s",
            str(ROOT / "Snakefile"),
            "-q",
            "all",
            *own,
            "--",
            *targets,
        ],
    }[way]
    environment = {"INGOT_STORE": str(folder / "store"), "HF_ENDPOINT": hub.url, "HF_TOKEN": ""}
    return {
        "args": [str(ROOT / ".venv/bin" / words[0]), *words[1:]],
        "cwd": folder,
        "env": os.environ | environment,
        "stderr": subprocess.PIPE,
        "start_new_session": True,
    }


def built(way: str, folder: Path, hub: Hub, targets: list[str], window: float) -> None:
    done = subprocess.run(
        **command(way, folder, hub, targets, window), timeout=PATIENCE, check=False
    )
    if done.returncode:
        sys.exit(f"{way}: it stopped:\n{done.stderr.decode()[-3000:]}")


def contents(folder: Path) -> dict[str, str]:
    """What each file of the targets holds, by its path; and the keys of all actions."""
    paths = [path for path in (folder / "artifacts").rglob("*") if path.is_file()]
    files = {
        str(path.relative_to(folder)): digest.read(path)
        for path in paths
        if ".hf/" not in str(path)
    }
    return files | {str(path): "" for path in keys(folder)}


def keys(folder: Path) -> list[Path]:
    actions = folder / "store/actions"
    return sorted(path.relative_to(actions) for path in actions.glob("*/*"))


def compared(
    place: Path, hub: Hub, weights: int, targets: list[str], window: float
) -> tuple[dict, int]:
    """Both ways, and what they took; the contents that both gave, and the bytes that the stream fetched."""
    found, sent = {}, 0
    for way in ("snakemake", "stream"):
        (folder := place / way).mkdir()
        before, began = hub.sent, time.monotonic()
        with Watch(folder) as watch:
            built(way, folder, hub, targets, window)
        seconds, sent, kept = time.monotonic() - began, hub.sent - before, on_disk(folder)
        found[way] = contents(folder)
        outputs = sum((folder / name).stat().st_size for name in found[way] if "artifacts" in name)
        print(
            f"{way:10} {seconds:7.1f} s  network {sent / weights:.4f} of the weights  disk at most "
            f"{watch.disk / 1e6:,.0f} MB, {watch.disk / outputs:.3f} of the outputs, "
            f"{kept / 1e6:,.0f} in the end  a step {watch.one / 1e6:.0f} MB, "
            f"all at once {watch.all / 1e6:.0f} MB",
            flush=True,
        )
    same = found["snakemake"] == found["stream"]
    count = sum("artifacts" in name for name in found["stream"])
    print(f"{count} files and {len(keys(place / 'stream'))} keys {'equal' if same else 'DIFFER'}")
    return (found["snakemake"] if same else {}), sent


def killed(
    place: Path, hub: Hub, wanted: dict, targets: list[str], window: float, when: float, lags: bool
) -> str:
    """Kill a stream so many seconds after its fetching began, and let another go on: what is wrong then.

    `lags`: one of its writers is stopped before.
    """
    folder = place / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    before = len(hub.requests)
    process = subprocess.Popen(**command("stream", folder, hub, targets, window))
    came = lambda: any("/large/" in one[1] for one in hub.requests[before:])  # noqa: E731
    while process.poll() is None and not came():
        time.sleep(EACH)
    if lags:
        names = [(pid, step(pid)) for pid in processes.below(process.pid)]
        writers = [pid for pid, name in names if name and name != "stream_shards.py"]
        for pid in writers[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
    time.sleep(when)
    for pid in [process.pid, *processes.below(process.pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate()
    if (
        any((folder / target).exists() for target in targets)
        and contents(folder).items() - wanted.items()
    ):
        return "what stands in place is not right"
    built("stream", folder, hub, targets, window)
    return "" if contents(folder) == wanted else "other bytes or keys"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=1.4)
    parser.add_argument("--shards", type=int, default=5)
    parser.add_argument("--window", type=float, default=128, help="MB")
    parser.add_argument("--ends", nargs="+", default=ENDS, help="of the targets' names")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8, help="in which a kill falls")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("INGOT_BENCH_DIR")) as name:
        place = Path(name)
        weights = model(place, options.gigabytes, options.shards)
        largest = max(
            path.stat().st_size for path in (place / "hub/org/made").glob("*.safetensors")
        )
        print(f"{weights / 1e6:,.0f} MB of weights in {options.shards} shards", flush=True)
        with Hub(place / "hub") as hub:
            targets = [f"artifacts/made{end}" for end in options.ends]
            wanted, sent = compared(place, hub, weights, targets, options.window)
            if not wanted:
                return 1
            return kills(place, hub, wanted, targets, sent, largest, options)


def kills(
    place: Path, hub: Hub, wanted: dict, targets: list[str], asked: int, largest: int, options
) -> int:
    """So many streams that are killed and gone on with; 1 where one was not right."""
    rng, wrong, most = random.Random(options.seed), 0, 0
    hub.faults["slow"] = options.seconds / (asked / 1e6)
    for number in range(options.kills):
        when, lags, sent = rng.uniform(0, options.seconds), rng.random() < 0.5, hub.sent
        fault = killed(place, hub, wanted, targets, options.window, when, lags)
        again = hub.sent - sent - asked
        most = max(most, again)
        wrong += bool(fault) or again > 1.05 * largest + 1e6
        if fault:
            print(f"kill {number} after {when:.2f} s: {fault}", flush=True)
    if options.kills:
        print(
            f"{options.kills - wrong} of {options.kills} kills: the same bytes in the end; fetched twice "
            f"at most {most / 1e6:.1f} MB, {most / largest:.2f} of a shard"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
