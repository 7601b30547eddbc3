"""What a person sees on a terminal while a build runs: screens of a real pseudo-terminal; and in a pipe."""

import os
import re
import time

import pytest

import checkpoints
from conftest import IRPA, ROOT, lasting
from terminal import Terminal

pytestmark = pytest.mark.slow
FLOATS = ("", ".bf16", ".f32")
CHECKPOINT = "demo_tp2.trtllm-ckpt"
NINE = [f"artifacts/demo{dtype}{end}" for dtype in FLOATS for end in (".gguf", ".irpa")]
NINE += [
    f"artifacts/{name}" for name in ("demo.reading.json", CHECKPOINT, f"{CHECKPOINT}.verified.json")
]
JOBS = len(NINE) + 3  # and the digests of its weights, and two toolchains
COUNTS = re.compile(r"(\d+) done · (\d+) running · (\d+) wait")
SLOW = """
    import time
    from ingot.base.progress import Progress
    progress = Progress("slow", 100_000_000)
    for _ in range(600):
        progress.add(100_000)
        time.sleep(0.1)
"""


@pytest.fixture
def terminal(clone, store):
    """terminal(folder, columns, target, ...) is a build on a terminal."""
    started = []

    def run(folder, columns, *targets):
        command = [
            ROOT / ".venv/bin/snakemake",
            "-s",
            folder / "Snakefile",
            "--cores",
            "2",
            "--",
            *targets,
        ]
        environment = {**os.environ, "INGOT_STORE": str(store), "TERM": "xterm-256color"}
        started.append(Terminal(command, columns, cwd=folder, env=environment))
        return started[-1]

    yield run
    for one in started:
        one.kill()


DEAF = """
    import signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)
"""


def slow(folder, more=""):
    path = folder / "scripts/gguf_to_irpa.py"
    text = path.read_text()
    head, first, rest = text.partition("    properties, tensors = gguf_format.read(gguf)\n")
    assert first
    path.write_text(f"{head}{more}{SLOW}{first}{rest}")


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_the_board_stands_below_what_has_ended_at_every_width(columns, clone, terminal):
    seen = terminal(clone("a"), columns, *NINE)
    assert seen.close() == 0, seen.text()
    boards = [lines for _, lines in seen.screens if any(map(COUNTS.search, lines))]
    assert len(boards) >= 9
    for lines in boards:
        assert sum(bool(COUNTS.search(line)) for line in lines) == 1, (
            "one board, no ghost of another"
        )
        at = next(n for n, line in enumerate(lines) if COUNTS.search(line))
        below = [line for line in lines[at + 1 :] if line]
        assert not any(re.match("(done|start|failed) ", line) for line in below), (
            "jobs that ended stand above"
        )
    counts = [int(COUNTS.search(" ".join(lines))[1]) for lines in boards]
    assert counts == sorted(counts) and max(counts) >= 9
    joined = re.sub(r"\s", "", seen.text())  # a line may break at a blank
    assert all(joined.count(f"done{path}(") == 1 for path in NINE) and "running" not in joined
    assert "passedagainstthecheckpoint" in joined and f"{JOBS}of{JOBS})" in joined
    assert "builtartifacts/demo.bf16.ggufand8more" in joined


def test_a_row_says_how_far_its_step_is_by_the_steps_own_count(clone, terminal):
    folder = clone("a")
    slow(folder)
    seen = terminal(folder, 100, IRPA)
    seen.until(
        lambda text: re.search(
            r"demo\.irpa +━.* [2-9](\.\d)? MB of 100 MB  [\d.]+ (MB|kB)/s  .* left", text
        )
    )
    for wanted in (  # a frame may be seen before it is drawn to its end
        r"\d+ MB of \d+ MB memory",
        r"disk [\d.]+ [GT]B free, at most",
        "2 done · 1 running · 0 waiting · ends about",
    ):
        seen.until(lambda text, wanted=wanted: re.search(wanted, text))


