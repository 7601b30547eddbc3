"""Programs of models that are not here: Llama 3.1 8B, 70B and 405B from a hub that holds no weight.

    python bench/weightless.py                    all three, each step's time, memory and bytes
    python bench/weightless.py llama405b_tp8      one of them
    python bench/weightless.py --curve            export time by depth, beside upstream's way

A stand-in hub on loopback serves the real shapes; sparse files stand for the weights, and a request
for one fails the run.  Limits are those that the project promises on 2 cores and 24 GB.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]
import checkpoints  # noqa: E402
from fake_hub import Hub  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402
from ingot.store.records import Store  # noqa: E402

COMMIT = "0" * 40
LIMITS = {"llama8b_tp1": 180, "llama70b_tp8": 900, "llama405b_tp8": 2100}  # seconds, in all
MEMORY, FETCHED = 8e9, 30e6  # bytes
CURVE = (8, 32, 126)  # blocks of the 405B's dimensions
WHOLE = (8,)  # upstream's way takes 22 s a block and more


def hub_of(folder: Path, layers: int | None) -> Path:
    """ORG/NAME@COMMIT of each model, and a catalogue that names them."""
    catalogue = yaml.safe_load((ROOT / "models.yaml").read_text())
    mine = {}
    for name in checkpoints.PUBLIC:
        entry = catalogue["models"][name]
        entry["revision"] = COMMIT
        if layers:
            entry["dimensions"]["layers"] = layers
        place = folder / "hub" / f"{entry['hub']}@{COMMIT}"
        checkpoints.weightless(place, name, entry["shards"], layers)
        mine[name] = entry
    (folder / "mine.yaml").write_text(yaml.safe_dump({"models": mine}))
    return folder / "hub"


def build(target: str, folder: Path) -> dict:
    """Build artifacts/TARGET.vmfb in an empty store; what each step took."""
    store = folder / f"store-{target}"
    (work := folder / target).mkdir()
    with Hub(folder / "hub") as hub:
        command = [ROOT / ".venv/bin/snakemake", "-s", ROOT / "Snakefile", "--cores", "1"]
        command += ["--quiet", "rules", "host", "--configfile", folder / "mine.yaml"]
        start = time.monotonic()
        subprocess.run(
            [str(word) for word in (*command, "--", f"artifacts/{target}.vmfb")],
            cwd=work,
            env={
                **os.environ, "INGOT_STORE": str(store), "HF_ENDPOINT": hub.url, "HF_TOKEN": "none",
            },
            check=True,
        )  # fmt: skip
        seconds, sent = time.monotonic() - start, hub.sent
        weights = [r for r in hub.requests if r[1].endswith(".safetensors")]
    steps = {
        record.rule: Store(store).config(record)["cost"]
        for record in Store(store).records()
        if not record.rule.startswith("fetch")
    }
    return {
        "target": target, "seconds": seconds, "fetched": sent, "weights_asked_for": len(weights),
        "steps": steps, "vmfb": (work / f"artifacts/{target}.vmfb").stat().st_size,
    }  # fmt: skip


def show(found: dict) -> bool:
    target, limit = found["target"], LIMITS[found["target"]]
    most = max(step["peak_rss_mb"] for step in found["steps"].values()) * 1e6
    for rule, step in found["steps"].items():
        print(
            f"{target:16}{rule:14}{step['seconds']:>8.0f} s{step['peak_rss_mb'] / 1e3:>8.2f} GB"
            f"{step['bytes'] / 1e6:>9.1f} MB"
        )
    ratio = found["seconds"] / limit
    print(
        f"{target:16}{'in all':14}{found['seconds']:>8.0f} s{most / 1e9:>8.2f} GB"
        f"{found['fetched'] / 1e6:>9.3f} MB fetched, {found['weights_asked_for']} weights asked for; "
        f"{ratio:.2f} of its limit of {limit} s"
    )
    return ratio <= 1 and most <= MEMORY and found["fetched"] <= FETCHED


def curve(folder: Path) -> None:
    """Seconds of export at some depths: stitched, and traced whole as upstream does."""
    python = toolchains.build(ROOT, "iree") / "bin/python"
    print(f"{'blocks':>8}{'stitched':>12}{'whole':>12}")
    for layers in sorted({*CURVE, *WHOLE}):
        config = {**checkpoints.public_config("llama405b"), "num_hidden_layers": layers}
        (folder / "config.json").write_text(json.dumps(config))
        row = f"{layers:>8}"
        for way, wanted in (([], True), (["--whole"], layers in WHOLE)):
            if not wanted:
                row += f"{'-':>12}"
                continue
            start = time.monotonic()
            words = ["--config", folder / "config.json", "--tp", 8, "--mlir", folder / "m.mlir"]
            words += ["--server-config", folder / "m.json", *way]
            command = [python, ROOT / "scripts/export_mlir.py", *words]
            flags = ["--", "--bs-prefill=4", "--bs-decode=4"]
            subprocess.run(
                [str(word) for word in (*command, *flags)], check=True, capture_output=True
            )
            row += f"{time.monotonic() - start:>10.0f} s"
        print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(LIMITS)} (all)")
    parser.add_argument("--curve", action="store_true", help="export time by depth")
    parser.add_argument("--layers", type=int, help="of each model (all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("INGOT_BENCH")) as name:
        if options.curve:
            curve(Path(name))
            return
        hub_of(Path(name), options.layers)
        well = [show(build(target, Path(name))) for target in options.targets or LIMITS]
    sys.exit(not all(well))


if __name__ == "__main__":
    main()
