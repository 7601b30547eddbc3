"""What may be asked for: the grammar of target names, and one line for a wrong one."""

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.catalogue.formats.rows import FORMATS, OFFERED, PUBLISHED, RECORD, ROWS
from ingot.driver.catalogue.formats.table import Target
from ingot.driver.catalogue.model import REFUSED, on_hub, stop_on_refusal
from ingot.model import features

FOLDER = "artifacts/"
MODEL = "[a-z0-9][a-z0-9-]*"
SHAPE = re.compile(rf"{FOLDER}{MODEL}[._][A-Za-z0-9._-]+(/[A-Za-z0-9_][A-Za-z0-9._-]*)?/?")
LONGEST = 200  # characters of a name; file systems take 255
ALIKE = 0.75  # of an ending that was meant as a record's: .verified is 0.78, .config.json 0.62
SHOWN = 8  # variants that a message lists
NAME = re.compile(
    rf"{FOLDER}(?P<model>{MODEL})(?:_tp(?P<tp>[1-9][0-9]{{0,4}}))?"
    r"(?:\.(?P<variant>[a-z0-9_]+(?:\.[a-z0-9_]+)??))??"  # none, where the rest is a format's name
    rf"\.(?P<format>{'|'.join(re.escape(row.name) for row in OFFERED)})"
    rf"(?P<record>{re.escape(RECORD)})?/?"
)


SERVED = ".reference.npz"  # behind a scheme
FLAGS = ("--", "-n", "-F", "-f", "-k", "-p")  # that take no value
# a model of the hub, as people paste it
ADDRESS = re.compile(r"(?:https?|hf)://|(?:www\.)?(?:huggingface\.co|hf\.co)/")


def optional(words: Iterable[str]) -> str:
    """A pattern: a dot and one of the words, or nothing."""
    return rf"(\.({'|'.join(words)}))?"


def stop_on_wrong(argv: list[str], catalogue: dict) -> None:
    """Refuse a target on Snakemake's command line that cannot be built.

    A job that Snakemake starts elsewhere names intermediates too; those were checked at the front.
    """
    if "--mode" in argv or "--target-jobs" in argv:
        return
    for before, word in itertools.pairwise(argv):
        if word.startswith(FOLDER):
            check(word, catalogue)
        elif before.startswith("--") and before != "--":
            continue  # an option's value
        elif NAME.fullmatch(FOLDER + word) and not Path(word).exists():
            raise Refused(
                f"{word}: not a target, expected a path in {FOLDER}; ask for {FOLDER}{word}"
            )
        elif before[:1] == "-" and before not in FLAGS:
            continue  # perhaps an option's value
        elif word in catalogue["models"] and not Path(word).exists():
            raise Refused(
                f"{word}: a model, expected one of its artifacts, such as {FOLDER}{word}.gguf; "
                f"`ingot targets {word}` lists them"
            )
        elif ADDRESS.match(word) or Path(word, "config.json").is_file():
            raise Refused(
                f"{word}: a checkpoint, expected an artifact; `ingot add {word}` makes it a model of yours"
            )


def check(target: str, catalogue: dict) -> None:
    """Refuse `target` with the reason and the nearest targets that can be built."""
    if re.fullmatch(MODEL, target):
        stop_on_unknown(target, catalogue)
    if reason := why_not(target, catalogue):
        # a refused model has no other target, and a reason that says what to do needs none
        settled = "; " in reason or model_of(target) in catalogue.get(REFUSED, ())
        raise Refused(f"{target}: {reason}{'' if settled else f'; {nearest(target, catalogue)}'}")


def stop_on_unknown(model: str, catalogue: dict) -> None:
    """Refuse a model that the catalogue does not have, with those whose names are most like its own."""
    if model not in catalogue["models"]:
        stop_on_refusal(model, catalogue)
        near = difflib.get_close_matches(model, catalogue["models"], n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}" if near else "`ingot add` it first"
        raise Refused(f"{model}: unknown model, expected one of the catalogue; {hint}")


def parsed(target: str, catalogue: dict) -> Target | None:
    """The parts of a target's name; None when it is none."""
    match = NAME.fullmatch(target)
    if match is None:
        return None
    model, tp, variant, name, record = match.group("model", "tp", "variant", "format", "record")
    return Target(model, int(tp) if tp else None, variant, name, bool(record), catalogue)


