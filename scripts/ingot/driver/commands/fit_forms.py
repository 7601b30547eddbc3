"""What a device would hold of a model's forms: weights and cache, the longest request, the speed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from ingot.driver.catalogue import targets
from ingot.driver.catalogue.devices import CPU, CUDA, METAL, Device
from ingot.driver.catalogue.formats import gguf as gguf_rows
from ingot.driver.catalogue.model import Model
from ingot.driver.commands.numbers import bytes_of
from ingot.formats.gguf import memory as libllama
from ingot.formats.gguf.memory import Cached, Widths
from ingot.formats.onnx import memory as onnx
from ingot.model import features, gpu_layout
from ingot.model.checkpoint.quantised import sizes
from ingot.model.checkpoint.quantised.schemes import ALL
from ingot.model.config import ModelConfig
from ingot.model.gpu_layout import REST, SHORTFIN, UTILIZATION, Shape
from ingot.model.outline import NO_TABLE
from ingot.model.specs import parameters
from ingot.parity import limits
from ingot.serving.vllm import registry, schemes
from ingot.serving.vllm.room import room

LLAMA_CPP, VLLM, MLX, SHARK, GENAI = "llama.cpp", "vLLM", "MLX", "shortfin", "ONNX Runtime"
CHECKPOINT = "checkpoint"  # as it is, among targets
USUAL = ("", "q8_0")  # of GGUF, beside the catalogue's `quants`
FFN = 4  # times hidden, where nobody says it
MLX_REST = 1 << 30  # bytes beside weights and cache; not measured


@dataclass(frozen=True)
class Form:
    """One form of a model, as a server would hold it; bytes of one device."""

    target: str
    server: str
    weights: float  # on all devices together
    needs: float  # with the cache of what was asked
    has: float  # that it may fill
    longest: int  # tokens
    speed: float = 0.0  # tokens a second of one request at most, by bandwidth; 0: not known
    kl: float = inf  # mean, nats per token
    measured: bool = False  # for this model, or else expected
    serve: str = ""  # the command
    why_not: str = ""

    @property
    def artifact(self) -> bool:
        """Is it built, or the checkpoint as it is?"""
        return self.target.startswith(targets.FOLDER)

    @property
    def served(self) -> bool:
        """Is there a command that serves it, or has it to be programmed?"""
        return not self.serve.startswith("#")

    @property
    def fits(self) -> bool:
        return not self.why_not and self.needs <= self.has


@dataclass(frozen=True)
class Asked:
    context: int  # tokens
    requests: int
    kv_type: str = "f16"  # of llama.cpp's cache


def offered(model: Model, every: bool = False) -> list[str]:
    """Targets of a model that are looked at, with its checkpoint; of GGUF `every` type, or the usual."""
    usual = (*USUAL, *model.entry["quants"])

    def counts(target: str) -> bool:
        found = targets.parsed(target, model.catalogue)
        word = (found and found.variant) or ""
        return not target.endswith(".gguf") or (
            (every or word in usual) and word != model.entry["dtype"]
        )

    # an adapter's is its base's
    own = [] if features.ADAPTER in model.entry else [CHECKPOINT]
    return [*own, *filter(counts, targets.legal_of(model.name, model.catalogue))]


def forms(
    model: Model, shape: Shape, device: Device, asked: Asked, names: list[str]
) -> Iterator[Form]:
    """Of those targets the ones that are for such a device, fitting or not; `shape` is the model's."""
    own = (device.count, device.hardware)
    for target in names:
        found = targets.parsed(target, model.catalogue)
        word, name = (found.variant or "", found.format) if found else ("", target)
        if name == "gguf":
            yield by_llama(model, shape, device, asked, target, word)
        elif name in ("safetensors", CHECKPOINT) and device.kind in (CUDA, CPU):
            yield by_vllm(model, shape, device, asked, target, word)
        elif name == "mlx" and device.kind == METAL:
            yield by_mlx(model, shape, device, asked, target, word)
        elif name == "onnx" and device.kind == CPU and word in onnx.VALUE:
            yield by_genai(model, shape, device, asked, target, word)
        elif name == "shortfin" and (found and found.tp, word or model.entry["hardware"]) == own:
            yield by_shortfin(model, device, asked, target)


