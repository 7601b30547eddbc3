"""The pictures of a report, by matplotlib, as SVG whose colours are the page's, light or dark."""

import io
import re
import time
from html import escape
from math import inf
from typing import Any

from ingot.driver.catalogue.formats.table import CHART
from ingot.driver.forecast.schedule import size

INKS = {"#010203": "var(--ink)", "#040506": "var(--line)", "#070809": "var(--done)",
        "#0a0b0c": "var(--plan)", "#0d0e0f": "var(--bad)"}  # fmt: skip
INK, LINE, DONE, PLAN, BAD = INKS
PLAIN = dict(zip(INKS, ("#1b1f24", "#c4ccd4", "#2563a8", "#8a5a00", "#b3261e"), strict=True))
STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10, "text.color": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": LINE,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": LINE, "axes.grid": True,
    "axes.grid.axis": "x", "axes.axisbelow": True, "legend.frameon": False,
}  # fmt: skip
TIMES = ((3600, "hours"), (60, "minutes"), (1, "seconds"))
KEPT = {"all": "all is kept", "targets": "with keep=targets"}
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def costs(report: dict[str, Any]) -> str:
    """What each action took beside what the constants alone say: seconds, memory, bytes."""
    rows = [one for one in report["actions"] if one["seconds"] is not None][::-1]
    if not rows:
        return ""
    figure, panels = _figure(f"costs-{report['title']}", 3, 0.9 + 0.32 * len(rows), share="y")
    for panel, name in zip(panels, ("seconds", "memory", "bytes"), strict=True):
        scale, unit = _unit(max(one[name] or 0 for one in rows)) if name != "seconds" else (1, "s")
        values = [(one[name] or 0) / scale for one in rows]
        panel.barh(range(len(rows)), values, color=DONE, height=0.6, label="measured")
        for place, one in enumerate(rows):
            if one["expected"]:
                panel.plot(one["expected"][name] / scale, place, "|", color=PLAN, markersize=14,
                           markeredgewidth=2.5, label="expected" if not place else None)  # fmt: skip
        panel.set_xlabel(f"{name}, {unit}" if name != "seconds" else "seconds")
    panels[0].set_yticks(range(len(rows)), [one["rule"] for one in rows])
    panels[-1].legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return _svg(figure, "What each action took, beside what was expected of it")


def run(report: dict[str, Any]) -> str:
    """A run over time: its jobs, the memory of its steps, the disk that it filled, beside the plan."""
    found = report["run"]
    if not found.get("jobs"):
        return ""
    jobs, since, plan = found["jobs"], found["since"], found["plan"]
    height = 0.28 * len(jobs)
    figure, (bars, memory, disk) = _figure(
        "run", 3, height + 4.2, share="x", heights=(height + 0.6, 1.6, 1.6)
    )
    for place, job in enumerate(reversed(jobs)):
        bars.barh(place, job["seconds"], left=job["since"] - since, color=DONE, height=0.6)
    bars.set_yticks(range(len(jobs)), [job["output"].rpartition("/")[2] for job in reversed(jobs)])
    times = [one[0] - since for one in found["samples"]]
    held = [one[1] for one in found["samples"]]
    scale, unit = _unit(max([*held, plan.get("memory", 0), 1]))
    memory.plot(times, [one / scale for one in held], color=DONE, label="measured")
    memory.axhline(plan.get("memory", 0) / scale, color=PLAN, linestyle="--", label="plan")
    memory.set_ylabel(f"memory, {unit}")
    memory.legend(loc="upper right")
    ends = sorted((job["since"] + job["seconds"] - since, job["bytes"]) for job in jobs)
    taken = [sum(size for _, size in ends[: n + 1]) for n in range(len(ends))]
    scale, unit = _unit(max([*taken, plan.get("disk", 0), 1]))
    disk.step(
        [0, *(at for at, _ in ends)], [0, *(one / scale for one in taken)], where="post", color=DONE
    )
    if planned := plan.get("disk_at"):
        disk.step([at for at, _ in planned], [size / scale for _, size in planned], where="post",
                  color=PLAN, linestyle="--")  # fmt: skip
    disk.set_ylabel(f"disk, {unit}")
    disk.set_xlabel(f"seconds since {time.strftime('%H:%M', time.localtime(since))}")
    return _svg(figure, "The run over time: jobs, memory and disk, beside the plan")


def prompts(report: dict[str, Any]) -> str:
    """The largest difference of a logit, per prompt, and the limit."""
    checks = report["verification"].get("checks", {})
    rows = [one for one in checks.get("by_prompt", ()) if "largest_logit_difference" in one]
    if not rows:
        return ""
    figure, (panel,) = _figure("prompts", 1, 2.8)
    for equal, colour, mark, words in (
        (True, DONE, "o", "same tokens"),
        (False, BAD, "x", "other tokens"),
    ):
        some = [one for one in rows if one["equal"] is equal]
        if some:
            lengths = [one["prompt_tokens"] for one in some]
            away = [one["largest_logit_difference"] for one in some]
            panel.plot(lengths, away, mark, color=colour, label=words)
    limit = checks.get("difference_limit", {}).get("share_of_largest_logit")
    if limit and "largest_logit" in checks:
        panel.axhline(limit * checks["largest_logit"], color=PLAN, linestyle="--", label="limit")
        panel.set_yscale("log")
    panel.set_xlabel("tokens of the prompt")
    panel.set_ylabel("largest logit difference")
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _svg(figure, "The largest difference of a logit from the reference, per prompt")