def why_not(target: str, catalogue: dict) -> str | None:
    """Why `target` cannot be built, or None when it can."""
    if target.endswith(PUBLISHED):
        if not catalogue.get("publish"):
            return "no registry to publish to, expected publish: oci://host/repository in the catalogue"
        return why_not(target.removesuffix(PUBLISHED) + RECORD, catalogue)
    models, model = catalogue["models"], model_of(target)
    if not SHAPE.fullmatch(target) or len(target) > LONGEST:
        return f"not a target's name, expected {FOLDER}MODEL[_tpN][.VARIANT].FORMAT"
    if model not in models:
        return catalogue.get(REFUSED, {}).get(model) or f"unknown model {model}"
    if _intermediate(target, models[model]):
        return None  # for those who know them
    if target.endswith(SERVED):  # what a server of a quantised checkpoint must answer
        return why_not(f"{target.removesuffix(SERVED)}.safetensors", catalogue)
    if reason := catalogue.get(REFUSED, {}).get(model):
        return reason
    asked = parsed(target, catalogue)
    if asked is None:
        names = ",".join(row.name for row in OFFERED)
        return f"not a target, expected {model}[_tpN][.VARIANT].{{{names}}}"
    row = FORMATS[asked.format]
    sizes = list(row.sizes(asked.entry))
    if asked.tp is None and None not in sizes:
        return f".{row.name} needs a tensor parallel size: {model}_tpN.{row.name}"
    if asked.tp is not None and asked.tp not in sizes:
        if row.whole:
            return row.whole
        legal = ", ".join(str(size) for size in sizes if size)
        return f"tensor parallel size {asked.tp}, expected one of {legal} for {model}"
    allowed = list(row.variants(catalogue, asked.tp or 1))
    if asked.variant is not None and asked.variant not in allowed:
        shown, more = allowed[:SHOWN], len(allowed) - SHOWN
        wanted = f"one of {', '.join(shown)}" if allowed else f"{model}.{row.name} alone"
        wanted += f" and {more} more" if more > 0 else ""
        return f"unknown variant {asked.variant}, expected {wanted}"
    if asked.record and row.no_record:
        return row.no_record
    as_it_is = row.intermediate or (row.as_stored and asked.variant is None)
    if (original := asked.entry.get("original")) and not as_it_is:
        return (
            f"its weights are quantised already, no start for .{row.name}; `ingot add` {original}"
        )
    if lacks := features.lacking(asked.entry["needs"], row.can(asked)):
        return f"{lacks}, which .{row.name} cannot express"
    return row.why_not(asked) or None


def _intermediate(target: str, entry: dict) -> bool:
    name = target.removeprefix(FOLDER + model_of(target))
    if name.startswith(".hf/"):
        return "hub" in on_hub(entry) and bool(re.fullmatch(r"\.hf/[^/]+", name))
    name = name.rstrip("/")
    rows = [row for row in ROWS if row.intermediate and row.name != "hf"]
    variants = [(word, row) for row in rows for word in row.variants({}, 1)]
    return name in {*(f".{row.name}" for row in rows), *(f".{w}.{row.name}" for w, row in variants)}


def model_of(target: str) -> str:
    """The model that a target, or a bare name, speaks of."""
    return re.split(r"[._]", target.removeprefix(FOLDER))[0]


def legal(catalogue: dict) -> Iterator[str]:
    """Every target that can be built, except for records and variants of two words."""
    for model in catalogue["models"]:
        yield from legal_of(model, catalogue)


def legal_of(model: str, catalogue: dict) -> Iterator[str]:
    """The same of one model."""
    for row in OFFERED:
        for tp in row.sizes(catalogue["models"][model]):
            plain = (word for word in row.variants(catalogue, tp or 1) if "." not in word)
            for variant in (None, *plain):
                middle = (f"_tp{tp}" if tp else "") + (f".{variant}" if variant else "")
                target = f"{FOLDER}{model}{middle}.{row.name}"
                if not why_not(target, catalogue):
                    yield target


def nearest(target: str, catalogue: dict) -> str:
    """The legal targets most like `target`: of one model, or of the three models most like its own."""
    of, model = of_record(target), model_of(target)
    if of + RECORD != target != of and not why_not(of + RECORD, catalogue):
        return f"nearest: {of + RECORD}"
    target = of
    dotted = [  # M-q4_k_m.gguf for M.q4_k_m.gguf
        f"{FOLDER}{known}.{target.removeprefix(FOLDER)[len(known) + 1 :]}"
        for known in catalogue["models"]
        if re.match(rf"{re.escape(FOLDER + known)}[-_]", target)
    ]
    if right := [one for one in dotted if not why_not(one, catalogue)]:
        return f"nearest: {', '.join(right)}"
    if model in catalogue["models"]:
        found = _most_alike(target, legal_of(model, catalogue), 3)
    elif SHAPE.fullmatch(target):
        models = difflib.get_close_matches(model, catalogue["models"], n=3, cutoff=0.0)
        same = [target.replace(FOLDER + model, FOLDER + other, 1) for other in models]
        lists = [(name, legal_of(model_of(name), catalogue)) for name in same]
        found = [one for name, names in lists for one in _most_alike(name, names, 1)]
    else:
        found = []
    add = (
        "" if model in catalogue["models"] or not found else "; `ingot add` takes a model of yours"
    )
    return f"nearest: {', '.join(found)}{add}" if found else "see `ingot targets`"


def of_record(target: str) -> str:
    """`target` without the ending of a record, or what was meant as one."""
    for dot in reversed([match.start() for match in re.finditer(r"\.", target[:LONGEST])]):
        if difflib.SequenceMatcher(None, target[dot:], RECORD).ratio() > ALIKE:
            return target[:dot]
    return target


def _most_alike(target: str, names: Iterable[str], count: int) -> list[str]:
    """Of several sizes, those nearest to the target's own."""
    size = re.search(r"_tp([0-9]{1,5})", target)
    wanted = int(size[1]) if size else 1

    def distance(other: str) -> int:
        found = re.search(r"_tp([0-9]+)", other)
        return abs(int(found[1]) - wanted) if found else 0

    without = {name: re.sub(r"_tp[0-9]+", "", name) for name in names}
    alike = difflib.get_close_matches(
        re.sub(r"_tp[0-9]+", "", target[:LONGEST]), set(without.values()), n=3, cutoff=0.4
    )
    found = [name for name in without if without[name] in alike]
    return sorted(found, key=lambda name: (distance(name), alike.index(without[name])))[:count]
