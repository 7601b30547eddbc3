"""From a model's name to what serves it: add it, choose a form that fits, build it, verify it.

    ingot cast organisation/name                      for this machine; an adapter or a folder likewise
    ingot cast ./my-finetune --on rtx4090 --to gguf
    ingot cast llama8b --on 2xh100 --context 32768 --requests 8 --dry-run
    ingot cast organisation/name --serve              and then start the server
    ingot cast organisation/name --each --to gguf     each that fits, with what it loses

Of the forms that fit it takes the fastest that loses next to nothing (a mean KL of at most 0.006 nats per
token), or else the nearest to the model; `ingot fit` shows all.  On a terminal it asks before it builds.
"""

import json
import os
import shlex
import shutil
import sys
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import asdict, replace
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.cache.dry_run import build, dry_run
from ingot.driver.catalogue import devices, schema, targets
from ingot.driver.catalogue import found as found_of
from ingot.driver.catalogue.formats.rows import RECORD
from ingot.driver.catalogue.formats.table import TOKENS, of_corpus
from ingot.driver.catalogue.model import Model, folder_of, stop_on_refusal
from ingot.driver.commands import add, fit, numbers, plan
from ingot.driver.commands.fit_forms import Form
from ingot.driver.commands.serve import SERVERS
from ingot.driver.forecast.past import Past
from ingot.driver.forecast.schedule import duration, size
from ingot.driver.forecast.streamed import way_to
from ingot.model.features import ADAPTER
from ingot.store.records import Store

LONG = 1800  # seconds
SCORING = (  # steps that take less time over a shorter corpus
    "score_corpus", "verify_gguf", "verify_converted", "verify_lora", "verify_safetensors", "verify_onnx",
    "verify_built_onnx", "verify_openvino", "verify_built_openvino",
)  # fmt: skip
NOTHING = 0.006  # nats per token: q6_k loses 0.0052 of the demo, 0.0055 of Llama 3 8B
SHOWN = 6  # forms of a proposal
FORMATS = ("gguf", "safetensors", "mlx", "shortfin")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "model",
        help="of the catalogue, organisation/name on the hub, its address there, or a folder",
    )
    fit.add_asked(parser)
    parser.add_argument(
        "--to", help=f"a format: {', '.join(FORMATS)} (default: any)", choices=FORMATS
    )
    parser.add_argument(
        "--form",
        help="an artifact to build instead of the proposal: q8_0.gguf, q8_0, or the whole name",
        metavar="TARGET",
    )
    parser.add_argument(
        "--each", action="store_true", help="build each form that fits, and compare them"
    )
    parser.add_argument("--yes", action="store_true", help="build without asking")
    parser.add_argument(
        "--serve", action="store_true", help="start its server, of one that is installed here"
    )
    parser.add_argument("--dry-run", action="store_true", help="propose, and build nothing")
    parser.set_defaults(configfile=None)


def run(root: Path, options: Namespace) -> None:
    stop_on_contradictions(options)
    place = devices.named(options.on or devices.THIS, schema.load(root))
    with redirect_stdout(sys.stderr) if options.json else nullcontext():
        name = known(root, options.model) or add.add(
            root, Namespace(model=options.model, name=None, base=None, revision="")
        )
    catalogue = schema.load(root)
    stop_on_refusal(name, catalogue)
    model, reading = Model(name, catalogue, root), plan.reading(name)
    if model.config is None and not reading.is_file():  # what fits is told by that then
        build(root, [str(reading)], None, Path.cwd())
    only = [of_this(name, options.form, catalogue)] if options.form else []
    for target in only:
        targets.check(target, catalogue)
    found, asked = fit.looked_at(root, catalogue, name, [place], options, only)
    forms = [form for _, form in found]
    chosen = choose(name, place.name, forms, options)
    rows = of_format(forms, options.to) if options.each else [chosen]
    wanted = [form.target for form in rows if form.artifact]
    if options.each and not wanted:
        raise Refused(f"--each: {chosen.target} is served as it is, nothing is built; leave it out")
    builds, folder = [*wanted, *recorded(wanted, catalogue)], ""
    title = f"{len(wanted)} forms" if options.each else chosen.target
    jobs: list[dict] = []
    if builds and (options.each or not options.json):
        jobs, folder = planned(root, model, wanted, builds)
    if not options.json:
        rows = [form for form in rows if form.artifact] if options.each else around(chosen, forms)
        print("\n".join([*fit.heading(place, asked), *fit.table(rows)]))
        said, seconds = cost(jobs, builds)
        print(f"\nproposed: {title}, {said}")
        print(shorter(model, seconds), end="", flush=True)
    take = not options.dry_run and (options.yes or options.json or agreed(title))
    made, missing = [], None
    if wanted and take:
        if folder and Store().prepare():  # a store that takes nothing keeps none of its files
            build_folder(root, folder)
        made, missing = build_all(root, wanted, builds, options.each)
        forms = with_numbers(forms, made)
        chosen = next(form for form in forms if form.target == chosen.target)
    if options.json:
        answer = {"model": name, "device": place.name, "built": bool(made) and not missing}
        answer["proposed"] = {**asdict(chosen), "fits": True}
        print(json.dumps(answer | fit.as_json([(place, form) for form in forms], asked), indent=2))
    elif take and options.each:
        compare(name, [form for form in forms if form.target in made])
    elif take:
        serve(chosen, verified=len(builds) > len(wanted), start=options.serve)
    if missing:
        raise missing


