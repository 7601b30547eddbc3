"""Rows of the IREE line: archives, programs, and the shortfin server's folder."""

from collections.abc import Collection
from functools import partial

from ingot.driver.catalogue.formats.gguf import FLOATS, file_bytes
from ingot.driver.catalogue.formats.table import (  # fmt: skip
    GB,
    MB,
    Cost,
    Format,
    Target,
    Work,
    own_sizes,
    read_through,
    run_through,
)
from ingot.driver.catalogue.job import Job
from ingot.driver.catalogue.model import Model
from ingot.formats.gguf import metadata
from ingot.formats.iree import dispatches, stitch, tensor_parallel
from ingot.model import features
from ingot.model.families.table import FAMILIES
from ingot.model.specs import head_of_tied, specs_of

PROGRAM_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}  # of weights: computed in
CPU_RANKS = 4  # on shortfin's CPU devices, 8 end each prompt in hal.device.queue.alloca: ABORTED


def computed_in(dtype: str) -> list[str]:
    """The exporter's flags for it; without them it is float16."""
    return [f"--{what}-dtype={dtype}" for what in ("activation", "attention", "kv-cache")]


PROGRAMS = {  # variants of a program that some hardware needs, and the exporter's flags for them
    "decomposed": ["--attention-kernel=decomposed"],
    "f32": computed_in("float32"),
}
SCALED = ("linear", "yarn")
COMPILE = {  # by hardware; the compiler's passes over the whole program grow like its square
    "cpu": (Cost(8, 0.37, 237, 1.38), 0.105, 0.0082),
    "": (Cost(6, 0.06, 260, 1.4, squared=3.3e-4), 0.28, 0.0068),
}
WRITTEN = Cost(50, 0.1, 480, 1.1, squared=5.4e-5)  # of many blocks, whose dispatches are written


def archives(model: str, tp: int) -> list[str]:
    """The IRPA archives of a model's weights, in the order that a server takes them."""
    if tp == 1:
        return [f"artifacts/{model}.irpa"]
    stem = f"artifacts/{model}_tp{tp}"
    return [f"{stem}.irpa", *(f"{stem}.rank{rank}.irpa" for rank in range(tp))]


def convert(job: Job, model: Model) -> Work | None:
    """Unit: a GB of tensors."""
    if not model.config:
        return None
    dtype = model.dtype(job.wildcards.get("dtype", ""))
    size = file_bytes(model, dtype)
    return Work(Cost(0.1, 2.0, 23), model.tensor_bytes(dtype) / GB, {job.writes[0]: size})


def verify_archive(job: Job, model: Model) -> float:
    return model.tensor_bytes(model.dtype(job.wildcards.get("dtype", "")))


def shard(job: Job, model: Model) -> Work | None:
    """Unit: a GB of the checkpoint.  The archives' bytes follow from config.json alone."""
    if not model.config:
        return None
    dtype, tp = model.dtype(), len(job.writes) - 1
    specs = specs_of(model.config, dtype)
    if model.config.tied:
        specs.append(head_of_tied(model.config, dtype))
    cuts = tensor_parallel.splits([(s.name, s.type.name, s.shape) for s in specs])
    properties = metadata.properties(model.config, dtype)
    sizes = [len(tensor_parallel.root_archive(properties, cuts, tp))]
    sizes += [tensor_parallel.rank_layout(cuts, tp, rank).size for rank in range(tp)]
    files = dict(zip(job.writes, sizes, strict=True))
    return Work(Cost(0.2, 2.0, 40), model.checkpoint_bytes() / GB, files)


def _blocks(job: Job, model: Model, layers: int) -> int:
    """Blocks times ranks times functions of the program."""
    settings = model.entry["iree"]
    functions = len(settings["bs_prefill"]) + len(settings["bs_decode"])
    return layers * int(job.wildcards["tp"]) * functions


def export(job: Job, model: Model) -> Work | None:
    """Unit: a block traced; the text grows with all of them."""
    if not model.config:
        return None
    layers = model.config.layers
    size = (0.02 + 0.056 * _blocks(job, model, layers)) * MB
    files = dict(zip(job.writes, (size, 500), strict=True))
    units = _blocks(job, model, min(layers, stitch.TRACED))
    return Work(Cost(13, 0.6, 1460, 5), units, files, guessed=True)


def compile(job: Job, model: Model) -> Work | None:
    """Unit: a block compiled, on each rank, in each function."""
    if not model.config:
        return None
    hardware = job.wildcards.get("hw", "").lstrip(".") or model.entry["hardware"]
    cost, least, each = COMPILE.get(hardware, COMPILE[""])
    devices = int(job.wildcards["tp"])
    if hardware not in COMPILE and dispatches.worth(model.config.layers, devices):
        cost = WRITTEN
    units = _blocks(job, model, model.config.layers)
    files = {job.writes[0]: (least + each * units) * MB}
    return Work(cost, units, files, kind=hardware, guessed=True)


