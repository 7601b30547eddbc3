"""Record sessions on a real terminal: docs/run.svg, and transcripts and pictures in docs/recordings.

    .venv/bin/python docs/recording.py [NAME ...]

A line of a transcript that begins with `$ ` is typed, key by key; all others are what was answered.  One
with such lines alone is a session that nobody has recorded yet.  Each runs in a fresh clone with an empty
store, beside a checkpoint `my-llama`; docs/run.svg shows time faster than it was.  Where a viewer wants no
motion, the last screen stands still.
"""

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "docs/recordings"
sys.path.insert(0, str(ROOT / "tests/doubles"))

from checkout import checkout  # noqa: E402
from terminal import Terminal  # noqa: E402

RUN = "snakemake artifacts/demo_tp1.shortfin artifacts/demo_tp1.shortfin.verified.json"
COLUMNS, LINES, MOST = 96, 19, 26
FASTER, APART, LAST = 4, 0.9, 6.0  # APART: seconds of the run; LAST: of the picture
KEY, READ = 0.06, 2.0  # seconds: a key, and what a reader takes for an answer
WIDE, HIGH, LEFT, TOP = 8.05, 18, 14, 46
COLOURS = {
    "default": "#d8dee4", "red": "#ff8078", "green": "#56d364", "brown": "#e3b341", "black": "#6e7681",
    "brightred": "#79b8ff", "brightblack": "#47525d", "cyan": "#79b8ff",
}  # fmt: skip


def clone(scratch: Path) -> tuple[Path, dict[str, str]]:
    """A clone below `scratch`, and an environment whose store is empty."""
    folder = checkout(scratch / "ingot")
    shutil.copytree(ROOT / "models/demo", scratch / "my-llama")
    environment = {
        **os.environ, "TERM": "xterm-256color", "INGOT_STORE": f"{scratch}/store",
        "PYTHONPATH": str(folder / "scripts"),  # of `ingot` and `snakemake` too
        "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}",
    }  # fmt: skip
    return folder, environment


def commands(name: str) -> list[str]:
    lines = (RECORDINGS / f"{name}.txt").read_text().splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def typed(
    said: list[str], folder: Path, environment: dict[str, str], key: float = KEY
) -> Iterator[Terminal]:
    """The terminal, at each change of it, while a shell in `folder` is told each command."""
    asked = folder.parent / "prompts"  # a line for each time that the shell asks
    asked.touch()
    more = {
        "PS1": "$ ",
        "PROMPT_COMMAND": f"echo >> {shlex.quote(str(asked))}",
        "HISTFILE": "/dev/null",
    }
    shell = ["bash", "--noprofile", "--norc", "-i"]
    terminal = Terminal(shell, COLUMNS, MOST, cwd=folder, env=environment | more)

    def until(done, seconds: float) -> Iterator[Terminal]:
        end = time.monotonic() + seconds
        while not done():
            seen = len(terminal.screens)
            if not terminal.read(0.05) or time.monotonic() > end:
                sys.exit(f"the shell does not go on:\n{terminal.text()}")
            if len(terminal.screens) > seen:
                yield terminal

    try:
        for number, command in enumerate([*said, "exit"]):
            # it asks once more after each command
            yield from until(lambda n=number: asked.read_text().count("\n") > n, 600)
            yield from until(lambda: terminal.text().endswith("$"), 10)
            for letter in command if number < len(said) else ():
                os.write(terminal.master, letter.encode())
                time.sleep(key)
                terminal.read(0.01)
                yield terminal
            if number < len(said):
                os.write(terminal.master, b"\n")
    finally:
        terminal.kill()


def transcript(terminal: Terminal) -> str:
    """All that was typed and answered, without the prompt that waits at its end."""
    return terminal.text().removesuffix("$").rstrip() + "\n"


def frames_of_run() -> list[tuple[float, list]]:
    """When each screen of RUN stood, in seconds, and its rows: runs of characters of one look."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, environment = clone(Path(scratch))
        terminal = Terminal(RUN.split(), COLUMNS, LINES, cwd=folder, env=environment)
        found: list = []
        while terminal.read():
            add(found, terminal, APART)
        if terminal.process.wait(60):
            sys.exit(terminal.text())
        found.append((found[-1][0] + APART, rows(terminal.screen)))
    return [(at - found[0][0], screen) for at, screen in found]


def add(found: list, terminal: Terminal, apart: float) -> None:
    """The screen of now, in the place of one that stood shorter than `apart` seconds."""
    if not terminal.screens or (found and terminal.screens[-1][0] == found[-1][0]):
        return
    at, now = terminal.screens[-1][0], rows(terminal.screen)
    if found and at - found[-1][0] < apart:
        found[-1] = (found[-1][0], now)
    else:
        found.append((at, now))


def record(name: str) -> str:
    """Type a session, write its transcript, and give its picture."""
    scratch = Path(tempfile.gettempdir(), "session")  # which the picture shows
    scratch.mkdir()
    try:
        folder, environment = clone(scratch)
        found, terminal = [], None
        for terminal in typed(commands(name), folder, environment):
            add(found, terminal, 0.25)
        found.append((found[-1][0] + READ, rows(terminal.screen)))
        (RECORDINGS / f"{name}.txt").write_text(transcript(terminal))
    finally:
        shutil.rmtree(scratch)
    return drawn(
        [(at - found[0][0], screen) for at, screen in found], f"A session: {name}", MOST, 1
    )


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


def drawn(found: list[tuple[float, list]], title: str, lines: int, faster: float) -> str:
    length = found[-1][0] / faster + LAST
    width, height = COLUMNS * WIDE + 2 * LEFT, lines * HIGH + TOP + 12
    styles, groups = [], []
    for n, (at, screen) in enumerate(found):
        start = 100 * at / faster / length
        end = 100 * found[n + 1][0] / faster / length if n + 1 < len(found) else 100.0
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
        f'aria-label="{escape(title)}"><style>{style}</style>'
        '<rect width="100%" height="100%" rx="8" fill="#14181d"/>'
        f'<text x="{LEFT}" y="26" fill="#9aa5b1">{escape(title)}</text>{"".join(groups)}</svg>\n'
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


def main() -> None:
    known = sorted(path.stem for path in RECORDINGS.glob("*.txt"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", choices=[*known, "run"], default=[*known, "run"], metavar="NAME"
    )
    for name in parser.parse_args().names:
        if name == "run":
            title = f"$ {RUN.split()[0]} {RUN.split()[1]} …"
            (ROOT / "docs/run.svg").write_text(drawn(frames_of_run(), title, LINES, FASTER))
        else:
            (RECORDINGS / f"{name}.svg").write_text(record(name))


if __name__ == "__main__":
    main()
