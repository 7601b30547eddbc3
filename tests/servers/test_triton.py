"""Triton model repositories in the real server: five models ready, right answers, broken ones refused.

NVIDIA's backend needs a GPU: a stand-in takes its place (tests/doubles/README.md), the rest is real.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import checkpoints
import faults
import place
from conftest import ROOT, once, shared_folder
from ingot.parity.hard_texts import STRINGS

DEMO = checkpoints.DEMO
REPOSITORY = "artifacts/demo_tp1.triton"
GUIDE = (
    '{"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", '
    '"stop_words": "", "pad_id": 2, "end_id": 2}'
)
REFERENCE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, text = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer(text, return_tensors="pt").input_ids
said = model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=2, pad_token_id=2)
print(json.dumps(tokenizer.decode(said[0, ids.shape[1]:], skip_special_tokens=True)))
"""
ASK = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ingot.formats.tensorrt.triton.server import Server
backends = Path(sys.argv[3]) if sys.argv[3] else None
with Server(Path(sys.argv[2]), backends) as server:
    import numpy as np
{}
"""


def python_in(interpreter, code, *words, timeout=300):
    done = subprocess.run(
        [str(word) for word in (interpreter, "-c", code, *words)],
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(autouse=True)
def alone(request, tmp_path_factory):
    """Tests that build or serve in the folder that all share do so one after another."""
    with contextlib.ExitStack() as stack:
        if "built" in request.fixturenames:
            place = shared_folder(tmp_path_factory) / "shared-triton.alone"
            fcntl.flock(stack.enter_context(place.open("w")), fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def machine(tmp_path_factory, python):
    """The environment of a machine with a GPU: PATH, and Triton's backends."""
    folder = tmp_path_factory.mktemp("machine")
    path = place.toolchain(folder / "toolchain")
    backends = place.backends(folder / "backends", python("triton"))
    return {"PATH": f"{path}:{os.environ['PATH']}", "INGOT_TRITON_BACKENDS": str(backends)}


@pytest.fixture(scope="module")
def built(tmp_path_factory, shared, machine):
    """A folder in which the demo's repository was built and verified, and what was said."""
    words = ("--", REPOSITORY, f"{REPOSITORY}.verified.json")
    with once(tmp_path_factory, "triton") as (folder, filled):
        if not filled:
            done = shared(folder, *words, environment=machine)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def ask(built, machine, python, tmp_path):
    """ask(code) runs Python beside a server of the repository, as moved to another place."""

    def run(code, moved=True):
        repository = built / REPOSITORY
        if moved:
            repository = shutil.copytree(repository, tmp_path / "else where/m")
        indented = "\n".join(f"    {line}" for line in code.strip().splitlines())
        words = (ROOT / "scripts", repository, machine["INGOT_TRITON_BACKENDS"])
        return json.loads(python_in(python("triton"), ASK.format(indented), *words))

    return run


@pytest.mark.slow
def test_five_models_are_ready_and_every_token_is_the_references(built):
    record = json.loads((built / f"{REPOSITORY}.verified.json").read_text())
    checks = record["checks"]
    assert checks["models_ready"] == 5
    assert checks["greedy_equal"] == checks["prompts"] == 26
    assert checks["prompt_tokens"] == [5, 410]
    assert (checks["streams_equal"], checks["chats_equal"]) == (9, 20)
    assert checks["texts_equal"] > len(STRINGS)
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=built / REPOSITORY)
    assert done.returncode == 0, "the server wrote into the repository"


@pytest.mark.slow
def test_the_guides_request_gets_transformers_answer_also_as_a_stream_and_elsewhere(
    built, ask, python
):
    assert json.loads((built / REPOSITORY / "smoke.json").read_text()) == json.loads(GUIDE)
    expected = json.loads(
        python_in(python("iree"), REFERENCE, DEMO, json.loads(GUIDE)["text_input"])
    )
    assert len(expected) > 10
    found = ask(f"""
body = json.loads('''{GUIDE}''')
whole = server.infer("ensemble", body)
body["stream"] = True
parts = {{m: [p["text_output"] for p in server.stream(m, body)] for m in ("ensemble", "tensorrt_llm_bls")}}
print(json.dumps([whole, parts, sorted(server.models().items())]))
""")
    whole, parts, models = found
    assert whole["text_output"] == expected
    assert whole["model_name"] == "ensemble" and whole["model_version"] == "1"
    for model, texts in parts.items():
        assert "".join(texts) == expected, model
        assert len(texts) > 5, f"{model} did not stream"
    names = ["ensemble", "postprocessing", "preprocessing", "tensorrt_llm", "tensorrt_llm_bls"]
    assert models == [[name, "READY"] for name in names]


