"""What is started and what is refused before it: launch scripts, parameters, repositories, servers."""

import json
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from ingot.base.launch import HERE
from ingot.base.refused import Refused
from ingot.base.server import Server
from ingot.formats.iree import bundle
from ingot.formats.tensorrt import checkpoint as trtllm_checkpoint
from ingot.formats.tensorrt import rtx
from ingot.formats.tensorrt.triton import contents, pbtxt, schema
from ingot.formats.tensorrt.triton.server import launch_script


def served(tmp_path, script):
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "serve").write_text(f"#!{sys.executable}\n{script}")
    (folder / "serve").chmod(0o755)
    return folder


SERVE = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
port = int(sys.argv[1].partition("=")[2])
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers(); self.wfile.write(b"well")
    def do_POST(self): self.send_response(422); self.end_headers(); self.wfile.write(b"no such field")
    def log_message(self, *_): pass
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def test_a_server_is_stopped_whatever_happens(tmp_path):
    with pytest.raises(ZeroDivisionError), Server(served(tmp_path, SERVE)) as server:
        pid = server.process.pid
        with pytest.raises(Refused, match="HTTP 422: no such field"):
            server.post("/generate", {})
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


DEAF = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
begun = pathlib.Path("begun")
if not begun.exists() or sys.argv[-1] == "--deaf":
    begun.touch()
    time.sleep(60)
