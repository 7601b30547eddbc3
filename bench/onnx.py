"""ONNX and OpenVINO: CPU and memory of the export, speed of decoding, beside optimum and GenAI's builder.

    python bench/onnx.py            0.79 B parameters and a third of them; one layer of 8B, 70B and 405B;
                                    the graph of 405B; and at 0.3 B the peers, and tokens per second

CPU seconds are user and system of a whole process with its children, memory is the peak of RssAnon: what a
machine must have, since pages of files can be dropped.  Both sides of a ratio come from one run.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts")]

import checkpoints  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402

WAYS = {
    "fp32": ("onnx", "export_onnx.py", "--onnx", "--dtype=fp32"),
    "fp16": ("onnx", "export_onnx.py", "--onnx", "--dtype=fp16"),
    "int8": ("onnx", "export_onnx.py", "--onnx", "--dtype=int8"),
    "dynamic": ("onnx", "export_onnx.py", "--onnx", "--dtype=int8", "--int8=dynamic"),
    "torchpipe": ("onnx", "split_onnx.py", "--torchpipe"),
    "openvino": ("openvino", "export_openvino.py", "--openvino", "--dtype=int8"),
}
CPU = {
    "fp32": 10,
    "fp16": 10,
    "int8": 15,
    "dynamic": 15,
    "torchpipe": 10,
    "openvino": 20,
}  # s at 0.79 B
MEMORY = {**dict.fromkeys(WAYS, 100), "openvino": 150}  # MB
GROWTH = 10  # MB, from a third of the size; but for OpenVINO, whose graph is in memory
LESS_CPU, LESS_MEMORY, FASTER, BESIDE = 6, 20, 2, 0.9
SKELETON = """
import sys, time
from pathlib import Path
import onnx
from ingot.driver.catalogue.model import planned
from ingot.formats.onnx import decoder
from ingot.formats.onnx.weights import Form
started, folder = time.process_time(), Path(sys.argv[1])
sizes = dict(layers=126, hidden=16384, ffn=53248, heads=128, kv_heads=8, head_dim=128)
said = {**sizes, "vocab": 128256, "context": 131072}
config = planned({"architecture": "LlamaForCausalLM", "dimensions": said})
content, layout = decoder.build(config, Form("fp32"), decoder.PORTABLE)
(folder / decoder.GRAPH).write_bytes(content)
for name, size in layout.sizes.items():
    with (folder / name).open("wb") as file:
        file.truncate(size)
onnx.checker.check_model(str(folder / decoder.GRAPH))
print(len(content) / 1e6, time.process_time() - started)
"""
OPTIMUM = """
import sys
from optimum.exporters.onnx import main_export
main_export(sys.argv[1], sys.argv[2], task="text-generation-with-past", no_post_process=True, atol=1e-3)
"""
OPTIMUM_INT8 = """
import sys
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import AutoQuantizationConfig
settings = AutoQuantizationConfig.avx2(is_static=False, per_channel=False)
ORTQuantizer.from_pretrained(sys.argv[1], file_name="model.onnx").quantize(
    save_dir=sys.argv[2], quantization_config=settings)
"""
DECODE = """
import json, sys, time
import numpy as np, onnxruntime
DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
          "tensor(int32)": np.int32}
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
def step(count, total, past):
    feed = {}
    for one in session.get_inputs():
        said = {"input_ids": np.full((1, count), 5), "attention_mask": np.ones((1, total)),
                "position_ids": np.arange(total - count, total)[None]}.get(one.name)
        if said is None:
            said = past.get(one.name)
        if said is None:
            said = np.zeros((1, 8, 0, 64))  # the model's, which optimum's graphs do not all say
        feed[one.name] = said.astype(DTYPES[one.type], copy=False)
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, feed)))
    return {name.replace("present", "past_key_values"): value for name, value in found.items()}