@pytest.mark.slow
def test_grpc_answers_and_streams_the_same_text(ask):
    found = ask("""
import queue
import tritonclient.grpc as grpc
client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
def inputs(stream):
    found = []
    for name, kind, value in (("text_input", "BYTES", np.array([["What is machine learning?"]], object)),
                              ("max_tokens", "INT32", np.array([[20]], np.int32)),
                              ("end_id", "INT32", np.array([[2]], np.int32)),
                              ("stream", "BOOL", np.array([[stream]], bool))):
        found.append(grpc.InferInput(name, list(value.shape), kind))
        found[-1].set_data_from_numpy(value)
    return found
answers = queue.Queue()
client.start_stream(lambda result, error: answers.put((result, error)))
texts = []
for stream in (False, True):
    client.async_stream_infer("ensemble", inputs(stream), enable_empty_final_response=True)
    text = ""
    while True:
        result, error = answers.get(timeout=60)
        assert error is None, error
        response = result.get_response()
        if result.as_numpy("text_output") is not None:
            text += result.as_numpy("text_output").reshape(-1)[0].decode()
        if response.parameters["triton_final_response"].bool_param:
            break
    texts.append(text)
client.stop_stream()
body = {"text_input": "What is machine learning?", "max_tokens": 20, "end_id": 2}
texts.append(server.infer("ensemble", body)["text_output"])
print(json.dumps(texts))
""")
    assert len(set(found)) == 1 and len(found[0]) > 10


@pytest.mark.slow
def test_preprocessing_gives_the_engine_what_upstream_documents(ask):
    """One start token; words as ids and their ends; a bias over the vocabulary; several rows."""
    found = ask("""
def tensor(name, kind, shape, data):
    return {"name": name, "datatype": kind, "shape": shape, "data": data}
def infer(texts, **more):
    n = len(texts)
    inputs = [tensor("QUERY", "BYTES", [n, 1], texts)]
    inputs += [tensor("REQUEST_OUTPUT_LEN", "INT32", [n, 1], [5] * n)]
    inputs += [tensor(k, *v) for k, v in more.items()]
    answer = json.loads(server.post("/v2/models/preprocessing/infer", {"inputs": inputs}))
    return {o["name"]: [o["shape"], o["data"]] for o in answer["outputs"]}
plain = infer(["City"])
marked = infer(["<|begin_of_text|>City"])
two = infer(["City", "City of"], STOP_WORDS_DICT=["BYTES", [2, 2], ["City", "of", "", "City"]],
            EMBEDDING_BIAS_WORDS=["BYTES", [2, 1], ["City", ""]],
            EMBEDDING_BIAS_WEIGHTS=["FP32", [2, 1], [2.5, 0.0]], END_ID=["INT32", [2, 1], [7, 8]])
print(json.dumps([plain, marked, two]))
""")
    plain, marked, two = found
    assert plain["INPUT_ID"] == marked["INPUT_ID"] and plain["INPUT_ID"][1][0] == 1016
    assert plain["INPUT_ID"][1].count(1016) == 1
    assert plain["OUT_END_ID"][1] == [1020] and two["OUT_END_ID"][1] == [7, 8]
    assert plain["EMBEDDING_BIAS"][0] == [1, 0] and plain["STOP_WORDS_IDS"][0] == [1, 2, 1]
    assert plain["STOP_WORDS_IDS"][1] == [0, -1]
    shape, data = two["STOP_WORDS_IDS"]
    width = shape[2]
    city = plain["INPUT_ID"][1][1:]
    first, ends = data[:width], data[width : 2 * width]
    assert first[: len(city)] == city and ends[0] == len(city)
    assert ends[1] > len(city) and ends[2:] == [-1] * (width - 2)
    second, ends = data[2 * width : 3 * width], data[3 * width :]
    assert second[: len(city)] == city and ends[:2] == [len(city), -1]
    shape, bias = two["EMBEDDING_BIAS"]
    assert shape == [2, 1024] and sum(bias) == 2.5 * len(city)
    lengths = two["REQUEST_INPUT_LEN"][1]
    assert two["INPUT_ID"][0] == [2, max(lengths)] and lengths[0] < lengths[1]