def shape_of(config: ModelConfig, weights: int) -> Shape:
    """A Shape of a model that there is a table of."""
    sliding = len(config.with_window) if config.sliding else config.layers if config.window else 0
    window = config.sliding.window if config.sliding else config.window or 0
    return Shape(
        config.context, config.layers, config.heads, config.kv_heads, config.head_dim, config.layers,
        config.latent.kept if config.latent else 0, weights, sliding, window,
    )  # fmt: skip


def cached(shape: Shape) -> Cached:
    values = shape.latent or 2 * shape.kv_heads * shape.head_dim
    return Cached(shape.cached, values, shape.sliding, shape.window)


def by_llama(
    model: Model, shape: Shape, device: Device, asked: Asked, target: str, word: str
) -> Form:
    kept, widths = cached(shape), widths_of(model)
    weights = float(bytes_of(Path(target)) or gguf_rows.file_bytes(model, model.dtype(word)))
    rest = (device.count - 1) * libllama.scratch(widths, asked.context)  # each has its own

    def whole(context: int) -> float:
        cache = libllama.cache(kept, context, asked.requests, asked.kv_type)
        return (weights + cache + rest + libllama.scratch(widths, context)) / device.count

    needs, more = whole(asked.context), ""
    if device.kind != CPU:
        layers = offloaded(needs, device.usable, shape.layers)
        more = f" -ngl {layers}" if needs > device.usable else " -ngl 99"
    if asked.kv_type != "f16":
        more += f" -ctk {asked.kv_type} -ctv {asked.kv_type}"
    return Form(
        target, LLAMA_CPP, weights, needs, device.usable,
        longest(whole, device.usable, shape.context),
        # layers lie one behind the other: a token waits for each device in turn
        speed(model, device.bandwidth, weights, libllama.cache(kept, asked.context, 1, asked.kv_type)),
        serve=f"llama-server -m {target} -c {asked.context * asked.requests} -np {asked.requests}{more}",
    )  # fmt: skip


def by_vllm(
    model: Model, shape: Shape, device: Device, asked: Asked, target: str, scheme: str
) -> Form:
    """Of a quantised checkpoint, or of the checkpoint as it is."""
    cpu, config, entry = device.kind == CPU, model.config or shape, model.entry
    tp = max((size for size in gpu_layout.SIZES if size <= device.count), default=1)
    weights, named = float(model.checkpoint_bytes()), target
    if target == CHECKPOINT:
        target = entry.get("path") or entry["hub"]
        named = f"{target} --revision {entry['revision']}" if "revision" in entry else target
        if NO_TABLE in entry["needs"] and entry["architecture"] not in registry.ARCHITECTURES:
            no = f"vLLM, as it is pinned, does not serve {entry['architecture']}"
            return Form(target, VLLM, weights, 0, 0, 0, why_not=no)
        if "original" in entry:  # quantised already: its bytes are what counts
            config = shape
    elif model.config:
        weights = float(sizes.weights(model.config, scheme, entry["dtype"]))
    else:
        weights *= 1.15 * ALL[scheme].weights["num_bits"] / 16
        config = replace(shape, weights=int(weights))
    form = Form(target, VLLM, weights, 0, device.memory * UTILIZATION, 0)
    experts = bool(model.config and model.config.experts)
    if scheme and (no := schemes.no_kernel(scheme, None if cpu else device.capability, experts)):
        return replace(form, why_not=no)
    found = room(config, tp, device.memory, asked.context, asked.requests, scheme, cpu)
    if isinstance(found, str):
        return replace(form, why_not=found)
    return replace(
        form,
        needs=found.weights + found.cache + found.rest,
        longest=found.longest,
        speed=speed(model, device.bandwidth, found.weights, found.cache / asked.requests),
        serve=f"vllm serve {named} --tensor-parallel-size {tp} --max-model-len {asked.context}"
        + (f" --kv-cache-memory-bytes {found.cache}" if cpu else ""),
    )


def by_mlx(
    model: Model, shape: Shape, device: Device, asked: Asked, target: str, word: str
) -> Form:
    bits = {"4bit": 4.5, "8bit": 8.5}.get(word, 16)  # a scale and a bias of 64 weights
    weights, kept = float(bytes_of(Path(target)) or model.parameters() * bits / 8), cached(shape)

    def whole(context: int) -> float:
        return weights + MLX_REST + 2.0 * kept.layers * kept.values * context * asked.requests

    cache = whole(asked.context) - weights - MLX_REST
    return Form(
        target, MLX, weights, whole(asked.context), device.usable,
        longest(whole, device.usable, shape.context),
        speed(model, device.bandwidth, weights, cache / asked.requests),
        serve=f"mlx_lm.server --model {target}",
    )  # fmt: skip


