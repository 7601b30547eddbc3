"""What a step sees of the environment: a few variables, so that no other can affect what it writes."""

import os
from pathlib import Path

from ingot.driver.toolchains import toolchains

BYTECODE = "PYTHONPYCACHEPREFIX"
ALLOWED = (
    "HOME", "PATH", "TMPDIR", "USER", "LOGNAME", "TERM", "INGOT_*", "XDG_CACHE_HOME", "HF_*",
    "*_VISIBLE_DEVICES", "SLURM_*", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY",
    "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_*", "PIP_*",  # where a toolchain's packages come from
    "DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR",  # where a registry's credentials lie
    BYTECODE,
)  # fmt: skip
# torch's threads wait for each other in loops, and take the cores of the step beside: steps at once took
# twice the CPU seconds of the same steps in turn
WAITS = "OMP_WAIT_POLICY"
# numpy's products are of blocks that each thread of ours makes: threads of their own take twice as long
PRODUCTS = "OPENBLAS_NUM_THREADS"
PREFIX = (
    "token=$HF_TOKEN; unset HF_TOKEN; "  # rules/fetch.smk alone hands it on
    "set -euo pipefail; "  # Snakemake's own prefix, which this one replaces
    "export INGOT_PARENT=$PPID; "  # a step that outlives Snakemake puts nothing in place
    f'for name in $(compgen -e); do case $name in {"|".join(ALLOWED)}) ;; *) unset "$name" ;; '
    "esac; done; "
    f"export {WAITS}=passive {PRODUCTS}=1; "
)


def prepare(code: Path | None = None, head: bool = True) -> None:
    """Set what steps are told in variables of ours; `code` is for rules that run a command of ours.

    `head`: not a process that runs a job for another, maybe elsewhere, where nobody drops the bytecode of a
    module that was edited within the second.
    """
    if code:
        os.environ["INGOT_CODE"] = str(code)
    if head:
        keep_bytecode()
    else:
        os.environ.pop(BYTECODE, None)
    os.environ["INGOT_NOTES"] = str(Path(".ingot/notes").absolute())
    # Only trtllm-build and tritonserver are given it: containers find CUDA's libraries by it.
    os.environ["INGOT_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH", "")


def keep_bytecode() -> None:
    """Have Python keep what it compiles, for every process that this one starts."""
    if place := toolchains.bytecode():
        os.environ.setdefault(BYTECODE, str(place))
