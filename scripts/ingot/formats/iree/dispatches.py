"""From the dispatches of a few transformer blocks to those of many.

The passes of the compiler whose cost grows with the square of blocks times devices come before it has
formed dispatches: a function's calls of kernels.  So it forms those of programs of 6, 7 and 8 blocks,
and the whole program is written from the text of the first two, as stitch.py writes the one that is
compiled.  A few kernels hold the number of their block, or that of the last: it is its place in the KV
cache.  What differs between such kernels must be numbers that change evenly.  The same is done for 8
blocks, and must give what the compiler gave; what it did otherwise from 9 blocks on would not be seen.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator

from ingot.formats.iree.stitch import FUNCTION, TRACED, Function, Unlike, body_at, stitch

SHORT = (TRACED + 2, TRACED + 3, TRACED + 4)  # blocks: to write from, to compare with, to check
WORTH = 200  # blocks times devices, from which this saves time: 16 on 8 take as long either way
GLOBAL = re.compile(r"util\.global private @__auto\.blk\.(\d+)\.")
DISPATCH = re.compile(r"flow\.dispatch @([\w$.]+)::@([\w$.]+)")
SYMBOL = re.compile(r"@([\w$.]+)")
KERNEL = re.compile(r"  flow\.executable private @([\w$.]+) \{")
OWN = re.compile(r"(.+)\.blk\.(\d+)\.")
HERE = "// kernels"
CONSTANT = re.compile(r"\s*(%[\w$.-]+) = arith\.constant (-?\d+) : (\w+)$")
NAME = re.compile(r"%[\w$.-]+")
NUMBER = re.compile(r"(?<![\w$.%@#-])(-?\d+)(?![\w$.])")
REGION = ("flow.executable.export ", "func.func ")  # of a kernel, each with its own names
VALUE = re.compile(r"<-?\d+ of \w+>")  # a constant where it is used

Kernel = list[str]  # its lines


def blocks(program: str) -> int:
    """How many blocks have weights in a program."""
    return 1 + max((int(found[1]) for found in GLOBAL.finditer(program)), default=-1)


def worth(layers: int, devices: int) -> bool:
    """Does a program's compile take less time by its dispatches' being written?"""
    return layers * devices >= WORTH


def shorten(program: str) -> list[str]:
    """The programs of SHORT blocks that `program` is written from; raises Unlike where it is not."""
    layers, count = blocks(program), SHORT[0]
    if layers <= SHORT[-1]:
        raise Unlike(f"it has {layers} blocks, not more than {SHORT[-1]}")
    short = "\n".join(stitch(program, count, layers))
    again = stitch(short, layers, count)
    if any(a != b for a, b in itertools.zip_longest(program.split("\n"), again)):
        raise Unlike(f"it is not its first {count - 1} blocks and its last, continued")
    return [short, *("\n".join(stitch(short, more, count)) for more in SHORT[1:])]


def lengthen(programs: list[str], layers: int) -> str:
    """The program of dispatches of `layers` blocks, from those of SHORT; raises Unlike."""
    first, second = _Dispatches(programs[0], SHORT[0]), _Dispatches(programs[1], SHORT[1])
    if canonical("\n".join(first.grown(second, SHORT[2]))) != canonical(programs[2]):
        raise Unlike(f"dispatches of {SHORT[-1]} blocks are not those of {SHORT[0]}, continued")
    return "\n".join(first.grown(second, layers))


class _Dispatches:
    """A program of dispatches: its kernels, and all else."""

    def __init__(self, program: str, count: int):
        self.blocks = count
        self.rest, kernels = apart(_by_block(program, count))
        self.shared: dict[str, Kernel] = {}
        self.own: dict[str, list[Kernel]] = {}  # that each block has, from block 1 on
        for name, lines in kernels.items():
            if found := OWN.fullmatch(name):
                text = [line.replace(f"@{name}", f"@{found[1]}") for line in lines]
                self.own.setdefault(found[1], []).append(text)
            else:
                self.shared[name] = lines

    def grown(self, longer: "_Dispatches", layers: int) -> Iterator[str]:
        """The lines of the program of `layers` blocks; `longer` has one block more than this."""
        for line in stitch("\n".join(self.rest), layers, self.blocks):
            if line == HERE:
                yield from self._kernels(longer, layers)
            else:
                yield line

    def _kernels(self, longer: "_Dispatches", layers: int) -> Iterator[str]:
        if len(self.shared) != len(longer.shared):
            raise Unlike("one block more brings kernels that are not its own")
        pairs = zip(self.shared.items(), longer.shared.items(), strict=True)
        for (name, lines), (other, theirs) in pairs:
            renamed = [line.replace(f"@{other}", f"@{name}") for line in theirs]
            yield from continued([lines, renamed], layers - self.blocks)
        for name, kernels in self.own.items():
            for block in range(1, layers - 1):
                lines = continued(kernels, block - 1)
                yield from (line.replace(f"@{name}", f"@{name}.blk.{block}.") for line in lines)


def _by_block(program: str, count: int) -> str:
    """The program with each kernel that one block alone calls named by it: NAME.blk.2. for NAME_239."""
    lines = program.split("\n")
    new: dict[str, str] = {}
    used: Counter[str] = Counter()
    for at in range(len(lines)):
        if body := body_at(lines, at):
            _name(Function(body, count, count), new, used)
    calls = Counter(found[1] for found in DISPATCH.finditer(program))
    if shared := [name for name, number in used.items() if calls[name] != number]:
        raise Unlike(f"{shared[0]} is called outside its block")
    return SYMBOL.sub(lambda found: f"@{new.get(found[1], found[1])}", program)


def _name(function: Function, new: dict[str, str], used: Counter[str]) -> None:
    """Note what the kernels are to be called that differ from block to block, and count their calls."""
    for rows in itertools.zip_longest(*function.segments[1:]):
        found = [DISPATCH.search(row.text) if row else None for row in rows]
        calls = [(call[1], call[2]) for call in found if call]
        if not calls or [calls[0]] * len(rows) == calls:
            continue  # no call, or one of a kernel of all blocks
        if len(calls) < len(rows):
            raise Unlike("the blocks' operations differ")
        for block, (kernel, entry) in enumerate(calls, 1):
            name = f"{calls[0][0]}.blk.{block}."
            for old, own in ((kernel, name), (entry, name + entry.removeprefix(kernel))):
                if new.setdefault(old, own) != own:
                    raise Unlike(f"{old} is called by two blocks")
            used[kernel] += 1


def apart(program: str) -> tuple[list[str], dict[str, Kernel]]:
    """The lines of a program without its kernels, HERE in place of the first, and the kernels by name."""
    rest: list[str] = []
    kernels: dict[str, Kernel] = {}
    lines = iter(program.split("\n"))
    for line in lines:
        if found := KERNEL.match(line):
            if not kernels:
                rest.append(HERE)
            body = itertools.takewhile(lambda one: one != "  }", lines)
            kernels[found[1]] = [line, *body, "  }"]
        else:
            rest.append(line)
    return rest, kernels


def continued(kernels: list[Kernel], steps: int) -> Kernel:
    """The kernel that comes `steps` after the first of a row of kernels, of which each number that is not
    the same in all changes evenly."""
    if all(kernel == kernels[0] for kernel in kernels):
        return kernels[0]
    rows = [_without_constants(kernel) for kernel in kernels]
    if len({len(lines) for lines in rows}) != 1:
        raise Unlike("a kernel is longer in one block than in another")
    found = []
    for lines in zip(*rows, strict=True):
        words = [NUMBER.split(line) for line in lines]  # text, number, text, ...
        if len({tuple(one[::2]) for one in words}) != 1:
            raise Unlike(f"a kernel differs from block to block: {lines[0].strip()[:80]}")
        line = words[0]
        for at in range(1, len(line), 2):
            numbers = [int(one[at]) for one in words]
            apart_by = {b - a for a, b in itertools.pairwise(numbers)}
            if len(apart_by) != 1:
                raise Unlike(f"a kernel's numbers go {numbers}: {lines[0].strip()[:80]}")
            if step := apart_by.pop():  # else as it is written, as in 1.0e+00
                line[at] = str(numbers[0] + steps * step)
        found.append("".join(line))
    return _with_constants(found)


def _without_constants(kernel: Kernel) -> Kernel:
    """A kernel with each whole number where it is used: equal ones share a name by chance."""
    known: dict[str, str] = {}
    kept = []
    for line in kernel:
        if line.lstrip().startswith(REGION):
            known.clear()
        if found := CONSTANT.match(line):
            known[found[1]] = f"<{found[2]} of {found[3]}>"
        else:
            kept.append(NAME.sub(lambda name: known.get(name[0], name[0]), line))
    return kept


def _with_constants(lines: list[str]) -> Kernel:
    """The same with the numbers named, at the head of each region that uses them."""
    found = []
    names: dict[str, str] = {}
    for at, line in enumerate(lines):
        text = line
        for value, name in names.items():
            text = text.replace(value, name)
        found.append(text)
        if line.lstrip().startswith(REGION) and line.endswith("{"):
            indent = line[: -len(line.lstrip())]
            region = lines[at + 1 : lines.index(f"{indent}}}", at)]
            values = dict.fromkeys(value for one in region for value in VALUE.findall(one))
            names = {value: f"%number_{number}" for number, value in enumerate(values)}
            for value, name in names.items():
                number, _, kind = value.strip("<>").partition(" of ")
                found.append(f"{indent}  {name} = arith.constant {number} : {kind}")
    return found


def canonical(program: str) -> list[str]:
    """The lines of a program of dispatches with values and kernels named in the order of their use."""
    rest, kernels = apart(program)
    calls = dict.fromkeys(found[1] for line in rest for found in DISPATCH.finditer(line))
    titles = {name: f"kernel_{number}" for number, name in enumerate(calls)}
    found: list[str] = []
    names: dict[str, str] = {}  # of the values of one function

    def named(line: str) -> str:
        return NAME.sub(lambda name: names.setdefault(name[0], f"%{len(names)}"), line)

    for line in rest:
        if line.startswith((*FUNCTION, "  util.initializer")):
            names.clear()
        found.append(DISPATCH.sub(lambda call: f"flow.dispatch @{titles[call[1]]}", named(line)))
    for name, title in titles.items():
        names.clear()
        found += (
            SYMBOL.sub(f"@{title}", named(line)) for line in _without_constants(kernels[name])
        )
    return found
