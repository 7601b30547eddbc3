"""What a node of a cluster has, asked by a job of `ingot doctor`, which runs this file there.

    <the driver's python> node.py QUESTION ANSWER

QUESTION, JSON: `seen`, files that the head wrote; `write`, files that it will look for; `needs`, the
parameters of jobs that would run here.  ANSWER: the node's name, what it does not see or cannot write,
and why a job cannot run.
"""

import json
import platform
import sys
from pathlib import Path


def answer(question: dict) -> dict:
    from ingot.driver.catalogue import machine
    from ingot.driver.catalogue.job import Job

    unseen = [path for path in question["seen"] if not Path(path).exists()]
    unwritten = [path for path in question["write"] if not written(Path(path))]
    needs = {
        name: reason
        for name, params in question["needs"].items()
        if (reason := machine.why_not(Job(name, params=params)))
    }
    return {"node": platform.node(), "unseen": unseen, "unwritten": unwritten, "needs": needs}


def written(path: Path) -> bool:
    try:
        path.write_text(platform.node())
    except OSError:
        return False
    return True


def main(question: str, place: str) -> None:
    found = answer(json.loads(Path(question).read_text()))
    partial = Path(f"{place}.partial")
    partial.write_text(json.dumps(found))
    partial.replace(place)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))
    main(*sys.argv[1:])
