"""From the traced program of a few transformer blocks to that of many.

The blocks of a transformer are the same but for their weights and their number, so a program of
TRACED blocks holds all that one of a hundred does.  Works on the text that sharktank's exporter
prints, one operation per line; its functions each have

    head     loads of the weights, block after block, and the constants of each block
    prefix   embedding, masks, rotary tables, block 0
    segments of block 1, 2, ...: equal, but for the values that they take up
    tail     the last block, the cache's way out, the output layer

The second-last block's segment is the pattern of the added ones.  Whatever is not as described
here is refused, never guessed: each operand must be found again in the segment before, and each
number that changes from block to block must change evenly.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

FUNCTION = ("  func.func @", "  util.func ")  # of a program as exported, and of one with dispatches
LOAD = re.compile(r"util\.global\.load (?:immutable )?@__auto\.blk\.(\d+)\.")
TRACED = 4  # the first and last block differ from the others; two between them show what repeats
NAME = re.compile(r"(%[\w.$-]+)")
NUMBER = re.compile(
    r"(?<=torch\.constant\.int )-?\d+$|(?<=literal\(dense<)-?\d+(?=> : tensor<si64>)"
)


class Unlike(ValueError):
    """The program is not a row of equal blocks."""


@dataclass
class Row:
    """One operation: what it defines, its text with `%` for each name, and those names."""

    defines: str | None
    text: str
    names: list[str]
    number: int | None  # of a constant

    @classmethod
    def of(cls, line: str) -> "Row":
        found = NUMBER.search(line)
        if found:
            line = line[: found.start()] + "\0" + line[found.end() :]
        *parts, last = NAME.split(line)
        names = parts[1::2]
        defines = names.pop(0) if names and re.match(r"\s*$", parts[0]) else None
        text = "%".join([*parts[0::2], last])
        return cls(defines, text, names, int(found[0]) if found else None)

    def alike(self, block: int) -> str:
        """The text as it is in every block."""
        return self.text.replace(f"blk.{block}.", "blk.\1.")

    def line(
        self, was: int, block: int, defines: str | None, names: list[str], number: int | None
    ) -> str:
        """The text of block `was` as that of `block`."""
        parts = self.alike(was).split("%")
        every = iter([*([defines] if defines else []), *names])
        text = "".join(part + next(every, "") for part in parts)
        if number is not None:
            text = text.replace("\0", str(number))
        return text.replace("blk.\1.", f"blk.{block}.")


def stitch(program: str, layers: int, traced: int = TRACED) -> Iterator[str]:
    """The lines of `program` with `layers` blocks instead of `traced`, both at least 4; raises Unlike."""
    lines = program.split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith("util.global private @__auto.blk."):
            end = next(i for i in range(at, len(lines)) if "@__auto.blk." not in lines[i])
            yield from _globals(lines[at:end], layers, traced)
            at = end
        elif body := body_at(lines, at):
            yield line
            yield from Function(body, layers, traced).lines()
            at += 1 + len(body)
        else:
            yield line
            at += 1


def _globals(lines: list[str], layers: int, traced: int) -> Iterator[str]:
    size, left = divmod(len(lines), traced)
    groups = [lines[k * size : (k + 1) * size] for k in range(traced)]
    alike = [[x.replace(f"blk.{k}.", "blk.\1.") for x in group] for k, group in enumerate(groups)]
    if left or any(group != alike[0] for group in alike):
        raise Unlike("the blocks' weights differ")
    for block in range(layers):
        yield from (line.replace("blk.\1.", f"blk.{block}.") for line in alike[0])


def body_at(lines: list[str], at: int) -> list[str]:
    """The body of the function whose first line is at `at`; empty where it only calls another one."""
    if not lines[at].startswith(FUNCTION) or not lines[at].endswith("{"):
        return []
    body = lines[at + 1 : lines.index("  }", at)]
    traced = lines[at].startswith("  func.func")
    return body if traced or any(LOAD.search(line) for line in body) else []


class Function:
    """The body of one function, cut at its blocks."""

    def __init__(self, lines: list[str], layers: int, traced: int):
        self.layers, self.traced = layers, traced
        self.rows = rows = [Row.of(line) for line in lines]
        loads = [
            (int(found[1]), number)
            for number, line in enumerate(lines)
            if (found := LOAD.search(line))
        ]
        first = {block: number for block, number in reversed(loads)}
        if sorted(first) != list(range(traced)):
            raise Unlike(f"weights of {len(first)} blocks are loaded, not of {traced}")
        cast = int(rows[first[0]].defines in rows[first[0] + 1].names)  # follows each load, or not
        last = {block: number + 1 + cast for block, number in loads}
        size = last[1] - last[0]
        heads = [(last[k] - size, last[k]) for k in range(traced)]
        uses = [self._use(rows[first[k] + cast].defines, last[traced - 1]) for k in range(traced)]
        self.heads = [rows[a:b] for a, b in heads]
        self.segments = [rows[a:b] for a, b in itertools.pairwise(uses)]  # [0]: block 0's
        self.before, self.after = rows[: heads[0][0]], rows[heads[-1][1] : uses[1]]
        self.tail = rows[uses[-1] :]
        self.place: dict[str, tuple[str, int, int]] = {}  # name -> head or segment, block, row
        for kind, parts in (("head", self.heads), ("segment", self.segments)):
            for block, part in enumerate(parts):
                if kind == "segment" and block == 0:
                    continue  # part of the prefix
                for number, row in enumerate(part):
                    if row.defines:
                        self.place[row.defines] = (kind, block, number)

    def _use(self, name: str | None, start: int) -> int:
        for number in range(start, len(self.rows)):
            if name in self.rows[number].names:
                return number
        raise Unlike(f"{name} is not used")

    def _check(self) -> None:
        for parts, start in ((self.heads, 0), (self.segments, 1)):
            alike = [[row.alike(k) for row in parts[k]] for k in range(start, len(parts))]
            if any(part != alike[0] for part in alike):
                raise Unlike("the blocks' operations differ")
            for rows in zip(*parts[start:], strict=True):
                numbers = [row.number for row in rows]
                steps = {b - a for a, b in itertools.pairwise(numbers) if a is not None}
                if len(steps) > 1:
                    raise Unlike(f"a constant goes {numbers} from block to block")
        pattern, other = self.segments[self.traced - 2], self.segments[self.traced - 3]
        for one, two in zip(pattern, other, strict=True):
            for name, elder in zip(one.names, two.names, strict=True):
                found, was = self._where(name, self.traced - 2), self._where(elder, self.traced - 3)
                into_prefix = found[0] == "segment" and found[1] == -1 and self.traced - 3 == 1
                if found != was and not (into_prefix and was[0] == "fixed"):
                    raise Unlike(f"{name} and {elder} are taken from different places")

    def _where(self, name: str, block: int) -> tuple:
        """What `name` is to `block`: a row of a head or segment some blocks off, or fixed."""
        base, _, part = name.partition("#")
        if base not in self.place:
            return "fixed", name
        kind, owner, number = self.place[base]
        if owner - block not in (-1, 0):
            raise Unlike(f"block {block} takes up {name} of block {owner}")
        return kind, owner - block, number, part

    def _named(self, kind: str, block: int, number: int) -> str | None:
        """The name that row `number` of a block defines in the stitched program."""
        traced = self.traced - 1 if kind == "segment" else self.traced - 2
        part = (self.heads if kind == "head" else self.segments)[min(block, self.traced - 2)]
        if block < traced or (kind == "head" and block == self.traced - 2):
            return part[number].defines
        if kind == "head" and block == self.layers - 1:
            part = self.heads[self.traced - 1]
        return f"%{kind[0]}{block}_{number}" if part[number].defines else None

    def _renamed(self, name: str, traced: int, block: int) -> str:
        found = self._where(name, traced)
        if found[0] == "fixed":
            return name
        kind, offset, number, part = found
        return f"{self._named(kind, block + offset, number)}{'#' if part else ''}{part}"

    def _number(self, parts: list[list[Row]], start: int, number: int, block: int) -> int | None:
        value, next_value = parts[start][number].number, parts[start + 1][number].number
        if value is None or next_value is None:
            return None
        return value + (next_value - value) * (block - start)

    def lines(self) -> Iterator[str]:
        self._check()
        yield from map(_same, self.before)
        for block in range(self.layers):
            traced = min(block, self.traced - 2) if block < self.layers - 1 else self.traced - 1
            for number, row in enumerate(self.heads[traced]):
                names = [self._renamed(name, traced, block) for name in row.names]
                value = self._number(self.heads, 0, number, block)
                yield row.line(traced, block, self._named("head", block, number), names, value)
        yield from map(_same, self.after)
        for segment in self.segments[1 : min(self.traced, self.layers) - 1]:
            yield from map(_same, segment)
        traced = self.traced - 2
        for block in range(self.traced - 1, self.layers - 1):
            for number, row in enumerate(self.segments[traced]):
                names = [self._renamed(name, traced, block) for name in row.names]
                value = self._number(self.segments, 1, number, block)
                yield row.line(traced, block, self._named("segment", block, number), names, value)
        yield from self._last()

    def _last(self) -> Iterator[str]:
        """The tail, with the last block's numbers; each that changes must be met in its place."""
        changing = [
            number
            for number in range(len(self.segments[1]))
            if self._number(self.segments, 1, number, 2)
            != self._number(self.segments, 1, number, 1)
        ]
        traced, last, at = self.traced - 1, self.layers - 1, 0
        pattern = [row.alike(traced - 1) for row in self.segments[traced - 1]]
        for row in self.tail:
            names = [self._renamed(name, traced, last) for name in row.names]
            value = row.number
            if at is not None and not row.text.lstrip().startswith("torch.overwrite"):
                if at < len(pattern) and row.alike(traced) == pattern[at]:
                    if changing and changing[0] == at:
                        if value != self._number(self.segments, 1, at, traced):
                            raise Unlike(f"the last block's constant is {value}")
                        value = self._number(self.segments, 1, at, last)
                        changing.pop(0)
                    at += 1
                else:
                    at = None
            yield row.line(traced, last, row.defines, names, value)
        if changing:
            raise Unlike(f"{len(changing)} constants of the last block were not found")


def _same(row: Row) -> str:
    return row.line(0, 0, row.defines, row.names, row.number)
