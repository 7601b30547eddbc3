"""Bundles for vLLM of the demo, and a stand-in's installation beside which they start in a second."""

import json
import sys
import urllib.request
from pathlib import Path

import numpy as np

from conftest import ROOT
from ingot.base import sealed
from ingot.serving.vllm import bundle as bundle_of

DEMO, LOCK = ROOT / "models/demo", ROOT / "envs/vllm/requirements.lock"
SETTINGS = {
    "device": "cpu", "memory": 0, "dtype": "float32", "kv_cache_bytes": 1 << 26, "max_num_seqs": 4,
    "arguments": [],
}  # fmt: skip


def write(
    folder: Path, reference: Path | None, tp: int = 1, model: str = "demo", **settings
) -> Path:
    """What artifacts/<model>_tpN.vllm-slurm would be with these settings of the catalogue."""
    small = [
        DEMO / name
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    ]
    folder.mkdir(parents=True)
    contents = bundle_of.contents(
        model=model, tp=tp, settings={**SETTINGS, **settings},
        checkpoint=[DEMO / "config.json", *DEMO.glob("model*")], tokenizer=small,
        parts=sorted((ROOT / "runtime/vllm").glob("*.py")), lock=[LOCK, LOCK.with_name("build.py")],
        reference=[reference] if reference else [],
    )  # fmt: skip
    sealed.fill(folder, contents)
    return folder


def reference(folder: Path) -> Path:
    """Answers that the demo need not give: what is assembled does not depend on their being right."""
    place, logits = folder / "reference.npz", np.full((3, 1024), -5, np.float32)
    prompts = [[1016, 5, 9], list(range(1016, 1010, -1))]
    logits[[0, 1, 2], [3, 4, 7]] = 9
    np.savez(
        place, prompts=np.concatenate(prompts), prompt_lengths=[3, 6], tokens=[3, 4, 7],
        token_counts=[2, 1], logits=logits,
    )  # fmt: skip
    return place


def standin(folder: Path, **versions: str | None) -> Path:
    """A folder for PYTHONPATH: the stand-in, with the names and versions that a bundle is held to.

    A version of None leaves the package to the interpreter, which has it.
    """
    (folder / "vllm").parent.mkdir(parents=True)
    (folder / "vllm").symlink_to(ROOT / "tests/doubles/vllm_standin/vllm")
    for name, version in {**bundle_of.pins(LOCK), **versions}.items():
        if version is None:
            continue
        place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    return folder


def python(
    folder: Path,
    path: Path,
    before: str = ":",
    other: Path | None = None,
    interpreter: Path | str = sys.executable,
) -> Path:
    """An interpreter that finds the stand-in; on the second node after `before`, or another one."""
    script = folder / "python"
    script.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="{path}"\n'
        f'if [ "${{SLURM_NODEID:-0}}" = 1 ]; then {before}; export PYTHONPATH="{other or path}"; fi\n'
        f'exec "{interpreter}" "$@"\n'
    )
    script.chmod(0o755)
    return script


def generated(url: str, key: str, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """A server's greedy tokens, and the log-probability of each."""
    body = {
        "model": "demo", "prompt": prompt, "max_tokens": count, "temperature": 0, "logprobs": 0,
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        found = json.load(answer)["choices"][0]
    return found["token_ids"], found["logprobs"]["token_logprobs"]
