"""The disk over time as a picture: one stacked bar per event, for both ways of keeping."""

from html import escape

from ingot.driver.catalogue.formats.table import CHART
from ingot.driver.forecast.schedule import duration, size

WIDTH, HEIGHT, LEFT, TOP, GAP = 900, 170, 80, 60, 60


def disk(build: dict, title: str) -> str:
    """An SVG of both timelines of a forecast's `keep`, drawn to one scale."""
    ways = build["keep"]
    most = max(way["disk"] for way in ways.values()) or 1
    whole = max(way["seconds"] for way in ways.values()) or 1
    parts = [_text(LEFT, 22, f"Disk over time: {title}", 15)]
    for n, (word, colour) in enumerate(CHART.items()):
        x = LEFT + n * 120
        parts.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 17, 44, word))
    for n, (keep, words) in enumerate((("all", "keep all"), ("targets", "keep=targets"))):
        way, top = ways[keep], TOP + n * (HEIGHT + GAP)
        base = top + HEIGHT
        parts.append(_text(LEFT, top + 10, f"{words}: peak {size(way['disk'])}"))
        ends = [moment for moment, _ in way["timeline"][1:]] + [whole]
        for (start, here), end in zip(way["timeline"], ends, strict=True):
            y = base
            for word, colour in CHART.items():
                height = (HEIGHT - 20) * here[word] / most
                y -= height
                x, wide = LEFT + WIDTH * start / whole, WIDTH * (end - start) / whole
                if height > 0 and wide > 0:
                    parts.append(
                        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.2f}" height="{height:.2f}" '
                        f'fill="{colour}"/>'
                    )
        parts.append(
            f'<path d="M{LEFT} {top + 20}V{base}H{LEFT + WIDTH}" fill="none" stroke="#333"/>'
        )
        parts.append(_text(LEFT - 8, top + 26, size(most), anchor="end"))
        parts.append(_text(LEFT, base + 16, "0"))
        parts.append(_text(LEFT + WIDTH, base + 16, duration(whole), anchor="end"))
    total = TOP + 2 * (HEIGHT + GAP)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 30}" height="{total}" '
        'font-family="sans-serif"><rect width="100%" height="100%" fill="white"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def _text(x: float, y: float, words: str, height: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{height}" text-anchor="{anchor}">{escape(words)}</text>'
    )
