"""Write docs/formats.md: what each format can express of a model, by the rows that the driver asks."""

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.driver.catalogue import schema  # noqa: E402
from ingot.driver.catalogue.formats.rows import OFFERED  # noqa: E402
from ingot.driver.catalogue.formats.table import Format, Target  # noqa: E402
from ingot.model.features import FEATURES  # noqa: E402

TOP = """# What each format can express of a model

config.json says what a model needs from a format. If a format cannot express it, Ingot refuses the target
before it fetches or builds anything: `ingot add`, `ingot targets`, `snakemake -n`, `ingot plan` and the
step itself give the same answer, from the table of formats in the code. For a model on the hub, `ingot add`
writes what it needs into its entry (`needs`). For a model on this machine, Ingot reads config.json.

If Ingot's own writer of ONNX or OpenVINO cannot express a need, an upstream tool writes the folder, if it
knows the architecture: it has a line of its own below. In the table, unsharded means a target without
`_tpN`, and – means that no target of the format can.

"""
END = """
Every format supports Llama 3.1's rope, tied embeddings and grouped heads. For a Mistral with a sliding
window, every format accepts contexts up to the window. `make docs` writes this page.
"""
SETTINGS = {  # formats whose answer hangs on the model's entry -> besides the demo's own
    "rayserve": ("vLLM alone", {"ray": {"apps": ["llm"]}}),
    "kuberay": ("vLLM alone", {"ray": {"apps": ["llm"]}}),
    "onnx": ("by onnxruntime-genai", {"way": "upstream"}),
    "openvino": ("by optimum-intel", {"way": "upstream"}),
    "triton": ("backend onnx", {"trtllm": {"backend": "onnx"}}),
}


def cells(row: Format, entry: dict[str, Any]) -> list[str]:
    """yes, no, or yes for one rank only, of each feature."""
    catalogue, found = schema.load(ROOT), []
    catalogue["models"] = {"m": entry}
    sizes = [size for size in row.sizes(entry) if size in (None, 1, 2)]
    asked = {size: Target("m", size, None, row.name, False, catalogue) for size in sizes}
    if len(sizes) > 1:  # a set of one rank is no target of some
        asked = {size: one for size, one in asked.items() if not row.why_not(one)} or asked
    for feature in FEATURES:
        said = {size: feature in row.can(one) for size, one in asked.items()}
        some = " or ".join("unsharded" if size is None else "`_tp1`" for size in said if said[size])
        found.append("yes" if all(said.values()) else f"{some} only" if some else "–")
    return found


def page() -> str:
    entry = schema.load(ROOT)["models"]["demo"]
    lines = [["format", *(f"`{word}`" for word in FEATURES)], ["---"] * (1 + len(FEATURES))]
    for row in OFFERED:
        lines.append([f"`.{row.name}`", *cells(row, entry)])
        if row.name in SETTINGS:
            what, own = SETTINGS[row.name]
            merged = {
                key: {**value, **own[key]}
                if isinstance(own.get(key), dict)
                else own.get(key, value)
                for key, value in entry.items()
            }
            lines.append([f"`.{row.name}`, {what}", *cells(row, merged)])
    return TOP + "".join(f"| {' | '.join(line)} |\n" for line in lines) + END


if __name__ == "__main__":
    (ROOT / "docs/formats.md").write_text(page())