def compare(name: str, forms: list[Form]) -> None:
    forms = sorted(forms, key=fit.nearness)
    print("\n".join(["", *fit.table(forms), "", f"compare them: ingot report {name}"]))


def serve(form: Form, verified: bool, start: bool) -> None:
    """Say what was built and the command that serves it; `start`: and become that."""
    print(f"\n{form.target}: {size(form.weights)}{lost(form) if verified else ''}")
    print(f"serve it: {form.serve}", flush=True)
    if start:
        words = shlex.split(form.serve)
        os.execv(program(form) or words[0], words)


def of_this(name: str, word: str, catalogue: dict) -> str:
    """The target that `word` names: whole, or the end of its name, of which GGUF's may lack `.gguf`."""
    given, end = word.removeprefix("./"), f"{targets.FOLDER}{name}.{word}"
    whole = given if given.startswith(targets.FOLDER) else f"{targets.FOLDER}{given}"
    for target in (whole, end, f"{end}.gguf"):
        if targets.why_not(target, catalogue) is None:
            return target
    return whole if whole == given else end


def planned(
    root: Path, model: Model, wanted: list[str], builds: list[str]
) -> tuple[list[dict], str]:
    """The jobs of a build; and M.quants, where each of its types is wanted, and most of them lack.

    One job makes these then, from one read of the checkpoint, before all others.
    """
    start = f"{targets.FOLDER}{model.name}"
    types = {f"{start}.{one}.gguf" for one in model.entry["quants"]} if len(wanted) > 1 else set()
    folder = f"{start}.quants" if len(types) > 1 and types <= {*wanted} else ""
    jobs = dry_run(root, [*builds, *([folder] if folder else [])])
    own = [job for job in jobs if types & {*job["outputs"]}]
    if 2 * sum(job["action"] == "run" for job in own) <= len(types):
        return [job for job in jobs if folder not in job["outputs"]], ""
    way = way_to([folder], jobs)
    for job in jobs:
        if folder not in job["outputs"] and not way & {*job["outputs"]}:
            job["inputs"] = [*job["inputs"], folder]
    return [job for job in jobs if job not in own], folder


def build_folder(root: Path, folder: str) -> None:
    """Each of its files is on record by itself then; what fails is said when that one is built."""
    there = os.path.lexists(folder)
    with suppress(Refused):
        build(root, [folder], None, Path.cwd())
        if not there:
            shutil.rmtree(folder, ignore_errors=True)


def build_all(
    root: Path, wanted: list[str], builds: list[str], each: bool
) -> tuple[list[str], Refused | None]:
    """Those of `wanted` that were built and verified; of `each` also when others were not, with which."""
    try:
        build(root, builds, None, Path.cwd(), *(["--keep-going"] if each else []))
    except Refused:
        ends = {one: [path for path in (one, one + RECORD) if path in builds] for one in wanted}
        made = [one for one in wanted if all(map(os.path.exists, ends[one]))]
        if not each or not made:
            raise
        left = ", ".join(one for one in wanted if one not in made)
        return made, Refused(f"{left}: not built or not verified; the lines above say why")
    return wanted, None


def stop_on_contradictions(options: Namespace) -> None:
    if options.serve and options.json:
        raise Refused("--serve: not with --json, which ends with the answer; leave one out")
    if options.each and (options.serve or options.form):
        raise Refused("--each: not with --serve or --form, which are of one; leave them out")


def around(chosen: Form, forms: list[Form]) -> list[Form]:
    """The first of those that fit, and what is proposed."""
    fitting = [form for form in forms if form.fits]
    others = [form for form in fitting if form != chosen][: SHOWN - 1]
    return [form for form in fitting if form in others or form == chosen]


def choose(name: str, place: str, forms: list[Form], options: Namespace) -> Form:
    """What is proposed.  Refused where nothing fits, or nothing that fits is served here."""
    servable = [form for form in forms if not options.serve or program(form)]
    if chosen := proposed(servable, options.to, bool(options.form)):
        return chosen
    raise Refused(
        no_server(of_format(forms, options.to))
        if proposed(forms, options.to, bool(options.form))
        else none_fits(name, place, forms, options.to)
    )


def of_format(forms: list[Form], to: str | None) -> list[Form]:
    """Those that fit, of one format or of any."""
    return [form for form in forms if form.fits and (not to or form.target.endswith(f".{to}"))]


