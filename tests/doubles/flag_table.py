"""The table of trtllm-build's flags in docs/trtllm.md, row by row."""

from conftest import ROOT

TABLE = [
    [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
    for line in (ROOT / "docs/trtllm.md").read_text().splitlines()
    if line.startswith("| `")
]


def parsed(text):
    name, value = text.split(": ")
    return {name: {"true": True}.get(value, int(value) if value.isdigit() else value)}