"""


def test_one_that_heeds_no_signal_is_ended_though_we_are_told_to_end_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Server, "patience", 1.0)
    server = Server(served(tmp_path, DEAF + SERVE))
    told = [threading.Timer(after, os.kill, (os.getpid(), signal.SIGTERM)) for after in (0.5, 1.0)]
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))  # the step's own
    try:
        for one in told:
            one.start()
        with pytest.raises(SystemExit, match="stopped by SIGTERM"), server:
            pass
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM], "the second, once the server was gone"
    with pytest.raises(ProcessLookupError):
        os.kill(server.process.pid, 0)


def test_one_that_hangs_at_its_start_is_begun_again_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Server, "patience", 0.2)
    monkeypatch.setattr(Server, "idle_limit", 1.0)
    with Server(served(tmp_path, DEAF + SERVE)) as server:
        assert server.begun == 2


def test_a_server_that_stops_at_its_start_is_quoted(tmp_path):
    with (
        pytest.raises(Refused, match=r"(?s)bundle: the server stopped at start.*no such device"),
        Server(served(tmp_path, "raise SystemExit('no such device')")),
    ):
        pass
    with pytest.raises(Refused, match="no folder of a server"), Server(tmp_path / "nothing"):
        pass


def test_a_bundle_is_served_on_as_many_devices_as_it_has_ranks():
    assert "device_ids 0 \\" not in bundle.launch_script("local-task", 1)
    script = bundle.launch_script("local-task", 3)
    assert (
        "TOPOLOGY_NODES=0,0\n" in script
        and "model.irpa model.rank0.irpa model.rank1.irpa" in script
    )
    assert "--device_ids 0 1 \\\n" in bundle.launch_script("hip", 3)


def test_one_process_per_rank():
    assert "mpirun" not in launch_script(1, backend="engine")
    script = launch_script(4, backend="engine")
    assert script.count("-n 1 ") == 4 and script.count('"$@"') == 4


@pytest.mark.parametrize(
    "backend, runtime, reason",
    [
        ("engine", {"max_queue_size": 8}, None),
        ("engine", {"kv_cache_free_gpu_mem_fraction": 1.5}, "expected a fraction above 0, up to 1"),
        ("engine", {"gpt_model_typ": "x"}, "is no parameter of the tensorrt_llm model"),
        ("engine", {"batching_strategy": "${strategy}"}, "a placeholder that was never filled in"),
        ("llmapi", {"max_batch_size": -1}, "expected a whole number"),
        ("llmapi", {"tensor_parallel_size": 2}, "is not set here"),
    ],
)
def test_parameters_of_a_repository(backend, runtime, reason):
    found = schema.why_not(backend, runtime)
    assert (found is None) if reason is None else reason in found


def test_every_tensor_of_the_wiring_comes_from_somewhere():
    wiring = pbtxt.wiring()
    assert wiring and all(isinstance(key, str) for key in wiring)
    assert set(schema.INPUTS) == set(schema.OUTPUTS) == set(schema.MODELS)


@pytest.mark.parametrize(
    "ranks, beams, reason",
    [
        (1, "1", r"rank1\.engine: missing or empty, expected 2 ranks"),
        (2, "4", "max_beam_width is 4, expected 1 at most as the engine's"),
    ],
)
def test_an_engine_that_a_repository_cannot_serve_is_refused(ranks, beams, reason, tmp_path):
    config = {
        "build_config": {"max_batch_size": 8},
        "pretrained_config": {"mapping": {"world_size": 2}},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (tmp_path / f"rank{rank}.engine").write_text("engine")
    with pytest.raises(Refused, match=reason):
        contents.contents("engine", [tmp_path], [], None, [], [], 2, 1, {"max_beam_width": beams})


def test_a_tensorrt_llm_checkpoint_of_unknown_dtype_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"dtype": "float8"}')
    with pytest.raises(
        Refused, match="dtype is float8, expected one of float16, bfloat16, float32"
    ):
        trtllm_checkpoint.read(tmp_path)


class FakeTensorRT:
    """The calls of tensorrt_rtx that rtx.py makes, failing where `fails` says."""

    def __init__(self, fails):
        self.fails = fails
        self.Logger = lambda level: None
        self.Logger.WARNING = 0  # ty: ignore[missing-attribute]
        self.NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
        self.ComputeCapability = SimpleNamespace(**{name: name for name in rtx.TARGETS})
        self.asked = []
        profile = SimpleNamespace(set_shape=lambda *shape: self.asked.append(shape))
        configured = SimpleNamespace(
            set_compute_capability=lambda target, number: self.asked.append(target),
            add_optimization_profile=lambda one: None,
        )
        self.Builder = lambda logger: SimpleNamespace(
            create_network=lambda flags: None,
            create_builder_config=lambda: configured,
            create_optimization_profile=lambda: profile,
            build_serialized_network=lambda *_: None if fails == "build" else b"engine",
        )
        error = SimpleNamespace(desc=lambda: "unsupported node")
        self.OnnxParser = lambda network, logger: SimpleNamespace(
            parse_from_file=lambda path: fails != "parse", get_error=lambda number: error
        )


@pytest.mark.parametrize(
    "fails, reason", [("parse", "m.onnx: unsupported node"), ("build", "no engine for SM86")]
)
def test_an_engine_that_cannot_be_built_is_one_line(fails, reason, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", FakeTensorRT(fails))
    with pytest.raises(Refused, match=reason):
        rtx.build_engine(tmp_path / "m.onnx", 512)


def test_an_engine_is_for_the_gpus_and_lengths_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", tensorrt := FakeTensorRT(None))
    assert rtx.build_engine(tmp_path / "m.onnx", 512) == b"engine"
    assert tensorrt.asked == [*rtx.TARGETS, ("input_ids", (1, 1), (1, 64), (1, 512))]


@pytest.mark.parametrize(
    "name", ["bundle", "a b 'c'", 'q"$(touch x)`', "ends\n", "-dash", "in\nside"]
)
def test_a_launch_script_serves_its_own_folder_whatever_its_name_and_way_there(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "mine").write_text(name)
    (folder / "serve").write_text(f"#!/bin/sh\n{HERE}cat mine\n")
    (folder / "serve").chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mine").write_text("another's")
    (tmp_path / "bin/s").symlink_to(folder / "serve")
    for way in (folder / "serve", tmp_path / "bin/s", f"./{name}/serve"):
        done = subprocess.run([way], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == name


def test_a_launch_script_that_has_lost_its_folder_serves_nothing(tmp_path):
    script = f"#!/bin/sh\n{HERE}echo served\n"
    done = subprocess.run(
        ["sh", "-c", script, str(tmp_path / "gone/serve")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "served" not in done.stdout
