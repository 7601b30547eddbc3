"""What Snakemake says of itself, in our words, or not at all where it helps nobody."""

import re
from pathlib import Path

from ingot.base.fields import there

NOISE = re.compile(
    r"Using workflow specific profile|Config file .* is extended|Assuming unrestricted|"
    r"Building DAG of jobs|Using shell|Provided (cores|resources)|Rules claiming more|Select jobs|"
    r"Execute \d+ jobs|Shutting down|Exiting because a job|Removing output files of failed|Reasons:|"
    r"Error: Directory cannot be locked. Another|"  # of a dry run, after a run that was killed, too
    r"Elapsed time|SLURM run ID|Cleaning up SLURM log files|Will exit after finishing|"
    r"WorkflowError:\s+At least one job did|Missing metadata for file logs/toolchain/|Complete log|"
    r"Benchmark: unable to collect"  # of a job that ended before its first sample: its numbers are NA
)
MISSING = re.compile(
    r"MissingInputException in rule (\w+) in file (?s:.*) output: ([^\n,]+)(?s:.*)"
    r"affected files:\s+([^\n]+)"
)
OTHERS = {  # words of Snakemake's that mislead, and ours
    re.compile(r"MissingRuleException:\nNo rule to produce (\S+)(?s:.*)"): (
        "error: {0}: no target, and no rule of that name; `ingot targets` lists what can be built"
    ),
    # ours, and where in our code it was raised
    re.compile(r'WorkflowError:\n((?s:.*?))(?:\n  File "[^\n]*)+\s*\Z'): "error: {0}",
    re.compile(r"LockException:\n(?s:.*)"): (
        "error: another run builds some of the same files here (`ingot status`); wait for it, or add "
        "--unlock once if it is dead"
    ),
}


def told(text: str) -> str:
    """The same for a person; empty where nothing need be said."""
    if found := MISSING.match(text):
        path = Path(found[3])
        advice = (
            ""
            if there(path.parent.is_dir)
            else "; if you moved that folder, change the path in the catalogue"
        )
        return f"error: {found[2]}: {path}: missing, expected it there for rule {found[1]}{advice}"
    for pattern, ours in OTHERS.items():
        if found := pattern.match(text):
            return ours.format(*found.groups())
    return "" if NOISE.match(text) else text.rstrip().removeprefix("WorkflowError:\n").lstrip()
