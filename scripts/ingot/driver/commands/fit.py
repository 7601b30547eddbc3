"""Which forms of a model fit a device, best first; or on which devices an artifact fits.

    ingot fit llama8b --on rtx4090                    of this machine without --on
    ingot fit llama8b --on 2xh100 --context 32768 --requests 8
    ingot fit artifacts/llama8b.q4_k_m.gguf           on each device of the catalogue

Nothing is built; of a model that is not here only config.json is fetched.
"""

import contextlib
import json
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from math import inf, isfinite
from pathlib import Path

from ingot.base.refused import Refused
from ingot.driver.catalogue import devices, schema, targets
from ingot.driver.catalogue.devices import Device
from ingot.driver.catalogue.model import Model, stop_on_refusal, untold
from ingot.driver.commands import fit_forms, numbers, plan
from ingot.driver.commands.fit_forms import Asked, Form
from ingot.driver.commands.targets import above_0, add_catalogue
from ingot.driver.forecast.schedule import size
from ingot.formats.gguf.memory import KV_TYPES
from ingot.model.gpu_layout import GIB, Shape
from ingot.parity import reading as reading_of
from ingot.serving.vllm import plan as vllm

CONTEXT = 8192  # tokens, where nobody says how many; at most the model's own


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("what", help="a model of the catalogue, or one of its artifacts")
    add_asked(parser)
    add_catalogue(parser)


def add_asked(parser: ArgumentParser) -> None:
    """The options of every command that looks at what fits."""

    def option(name: str, words: str, **more) -> None:
        parser.add_argument(name, help=words, **more)

    names = "rtx4090, 8xh100, m4-max-64gb, cpu-32gb ... (default: this machine)"
    option("--on", names, metavar="DEVICE")
    option("--context", f"tokens of one request (default: {CONTEXT})", type=above_0(int))
    option("--requests", "at once (default: 1)", type=int, default=1)
    option("--kv-type", "of llama.cpp's cache (default: f16)", choices=[*KV_TYPES], default="f16")
    types = "each of libllama's types, not the catalogue's `quants` alone"
    option("--all", types, action="store_true")
    option("--json", "machine-readable: the same as JSON, in bytes", action="store_true")


def run(root: Path, options: Namespace) -> int:
    catalogue = schema.load(root, options.configfile)
    name, target = targets.model_of(options.what), options.what.rstrip("/")
    if target == name:
        targets.stop_on_unknown(name, catalogue)
    if target != name:
        targets.check(target, catalogue)
    if target != name and not options.on:
        places = devices.every(catalogue)
    else:
        places = [devices.named(options.on or devices.THIS, catalogue)]
    found, asked = looked_at(
        root, catalogue, name, places, options, [target] if target != name else []
    )
    if not found:
        raise Refused(no_form(target, places))
    if options.json:
        print(json.dumps(as_json(found, asked), indent=2))
    else:
        print("\n".join(by_form(found, asked) if len(places) == 1 else by_device(found, asked)))
    return 0 if any(form.fits for _, form in found) else 1


def looked_at(
    root: Path,
    catalogue: dict,
    name: str,
    places: list[Device],
    options: Namespace,
    only: list[str],
) -> tuple[list[tuple[Device, Form]], Asked]:
    """A model's forms, or those that are named, on each of some devices: the nearest to the model first."""
    stop_on_refusal(name, catalogue)
    with shaped(root, catalogue, name) as (model, shape):
        asked = asked_of(options, shape)
        found = on(model, shape, places, asked, only or fit_forms.offered(model, options.all))
    measured = {Path(one).name: kl for one, kl in numbers.divergences(root, catalogue).items()}
    entry = model.entry
    with_numbers = ((place, fit_forms.quality(form, measured, entry)) for place, form in found)
    return sorted(with_numbers, key=lambda pair: nearness(pair[1])), asked


def nearness(form: Form) -> tuple:
    """The order of forms: by what they lose; then what a command serves, the faster, what needs less.

    Of those whose loss nobody knows the larger comes first.
    """
    speed = float(f"{form.speed:.2g}")  # a hundredth more is no reason
    then = (-speed, form.needs) if isfinite(form.kl) else (-form.weights, 0)
    return form.kl, not form.served, *then, form.target


@contextlib.contextmanager
def shaped(root: Path, catalogue: dict, name: str) -> Iterator[tuple[Model, Shape]]:
    """A model with its shape; its config.json is fetched where it is not here."""
    with tempfile.TemporaryDirectory() as folder:
        with plan.fetching(root, catalogue, [name], Path(folder)) as wait:
            wait()
        model = Model(name, catalogue, root, [Path(folder)])
        yield model, shape_of(model)


def on(
    model: Model, shape: Shape, places: list[Device], asked: Asked, wanted: list[str]
) -> list[tuple[Device, Form]]:
    """Those targets of a model on each of some devices."""
    return [
        (place, form)
        for place in places
        for form in fit_forms.forms(model, shape, place, asked, wanted)
    ]


