"""A copy of the pipeline, as a fresh clone has it: for tests and benches that edit what they run."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "Snakefile", "models.yaml", "models.schema.json", "rules", "scripts", "runtime", "envs", "profiles",
    "models/demo", "models/corpus.txt", "LICENSE",
)  # fmt: skip


def checkout(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    (folder / "slurm").symlink_to("profiles/slurm")
    return folder
