"""What may be asked for: the grammar of target names, and one line for a wrong one."""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator

MODEL = "[a-z0-9][a-z0-9-]*"
FLOATS = ("f32", "f16", "bf16", "q8_0")  # dtypes that the converter writes
K_QUANTS = ("q4_k_m", "q4_k_s", "q5_k_m", "q5_k_s", "q6_k")  # variants that libllama writes
PROGRAM_DTYPES = ("f16",)  # what programs are exported for and verified in
SIZES = (1, 2, 4, 8, 16)  # tensor parallel sizes that there are rules for
CPU_RANKS = 4  # on the server's CPU devices, 8 end each prompt in hal.device.queue.alloca: ABORTED
KERNELS = ("decomposed",)  # attention kernels that some hardware needs instead of the model's
TRTLLM_FLOATS = ("f16", "bf16", "f32")  # dtypes of a TensorRT-LLM checkpoint
QUANTS = ("fp8", "int4_awq", "int8_sq")  # and what ModelOpt quantises it to
TRTLLM = ("trtllm-ckpt", "trtllm", "triton")
PROGRAMS = ("mlir", "config.json", "vmfb", "shortfin")
FORMATS = ("gguf", "irpa", *PROGRAMS, *TRTLLM, "rtx")
SHARDED = (*PROGRAMS, *TRTLLM)  # formats whose name always says _tpN
RECORD = ".verified.json"
SMALL_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
)
NAME = re.compile(
    rf"artifacts/(?P<model>{MODEL})(?:_tp(?P<tp>[1-9]\d*))?(?:\.(?P<variant>[a-z0-9_]+(?:\.[a-z0-9_]+)?))?"
    rf"\.(?P<format>{'|'.join(map(re.escape, FORMATS))})(?P<record>{re.escape(RECORD)})?/?"
)


def optional(words: Iterable[str]) -> str:
    """A pattern: a dot and one of the words, or nothing."""
    return rf"(\.({'|'.join(words)}))?"


def shard_names(shards: int) -> list[str]:
    """The hub's names of a checkpoint's weights, and of their index."""
    if shards == 1:
        return ["model.safetensors"]
    parts = [f"model-{n:05d}-of-{shards:05d}.safetensors" for n in range(1, shards + 1)]
    return [*parts, "model.safetensors.index.json"]


def hub_files(pre: str) -> list[str]:
    """The small files that every hub checkpoint of the catalogue has."""
    names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    return [*names, "tokenizer.model"] if pre == "default" else names


def archives(model: str, tp: int) -> list[str]:
    """The IRPA archives of a model's weights, in the order that a server takes them."""
    if tp == 1:
        return [f"artifacts/{model}.irpa"]
    stem = f"artifacts/{model}_tp{tp}"
    return [f"{stem}.irpa", *(f"{stem}.rank{rank}.irpa" for rank in range(tp))]


def stop_on_wrong(argv: list[str], config: dict) -> None:
    """Exit with one line when a target on the command line cannot be built.

    A job that Snakemake starts elsewhere names intermediates too; those were checked at the front.
    """
    if "--mode" in argv or "--target-jobs" in argv:
        return
    for target in argv[1:]:
        if target.startswith("artifacts/") and (reason := wrong(target, config)):
            sys.exit(f"error: {target}: {reason}; {nearest(target, config)}")


def wrong(target: str, config: dict) -> str | None:
    """Why `target` cannot be built, or None when it can."""
    models = config["models"]
    stem, model = target.removeprefix("artifacts/").rstrip("/"), model_of(target)
    if model not in models:
        return f"unknown model {model}"
    if stem == f"{model}.reference.npz" or (
        "hub" in models[model] and re.fullmatch(rf"{model}\.hf/[^/]+", stem)
    ):
        return None  # intermediates, for those who know them
    match = NAME.fullmatch(target)
    if not match:
        return f"not a target, expected {model}[_tpN][.VARIANT].{{{','.join(FORMATS)}}}"
    tp, variant, kind, record = match["tp"], match["variant"], match["format"], match["record"]
    if kind in SHARDED and tp is None:
        return f"a {kind} is built for a tensor parallel size, none is named"
    if kind == "gguf" and tp is not None:
        return "a gguf is of the whole model: servers split it themselves"
    if kind == "rtx" and tp is not None:
        return "TensorRT for RTX is for one GPU"
    sizes = SIZES if kind in TRTLLM else models[model]["tp"]
    if tp is not None and int(tp) not in sizes:
        legal = ", ".join(map(str, sizes))
        return f"tensor parallel size {tp}, expected one of {legal} for {model}"
    if kind == "irpa" and tp == "1":
        return f"one rank holds the whole model; ask for artifacts/{model}.irpa"
    allowed = variants(kind, config, int(tp or 1))
    if record and kind == "irpa" and tp and variant:
        return f"the set is verified as one; ask for artifacts/{model}_tp{tp}.irpa{RECORD}"
    if variant is not None and variant not in allowed:
        return f"unknown variant {variant}, expected one of {', '.join(allowed) or 'none'}"
    if kind in TRTLLM:
        return _wrong_trtllm(kind, variant, models[model], config["gpus"], record)
    if record and kind in ("mlir", "config.json"):
        return f"a {kind} is verified by running its vmfb"
    if record and variant in K_QUANTS:
        return "k-quants are libllama's own: there is no lossless source to compare with"
    hw = config["hardware"].get(variant or models[model]["hardware"], {})
    if kind == "shortfin" and "device" not in hw:
        return f"the shortfin server runs on no {hw['target']} device; a vmfb can be compiled"
    if kind == "shortfin" and hw["device"] == "local-task" and int(tp) > CPU_RANKS:
        return (
            f"the server's CPU devices stand {CPU_RANKS} ranks; the vmfb's record runs it without"
        )
    if record and kind in PROGRAMS and hw.get("device") != "local-task":
        return f"this version verifies by running on cpu only; ask for {model}_tp{tp}.cpu.{kind}"
    dtype = models[model]["dtype"]
    if kind == "irpa" and (variant is None or tp) and dtype == "q8_0":
        return "an IRPA archive is float, and the model's dtype is q8_0; name a variant"
    if kind in PROGRAMS and dtype not in PROGRAM_DTYPES:
        legal = ", ".join(PROGRAM_DTYPES)
        return f"a program computes in {legal}, and the model's dtype is {dtype}"
    return None


