"""Does each replica find its node, whichever Ray places first, and wherever it places the others?

A replica that asks for one CPU anywhere may take the CPU that another's custom resource lies beside; the
other then waits for ever, though the nodes together offer enough.  Ray knows no order and moves nothing.
"""

import random
from dataclasses import dataclass
from math import inf

TRIES = 100  # orders and places; the one that hurts is seldom rare
PARTS = 10_000  # of one CPU, GPU or custom resource
MOST = 200  # replicas or nodes: of more, numbers alone are compared


@dataclass(frozen=True)
class Stuck:
    """A replica without a node, and one that took the room that it needs; each by where it is said."""

    path: str
    asks: dict[str, float]
    taker: str


def stuck(
    wanted: list[tuple[str, dict[str, float]]], nodes: list[dict[str, float]]
) -> Stuck | None:
    """`wanted`: each replica's place in the file and what it asks of one node; `nodes`: what each offers.

    Of at most MOST each: a hundred orders are tried.
    """
    wanted = [(path, _counted(asks)) for path, asks in wanted]
    nodes = [_counted(one) for one in nodes]
    chance = random.Random(0)  # the same answer each time
    for _ in range(TRIES):
        order = chance.sample(wanted, len(wanted))
        left, held = [dict(one) for one in nodes], [[] for _ in nodes]
        for path, asks in order:
            fits = [number for number, one in enumerate(left) if _fits(asks, one)]
            if not fits:
                asked = {name: one / PARTS for name, one in asks.items()}
                return Stuck(path, asked, _taker(asks, nodes, held))
            number = chance.choice(fits)
            held[number].append(path)
            for name, one in asks.items():
                left[number][name] -= one
    return None


def _counted(resources: dict[str, float]) -> dict[str, float]:
    """In whole parts, as Ray counts: three tenths and seven are one."""
    return {name: round(one * PARTS) if one != inf else inf for name, one in resources.items()}


def _fits(asks: dict[str, float], node: dict[str, float]) -> bool:
    return all(node.get(name, 0) >= one for name, one in asks.items())


def _taker(asks: dict[str, float], nodes: list[dict[str, float]], held: list[list[str]]) -> str:
    """Who stands on a node that alone would have held it."""
    return next(
        (paths[0] for node, paths in zip(nodes, held, strict=True) if _fits(asks, node) and paths),
        "",
    )