def disk(build: dict[str, Any], title: str) -> str:
    """The disk over time by a plan, to one scale: of a build that keeps all, and of one of its targets."""
    figure, panels = _figure("disk", 2, 4.6, share="x", heights=(1, 1))
    scale, unit = _unit(max(way["disk"] for way in build["keep"].values()))
    whole = max(way["seconds"] for way in build["keep"].values())
    per, word_of_time = next((one for one in TIMES if whole >= 3 * one[0]), TIMES[-1])
    for panel, (keep, words) in zip(panels, KEPT.items(), strict=True):
        way = build["keep"][keep]
        times = [at / per for at in (*(at for at, _ in way["timeline"]), way["seconds"])]
        rows = [here for _, here in way["timeline"]]
        layers = [[here[word] / scale for here in (*rows, rows[-1])] for word in CHART]
        panel.stackplot(times, layers, labels=CHART, colors=CHART.values(), step="post")
        panel.set_title(f"{words}: peak {size(way['disk'])}", loc="left", fontsize=10, color=INK)
        panel.set_ylabel(unit)
        panel.set_ylim(bottom=0)
    panels[0].sharey(panels[1])
    figure.suptitle(title, fontsize=11, color=INK)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(CHART)
    )
    panels[1].set_xlabel(word_of_time)
    return _svg(figure, escape(f"Disk over time: {title}"))


def over_work(jobs: dict[str, list[tuple[float, float]]], words: str) -> str:
    """Seconds over work, of past jobs by name: how compile time grows with depth."""
    figure, (panel,) = _figure("work", 1, 3.2)
    for name, points in sorted(jobs.items()):
        points = sorted(points)
        panel.plot([x for x, _ in points], [y for _, y in points], "o-", label=name, alpha=0.8)
    panel.set_xlabel(words)
    panel.set_ylabel("seconds")
    panel.legend(loc="upper left")
    return _svg(figure, f"Seconds of past jobs over {words}")


def quality(rows: list[dict[str, Any]]) -> str:
    """How far artifacts are from their model, over their size: `artifact`, `bytes`, `mean_kl` of each.

    A line joins those that none smaller is as near as.
    """
    figure, (panel,) = _figure("quality", 1, 4.0)
    some = sorted((row for row in rows if row["bytes"]), key=lambda row: row["bytes"])
    scale, unit = _unit(max((row["bytes"] for row in some), default=1))
    best = front(some)
    for wanted, mark, words in ((True, "o-", "no smaller one is as near"), (False, "o", "others")):
        drawn = [row for row in some if (row["artifact"] in best) is wanted]
        if drawn:
            panel.plot(
                [row["bytes"] / scale for row in drawn], [row["mean_kl"] for row in drawn], mark,
                color=DONE if wanted else INK, label=words, linewidth=1, alpha=1 if wanted else 0.6,
            )  # fmt: skip
    panel.legend(loc="upper right")
    for row, name in zip(some, apart([row["artifact"] for row in some]), strict=True):
        panel.annotate(name, (row["bytes"] / scale, row["mean_kl"]),
                       xytext=(6, 3), textcoords="offset points", fontsize=8)  # fmt: skip
    panel.set_yscale("log")
    panel.set_xlabel(unit)
    panel.set_ylabel("mean KL divergence, nats")
    return _svg(figure, "How far each artifact is from its model, over its size")


def apart(paths: list[str]) -> list[str]:
    """Names of files without the model's, where it is that of all."""
    names = [path.rpartition("/")[2] for path in paths]
    models = {re.split(r"[._]", name)[0] for name in names}
    cut = len(models.pop()) + 1 if len(models) == 1 and len(names) > 1 else 0
    return [name[cut:] or name for name in names]


def front(rows: list[dict[str, Any]]) -> set[str]:
    """The artifacts of which no other has as few bytes and is as near to its model."""
    found, nearest = set(), inf
    for row in sorted(rows, key=lambda row: (row["bytes"], row["mean_kl"])):
        if row["mean_kl"] < nearest:
            nearest = row["mean_kl"]
            found.add(row["artifact"])
    return found


def plain(svg: str) -> str:
    """The same as a file of its own, which has no page to take its colours from."""
    for ink, word in INKS.items():
        svg = svg.replace(word, PLAIN[ink])
    return svg.replace("<svg ", '<svg style="background:#fff" ', 1) + "\n"


def _figure(name: str, count: int, height: float, share: str = "", heights: Any = None) -> Any:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    settings: Any = pyplot.rcParams
    settings.update({**STYLE, "svg.hashsalt": name})
    shape = (count, 1) if heights else (1, count)
    ratios: Any = {"gridspec_kw": {"height_ratios": heights}} if heights else {}
    figure, panels = pyplot.subplots(
        *shape, figsize=(9, height), sharex=share == "x", sharey=share == "y", squeeze=False,
        layout="constrained", **ratios,
    )  # fmt: skip
    figure.set_label(re.sub(r"\W+", "-", name))
    return figure, panels.flatten()


def _svg(figure: Any, words: str) -> str:
    """The figure as an element of a page, with ids of its own, and a name for those who cannot see."""
    from matplotlib import pyplot

    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    name = figure.get_label()
    pyplot.close(figure)
    found = text.getvalue()
    found = re.sub(r"<metadata>.*?</metadata>", "", found[found.index("<svg") :], flags=re.S)
    found = re.sub(r'\bid="', f'id="{name}-', found)
    found = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", found)
    found = re.sub(r'<svg ([^>]*?)height="[^"]*" ', r"<svg \1", found, count=1)
    found = re.sub(r'width="[^"]*"', f'role="img" aria-label="{words}"', found, count=1)
    for ink, word in INKS.items():
        found = found.replace(ink, word)
    return found.strip()


def _unit(most: float) -> tuple[float, str]:
    return next(((scale, unit) for scale, unit in UNITS if most >= scale), (1.0, "bytes"))
