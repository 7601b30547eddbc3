"""What rules ask for their inputs and params: functions of wildcards, bound to one catalogue."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ingot.base.atomic import replacing
from ingot.base.fields import there
from ingot.driver.catalogue.formats import rows
from ingot.driver.catalogue.formats.iree import archives
from ingot.driver.catalogue.formats.serving import memory_of
from ingot.driver.catalogue.model import (
    REFUSED,
    SMALL_FILES,
    UPSTREAM,
    VOCABULARY,
    base_of,
    hub_files,
    is_tokenizer,
    maker_of,
    on_hub,
    shard_names,
)
from ingot.driver.toolchains import toolchains
from ingot.formats.gguf import quantisations
from ingot.model.checkpoint import adapter
from ingot.model.checkpoint.files import ADAPTER, TEMPLATES
from ingot.model.checkpoint.quantised import mlx
from ingot.model.checkpoint.quantised.schemes import CALIBRATED
from ingot.model.checkpoint.safetensors import INDEX
from ingot.model.outline import NO_TABLE
from ingot.serving.rayserve.applications import LLM
from ingot.serving.rayserve.bundle import PARTS

AS_HALF = {"fp16": "f16", "prefill": "f16"}  # whose limits they share


class Inputs:
    """All paths are relative to the working directory, so that a moved checkout rebuilds nothing."""

    def __init__(self, catalogue: dict, root: Path, decides: bool = True):
        self.catalogue, self.root = catalogue, root
        self.decides = decides  # not a process that runs a job for another, maybe elsewhere

    # The code half of the key

    def code(self, script: str) -> list[str]:
        """`script`; the modules of ours that it imports are found for jobs alone: values.plain."""
        return [os.path.relpath(self.root / "scripts" / script)]

    def lock(self, name: str) -> list[str]:
        """What toolchain `name` is built by; the pins of one that we cannot build."""
        folder = self.root / "envs" / name
        files = [folder / name for name in toolchains.FILES]
        if not files[0].exists():
            files = [folder / toolchains.WISH]
        return [os.path.relpath(path) for path in files if path.exists()]

    def mark(self, name: str) -> str:
        """The mark of a built toolchain; its name holds the lock's digest, so its age says nothing."""
        folder = toolchains.place(self.root, name)
        mark = Path(toolchains.MARKS, folder.name)
        if self.decides and not (folder / "ready").exists():
            mark.unlink(missing_ok=True)  # the cache was emptied since
        return str(mark)

    def source(self, path: str) -> str:
        """A path of the catalogue: absolute, below the working directory, or else below the repository."""
        path = path.rstrip("/") or "/"
        if path.startswith("/") or there(Path(path).exists):
            return path
        return os.path.relpath(self.root / path)

    def catalogue_file(self, _) -> str:
        """The catalogue as this run has it, for a command of ours that a rule runs."""
        place = Path(".ingot/catalogue.json")
        said = {key: value for key, value in self.catalogue.items() if key != REFUSED}
        text = json.dumps(said, indent=1)
        if self.decides and not (place.is_file() and place.read_text() == text):
            place.parent.mkdir(exist_ok=True)
            with replacing(place) as partial:
                partial.write_text(text)
        return str(place)

    # The model

    def model(self, wildcards) -> dict[str, Any]:
        return self.catalogue["models"][wildcards.model]

    def setting(self, key: str, table: str = "") -> Callable:
        """The catalogue's `key` of the wildcards' model, or of its `table`; empty when missing."""
        return lambda wildcards: (
            self.model(wildcards)[table] if table else self.model(wildcards)
        ).get(key, "")

    def dtype(self, wildcards) -> str:
        return wildcards.get("dtype", "").lstrip(".") or self.model(wildcards)["dtype"]

    def gguf_type(self, wildcards) -> str:
        """Of a GGUF file: a dtype of the converter's, or a type of libllama's."""
        return wildcards.gguf.lstrip(".") or self.model(wildcards)["dtype"]

    def limits(self, wildcard: str = "", empty: str = "") -> Callable:
        """The user's own limits of an artifact's numbers, by the wildcard that says what it is.

        `empty` is what it is without one: by default, the model's dtype.
        """

        def own(wildcards) -> list[str]:
            said = getattr(wildcards, wildcard).lstrip(".") if wildcard else ""
            entry = self.model(wildcards)
            kind = AS_HALF.get(said, said) or empty or entry["dtype"]
            return [f"{name}={value}" for name, value in entry["limits"].get(kind, {}).items()]

        return own

    def onnx_options(self, wildcards) -> list[str]:
        """What export_onnx.py is told of the catalogue's `onnx`."""
        settings, dtype = self.model(wildcards)["onnx"], wildcards.onnx.lstrip(".") or "fp32"
        graph = settings["graph"]
        if dtype == "prefill":
            dtype, graph = "fp16", "prefill"
        words = [f"--dtype={dtype}", f"--graph={graph}"]
        if "max_length" in settings:
            words.append(f"--max-length={settings['max_length']}")
        if dtype == "int8":
            words += [f"--int8={settings['int8']}", f"--block={settings['block']}"]
            words += ["--float-layers", *settings["float_layers"]]
        return words

    def calibration(self, wildcards) -> list[str]:
        """The text that a scheme is calibrated on; without one its row refuses the target."""
        entry = self.model(wildcards)
        said = entry.get("calibration") or entry.get("imatrix")
        return [self.source(said)] if wildcards.scheme in CALIBRATED and said else []

    def compressed(self, wildcards) -> str:
        """The verifier's flag, where llm-compressor wrote it."""
        by_others = NO_TABLE in self.model(wildcards)["needs"]
        return "--compressed" if by_others or wildcards.scheme in CALIBRATED else ""

    def mlx_bits(self, wildcards) -> str:
        """Of a code; 0: none."""
        return str(mlx.BITS[wildcards.bits.lstrip(".")])

    def openvino_options(self, wildcards) -> list[str]:
        if not wildcards.int8:
            return ["--dtype=fp32"]
        layers = self.model(wildcards)["onnx"]["float_layers"]
        return ["--dtype=int8", "--float-layers", *layers]

    def openvino_weights(self, wildcards) -> str:
        """The format that optimum-intel stores them in."""
        return wildcards.openvino.lstrip(".") or "fp32"

    def torchpipe_options(self, wildcards) -> list[str]:
        """What split_onnx.py is told of the catalogue's `onnx.torchpipe`."""
        settings = self.model(wildcards)["onnx"]["torchpipe"]
        return [f"--{name}={value}" for name, value in sorted(settings.items())]

    def vllm(self, wildcards) -> str:
        """The catalogue's `vllm` as JSON, with the memory of its GPU in GiB; 0: a CPU."""
        entry = self.model(wildcards)
        memory = memory_of(entry, self.catalogue["gpus"])
        return json.dumps({**entry["vllm"], "memory": memory}, sort_keys=True)

    def ray(self, wildcards) -> str:
        """The catalogue's `ray` as JSON."""
        return json.dumps(self.model(wildcards)["ray"], sort_keys=True)

    def apps(self, name: str, path: str) -> Callable:
        """The artifact that one of Ray Serve's applications serves, where the catalogue asks for it."""

        def found(wildcards) -> list[str]:
            asked = name in self.model(wildcards)["ray"]["apps"]
            return [path.format(model=wildcards.model)] if asked else []

        return found

    def quantised(self, wildcards) -> list[str]:
        """The quantised checkpoint that is served in place of the model's own."""
        scheme = wildcards.get("served", "")
        return [f"artifacts/{wildcards.model}{scheme}.safetensors"] if scheme else []

    def served_weights(self, wildcards) -> list[str]:
        return [] if self.quantised(wildcards) else self.weights(wildcards)

    def served_tokenizer(self, wildcards) -> list[str]:
        """Of a quantised checkpoint it is in its folder."""
        return [] if self.quantised(wildcards) else self.tokenizer(wildcards)

    def vllm_weights(self, wildcards) -> list[str]:
        """Those that vLLM serves as one of Ray Serve's applications."""
        apps = self.model(wildcards)["ray"]["apps"]
        return self.served_weights(wildcards) if LLM in apps else []

    def ray_pins(self, wildcards) -> list[str]:
        """The pins to serve with by Ray Serve."""
        llm = LLM in self.model(wildcards)["ray"]["apps"]
        return self.vllm_pins(wildcards) if llm else self.lock("rayserve")

    def ray_parts(self, _) -> list[str]:
        """Our programs that run beside Ray Serve."""
        asking = [path for path in self.runtime("vllm") if Path(path).name in PARTS]
        return self.runtime("rayserve") + asking

    def served_reading(self, wildcards) -> list[str]:
        """transformers' reading of a model that may have no table, which servers' plans go by then."""
        upstream = self.model(wildcards)["way"] == UPSTREAM
        return [f"artifacts/{wildcards.model}.reading.json"] if upstream else []

    def smoke_reference(self, wildcards) -> list[str]:
        """What a server is held to, where it can be computed: transformers holds all in float32."""
        known = self.model(wildcards)["vllm"]["smoke"] == "reference"
        scheme = wildcards.get("served", "")
        return [f"artifacts/{wildcards.model}{scheme}.reference.npz"] if known else []

    def vllm_pins(self, wildcards) -> list[str]:
        """The pins to serve with."""
        cpu = self.model(wildcards)["vllm"]["device"] == "cpu"
        return self.lock("vllm" if cpu else "vllm-cuda")

    def runtime(self, name: str) -> list[str]:
        """Our programs that run beside a server."""
        found = sorted((self.root / "runtime" / name).glob("*.py"))
        return [os.path.relpath(path) for path in found]

    def hardware(self, wildcards) -> dict[str, Any]:
        """The catalogue's entry of the hardware that a program is for."""
        name = wildcards.hw.lstrip(".") or self.model(wildcards)["hardware"]
        return self.catalogue["hardware"][name]

    def device(self, wildcards) -> str:
        return self.hardware(wildcards)["device"]

    def gpus(self, step: str) -> Callable:
        """How many GPUs a job of `step` needs."""
        return lambda wildcards: rows.gpus(step, self.model(wildcards), int(wildcards.tp))

    def unpinned(self, wildcards) -> bool:
        """Which commit is meant is the hub's to say, so its list of files is never on record."""
        return not on_hub(self.model(wildcards)).get("revision")

    def with_table(self) -> str:
        """A pattern of the models whose family Ingot has a table of, whichever way they go."""
        models = self.catalogue["models"].items()
        return "|".join(name for name, one in models if NO_TABLE not in one["needs"]) or "(?!)"

    def made_by(self, way: str, line: str) -> str:
        """A pattern of the models whose files of one of MAKERS are written that way; nothing fits none."""
        models = self.catalogue["models"].items()
        found = [name for name, one in models if maker_of(one, line) == way]
        return "|".join(found) or "(?!)"

    # Its files

    def checkpoint(self, wildcards) -> str:
        """The folder of the model's checkpoint."""
        entry = self.model(wildcards)
        base = base_of(wildcards.model, entry)
        return self.source(entry["path"]) if "path" in entry else f"artifacts/{base}.hf"

    def config_json(self, wildcards) -> str:
        return f"{self.checkpoint(wildcards)}/config.json"

    def weights(self, wildcards) -> list[str]:
        """The checkpoint's files that carry weights."""
        folder, entry = self.checkpoint(wildcards), self.model(wildcards)
        more = self.lora(wildcards)
        if "path" in entry:
            found = [*Path(folder).glob("model*.safetensors"), Path(folder, INDEX)]
            return sorted(str(path) for path in found if path.exists()) + more
        return [f"{folder}/{name}" for name in shard_names(entry["shards"])] + more

    def adapter(self, wildcards, names: Iterable[str]) -> list[str]:
        """Those files of a model's adapter, if it has one."""
        if not (said := self.model(wildcards).get("adapter")):
            return []
        if "lora" not in said:
            known = (ADAPTER, adapter.WEIGHTS, *said.get("files", ()))
            return [f"artifacts/{wildcards.model}.hf/{name}" for name in names if name in known]
        found = (Path(self.source(said["lora"]), name) for name in names)
        return [str(path) for path in found if there(path.exists) or path.name not in VOCABULARY]

    def lora(self, wildcards) -> list[str]:
        """The two files of a model's adapter."""
        return self.adapter(wildcards, (ADAPTER, adapter.WEIGHTS))

    def gguf_of_base(self, wildcards) -> str:
        """At the dtype of the model with the adapter, which its base's entry may say otherwise."""
        entry = self.model(wildcards)
        return f"artifacts/{base_of(wildcards.model, entry)}.{entry['dtype']}.gguf"

    def _served(self, wildcards) -> list[SimpleNamespace]:
        """Of a model's adapters that vLLM serves beside it, each as a rule's wildcards."""
        names = self.model(wildcards)["vllm"]["adapters"]
        return [SimpleNamespace(model=name) for name in names]

    def served_adapters(self, wildcards) -> list[str]:
        return [path for one in self._served(wildcards) for path in self.lora(one)]

    def adapter_references(self, wildcards) -> list[str]:
        """What each is compared with, where its base is."""
        known = self.model(wildcards)["vllm"]["smoke"] == "reference"
        return [f"artifacts/{one.model}.reference.npz" for one in self._served(wildcards) if known]

    def fetched(self, key: str) -> Callable:
        """The catalogue's `key` of what the hub has of a model: its checkpoint, or its adapter."""
        return lambda wildcards: on_hub(self.model(wildcards)).get(key, "")

    def tokenizer(self, wildcards) -> list[str]:
        """The checkpoint's files that carry the vocabulary, the chat template and the sampling."""
        folder, entry = self.checkpoint(wildcards), self.model(wildcards)
        if "path" in entry:
            names = [name for name in SMALL_FILES if (Path(folder) / name).exists()]
            templates = sorted(Path(folder, TEMPLATES).glob("*.jinja"))
            names += [f"{TEMPLATES}/{path.name}" for path in templates]
        else:
            names = entry.get("files") or hub_files(entry.get("pre_tokenizer"))
        own = self.adapter(wildcards, VOCABULARY)
        if is_tokenizer({Path(path).name for path in own}):
            names = [name for name in names if name not in VOCABULARY]
        else:  # what lies beside it is less than a tokenizer
            own = []
        return [f"{folder}/{name}" for name in names] + own

    def prompts(self, wildcards) -> list[str]:
        """The model's own prompts for verification, if it has any."""
        return [self.source(path) for path in [self.model(wildcards).get("prompts")] if path]

    def allow_overflow(self, wildcards) -> str:
        """The converter's flag, where the catalogue asks for it."""
        return "--allow-overflow" if self.model(wildcards)["allow_overflow"] else ""

    def corpus(self, wildcards) -> str:
        """The text over which the distributions of formats are compared."""
        return self.source(self.model(wildcards)["corpus"])

    def imatrix_text(self, wildcards) -> str:
        """The text that its importance matrix is computed over; without one its row refuses the target."""
        return self.source(self.model(wildcards)["imatrix"])

    def imatrix(self, wildcards) -> list[str]:
        """Its importance matrix, where the catalogue names a text to compute one over."""
        return (
            [f"artifacts/{wildcards.model}.imatrix"] if self.model(wildcards).get("imatrix") else []
        )

    def imatrix_of_record(self, wildcards) -> list[str]:
        """That of a quantised file; floats have none."""
        return self.imatrix(wildcards) if self.gguf_type(wildcards) in quantisations.ROWS else []

    def floats_of_record(self, wildcards) -> list[str]:
        """The float32 file and its record, which those of every other type rest on."""
        found = f"artifacts/{wildcards.model}.f32.gguf"
        return [] if self.gguf_type(wildcards) == "f32" else [found, f"{found}{rows.RECORD}"]

    def parameters(self, wildcards) -> str | list[str]:
        """The archives that the program's weights are in: one, or a root and one per rank.

        One comes without a list around it: then its content is in the key, and its name is not.
        """
        found = archives(wildcards.model, int(wildcards.tp))
        return found[0] if len(found) == 1 else found
