"""The board of a run, drawn from what is known of it."""

import fcntl
import os
import struct
import termios
import time

import pytest
from rich.console import Console

from ingot.base.steps import Step
from ingot.driver.cache.decide import Decision
from ingot.driver.catalogue.job import Graph, Job, Output
from ingot.driver.forecast.costs import Forecast
from ingot.driver.show import decided
from ingot.driver.show.capture import OF_BASH, without_ctrl_c
from ingot.driver.show.drawing import board
from ingot.driver.show.failure import Failed
from ingot.driver.show.live import Live
from ingot.driver.show.log import Log
from ingot.driver.show.shown import some, summary, verdict
from ingot.driver.show.status import Status, kind

GB = 10**9


def job(output, rule="convert", model="m"):
    return Job(rule, outputs=(Output("", output),), wildcards={"model": model})


def running(*jobs):
    status = Status(run="r", targets=["artifacts/m.gguf"])
    status.expect(
        list(jobs), {"seconds": 60.0, "memory": GB, "disk": 5 * GB, "whole": True, "free": 9 * GB}
    )
    for one in jobs:
        status.started(one, "log", None)
    return status


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def drawn(status, steps=None, columns=100, lines=30):
    console = Console(width=columns - 1, height=lines)
    with console.capture() as text:
        console.print(board(status, steps or {}, columns - 1, lines))
    return text.get().splitlines()