past, best = step(64, 64, {}), 1e9
for _ in range(5):
    now, started = past, time.perf_counter()
    for n in range(6):
        now = step(1, 65 + n, now)
    best = min(best, (time.perf_counter() - started) / 6)
print(best)
"""
DECODE_IR = """
import sys, time
import numpy as np, openvino
request = openvino.compile_model(sys.argv[1] + "/openvino_model.xml", "CPU", {
    "INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
def step(count, total):
    request.infer({"input_ids": np.full((1, count), 5), "attention_mask": np.ones((1, total), np.int64),
                   "position_ids": np.arange(total - count, total)[None],
                   "beam_idx": np.zeros(1, np.int32)})
best = 1e9
for _ in range(5):
    request.reset_state()
    step(64, 64)
    started = time.perf_counter()
    for n in range(6):
        step(1, 65 + n)
    best = min(best, (time.perf_counter() - started) / 6)
print(best)
"""


def run(words, folder):
    """CPU seconds and the peak of anonymous MB of a command, and what it printed last."""
    environment = {
        **os.environ,
        "INGOT_STORE": str(folder / "store"),
        "PYTHONPATH": str(ROOT / "scripts"),
    }
    environment |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(w) for w in words], stdout=log, stderr=log, env=environment)
        peak = 0.0
        while True:
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            peak = max(peak, anonymous(process.pid))
            time.sleep(0.005)
    text = (folder / "log").read_text()
    if status:
        sys.exit(f"{' '.join(map(str, words[:3]))}: {text[-1500:]}")
    return (
        usage.ru_utime + usage.ru_stime,
        peak,
        text.strip().splitlines()[-1] if text.strip() else "",
    )


def anonymous(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon")), 0.0)


def export(way, checkpoint, folder):
    toolchain, script, option, *words = WAYS[way]
    out = folder / f"{checkpoint.name}.{way}"
    small = [path for path in checkpoint.iterdir() if "model" not in path.name]
    found = run(
        [toolchains.python(ROOT, toolchain), ROOT / "scripts" / script, "--checkpoint", checkpoint,
         "--tokenizer", *small, *words, option, out], folder,
    )  # fmt: skip
    return out, *found[:2]


def say(name, text, fits):
    print(f"{name:28}{text}   {'ok' if fits else 'BEYOND ITS LIMIT'}", flush=True)
    return [] if fits else [name]


def made(folder, layers):
    """A random Llama of 58 million parameters per layer; in another process, whose memory goes."""
    code = (
        f"import convert, pathlib; convert.make_checkpoint(pathlib.Path({str(folder)!r}), {layers})"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "bench", check=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/tests/doubles:{ROOT}/scripts"},
    )  # fmt: skip
    return folder


def sizes(folder):
    """0.79 B parameters beside a third of them."""
    beyond = []
    small, large = made(folder / "third", 4), made(folder / "whole", 13)
    for way in WAYS:
        out, _, before = export(way, small, folder)
        remove(out)
        out, cpu, memory = export(way, large, folder)
        remove(out)
        fits = cpu <= CPU[way] and memory <= MEMORY[way]
        fits = fits and (way == "openvino" or memory - before <= GROWTH)
        text = f"{cpu:6.1f} CPU s {memory:6.0f} MB anonymous, {before:.0f} at a third"
        beyond += say(way, text, fits)
    return beyond


def layers(folder):
    """One layer and the whole vocabulary at real dimensions: sparse files, since memory heeds no values."""
    beyond = []
    for name, (hidden, _, ffn, heads) in list(checkpoints.PUBLIC.items()):
        checkpoints.PUBLIC[name] = hidden, 1, ffn, heads
        place = checkpoints.weightless(folder / name, name, 1)
        out, cpu, memory = export("int8", place, folder)
        remove(out)
        text = f"{cpu:6.1f} CPU s {memory:6.0f} MB anonymous"
        beyond += say(f"one layer of {name}, int8", text, memory <= MEMORY["int8"])
    return beyond


def skeleton(folder):
    place = folder / "skeleton"
    place.mkdir()
    cpu, memory, said = run([toolchains.python(ROOT, "onnx"), "-c", SKELETON, place], folder)
    megabytes = float(said.split()[0])
    fits = cpu <= 10 and megabytes <= 10
    text = f"{cpu:6.1f} CPU s {memory:6.0f} MB anonymous, {megabytes:.2f} MB of graph"
    return say("graph of 405B, checked", text, fits)


def peers(folder):
    """At 0.3 B: what optimum and GenAI's builder take, and how fast each decodes on two threads."""
    beyond, source = [], made(folder / "source", 6)
    python = toolchains.python(ROOT, "optimum")
    ours = {way: export(way, source, folder) for way in ("fp32", "int8", "dynamic", "openvino")}
    plain, eight = folder / "optimum", folder / "optimum-int8"
    first = run([python, "-c", OPTIMUM, source, plain], folder)
    second = run([python, "-c", OPTIMUM_INT8, plain, eight], folder)
    builder = ("-m", "onnxruntime_genai.models.builder", "-p", "int8", "-e", "cpu")
    builds = toolchains.python(ROOT, "genai")
    genai = run(
        [builds, *builder, "-i", source, "-o", folder / "genai", "-c", folder / "cache"], folder
    )
    theirs = {
        ("fp32", "optimum"): first[:2],
        ("dynamic", "optimum's int8"): (first[0] + second[0], max(first[1], second[1])),
        ("int8", "GenAI's builder"): genai[:2],
    }
    for (way, name), (cpu, memory) in theirs.items():
        _, own, mine = ours[way]
        fits = cpu >= LESS_CPU * own and memory >= LESS_MEMORY * mine
        text = (
            f"{cpu:6.1f} CPU s {memory:6.0f} MB: {cpu / own:.1f} and {memory / mine:.0f} times ours"
        )
        beyond += say(f"{name}, beside {way}", text, fits)
    onnx = toolchains.python(ROOT, "onnx")
    graphs = {way: ours[way][0] / "model.onnx" for way in ("fp32", "int8", "dynamic")}
    graphs |= {
        "optimum's int8": eight / "model_quantized.onnx",
        "GenAI's int8": folder / "genai/model.onnx",
    }
    speed = {
        name: float(run([onnx, "-c", DECODE, path], folder)[2]) for name, path in graphs.items()
    }
    ir = run([toolchains.python(ROOT, "openvino"), "-c", DECODE_IR, ours["openvino"][0]], folder)
    speed["openvino"] = float(ir[2])
    best = min(speed["optimum's int8"], speed["GenAI's int8"])
    for name, seconds in speed.items():
        ratio = speed["fp32"] / seconds
        fits = name not in ("int8", "openvino") or ratio >= FASTER
        fits = fits and (name != "int8" or best / seconds >= BESIDE)
        text = f"{1e3 * seconds:6.1f} ms per token, {ratio:.2f} times fp32"
        beyond += say(f"decoding, {name}", text, fits)
    return beyond


def remove(folder):
    subprocess.run(["rm", "-r", folder], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = {"sizes": sizes, "layers": layers, "skeleton": skeleton, "peers": peers}
    parser.add_argument("part", nargs="*", choices=[*parts, []], help="(default: all)")
    asked = parser.parse_args().part or list(parts)
    for name in ("onnx", "openvino", *(["optimum", "genai"] if "peers" in asked else [])):
        toolchains.build(ROOT, name)
    with tempfile.TemporaryDirectory() as place:
        beyond = []
        for name in asked:
            folder = Path(place, name)
            folder.mkdir()
            beyond += parts[name](folder)
            remove(folder)
    sys.exit(f"beyond their limits: {', '.join(beyond)}" if beyond else 0)


if __name__ == "__main__":
    main()