def test_after_a_failure_the_terminal_has_the_cause_and_no_board(clone, terminal):
    folder = clone("a")
    checkpoints.of_another_size(folder / "models/demo")
    seen = terminal(folder, 100, IRPA)
    assert seen.close() == 1
    said = seen.text()
    shard = "models/demo/model-00001-of-00002.safetensors"
    assert f"failed   artifacts/demo.gguf: {shard}: tensor" in said
    assert (
        said.splitlines()[-1].startswith("kept     1 failed, 1 of 3 jobs") and "running" not in said
    )


def test_ctrl_c_says_what_is_waited_for_and_how_to_go_on(clone, terminal):
    folder = clone("a")
    slow(folder)
    seen = terminal(folder, 100, IRPA)
    seen.until(lambda text: "2 done · 1 running" in text and "B/s" in text)
    seen.ctrl_c()
    assert seen.close(30) != 0
    said = seen.text()
    assert f"stopped  by Ctrl-C: ending {IRPA}" in said and "Traceback" not in said
    assert (
        "kept     2 of 3 jobs done; the same command resumes here" in said and "running" not in said
    )
    assert not list((folder / "artifacts").glob(".*"))


def test_one_more_ctrl_c_ends_at_once_without_a_traceback(clone, terminal):
    """Of a step that hears none; asyncio keeps the first to itself where Snakemake waits for a lock."""
    folder = clone("a")
    slow(folder, DEAF)
    seen = terminal(folder, 100, IRPA)
    seen.until(lambda text: "2 done · 1 running" in text and "B/s" in text)
    for _ in range(3):
        seen.ctrl_c()
        time.sleep(2)
    assert seen.close(20) != 0
    said = seen.text()
    assert "Traceback" not in said and "Exception" not in said, said
    assert "kept     2 of 3 jobs done; the same command resumes here" in said


def test_a_pipe_gets_a_line_per_event_and_no_control_code(clone, build):
    said = build(clone("a"), "--", *NINE)
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", said)
    assert len(lasting(said)) <= 2 * JOBS + 3, said
    assert len(re.findall(rf"^done     .*, \d+ of {JOBS}\)$", said, re.M)) == JOBS


def test_quiet_says_nothing_of_what_goes_well_and_all_of_what_does_not(clone, build):
    folder = clone("a")
    assert not build(folder, "--quiet", "all", "--", IRPA).splitlines()[1:]
    checkpoints.of_another_size(folder / "models/demo")
    said = build(folder, "--quiet", "all", "--", IRPA, fails=True)
    assert f"{checkpoints.OTHER_SIZE} by config.json" in said


@pytest.mark.parametrize(
    "variable, marks",
    [("GITHUB_ACTIONS", ("::error title=artifacts/demo.gguf::models/", "::group::logs/", "::endgroup")),
     ("GITLAB_CI", ("section_start:", "section_end:"))],
)  # fmt: skip
def test_a_ci_marks_what_failed_and_folds_its_log(variable, marks, clone, build):
    folder = clone("a")
    checkpoints.of_another_size(folder / "models/demo")
    said = build(folder, "--", IRPA, fails=True, **{variable: "true"})
    assert all(mark in said for mark in marks), said


def test_another_folder_of_the_same_store_is_seen(clone, terminal, ingot, tmp_path):
    folder = clone("a")
    slow(folder)
    seen = terminal(folder, 100, IRPA)
    seen.until(lambda text: "2 done · 1 running" in text)
    said = ingot("status", cwd=tmp_path).stdout
    assert f" in {folder}: 2 jobs done, 1 running" in said and f"runs     {IRPA}" in said, said


def test_another_terminal_draws_the_same_board_until_the_run_is_dead(clone, terminal, store):
    folder = clone("a")
    slow(folder)
    seen = terminal(folder, 100, IRPA)
    seen.until(lambda text: "2 done · 1 running" in text)
    environment = {**os.environ, "INGOT_STORE": str(store), "TERM": "xterm-256color"}
    command = [ROOT / ".venv/bin/ingot", "status", "--follow"]
    other = Terminal(command, 90, cwd=folder, env=environment)
    try:
        other.until(lambda text: "MB of 100 MB" in text)
        assert "2 done · 1 running · 0 waiting" in other.text()
        os.kill(seen.process.pid, 9)
        assert other.close(20) == 0
        assert "no run is alive" in other.text()
        assert f"ended while it built {IRPA}" in other.text().replace("\n", "")
    finally:
        other.kill()