def _wrong_trtllm(
    kind: str, variant: str | None, entry: dict, gpus: dict, record: str | None
) -> str | None:
    words, settings = (variant or "").split("."), entry["trtllm"]
    quant = next((word for word in words if word in QUANTS), None)
    gpu = next((word for word in words if word in gpus), settings["gpu"])
    if record and kind == "trtllm":
        return "an engine is verified by serving it; ask for the triton's record"
    if entry["dtype"] not in TRTLLM_FLOATS:
        legal = ", ".join(TRTLLM_FLOATS)
        return f"TensorRT-LLM takes {legal}, and the model's dtype is {entry['dtype']}"
    if kind != "trtllm-ckpt" and settings["layout"] == "llmapi" and (variant or kind == "trtllm"):
        return "the model's layout is llmapi, which has no engine; set trtllm.layout to engine"
    if quant and entry["dtype"] == "f32":
        return "a quantised checkpoint is f16 or bf16 besides, and the model's dtype is f32"
    if quant and settings["embedding"] != "rows":
        return "ModelOpt splits the embedding by rows only; set trtllm.embedding to rows"
    major, minor = map(int, gpus[gpu]["compute_capability"].split("."))
    if kind == "trtllm-ckpt":
        return None
    if quant == "fp8" and (major, minor) < (8, 9):
        return f"{gpu} has no FP8: it begins with compute capability 8.9"
    if quant in ("int4_awq", "int8_sq") and major == 10:
        return f"TensorRT-LLM builds no {quant} engine for {gpu}"
    return None


def model_of(target: str) -> str:
    """The model that a target, or a bare name, speaks of."""
    return re.split(r"[._]", target.removeprefix("artifacts/"))[0]


def variants(kind: str, config: dict, tp: int = 1) -> list[str]:
    """The variants that a format comes in."""
    if kind == "gguf":
        return [*FLOATS, *K_QUANTS]
    if kind in ("mlir", "config.json"):
        return list(KERNELS)
    if kind == "irpa" and tp > 1:
        return [f"rank{rank}" for rank in range(tp)]
    if kind == "irpa":
        return [dtype for dtype in FLOATS if dtype != "q8_0"]
    if kind == "trtllm-ckpt":
        return [*TRTLLM_FLOATS, *QUANTS]
    if kind in ("trtllm", "triton"):
        pairs = [f"{quant}.{gpu}" for quant in QUANTS for gpu in config["gpus"]]
        return [*QUANTS, *config["gpus"], *pairs]
    return list(config["hardware"]) if kind in ("vmfb", "shortfin") else []


def legal(config: dict) -> Iterator[str]:
    """Every target that can be built, but for records and variants of two words."""
    for model, entry in config["models"].items():
        for kind in FORMATS:
            sizes = list(SIZES) if kind in TRTLLM else entry["tp"] if kind in SHARDED else [None]
            sizes += [tp for tp in entry["tp"] if tp > 1] if kind == "irpa" else []
            for tp in sizes:
                plain = (v for v in variants(kind, config, tp or 1) if "." not in v)
                for variant in (None, *plain):
                    middle = (f"_tp{tp}" if tp else "") + (f".{variant}" if variant else "")
                    target = f"artifacts/{model}{middle}.{kind}"
                    if not wrong(target, config):
                        yield target


def nearest(target: str, config: dict) -> str:
    """The legal targets that are most like `target`; of several sizes, those nearest its own."""
    plain = target.removesuffix(RECORD)
    size = re.search(r"_tp(\d+)", plain)
    wanted = int(size[1]) if size else 1

    def distance(other: str) -> int:
        found = re.search(r"_tp(\d+)", other)
        return abs(int(found[1]) - wanted) if found else 0

    without = {name: re.sub(r"_tp\d+", "", name) for name in legal(config)}
    alike = difflib.get_close_matches(
        re.sub(r"_tp\d+", "", plain), set(without.values()), n=3, cutoff=0.4
    )
    found = [name for name in without if without[name] in alike]
    close = sorted(found, key=lambda name: (distance(name), alike.index(without[name])))[:3]
    return f"nearest: {', '.join(close)}" if close else "see `ingot targets`"
