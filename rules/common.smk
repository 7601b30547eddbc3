"""What the rules share: functions and tables only, no rule."""

import json
import os
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.driver.catalogue import schema as catalogue
from ingot.driver import snakemake_hook as hook
from ingot.driver.catalogue import targets
from ingot.driver.catalogue import toolchains
from ingot.driver.cache.sources import sources_of

catalogue.complete(config, ROOT / "models.schema.json")
targets.stop_on_wrong(sys.argv, config)
hook.install(config, ROOT)


wildcard_constraints:
    model=targets.MODEL,
    tp=r"\d+",
    dtype=targets.optional(targets.FLOATS),  # with its dot, or empty: the model's own
    hw=targets.optional(config["hardware"]),
    kernel=targets.optional(targets.KERNELS),


# The interpreter of each toolchain.  Named in shell blocks, never in params: a path that differs
# between machines must not decide what is rebuilt.
PYTHON = {name: toolchains.python(ROOT, name) for name in toolchains.names(ROOT)}


os.environ["INGOT_NOTES"] = os.path.abspath(".ingot/notes")  # where steps say what memory they took
# Only trtllm-build and tritonserver are given it: containers find CUDA's libraries by it.
os.environ["INGOT_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")

# The variables that a step sees.  No other can decide what it writes, since no other is there.
SEEN = "HOME|PATH|TMPDIR|USER|LOGNAME|TERM|INGOT_*|XDG_CACHE_HOME|HF_*|*_VISIBLE_DEVICES|SLURM_*"
SEEN += "|http_proxy|https_proxy|no_proxy|HTTP_PROXY|HTTPS_PROXY|NO_PROXY|SSL_CERT_*"
shell.prefix(
    "set -euo pipefail; "  # Snakemake's own prefix, which this one replaces
    "export INGOT_PARENT=$PPID; "  # a step that outlives Snakemake puts nothing in place
    f'for name in $(compgen -e); do case $name in {SEEN}) ;; *) unset "$name" ;; esac; done; '
)


def code(script):
    """`script` and the modules of ours that it imports, relative: a moved checkout reruns nothing."""
    return [os.path.relpath(path) for path in sources_of(ROOT / "scripts" / script)]


def lock(name):
    """The lock of toolchain `name`, and what else it is built by; the pins of one that we cannot."""
    folder = ROOT / "envs" / name
    files = [folder / "requirements.lock", folder / "build.py"]
    if not files[0].exists():
        files = [folder / "requirements.in"]
    return [os.path.relpath(path) for path in files if path.exists()]


def env(name):
    """The mark of a built toolchain; its name holds the lock's digest, so its age says nothing."""
    folder = toolchains.place(ROOT, name)
    mark = Path("logs/toolchain", folder.name)
    if not (folder / "ready").exists():
        mark.unlink(missing_ok=True)  # the cache was emptied since
    return ancient(str(mark))


def source(path):
    """A path of the catalogue: below the working directory, or else below the repository."""
    return path if Path(path).exists() else os.path.relpath(ROOT / path)


def model(wildcards):
    return config["models"][wildcards.model]


def setting(key):
    """The catalogue's `key` of the wildcards' model, empty when it has none."""
    return lambda wildcards: model(wildcards).get(key, "")


def dtype(wildcards):
    return wildcards.get("dtype", "").lstrip(".") or model(wildcards)["dtype"]


def hardware(wildcards):
    return wildcards.hw.lstrip(".") or model(wildcards)["hardware"]


def device(wildcards):
    return config["hardware"][hardware(wildcards)]["device"]


def parameters(wildcards):
    """The archives that the program's weights are in: one, or a root and one a rank.

    One comes without a list around it: then its content is in the key, and its name is not.
    """
    found = targets.archives(wildcards.model, int(wildcards.tp))
    return found[0] if len(found) == 1 else found


def prompts(wildcards):
    """The model's own prompts for verification, if it has any."""
    return [source(path) for path in [model(wildcards).get("prompts")] if path]


def checkpoint(wildcards):
    """The folder of the model's checkpoint."""
    entry = model(wildcards)
    return source(entry["path"]) if "path" in entry else f"artifacts/{wildcards.model}.hf"


def config_json(wildcards):
    return f"{checkpoint(wildcards)}/config.json"


def weights(wildcards):
    """The checkpoint's files that carry weights."""
    folder, entry = checkpoint(wildcards), model(wildcards)
    if "path" in entry:
        return sorted(str(path) for path in Path(folder).glob("model*.safetensors*"))
    return [f"{folder}/{name}" for name in targets.shard_names(entry["shards"])]


def tokenizer(wildcards):
    """The checkpoint's files that carry the vocabulary, the chat template and the sampling."""
    folder, entry = checkpoint(wildcards), model(wildcards)
    if "path" in entry:
        names = [name for name in targets.SMALL_FILES if (Path(folder) / name).exists()]
    else:
        names = entry.get("files") or targets.hub_files(entry["pre"])
    return [f"{folder}/{name}" for name in names]
