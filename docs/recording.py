"""Write docs/run.svg: a real run of the demo on a real terminal, in a fresh clone with an empty store.

    .venv/bin/python docs/recording.py

Time is shown four times as fast.  Where a viewer wants no motion, the last screen stands still.
"""

import os
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/doubles"))

from terminal import Terminal  # noqa: E402

TARGETS = ["artifacts/demo_tp1.shortfin", "artifacts/demo_tp1.shortfin.verified.json"]
COLUMNS, LINES, FASTER, APART, LAST = (
    96,
    19,
    4,
    0.9,
    6.0,
)  # APART: seconds of the run; LAST: of the picture
WIDE, HIGH, LEFT, TOP = 8.05, 18, 14, 46
COLOURS = {
    "default": "#d8dee4", "red": "#ff8078", "green": "#56d364", "brown": "#e3b341", "black": "#6e7681",
    "brightred": "#79b8ff", "brightblack": "#47525d", "cyan": "#79b8ff",
}  # fmt: skip


def frames() -> list[tuple[float, list]]:
    """When each screen stood, in seconds, and its rows: runs of characters of one look."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "ingot")
        subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
        environment = {**os.environ, "TERM": "xterm-256color", "INGOT_STORE": f"{scratch}/store"}
        command = [ROOT / ".venv/bin/snakemake", "--", *TARGETS]
        terminal = Terminal(command, COLUMNS, LINES, cwd=folder, env=environment)
        found, seen = [], 0
        while terminal.read():
            if len(terminal.screens) == seen:
                continue
            seen, at = len(terminal.screens), terminal.screens[-1][0]
            if found and at - found[-1][0] < APART:
                found[-1] = (found[-1][0], rows(terminal.screen))
            else:
                found.append((at, rows(terminal.screen)))
        if terminal.process.wait(60):
            sys.exit(terminal.text())
        found.append((found[-1][0] + APART, rows(terminal.screen)))
    return [(at - found[0][0], screen) for at, screen in found]


def rows(screen) -> list:
    found = []
    for y in range(screen.lines):
        row: list[list] = []
        for x in range(screen.columns):
            one = screen.buffer[y][x]
            look = (one.fg, one.bold)
            if row and row[-1][0] == look:
                row[-1][1] += one.data
            else:
                row.append([look, one.data])
        found.append(row)
    return found


def drawn(found: list[tuple[float, list]]) -> str:
    length = found[-1][0] / FASTER + LAST
    width, height = COLUMNS * WIDE + 2 * LEFT, LINES * HIGH + TOP + 12
    styles, groups = [], []
    for n, (at, screen) in enumerate(found):
        start = 100 * at / FASTER / length
        end = 100 * found[n + 1][0] / FASTER / length if n + 1 < len(found) else 100.0
        show = f"{start:.2f}%{{visibility:visible}}" if n else ""
        hide = f"{end:.2f}%{{visibility:hidden}}" if n + 1 < len(found) else ""
        first = "visible" if not n else "hidden"
        styles.append(
            f"@keyframes f{n}{{0%{{visibility:{first}}}{show}{hide}}}#f{n}{{animation-name:f{n}}}"
        )
        groups.append(f'<g id="f{n}" class="frame">{"".join(texts(screen))}</g>')
    font = "text{font:13.4px ui-monospace,Menlo,Consolas,monospace;white-space:pre}"
    frame = f".frame{{visibility:hidden;animation:{length:.1f}s step-end infinite}}"
    still = f".frame{{animation:none}}#f{len(found) - 1}{{visibility:visible}}"
    style = f"{font}{frame}{''.join(styles)}@media(prefers-reduced-motion){{{still}}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="A run of the demo on a terminal"><style>{style}</style>'
        '<rect width="100%" height="100%" rx="8" fill="#14181d"/>'
        f'<text x="{LEFT}" y="26" fill="#9aa5b1">$ snakemake {TARGETS[0]} …</text>{"".join(groups)}</svg>\n'
    )


def texts(screen: list):
    for y, row in enumerate(screen):
        at = 0
        for (colour, bold), data in row:
            if data.strip():
                fill = COLOURS.get(colour, f"#{colour}" if len(colour) == 6 else COLOURS["default"])
                weight = ' font-weight="bold"' if bold and colour == "default" else ""
                left, above = LEFT + WIDE * at, TOP + 12 + HIGH * y
                yield (
                    f'<text x="{left:.1f}" y="{above}" textLength="{WIDE * len(data.rstrip()):.1f}" '
                    f'fill="{fill}"{weight}>{escape(data.rstrip())}</text>'
                )
            at += len(data)


if __name__ == "__main__":
    (ROOT / "docs/run.svg").write_text(drawn(frames()))