@pytest.mark.parametrize("columns", [20, 40, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_and_no_board_higher(columns):
    status = running(*(job(f"artifacts/{name * 30}.gguf") for name in "abcdefgh"))
    steps = {path: Step([], GB, GB, done=3 * GB, total=9 * GB, rate=1e8) for path in status.running}
    lines = drawn(status, steps, columns, 12)
    assert max(map(len, lines)) < columns and len(lines) < 12
    assert any("more that run" in line or line.startswith("and ") for line in lines)


def test_a_row_has_bytes_rate_time_left_and_memory():
    status = running(job("artifacts/m.gguf"))
    step = Step([], 1 * GB, 2 * GB, done=3 * GB, total=9 * GB, rate=1e8)
    row = next(line for line in drawn(status, {"artifacts/m.gguf": step}) if "━" in line)
    assert "3 GB of 9 GB  100 MB/s  60 s left  2 GB memory" in row


def test_the_end_is_no_sooner_than_what_a_step_says_of_itself():
    status = running(job("artifacts/m.gguf"))
    status.ends = time.time() + 1
    step = Step([], done=3 * GB, total=9 * GB, rate=1e7)
    assert "in 10 min" in drawn(status, {"artifacts/m.gguf": step})[1]


def test_fetches_are_one_row_that_counts_and_600_draw_as_fast_as_10():
    def timed(count):
        jobs = [job(f"artifacts/m.hf/{n}", "fetch_file") for n in range(count)]
        status = running(*jobs)
        status.alike["fetch_file m"] = [count, 4]
        started = time.process_time()
        for _ in range(50):
            lines = drawn(status)
        return lines, time.process_time() - started

    few, of_ten = timed(10)
    many, of_600 = timed(600)
    assert len(few) == len(many) and any("4 of 600" in line for line in many)
    assert of_600 < 2 * of_ten + 0.1, (of_ten, of_600)


def test_what_is_said_stands_above_the_board_and_the_board_goes():
    terminal, ours = os.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    screen = Live(running(job("artifacts/m.gguf")), ours)
    screen.tick({})
    screen.passed("a step's own line")
    screen.passed("runs     m.gguf: 40 %")  # of a cluster's job: it has a row
    screen.close()
    screen.say("the end")
    said = ""
    while not said.endswith("the end\r\n"):
        said += os.read(terminal, 4096).decode()
    assert said.index("1 running") < said.index("a step's own line") < said.rindex("1 running")
    assert said.count("1 running") == 2 and "40 %" not in said


def test_what_bash_says_of_a_killed_step_is_left_out():
    killed = (
        "/usr/bin/bash: line 2: 14031 Killed                  python scripts/convert.py --gguf m"
    )
    assert OF_BASH.match(killed) and not OF_BASH.match("m.gguf: line 2: 14031 Killed")


def test_a_dry_run_is_a_table_in_which_fetches_are_one_row(tmp_path):
    class Costs:
        def of(self, job):
            return Forecast("fetch_file", "", 1.0, 30.0, 10**7, {job.writes[0]: GB})

    jobs = [job(f"artifacts/m.hf/{n}", "fetch_file") for n in range(5)]
    decision = Decision(run=dict.fromkeys([*jobs, job("artifacts/m.gguf")], "new"))
    head, fetches, gguf = decided.table(decision, Costs(), lambda _: "", 2, GB)
    assert head.split() == ["takes", "memory", "disk"]
    words = "2 min 10 MB 5 GB 5 files of artifacts/m.hf (fetch_file: new)"
    assert " ".join(fetches.split()[1:]) == words
    assert gguf.endswith("  artifacts/m.gguf  (convert: new)")
    alone = Decision(run=dict.fromkeys(jobs, "new"))
    for at_once, most, takes in (
        (1, GB, "2 min"),
        (2, GB, "2 min"),
        (5, GB, "30 s"),
        (5, 10**7, "2 min"),
    ):
        _, row = decided.table(alone, Costs(), lambda _: "", at_once, most)
        assert row.split("10 MB")[0].split() == ["run", *takes.split()], "as long as all of it"
    plan = decided.plan(Graph(list(decision.run)), decision, Costs(), "all", tmp_path, 2, GB)
    assert plan["whole"] and plan["disk"] == 6 * GB and plan["seconds"] >= 30


def test_too_little_disk_is_said(monkeypatch):
    status = running(job("artifacts/m.gguf"))
    status.plan["disk"] = 10**18
    assert "too little" in drawn(status)[-1]


def test_the_past_of_a_run_is_kept_short():
    status = running(job("a"))
    for _ in range(2000):
        status.sample(1)
    assert len(status.samples) <= 601


def test_kinds_are_by_rule_and_model():
    assert kind(job("a", "fetch_file", "llama")) == "fetch_file llama"
    assert not running(*(job(str(n), "verify_gguf") for n in range(9))).many("verify_gguf m")


def test_a_failure_names_the_artifact_once_and_holds_few_words(tmp_path):
    log = tmp_path / "a.log"
    log.write_text("one\n\033[31mtwo\nthree\nfour\n")
    failed = Failed("compile", ["a.vmfb"], str(log), "exit 1", 137, "SIGKILL")
    lines = failed.lines("a.vmfb", Step([], peak=3 * GB))
    assert lines[0].startswith(
        "failed   a.vmfb: compile was ended by SIGKILL, as the kernel does where"
    )
    assert "it held 3 GB of this machine's" in lines[0]
    assert lines[1:4] == ["    \\x1b[31mtwo", "    three", "    four"]
    assert lines[-1] == f"again    bash {tmp_path / 'a.sh'}   (this step alone)"
    failed.member = True
    assert len(failed.lines("a.vmfb", None)) == 1, "one line of each member of a group"
    own = failed.lines("a.vmfb", Step([], refused="a.vmfb: it is odd\n" + "word\n" * 50))
    assert own[0] == "failed   a.vmfb: it is odd" and len(own) <= 12


def test_few_words_for_many_names_and_for_a_verification(tmp_path):
    assert some(["a", "b", "c"]) == "a and 2 more"
    (tmp_path / "x.verified.json").write_text('{"result": "passed"}')
    assert verdict("x.verified.json") == "" and verdict("x.gguf") == ""
    status = running(job("a"))
    assert summary(status) == "plan     1 job: 60 s, 1 GB of memory, 5 GB of disk"
    status.plan["download"] = 500_000_000
    assert summary(status).endswith("5 GB of disk, 500 MB to download")
    status.plan["free"] = 10**9
    assert "5 GB of disk (1 GB free: too little), 500" in summary(status)


def test_a_log_of_a_failure_is_folded_only_where_a_ci_asks(capfd, monkeypatch, tmp_path):
    for name in ("GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "log").write_text("words\n")
    screen = Log(Status(), os.dup(2))
    screen.failed(["failed   a: why, 5 %"], "log")
    assert capfd.readouterr().err == "failed   a: why, 5 %\n"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    screen.failed(["failed   a: why, 5 %"], "log")
    _, error, group, stop, words, go, end = capfd.readouterr().err.splitlines()
    assert (error, group, words, end) == (
        "::error title=a::why%2C 5 %25", "::group::log", "words", "::endgroup::",
    )  # fmt: skip
    assert stop == f"::stop-commands::{go.strip(':')}", "what a tool prints is no command"


def test_a_step_that_ctrl_c_met_while_it_imported_shows_no_traceback():
    head, frame = "Traceback (most recent call last):\n", '  File "a.py", line 1, in <module>\n'
    ctrl_c, defect = "KeyboardInterrupt\n", "ZeroDivisionError: division by zero\n"
    assert [*without_ctrl_c(["a\n", head, frame, ctrl_c, "b\n"])] == ["a\n", "b\n"]
    assert [*without_ctrl_c([head, head, frame, frame, ctrl_c, ctrl_c])] == [], "of two at once"
    told = ["a\n", head, frame, defect, "b\n"]
    assert [*without_ctrl_c(told)] == told
    assert [*without_ctrl_c([head, frame])] == [head, frame], "of what was killed there"
    beside = [head, frame, "  5%|#    | of another step\n", ctrl_c]
    assert [*without_ctrl_c(beside)] == beside
