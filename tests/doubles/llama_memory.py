"""What libllama says that it would hold of a model: from a header and holes, and nothing is allocated.

    python llama_memory.py CHECKPOINT STUB <<<'[["q4_k_m", 8192, "q8_0", 4], ...]'    in envs/llamacpp

Of the checkpoint config.json and a tokenizer are read.  Each answer is of a type, tokens of a request, a
type of cache and requests: bytes of weights, cache and what is computed in, as its log says them.
"""

import json
import os
import re
import sys
from ctypes import c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from ingot.formats.gguf import header, libllama, metadata, quantisations
from ingot.formats.gguf.file import layout
from ingot.formats.gguf.plan import planned
from ingot.model.checkpoint.files import Checkpoint
from ingot.model.config import read_config
from ingot.model.specs import specs_of

NO_MMAP, GGML_TYPES = 0, {"f16": 1, "q8_0": 8, "q4_0": 2}
SIZES = re.compile(
    r"(kv_cache: size|compute buffer size) = +([\d.]+) MiB"
)  # of what is not allocated, too


def stub(checkpoint: Path, kind: str, place: Path) -> Path:
    """A file of that type without its weights."""
    files = Checkpoint([checkpoint])
    config = read_config(files["config.json"], can=metadata.CAN)
    dtype = "f32" if kind in quantisations.ROWS else kind
    specs = specs_of(config, dtype)
    kvs = header.pairs(files, config, dtype, "none", "llama-bpe", None)
    types = {spec.name: spec.type for spec in specs}
    if kind in quantisations.ROWS:
        types |= planned(place, kvs, specs, kind, None)
    head = layout(kvs, [(spec.name, types[spec.name], spec.shape) for spec in specs])
    with place.open("wb") as file:
        file.write(head.head)
        file.truncate(head.size)
    return place


def held(path: Path, context: int, kv_type: str, requests: int) -> dict[str, float]:
    lib, said = libllama.library(), []
    libllama.listen(lib, said.append)
    parameters = lib.llama_model_default_params()
    parameters.load_mode, parameters.no_alloc, parameters.use_extra_bufts = NO_MMAP, True, False
    model = c_void_p(lib.llama_model_load_from_file(os.fsencode(path), parameters))
    parameters = lib.llama_context_default_params()
    parameters.n_ctx, parameters.n_seq_max = context * requests, requests
    parameters.n_batch, parameters.n_ubatch, parameters.swa_full = (
        2048,
        512,
        False,
    )  # as llama-server
    parameters.type_k = parameters.type_v = GGML_TYPES[kv_type]
    parameters.n_threads = parameters.n_threads_batch = 1
    made = c_void_p(lib.llama_init_from_model(model, parameters)) if model else None
    assert made, "".join(said)[-2000:]
    lib.llama_free(made)
    lib.llama_model_free(model)
    found = {"kv": 0.0, "compute": 0.0, "weights": path.stat().st_size}
    for word, size in SIZES.findall("".join(said)):
        found[word[:2] if word[:2] in found else "compute"] += float(size) * 2**20
    return found


def main() -> None:
    checkpoint, place, answers, files = Path(sys.argv[1]), Path(sys.argv[2]), [], {}
    for kind, *asked in json.load(sys.stdin):
        if kind not in files:
            files[kind] = stub(checkpoint, kind, place / f"{kind}.gguf")
        answers.append(held(files[kind], *asked))
    print("answers: " + json.dumps(answers))


if __name__ == "__main__":
    main()