@pytest.mark.slow
def test_a_bad_request_is_answered_with_its_reason_and_others_go_on(ask):
    found = ask("""
import urllib.request, urllib.error
from ingot.base.server import OPEN
def status(body):
    request = urllib.request.Request(f"{server.url}/v2/models/ensemble/generate", json.dumps(body).encode())
    try:
        with OPEN(request, timeout=60) as answer:
            return [answer.status, ""]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
good = {"text_input": "City", "max_tokens": 3}
bad = {**good, "embedding_bias_words": ["a", "b"], "embedding_bias_weights": [1.0]}
print(json.dumps([status(bad), status({"max_tokens": 3}), status(good)]))
""")
    (bad, why), (absent, _), (good, _) = found
    assert bad >= 400 and "a weight for each of embedding_bias_words" in why, why
    assert absent == 400 and good == 200


@pytest.mark.slow
def test_two_ranks_are_started_by_mpirun_and_answer_rightly(built, shared, machine):
    target = "artifacts/demo_tp2.triton"
    done = shared(built, "--", f"{target}.verified.json", environment=machine)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = json.loads((built / f"{target}.verified.json").read_text())["checks"]
    assert checks["models_ready"] == 5 and checks["greedy_equal"] == 26
    assert (built / target / "serve").read_text().count("--load-model=tensorrt_llm") == 1


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 2])
def test_no_server_outlives_a_verification_that_is_ended(tp, built, shared, machine, python):
    target = f"artifacts/demo_tp{tp}.triton"
    done = shared(built, "--", target, environment=machine)
    assert done.returncode == 0, done.stdout + done.stderr
    words = (ROOT / "scripts", built / target, machine["INGOT_TRITON_BACKENDS"])
    code = ASK.format("    print('ready', flush=True); import time; time.sleep(100)")
    step = subprocess.Popen(
        [str(word) for word in (python("triton"), "-c", code, *words)], stdout=subprocess.PIPE
    )
    assert step.stdout.readline() == b"ready\n"
    assert len(serving(built / target)) >= tp
    step.terminate()
    assert step.wait(60) != 0
    assert serving(built / target) == []
    assert not list((built / "artifacts").glob(".*.log"))


def serving(repository):
    """The processes that stand in a repository, as `serve` starts them."""
    found = []
    for place_ in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if place_.readlink() == repository.resolve():
                found.append(place_.parent.name)
    return found


def test_without_a_server_for_engines_a_record_stops_before_any_work(snakemake, machine, tmp_path):
    environment = {**machine, "INGOT_TRITON_BACKENDS": ""}
    done = snakemake(tmp_path, "--", f"{REPOSITORY}.verified.json", environment=environment)
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "set INGOT_TRITONSERVER to the tritonserver of an image with TensorRT-LLM" in line
    assert not (tmp_path / "artifacts").exists()


# Layout llmapi

LLMAPI = {
    "path": str(DEMO), "name": "Mine", "architecture": "LlamaForCausalLM", "pre_tokenizer": "llama-bpe",
    "hardware": "cpu", "prompts": str(DEMO / "prompts.txt"), "trtllm": {"backend": "llmapi"},
}  # fmt: skip


@pytest.fixture(scope="module")
def llmapi(tmp_path_factory, shared):
    folder = tmp_path_factory.mktemp("llmapi")
    (folder / "mine.yaml").write_text(json.dumps({"models": {"mine": LLMAPI}}))
    names = ("mine_tp1.triton", "mine.reference.npz", "mine.texts.json")
    targets = [f"artifacts/{name}" for name in names]
    done = shared(folder, "--configfile", "mine.yaml", "--", *targets)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def verify(interpreter, folder, *words):
    tokenizer = ("generation_config.json", "tokenizer.json", "tokenizer_config.json")
    command = [
        interpreter, ROOT / "scripts/verify_triton.py", "--backend", "llmapi",
        "--checkpoint", DEMO / "config.json", *sorted(DEMO.glob("model*.safetensors*")),
        "--tokenizer", *(DEMO / name for name in tokenizer),
        "--models", ROOT / "runtime/triton/llmapi/model.py", "--repository",
        folder / "artifacts/mine_tp1.triton", "--reference",
        folder / "artifacts/mine.reference.npz", "--texts", folder / "artifacts/mine.texts.json",
        "--record", folder / "record.json", *words,
    ]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.mark.slow
def test_the_llm_api_layout_answers_as_transformers_does(llmapi, python, tmp_path):
    packages = next(python("triton").parents[1].glob("lib/python*/site-packages"))
    interpreter = place.llm_api(tmp_path / "llm", packages)
    done = verify(interpreter, llmapi)
    assert done.returncode == 0, done.stderr
    checks = json.loads((llmapi / "record.json").read_text())["checks"]
    assert checks["models_ready"] == 1 and checks["greedy_equal"] == 26


