"""A report's page: one file of HTML, which needs nothing else and asks nobody."""

import json
from pathlib import Path
from typing import Any

from ingot.driver.forecast.schedule import duration, size
from ingot.driver.release.pages import words
from ingot.driver.release.pages.against import flat
from ingot.model.gpu_layout import GIB

HERE = Path(__file__).parent
BOX, HIGH, GAP, ROW = 190, 58, 14, 86  # of the chain's picture, in pixels


def page(report: dict[str, Any], pictures: dict[str, str], compared: dict[str, Any] | None) -> str:
    """Of one artifact, perhaps compared with another."""
    prompts = _prompts(report["verification"].get("checks", {}))
    wrong = [one for one in prompts if not one["equal"]]
    return _rendered(
        "report.html", report, chain=chain(report["actions"]), pictures=pictures, compared=compared,
        numbers=words.rows(report["verification"].get("checks", {}), _limits(report)), wrong=wrong,
    )  # fmt: skip


def model(found: dict[str, Any], pictures: dict[str, str]) -> str:
    """Of a model's forms beside each other."""
    return _rendered("model.html", found, pictures=pictures)


def folder(found: dict[str, Any], pictures: dict[str, str]) -> str:
    """Of all that stands in a folder."""
    return _rendered("folder.html", found, pictures=pictures)


def _rendered(template: str, found: dict[str, Any], **more: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters |= {
        "duration": duration,
        "size": size,
        "short": short,
        "number": number,
        "said": words.said,
        "gib": gib,
    }
    data = json.dumps(found, sort_keys=True).replace("<", "\\u003c")
    return environment.get_template(template).render(report=found, data=data, **more)


def read(path: Path) -> dict[str, Any]:
    """The values that a page of ours holds."""
    text = path.read_text()
    _, _, rest = text.partition('<script type="application/json" id="report">')
    return json.loads(rest.partition("</script>")[0])


def chain(actions: list[dict[str, Any]]) -> dict[str, Any]:
    """Where each action's box lies, in rows by how many come before it, and the lines between them."""
    depth: list[int] = []
    for one in actions:
        depth.append(1 + max((depth[n] for n in one["reads"]), default=-1))
    rows = [
        [n for n, d in enumerate(depth) if d == level]
        for level in range(max(depth, default=-1) + 1)
    ]
    width = max((len(row) for row in rows), default=1) * (BOX + GAP) - GAP
    place = {}
    for level, row in enumerate(rows):
        left = (width - (len(row) * (BOX + GAP) - GAP)) / 2
        for at, n in enumerate(row):
            place[n] = (left + at * (BOX + GAP), level * ROW)
    boxes = [{**actions[n], "x": x, "y": y} for n, (x, y) in sorted(place.items())]
    lines = []
    for m, one in enumerate(actions):
        for (x1, y1), (x2, y2) in ((place[n], place[m]) for n in one["reads"]):
            lines.append({"x1": x1 + BOX / 2, "y1": y1 + HIGH, "x2": x2 + BOX / 2, "y2": y2})
    height = len(rows) * ROW - (ROW - HIGH)
    return {"boxes": boxes, "lines": lines, "width": width, "height": height, "box": BOX}


def _prompts(checks: Any, place: str = "") -> list[dict[str, Any]]:
    """All prompts of a record, whatever they were asked of."""
    found = []
    for name, value in checks.items() if isinstance(checks, dict) else ():
        if name == "by_prompt":
            found += [{**one, "of": place} for one in value]
        else:
            found += _prompts(value, f"{place} {name}".strip())
    return found


def _limits(report: dict[str, Any]) -> dict[str, float]:
    """The limit of a number, by the number's dotted name, where the record has one beside it."""
    found = flat(report)
    pairs = {}
    for name in found:
        place, _, last = name.rpartition(".")
        if place.endswith("_limits"):  # error_limits.Q4_K of errors.Q4_K
            pairs[f"{place.removesuffix('_limits')}s.{last}"] = found[name]
        elif place.endswith("limits"):
            pairs[f"{place.removesuffix('limits')}{last}".lstrip(".")] = found[name]
    if share := found.get("difference_limit.share_of_largest_logit"):
        pairs["largest_logit_difference"] = share * found.get("largest_logit", 0.0)
    return pairs


def gib(count: float | None) -> str:
    return f"{count / GIB:.2f} GiB" if count else ""


def short(name: str) -> str:
    kind, _, rest = name.partition(":")
    return f"{kind}:{rest[:12]}" if rest else name[:19]


def number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else "-" if value is None else str(value)