def shape_of(model: Model) -> Shape:
    """Of our own table of its family, or as transformers reads its config.json."""
    if model.config:
        return fit_forms.shape_of(model.config, model.checkpoint_bytes())
    place = plan.reading(model.name)
    if place.is_file():
        return vllm.shape_of(reading_of.served(place), model.checkpoint_bytes())
    raise Refused(
        model.refusal
        or f"{model.name}: {untold(model.entry)}, expected transformers' reading "
        f"of its config.json; `snakemake {place}` first"
    )


def asked_of(options: Namespace, shape: Shape) -> Asked:
    context = plan.request(options, min(CONTEXT, shape.context), shape.context)
    if options.requests < 1:
        raise Refused(f"--requests: {options.requests}, expected 1 or more")
    return Asked(context, options.requests, options.kv_type)


def no_form(target: str, places: list[Device]) -> str:
    one = f" of kind {places[0].kind}" if len(places) == 1 else ""
    return (
        f"{target}: no server that Ingot knows the memory of takes it on a device{one}, expected GGUF, a "
        "safetensors scheme for vLLM, MLX or shortfin; `ingot plan` lays it over GPUs"
    )


def by_form(rows: list[tuple[Device, Form]], asked: Asked) -> Iterator[str]:
    """What fits, the nearest to the model first; then what does not, and why."""
    yield from heading(rows[0][0], asked)
    fitting = [form for _, form in rows if form.fits]
    if fitting:
        yield from table(fitting)
        best = fitting[0]
        yield f"\nnearest to the model: {best.target}"
        yield f"    {best.serve}"
    tight = [form for _, form in rows if not form.fits]
    if not fitting:
        yield nothing_fits(rows[0][0], tight)
    if tight:
        yield "\ndoes not fit:"
        yield from (f"    {form.target}  {reason(form)}" for form in tight)
    if not all(form.measured for form in fitting if form.kl):
        yield "\n~ not measured of this model: as the demo's; ask for its record, such as"
        first = next(form for form in fitting if form.kl and not form.measured)
        yield f"    snakemake {first.target}.verified.json"


def nothing_fits(place: Device, forms: list[Form]) -> str:
    """In a line; with the form that needs the least, where one could."""
    count = "the one form does not fit" if len(forms) == 1 else f"none of {len(forms)} forms fits"
    least = min((form for form in forms if form.needs), key=lambda form: form.needs, default=None)
    if not least:
        return f"{count} {place.name}"
    return f"{count} {place.name}: {least.target} needs the least, {least.needs / GIB:.2f} GiB"


def heading(place: Device, asked: Asked) -> Iterator[str]:
    many = f"{place.count} x " if place.count > 1 else ""
    yield f"{place.name} ({many}{place.memory / GIB:.4g} GiB): {requests(asked)}"
    yield ""


def requests(asked: Asked) -> str:
    many = "one request" if asked.requests == 1 else f"{asked.requests} requests at once, each"
    return f"{many} of {asked.context} tokens"


def table(forms: list[Form]) -> Iterator[str]:
    wide = max(len(form.target) for form in forms)
    by = max(len(form.server) for form in forms)
    yield f"{'':{wide}}  {'by':{by}}{'weights':>10}{'memory':>10}{'longest':>9}{'tok/s <':>9}{'mean KL':>9}"
    for form in forms:
        speed = f"{form.speed:.0f}" if form.speed else "-"
        yield (
            f"{form.target:{wide}}  {form.server:{by}}{size(form.weights):>10}{form.needs / GIB:>6.2f} GiB"
            f"{form.longest:>9}{speed:>9}{shown(form):>9}"
        )


def shown(form: Form) -> str:
    """Of a form with the model's own numbers nothing is lost but a rounding."""
    if not form.kl:
        return "0"
    return f"{'' if form.measured else '~'}{form.kl:.2g}" if isfinite(form.kl) else "?"


def reason(form: Form) -> str:
    if form.why_not:
        return form.why_not
    said = f"needs {form.needs / GIB:.2f} GiB, may fill {form.has / GIB:.2f}"
    if form.longest:
        said += f"; {form.longest} tokens fit"
    elif "-ngl" in form.serve:
        said += f"; some layers on the CPU: {form.serve}"
    return said


def by_device(rows: list[tuple[Device, Form]], asked: Asked) -> Iterator[str]:
    """Where one artifact fits, the smallest device first."""
    yield f"{rows[0][1].target} ({size(rows[0][1].weights)}): {requests(asked)}"
    yield f"\n{'':16}{'memory':>10}{'needs':>12}{'longest':>9}{'tok/s <':>9}"
    for place, form in sorted(rows, key=lambda row: (row[0].memory, row[0].name)):
        start = f"{place.name:16}{place.memory / GIB:>6.4g} GiB"
        if form.why_not:
            yield f"{start}  {form.why_not}"
            continue
        speed = f"{form.speed:.0f}" if form.speed else "-"
        verdict = "" if form.fits else "  does not fit"
        yield f"{start}{form.needs / GIB:>8.2f} GiB{form.longest:>9}{speed:>9}{verdict}"


def as_json(rows: list[tuple[Device, Form]], asked: Asked) -> dict:
    return {
        **asdict(asked),
        "forms": [
            {
                "device": place.name,
                **asdict(form),
                "kl": None if form.kl == inf else form.kl,
                "fits": form.fits,
            }
            for place, form in rows
        ],
    }