@pytest.mark.slow
def test_the_llm_api_is_given_a_quantised_checkpoint_as_it_is(shared, tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({"models": {"mine": LLMAPI}}))
    done = shared(tmp_path, "--configfile", "mine.yaml", "--", "artifacts/mine_tp1.fp8.triton")
    assert done.returncode == 0, done.stdout + done.stderr
    model = tmp_path / "artifacts/mine_tp1.fp8.triton/tensorrt_llm/1/model"
    folder = tmp_path / "artifacts/mine.fp8.safetensors"
    files = {
        path.name: path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")
    }
    assert {path.name for path in model.iterdir()} == {*files}
    for name, path in files.items():
        assert (model / name).samefile(path), name


@pytest.mark.slow
def test_without_tensorrt_llm_the_llm_api_layout_says_what_is_missing(llmapi, python):
    done = verify(python("triton"), llmapi)
    assert done.returncode == 1
    assert "tensorrt_llm cannot be imported" in done.stderr
    assert "serve this where TensorRT-LLM is" in done.stderr


@pytest.mark.parametrize(
    "target", ["mine_tp1.trtllm", "mine_tp1.int8_sq.triton", "mine_tp1.sm80.triton"]
)
def test_an_engine_of_a_model_without_engines_is_refused(target, snakemake, tmp_path):
    (tmp_path / "mine.yaml").write_text(json.dumps({"models": {"mine": LLMAPI}}))
    words = ("--configfile", "mine.yaml", "--", f"artifacts/{target}")
    done = snakemake(tmp_path, *words)
    assert done.returncode == 1 and "backend is llmapi, which has no engine" in done.stderr


def reworded(repository):
    """A word that the backend replaces by its default, and says nothing."""
    path = repository / "tensorrt_llm/config.pbtxt"
    text = path.read_text()
    assert "max_utilization" in text
    path.unlink()
    path.write_text(text.replace("max_utilization", "max_utilisation"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "breaks, reason",
    [
        (reworded, "tensorrt_llm/config.pbtxt: its bytes differ"),
        (
            lambda folder: (folder / "preprocessing/2").mkdir(),
            "preprocessing/2: not part of what",
        ),
        (lambda folder: (folder / "tensorrt_llm/1/rank0.engine").unlink(), "rank0.engine: missing"),
    ],
    ids=["a word", "a second version", "a rank's engine"],
)
def test_a_repository_that_somebody_changed_has_no_record(breaks, reason, built, python, tmp_path):
    """bench/verifier_faults.py plants many more."""
    repository = shutil.copytree(built / REPOSITORY, tmp_path / "m.triton")
    breaks(repository)
    faults.reseal(repository)
    command = [
        python("triton"), ROOT / "scripts/verify_triton.py", "--repository", repository,
        "--engine", built / "artifacts/demo_tp1.trtllm",
        "--tokenizer", DEMO / "tokenizer.json", DEMO / "tokenizer_config.json",
        "--models", *(ROOT / "runtime/triton").glob("*/model.py"),
        "--reference", "unread", "--texts", "unread", "--record", tmp_path / "record.json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and reason in done.stderr
    assert not (tmp_path / "record.json").exists()


@pytest.mark.parametrize(
    "layout, name, value, reason",
    [
        ("engine", "kv_cache_free_gpu_mem_fraction", 1.5, "expected a fraction above 0, up to 1"),
        ("engine", "gpt_model_type", "inflight", "expected one of V1, v1, inflight_batching"),
        ("engine", "max_beam_width", "two", "expected a whole number"),
        ("engine", "kv_cache_fraction", 0.5, "is no parameter of the tensorrt_llm model"),
        ("engine", "enable_chunked_context", "${x}", "a placeholder that was never filled in"),
        ("llmapi", "decoupled", "false", "decoupled is 'false', expected true or false"),
        ("llmapi", "max_batch_size", -3, "max_batch_size is -3, expected a whole number"),
        ("llmapi", "tensor_parallel_size", 4, "is not set here: the target's name sets it"),
        ("llmapi", "trust", "${x}", "a placeholder that was never filled in"),
    ],
)
def test_a_wrong_runtime_of_the_catalogue_is_one_line_before_any_work(
    layout, name, value, reason, snakemake, tmp_path
):
    entry = {**LLMAPI, "trtllm": {"backend": layout, "runtime": {name: value}}}
    (tmp_path / "mine.yaml").write_text(json.dumps({"models": {"mine": entry}}))
    done = snakemake(tmp_path, "--configfile", "mine.yaml", "-n", "artifacts/mine_tp1.triton")
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "models.mine.trtllm.runtime" in line and reason in line