def by_genai(
    model: Model, shape: Shape, device: Device, asked: Asked, target: str, word: str
) -> Form:
    """On a CPU it computes in float32 with float16 weights too, so that it holds those twice as wide."""
    widths, kept = widths_of(model), cached(shape)
    layers = onnx.Layers(widths.hidden, widths.ffn, shape.heads, kept.layers * kept.values)
    weights = 4.0 * model.parameters()
    if word == "int8":
        weights = float(bytes_of(Path(target)) or weights / 4)

    def whole(context: int) -> float:
        return onnx.held(weights, layers, context, asked.requests, word)

    cache = layers.cached * asked.context * onnx.VALUE[word]
    return Form(
        target, GENAI, weights, whole(asked.context), device.usable,
        longest(whole, device.usable, shape.context),
        speed(model, device.bandwidth, weights, cache),
        serve=f"# {target}: onnxruntime_genai in a program of yours, or Ray Serve (docs/onnx.md)",
    )  # fmt: skip


def by_shortfin(model: Model, device: Device, asked: Asked, target: str) -> Form:
    form = Form(target, SHARK, model.checkpoint_bytes(), 0, device.memory * UTILIZATION, 0)
    if not model.config:
        return replace(form, why_not="no config.json to plan by; `ingot plan` it first")
    found = gpu_layout.gpu_layout(
        model.config, device.count, 1, SHORTFIN, device.memory, asked.context
    )
    if found.wrong:
        return replace(form, why_not=found.wrong)
    cache = found.kv_per_token * asked.context
    return replace(
        form,
        needs=found.weights + cache * asked.requests + REST,
        longest=min(found.tokens // asked.requests, model.config.context),
        speed=speed(model, device.bandwidth, found.weights, cache),
        serve=f"{target}/serve",
    )


def widths_of(model: Model) -> Widths:
    """Of a token that goes through several experts, those of all."""
    config = model.config
    if config is None:
        assert model.numbers
        return Widths(model.numbers.vocab, model.numbers.hidden, FFN * model.numbers.hidden)
    ffn = config.experts.used * config.experts.ffn if config.experts else config.ffn
    attended, m = 0, config.latent
    if m:  # queries and what they attend to as latents, and heads' own before and after
        attended = config.heads * (2 * m.kv_rank + 2 * m.plain + m.value)
    return Widths(config.vocab, config.hidden, ffn, attended)


def offloaded(needs: float, usable: float, layers: int) -> int:
    """How many of the layers a GPU takes, where not all fit: llama.cpp's -ngl."""
    return max(0, int(layers * usable / needs) - 1)


def longest(whole, usable: float, most: int) -> int:
    """Tokens of a request whose `whole` bytes are still usable; 0: not the weights alone."""
    if whole(most) <= usable:
        return most
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if whole(middle) <= usable else (low, middle - 1)
    return low // libllama.PAD * libllama.PAD


def speed(model: Model, bandwidth: float, weights: float, cache: float) -> float:
    """Tokens a second of one request at most: each reads the weights that it needs, and its cache."""
    share, config = 1.0, model.config
    if config and config.experts:
        idle = 1 - config.experts.used / config.experts.count
        of_experts = 3 * config.layers * config.experts.count * config.experts.ffn * config.hidden
        share -= idle * of_experts / parameters(config)
    return bandwidth / (weights * share + cache)


def quality(form: Form, measured: dict[str, float], entry: dict) -> Form:
    """With the mean KL divergence of this model's record, or else as the demo's."""
    name = Path(form.target).name
    if name in measured:
        return replace(form, kl=measured[name], measured=True)
    words = name.split(".")[1:-1]
    word = words[0] if words else ""
    if form.server == GENAI and word == "int8" and entry["onnx"]["int8"] == "dynamic":
        word = "int8_dynamic"
    if word in ("", entry["dtype"]) or form.server == SHARK:
        return replace(form, kl=0.0)
    return replace(form, kl=limits.EXPECTED.get(word, inf))
