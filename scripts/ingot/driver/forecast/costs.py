"""What a job will take: seconds, peak memory, bytes written; from its shape and from past jobs.

Each rule has a unit of work (gigabytes read, blocks compiled, ...) and constants measured on a
machine of two cores.  Where jobs of the same rule are on record, the one nearest in work corrects
the constants: so a forecast learns what this machine, this disk and these flags cost.
"""

import json
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ingot.checkpoint import llama
from ingot.checkpoint.config import ModelConfig, read_config
from ingot.driver.forecast import gpu_memory as serving
from ingot.iree import irpa, stitch
from ingot.iree import tensor_parallel as shards
from ingot.store.blobs import Store
from ingot.tensorrt import trtllm

MANY = 200  # records of a rule that are looked at, the youngest first
CONFIGS = "INGOT_CONFIGS"  # a folder of <model>.json, for models that are not fetched


@dataclass(frozen=True)
class Cost:
    """Constants of one rule: what a job takes however small, and for each unit of work."""

    seconds: float
    per_unit: float  # seconds
    memory: float  # MB of peak RSS
    memory_per_unit: float
    written: float = 0.0  # MB, where no formula says it
    written_per_unit: float = 0.0
    squared: float = 0.0  # seconds for each unit's square


# unit: GB read                            s    s/unit   MB   MB/unit
STREAM = {
    "fetch_file": Cost(1.5, 10.0, 90, 0),  # 100 MB/s
    "safetensors_to_gguf": Cost(0.2, 2.0, 40, 0),
    "gguf_to_irpa": Cost(0.1, 2.0, 23, 0),
    "shard_irpa": Cost(0.2, 2.0, 40, 0),
    "verify_gguf": Cost(0.3, 6.0, 53, 1090),
    "verify_irpa": Cost(0.2, 1.5, 45, 1005),
    "verify_shards": Cost(0.2, 5.0, 43, 122),
    "quantize_gguf": Cost(1.0, 30.0, 300, 0),
    "safetensors_to_trtllm": Cost(0.2, 2.0, 45, 0),
    "verify_trtllm": Cost(0.3, 8.0, 55, 110),
    "build_rtx": Cost(1.5, 4.0, 350, 3000),
    "verify_rtx": Cost(2.0, 40.0, 350, 3000),
    "quantize_trtllm": Cost(10.0, 30.0, 600, 2700),
    "build_engine": Cost(60.0, 30.0, 16000, 2500),  # nobody has measured one: a guess
}
# unit: blocks traced x ranks x functions                          MB written, /unit of the whole
EXPORT = Cost(13, 0.6, 1460, 5, 0.02, 0.056)
# unit: blocks x ranks x functions; the compiler's passes over the whole program grow like its square
COMPILE = {
    "cpu": Cost(3, 0.25, 237, 1.38, 0.12, 0.0065),
    "": Cost(6, 0.06, 260, 1.4, 0.28, 0.0068, squared=3.3e-4),
}
RUN = {  # unit: thousands of tokens x billions of weights
    "generate_reference": Cost(3, 200, 1200, 1250, 0.6, 0),
    "verify_vmfb": Cost(3, 1200, 60, 550),
    "verify_shortfin": Cost(6, 1900, 340, 550),
    "verify_triton": Cost(10, 10, 120, 0),
}
TOKENS = 4000  # that a verification runs: 26 prompts and their answers
SMALL = Cost(0.2, 0, 17, 0, 0.002, 0)


@dataclass(frozen=True)
class Forecast:
    """What one job is expected to take."""

    family: str  # the rule, whatever the number of ranks
    kind: str  # within it, what makes jobs alike: a dtype, a kind of hardware
    work: float
    seconds: float
    memory: int  # bytes
    files: dict[str, int]  # bytes, by output
    download: int = 0

    @property
    def written(self) -> int:
        return sum(self.files.values())


