"""How a program of ours that is run by path begins and ends.

It ends in one line, on the terminal and in its log; when it is told to; and when the Snakemake that
started it is gone, so that no step or server outlives a killed build.
"""

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ingot.base import record
from ingot.base.refused import Refused

PAUSE = 1.0  # seconds between two looks at whether Snakemake goes on
# modules and DAGs are no garbage: looking for some takes a sixth of torch's import, a fifth of a dry run
GARBAGE = 50_000, 20, 20
UNCOUNTED = {  # with these, other people's packages report no use of them to their makers
    "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0", "TRTLLM_NO_USAGE_STATS": "1", "VLLM_NO_USAGE_STATS": "1",
}  # fmt: skip


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run `main`, and end with the exit status that it returns."""
    _report_to_nobody()
    signal.signal(signal.SIGTERM, _told_to)
    _end_with_parent()
    record.begin()
    gc.set_threshold(*GARBAGE)
    try:
        status = _not_beyond_a_stop(main)
        record.end()
        sys.exit(status)
    except Refused as reason:
        _fail(str(reason), str(reason))
    except KeyboardInterrupt:
        sys.exit(1 if record.shown() else "stopped by Ctrl-C")
    except MemoryError:
        _fail("out of memory; see `ingot plan` for what this step takes", traceback.format_exc())
    except Exception as error:
        _log(traceback.format_exc())
        if not record.shown():
            raise
        _fail(str(Refused(f"{type(error).__name__}: {error}")), "")
    finally:
        if (
            "iree.runtime" not in sys.modules
        ):  # whose bindings print what of theirs was not collected
            gc.freeze()  # or Python looks for garbage once more, in all of it: 0.8 s behind torch


def _not_beyond_a_stop(main: Callable[[], int | None]) -> int | None:
    """What `main` returns.  A stop may come anywhere: what fails because of it is not the reason."""
    try:
        return main()
    except Refused:  # also of a tool that ends the program
        raise
    except Exception as error:
        behind: BaseException | None = error
        while behind and not isinstance(behind, KeyboardInterrupt | SystemExit):
            behind = behind.__context__
        if isinstance(behind, SystemExit) and not behind.code:  # a tool's end, and no stop
            behind = None
        raise behind or error  # noqa: B904  the reason is what it was


def _report_to_nobody() -> None:
    """For OpenVINO's tools no variable says so; they go on where the package is missing."""
    os.environ.update(UNCOUNTED)
    # it forks from a thread to send: an export took three times as long where nobody answered
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def end(text: str | int) -> NoReturn:
    """End the program from a signal handler, past every `except Exception` of other people's code."""
    sys.exit(text)


def _told_to(*_) -> None:
    end(f"{Path(sys.argv[0]).name}: stopped by SIGTERM; what was half done is removed")


def _end_with_parent() -> None:
    """Told to end as soon as Snakemake is gone; bash, which is between, would go on."""
    if parent := os.environ.get("INGOT_PARENT"):

        def watch() -> None:
            while lives(parent):
                time.sleep(PAUSE)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()


def end_at_once(status: int) -> NoReturn:
    """Without a word, and without what Python does at the end: a second Ctrl-C, a library's abort."""
    os._exit(status)


def give_up(reason: str) -> NoReturn:
    """End at once with a refusal: where a library is about to abort, from a thread of its own."""
    words = str(Refused(reason))
    _log(words)
    record.refused(words)
    if not record.shown():
        print(words, file=sys.stderr, flush=True)
    end_at_once(1)


def lives(pid: str) -> bool:
    """Does this process go on?  One that nobody has waited for is still listed, as a zombie."""
    try:
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _fail(reason: str, log: str) -> NoReturn:
    """Say why; a run that shows its steps' records says it for us, beside the artifact's name."""
    if log:
        _log(log)
    record.refused(reason)
    sys.exit(1 if record.shown() else reason)


def _log(text: str) -> None:
    """A rule sends stdout to its log: there the reason is kept, and shown by --show-failed-logs."""
    if os.environ.get("INGOT_PARENT"):
        print(text, flush=True)