def bundle(job: Job, model: Model) -> Work:
    return Work(Cost(0.2), 0, dict.fromkeys(job.writes, model.tokenizer_bytes()))


def why_not_archive(target: Target) -> str | None:
    model, tp = target.model, target.tp
    if tp == 1:
        return f"one rank holds the whole model; ask for artifacts/{model}.irpa"
    if target.record and tp and target.variant:
        return f"a set is verified as a whole; ask for artifacts/{model}_tp{tp}.irpa.verified.json"
    if target.entry["dtype"] == "q8_0" and (target.variant is None or tp):
        return "an IRPA archive is float, and the model's dtype is q8_0; name a variant"
    return None


def why_not_program(target: Target) -> str | None:
    entry = target.entry
    family = FAMILIES.get(entry["architecture"])
    if family and (reason := tensor_parallel.no_block(family)):
        return reason
    hardware = target.catalogue["hardware"].get(target.variant or entry["hardware"], {})
    if target.record and target.format != "mlir" and hardware.get("device") != "local-task":
        return (
            "a program is verified by running it, here on cpu only; ask for "
            f"artifacts/{target.model}_tp{target.tp}.cpu.{target.format}.verified.json"
        )
    if entry["dtype"] not in PROGRAM_DTYPES:
        legal = ", ".join(PROGRAM_DTYPES)
        return f"programs are exported for weights in {legal}, and the model's dtype is {entry['dtype']}"
    return None


def why_not_bundle(target: Target) -> str | None:
    hardware = target.catalogue["hardware"][target.variant or target.entry["hardware"]]
    if "device" not in hardware:
        return f"shortfin runs on no {hardware['target']} device; ask for the .vmfb alone"
    if hardware["device"] == "local-task" and (target.tp or 1) > CPU_RANKS:
        return (
            f"shortfin on CPU supports at most {CPU_RANKS} ranks; to check this program ask for "
            f"artifacts/{target.model}_tp{target.tp}.vmfb.verified.json"
        )
    return why_not_program(target)


def archive_variants(catalogue: dict, tp: int) -> list[str]:
    if tp > 1:
        return [f"rank{rank}" for rank in range(tp)]
    return [dtype for dtype in FLOATS if dtype != "q8_0"]


def can(target: Target) -> Collection[str]:
    """An archive of the whole model also says ropes that no program of ours computes."""
    return (*tensor_parallel.can(target.tp or 1), *([] if target.tp else SCALED), features.ADAPTER)


row = partial(Format, can=can, sizes=own_sizes, chart="program")
ROWS = (
    row(
        name="irpa",
        final=True,
        serve="python -m shortfin_apps.llm.server --parameters {title}  # with its .vmfb and .config.json",
        what="IREE's parameter archive: of the whole model, or a root and one archive per rank",
        steps={
            "gguf_to_irpa": convert,
            "verify_irpa": read_through(Cost(4, 1.5, 400, 1005), verify_archive),
            "shard_irpa": shard,
            "verify_shards": read_through(Cost(3, 1.5, 400, 50)),
        },
        sizes=lambda entry: [None, *entry["tp"]],
        variants=archive_variants,
        why_not=why_not_archive,
        record="its GGUF file by SHA-256; a set: the checkpoint, each tensor by SHA-256",
        chart="irpa",
        chart_of_ranks="ranks",
    ),
    row(
        name="mlir",
        what="the exported program",
        steps={"export_mlir": export},
        variants=lambda catalogue, tp: PROGRAMS,
        why_not=why_not_program,
        no_record="a program is verified by running its .vmfb",
    ),
    row(
        name="config.json",
        what="the server's config of a program",
        steps={},
        variants=lambda catalogue, tp: PROGRAMS,
        why_not=why_not_program,
        no_record="a program is verified by running its .vmfb",
    ),
    row(
        name="vmfb",
        final=True,
        serve="python -m shortfin_apps.llm.server --vmfb {title}  # with its .irpa and .config.json",
        what="the program compiled for the model's hardware, or for the one named",
        steps={"compile_vmfb": compile, "verify_vmfb": run_through(Cost(2, 112, 70, 1470))},
        varies={"compile_vmfb": (2, "iree-compile numbers several devices' calls by chance")},
        variants=lambda catalogue, tp: catalogue["hardware"],
        why_not=why_not_program,
        record="transformers in float32: greedy tokens and logits",
    ),
    row(
        name="shortfin",
        final=True,
        serve="{title}/serve",
        chart="other",
        what="all that the shortfin server needs, and its launch script",
        steps={"bundle_shortfin": bundle, "verify_shortfin": run_through(Cost(5, 103, 400, 1900))},
        variants=lambda catalogue, tp: catalogue["hardware"],
        why_not=why_not_bundle,
        record="transformers in float32: greedy tokens, through the server",
        links=True,
    ),
)