def recorded(wanted: list[str], catalogue: dict) -> list[str]:
    """The verification records of those that have one."""
    records = [target + RECORD for target in wanted]
    return [record for record in records if targets.why_not(record, catalogue) is None]


def known(root: Path, word: str) -> str | None:
    """The model or adapter of the catalogue that `word` names, or whose repository or folder it is."""
    models = schema.load(root)["models"]
    if word in models:
        return word
    where = found_of.local(word)
    hub, revision = (str(where), "") if where else found_of.on_hub(word)
    adapters = {name: one[ADAPTER] for name, one in models.items() if one.get(ADAPTER)}
    for name, its in adapters.items():
        if where and "lora" in its:
            same = folder_of({"path": its["lora"]}, root).resolve() == where.resolve()
        else:
            same = not where and its.get("hub") == hub and revision in ("", its["revision"])
        if same:
            return name
    return add.named_so(root, hub, revision)


def proposed(forms: list[Form], to: str | None, asked: bool = False) -> Form | None:
    """The fastest, or the smallest where no bandwidth is known, of those that lose next to nothing.

    Where none does, the nearest to the model; where there is nothing to build, the checkpoint as it is.
    What no command serves is taken where it is asked for, by its format or by its name.
    """
    fitting = [form for form in of_format(forms, to) if to or asked or form.served]
    built = [form for form in fitting if form.artifact] or fitting
    good = [form for form in built if form.kl <= NOTHING]
    return min(
        good, key=lambda form: (-form.speed, form.weights), default=built[0] if built else None
    )


def program(form: Form) -> str | None:
    """The path of what serves it, of one that is installed here or comes with the artifact."""
    first = next(iter(shlex.split(form.serve)), "") if form.served else ""
    return first if first.startswith(form.target) else shutil.which(first)


def no_server(forms: list[Form]) -> str:
    wanted = {shlex.split(form.serve)[0] for form in forms if form.fits and form.served}
    if not wanted:
        return f"--serve: no command serves {forms[0].target}; leave --serve out"
    ways = "; ".join(f"{name}: {SERVERS[name]}" for name in SERVERS if name in wanted)
    return f"--serve: no server of what fits is installed here, expected one on PATH: {ways}"


def none_fits(name: str, place: str, forms: list[Form], to: str | None) -> str:
    mine = [form for form in forms if not to or form.target.endswith(f".{to}")]
    if to and not mine:
        fitting = {form.target.rpartition(".")[2] for form in forms if form.fits and form.artifact}
        others = ", ".join(one for one in FORMATS if one in fitting) or "another"
        return f"{name}: no {to} is served on {place}, expected {others}; or ask Snakemake for it by name"
    least = min((form for form in mine if form.needs), key=lambda form: form.needs, default=None)
    said = f"; {least.target} {fit.reason(least)}" if least else ""
    return f"{name}: no form{f' of {to}' if to else ''} fits {place}{said}; `ingot fit {name}` shows all"


def cost(jobs: list[dict], wanted: list[str]) -> tuple[str, float]:
    """What building takes, by the forecast of each job, and the seconds of those that score the corpus."""
    if not wanted:
        return "the checkpoint as it is: nothing is built", 0
    if any(job["action"] == "run" and not job.get("forecast") for job in jobs):
        return "how long is known once config.json is here", 0
    found = plan.of_build(jobs, {*wanted}, None, Past(Store()))
    if not found["jobs"]:
        return "on record already", 0
    way = found["keep"]["all"]
    return (
        f"in about {duration(way['seconds'])}: {size(way['memory'])} of memory, "
        f"{size(way['disk'])} of disk, {size(way['download'])} of downloads"
    ), sum(job["seconds"] for job in found["jobs"] if job["rule"] in SCORING)


def shorter(model: Model, seconds: float) -> str:
    """A line of how scoring that takes so many seconds takes less; nothing where it would not."""
    if seconds <= LONG or not model.numbers or of_corpus(model) <= TOKENS:
        return ""
    return (
        f"verifying over fewer tokens takes less: set models.{model.name}.corpus_tokens in {schema.LOCAL}, "
        f"now {of_corpus(model):,.0f}\n"
    )


def agreed(target: str) -> bool:
    """Asked on a terminal; without one the proposal is taken."""
    if not sys.stdin.isatty():
        return True
    print(f"build {target}? [Y/n] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def with_numbers(forms: list[Form], made: list[str]) -> list[Form]:
    """Those that were made with the bytes that were written, and the mean KL of their records."""
    rows = {row["artifact"]: row["mean_kl"] for row in numbers.rows()}
    found = []
    for form in forms:
        if form.target in made:
            form = replace(form, weights=numbers.bytes_of(Path(form.target)) or 0)
            if form.target in rows:
                form = replace(form, kl=rows[form.target], measured=True)
        found.append(form)
    return found


def lost(form: Form) -> str:
    return ", verified" + (f"; mean KL {form.kl:.2g} nats per token" if form.measured else "")