class Costs:
    """Forecasts for the jobs of one catalogue, corrected by what lies in the store."""

    def __init__(self, config: dict, root: Path, store: Store | None = None):
        self.catalogue, self.root, self.store = config, root, store
        self.configs: dict[str, ModelConfig | None] = {}
        self.past: dict[str, list[dict]] = {}

    # The model

    def config(self, model: str) -> ModelConfig | None:
        """The model's config.json, wherever it is; None while nobody fetched it."""
        if model not in self.configs:
            entry = self.catalogue["models"].get(model, {})
            places = [Path("artifacts", f"{model}.hf", "config.json")]
            if "path" in entry:
                places = [
                    Path(entry["path"], "config.json"),
                    self.root / entry["path"] / "config.json",
                ]
            if os.environ.get(CONFIGS):
                places.append(Path(os.environ[CONFIGS], f"{model}.json"))
            found = next((place for place in places if place.is_file()), None)
            try:
                self.configs[model] = read_config(found) if found else None
            except SystemExit:  # the step that needs it will say what is wrong
                self.configs[model] = None
        return self.configs[model]

    def checkpoint_bytes(self, model: str) -> int:
        """Of the weights as they lie on the hub, or here."""
        entry = self.catalogue["models"][model]
        if "path" in entry:
            folder = (
                Path(entry["path"]) if Path(entry["path"]).exists() else self.root / entry["path"]
            )
            return sum(path.stat().st_size for path in folder.glob("model*.safetensors"))
        listing = Path("artifacts", f"{model}.hf", "listing.json")
        if listing.is_file():
            files = json.loads(listing.read_text())["files"]
            return sum(f["size"] for name, f in files.items() if name.endswith(".safetensors"))
        return 2 * serving.parameters(self.config(model))

    # Forecasts

    def of(self, job) -> Forecast | None:
        """What `job` will take; None when it cannot be known before config.json is fetched."""
        family = re.sub(r"_tp\d+$", "", job.rule.name)
        described = self._described(family, job)
        if described is None:
            return None
        kind, work, cost, files = described
        seconds = cost.seconds + cost.per_unit * work + cost.squared * work**2
        memory = cost.memory + cost.memory_per_unit * work
        factors = self._correction(family, kind, work, cost)
        return Forecast(
            family,
            kind,
            work,
            seconds * factors[0],
            int(memory * factors[1] * 1e6),
            {path: int(size * (factors[2] if cost.written else 1)) for path, size in files.items()},
            int(work * 1e9) if family == "fetch_file" else 0,
        )

    def _described(self, family: str, job) -> tuple[str, float, Cost, dict[str, float]] | None:
        """Kind, work, constants and expected bytes of each output."""
        outputs = [str(path) for path in job.output]
        if family == "fetch_file":
            size = self._fetched(job.wildcards.model, job.wildcards.file)
            return None if size is None else ("", size / 1e9, STREAM[family], {outputs[0]: size})
        model = job.wildcards.get("model")
        config = self.config(model) if model in self.catalogue["models"] else None
        if config is None:
            known = family in ("toolchain", "fetch_listing")
            return ("", 0, SMALL, dict.fromkeys(outputs, 0)) if known else None
        if family in STREAM:
            files = dict.fromkeys(outputs, SMALL.written * 1e6)
            if not family.startswith("verify"):
                files = self._archives(config, model, job)
            return "", self._read(family, config, model, job) / 1e9, STREAM[family], files
        if family in ("export_mlir", "compile_vmfb"):
            return self._program(family, config, job)
        if family in RUN:
            work = TOKENS * serving.parameters(config) / 1e12
            return "", work, RUN[family], dict.fromkeys(outputs, RUN[family].written * 1e6 or 2000)
        size = 2000
        if family == "bundle_shortfin":
            size = self._small_files(model)
        if family == "assemble_triton":  # twice the tokenizer; the engine is linked
            size = 2 * self._small_files(model) + 70_000
            if self.catalogue["models"][model]["trtllm"]["layout"] == "llmapi":
                size += self.checkpoint_bytes(model)
        return "", 0, SMALL, dict.fromkeys(outputs, size)

    def _read(self, family: str, config: ModelConfig, model: str, job) -> float:
        if family in ("gguf_to_irpa", "quantize_gguf", "verify_irpa"):
            dtype = "f32" if family == "quantize_gguf" else self._dtype(model, job)
            return self._tensors(config, dtype)
        return self.checkpoint_bytes(model)

    def _program(self, family: str, config: ModelConfig, job):
        settings = self.catalogue["models"][job.wildcards.model]["iree"]
        functions = len(settings["bs_prefill"]) + len(settings["bs_decode"])
        each = int(job.wildcards.tp) * functions
        whole = config.layers * each
        if family == "export_mlir":
            work = min(config.layers, stitch.TRACED) * each
            size = (EXPORT.written + EXPORT.written_per_unit * whole) * 1e6
            return "", work, EXPORT, dict(zip(map(str, job.output), (size, 500), strict=True))
        hardware = (
            job.wildcards.hw.lstrip(".")
            or self.catalogue["models"][job.wildcards.model]["hardware"]
        )
        cost = COMPILE.get(hardware, COMPILE[""])
        return (
            hardware,
            whole,
            cost,
            {str(job.output[0]): (cost.written + cost.written_per_unit * whole) * 1e6},
        )

    def _archives(self, config: ModelConfig, model: str, job) -> dict[str, float]:
        dtype, outputs = self._dtype(model, job), [str(path) for path in job.output]
        if job.rule.name in ("safetensors_to_trtllm", "quantize_trtllm", "build_engine"):
            return {outputs[0]: self._trtllm(config, model, job)}
        if job.rule.name == "build_rtx":
            return {outputs[0]: self._tensors(config, "f16") + 3e6}
        if job.rule.name.startswith("shard_irpa"):
            tensors = [(p.name, p.type.name, p.shape) for p in llama.plans(config, dtype)]
            cuts, tp = shards.splits(tensors), len(outputs) - 1
            root = len(shards.root_archive(llama.properties(config, dtype), cuts, tp))
            ranks = (shards.rank_layout(cuts, tp, rank)[2] for rank in range(tp))
            return dict(zip(outputs, (root, *ranks), strict=True))
        size = self._tensors(config, dtype) + 65 * config.vocab  # a token's text and what it is
        if job.rule.name == "quantize_gguf":
            size *= 0.3
        return {outputs[0]: irpa.align(size, irpa.PAGE)}

    def _trtllm(self, config: ModelConfig, model: str, job) -> float:
        """Of all ranks; a quantised linear weight takes half of float16, or a quarter."""
        entry, wildcards = self.catalogue["models"][model]["trtllm"], job.wildcards
        mapping = trtllm.Mapping(int(wildcards.tp), entry["pp"], entry["embedding"])
        if trtllm.misfit(config, mapping):
            return 0  # the step says why
        found, dtype = trtllm.cuts(config, mapping), self._dtype(model, job)
        quant = wildcards.get("quantised") or wildcards.get("quant", "").lstrip(".")
        dtype = wildcards.get("float", "").lstrip(".") or dtype
        size = 0
        for rank in range(mapping.world):
            tensors = trtllm.shapes(trtllm.of_stage(found, rank // mapping.tp))
            whole = trtllm.layout(tensors, trtllm.DTYPES[dtype])[2]
            size += whole * {"": 1, "int4_awq": 0.3}.get(quant, 0.55)
        return size

    def _tensors(self, config: ModelConfig, dtype: str) -> int:
        return sum(plan.type.nbytes(plan.shape) for plan in llama.plans(config, dtype))

    def _dtype(self, model: str, job) -> str:
        return (
            job.wildcards.get("dtype", "").lstrip(".") or self.catalogue["models"][model]["dtype"]
        )

    def _fetched(self, model: str, file: str) -> float | None:
        listing = Path("artifacts", f"{model}.hf", "listing.json")
        if listing.is_file():
            found = json.loads(listing.read_text())["files"].get(file)
            if found:
                return found["size"]
        if file.endswith(".safetensors"):
            shards_ = self.catalogue["models"][model]["shards"]
            return self.checkpoint_bytes(model) / shards_ if self.config(model) else None
        return {"tokenizer.json": 9e6, "model.safetensors.index.json": 5e4}.get(file, 2000)

    def _small_files(self, model: str) -> float:
        """The tokenizer, which a bundle copies."""
        return 9e6 if "hub" in self.catalogue["models"][model] else 2e5

    # The past

    def _correction(
        self, family: str, kind: str, work: float, cost: Cost
    ) -> tuple[float, float, float]:
        """Measured over expected seconds, memory and bytes of the nearest past job."""
        near = self.nearest(family, kind, work)
        return near["factors"] if near else (1.0, 1.0, 1.0)

    def nearest(self, family: str, kind: str, work: float, but: str | None = None) -> dict | None:
        """The past job of the same family and kind that did most nearly as much work."""
        alike = [p for p in self.past_jobs(family) if p["kind"] == kind and p["key"] != but]
        return min(
            alike, key=lambda p: abs(math.log((p["work"] + 1e-3) / (work + 1e-3))), default=None
        )

    def past_jobs(self, family: str) -> list[dict]:
        """What jobs of a family took, and what the constants say of them."""
        if family not in self.past:
            self.past[family] = [] if self.store is None else list(self._read_past(family))
        return self.past[family]

    def _read_past(self, family: str) -> Iterable[dict]:
        rules = {path.name for path in self.store.root.glob(f"actions/{family}*")}
        for rule in rules:
            if re.sub(r"_tp\d+$", "", rule) != family:
                continue
            for record in list(self.store.records(rule))[:MANY]:
                cost = self.store.config(record).get("cost", {})
                if "expected" in cost and cost.get("cores") == os.cpu_count():
                    measured = (cost["seconds"], cost["peak_rss_mb"] * 1e6, cost["bytes"])
                    base = cost["expected"]
                    factors = tuple(
                        a / b if b else 1.0 for a, b in zip(measured, base, strict=True)
                    )
                    yield {
                        "key": record.key, "kind": cost["kind"], "work": cost["work"],
                        "measured": measured, "factors": factors, "base": base,
                        "title": record.outputs[0]["title"],
                    }  # fmt: skip


def expected(costs: Costs, job) -> dict:
    """What goes on record beside the measured cost: the work, and what the constants alone say."""
    bare = Costs(costs.catalogue, costs.root)
    bare.configs = costs.configs
    found = bare.of(job)
    if found is None:
        return {}
    base = [found.seconds, found.memory, found.written]
    return {"kind": found.kind, "work": found.work, "expected": base, "cores": os.cpu_count()}


def errors(costs: Costs, families: Iterable[str]) -> list[dict]:
    """Each past job as it would have been forecast from the others: the forecast's own error."""
    found = []
    for family in families:
        for past in costs.past_jobs(family):
            near = costs.nearest(family, past["kind"], past["work"], but=past["key"])
            if near is None:
                continue
            ratios = [
                a / b if b else 1.0 for a, b in zip(past["factors"], near["factors"], strict=True)
            ]
            found.append({"family": family, "title": past["title"], "ratios": ratios})
    return found


def spread(ratios: Iterable[float]) -> float:
    """The median of how many times too much or too little."""
    off = sorted(max(r, 1 / r) for r in ratios if r > 0)
    return off[len(off) // 2] if off else 1.0
