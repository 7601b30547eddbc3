"""Time one artifact on this machine's CPU: a prompt, then tokens one by one.

Runs in envs/llamacpp, envs/genai or envs/openvino, by the artifact.  As llama-bench does it: random tokens,
nothing is chosen from their logits, one run before to warm up.  In the runtime that serves the artifact:
libllama, onnxruntime-genai or openvino_genai, each as it comes but for the number of threads.
"""

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from ingot.base.console import stderr_to_log
from ingot.base.fields import read_json
from ingot.base.options import step
from ingot.base.refused import Refused
from ingot.formats.gguf import file as gguf_file
from ingot.formats.onnx.folder import GENAI

# Of a prompt and then so many tokens: seconds
Timed = Callable[[list[int], int], tuple[float, float]]
WARM = 8  # tokens
ANY = 256  # ids, which every vocabulary has
SHARE = 4 / 5  # of a short context for the prompt


def measure_speed(
    artifact: Annotated[Path, "a .gguf, or a folder of .onnx or .openvino"],
    prompt: Annotated[int, "tokens read at once; fewer where the context is short"],
    generate: Annotated[int, "tokens one by one; likewise"],
    threads: Annotated[int, "of the runtime"],
    result: Annotated[Path, "the .json to write"],
) -> None:
    runtimes = {".gguf": by_libllama, ".onnx": by_genai, ".openvino": by_openvino}
    if artifact.suffix not in runtimes:
        raise Refused(f"{artifact}: no runtime here, expected {', '.join(runtimes)}")
    with stderr_to_log(f"{artifact}: timing it"):
        context = context_of(artifact)
        if prompt + generate > context:
            prompt = min(prompt, int(context * SHARE))
            generate = min(generate, context - prompt)
        chance = random.Random(0)
        ids = [chance.randrange(ANY) for _ in range(prompt)]
        name, version, timed = runtimes[artifact.suffix](artifact, prompt + generate, threads)
        timed(ids[:WARM], 2)
        reading, generating = timed(ids, generate)
    found = {
        "runtime": name,
        "version": version,
        "prompt_tokens": prompt,
        "generated_tokens": generate,
        "prompt": prompt / reading,
        "generation": generate / generating,
    }
    result.write_text(json.dumps(found))


def context_of(artifact: Path) -> int:
    """Tokens that the model takes, by the artifact's own files."""
    if artifact.suffix == ".gguf":
        pairs, _ = gguf_file.read(artifact)
        return pairs[f"{pairs['general.architecture']}.context_length"]
    if artifact.suffix == ".onnx":
        return read_json(artifact / GENAI)["model"]["context_length"]
    config = read_json(artifact / "config.json")
    return config.get("text_config", config)["max_position_embeddings"]


def by_libllama(gguf: Path, context: int, threads: int) -> tuple[str, str, Timed]:
    from ingot.formats.gguf.libllama import version
    from ingot.formats.gguf.served import Served

    model = Served(gguf)
    model.begin(context, threads)

    def timed(ids: list[int], count: int) -> tuple[float, float]:
        model.clear()
        begun = time.monotonic()
        model.read(ids)
        between = time.monotonic()
        for number in range(count):
            model.read([ids[number % len(ids)]])
        return between - begun, time.monotonic() - between

    return "llama.cpp", version(), timed


def by_genai(onnx: Path, context: int, threads: int) -> tuple[str, str, Timed]:
    import numpy as np
    import onnxruntime_genai

    config = onnxruntime_genai.Config(str(onnx))
    options = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
    config.overlay(json.dumps(options))
    model = onnxruntime_genai.Model(config)

    def timed(ids: list[int], count: int) -> tuple[float, float]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        longest = len(ids) + count
        parameters.set_search_options(do_sample=False, min_length=longest, max_length=longest)
        generator = onnxruntime_genai.Generator(model, parameters)
        begun = time.monotonic()
        generator.append_tokens(np.array(ids, np.int32))
        between = time.monotonic()
        for _ in range(count):
            generator.generate_next_token()
        return between - begun, time.monotonic() - between

    return "onnxruntime-genai", onnxruntime_genai.__version__, timed


def by_openvino(folder: Path, context: int, threads: int) -> tuple[str, str, Timed]:
    import numpy as np
    import openvino
    import openvino_genai

    pipeline = openvino_genai.LLMPipeline(str(folder), "CPU", INFERENCE_NUM_THREADS=threads)

    def timed(ids: list[int], count: int) -> tuple[float, float]:
        tensor = openvino.Tensor(np.array([ids], np.int64))
        inputs = openvino_genai.TokenizedInputs(tensor, openvino.Tensor(np.ones_like([ids])))
        # the first token comes with the prompt
        said = pipeline.generate(inputs, max_new_tokens=count + 1, ignore_eos=True, do_sample=False)
        metrics = said.perf_metrics
        return metrics.get_ttft().mean / 1000, count * metrics.get_tpot().mean / 1000

    return "openvino_genai", openvino_genai.__version__, timed


if __name__ == "__main__":
    step(measure_speed)
