"""A model over several ranks: sharktank's own files, equal programs, the right answers."""

import json
import re
import subprocess
import sys

import pytest
import yaml

import checkpoints
from conftest import ROOT, convert, once, ran
from fake_hub import COMMIT, Hub
from ingot.driver.catalogue import schema
from ingot.driver.catalogue.formats.iree import PROGRAMS
from ingot.formats.iree import dispatches, tensor_parallel

sys.path.insert(0, str(ROOT / "scripts"))
import compile_vmfb

DEMO = checkpoints.DEMO
HARDWARE = schema.read(ROOT / schema.FILE)["hardware"]
EQUAL = """
import sys
import iree.compiler.dialects.util
from iree.compiler import ir

def canonical(path):
    with ir.Context():
        module = ir.Module.parse(open(path).read())
        assert module.operation.verify()
        return str(module)

sys.exit(canonical(sys.argv[1]) != canonical(sys.argv[2]))
"""


def shard(run, tp, root, *source):
    return run("convert", "shard_irpa.py", *source, "--tp", tp, "--root", root)


def config_of(folder, **changes):
    """The demo's config.json with some numbers changed."""
    folder.mkdir(exist_ok=True)
    config = json.loads((DEMO / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder / "config.json"


def export(run, config, tp, mlir, *flags, whole=False):
    run(
        "iree", "export_mlir.py", "--config", config, "--tp", tp, "--mlir", mlir,
        "--server-config", f"{mlir}.json", *(["--whole"] if whole else []), "--",
        *(flags or ("--bs-prefill=1", "--bs-decode=1")),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, tp", [("demo", 2), ("demo", 4), ("demo", 8), ("llama31", 2), ("llama31", 4)]
)
def test_the_set_is_that_of_sharktanks_own_tool_from_both_sources(kind, tp, ok, forked, tmp_path):
    checkpoint = DEMO if kind == "demo" else checkpoints.llama31(tmp_path / "checkpoint")
    convert(ok, checkpoint, tmp_path / "m.gguf")
    ok("convert", "gguf_to_irpa.py", "--gguf", tmp_path / "m.gguf", "--irpa", tmp_path / "m.irpa")
    for place in ("theirs", "archive", "checkpoint_"):
        (tmp_path / place).mkdir()
    words = ("--irpa-file", "m.irpa", "--output-irpa-file", "theirs/m.irpa")
    words = (*words, "--tensor-parallelism-size", tp)
    done = forked(
        "iree", "-m", "sharktank.examples.sharding.shard_llm_dataset", *words, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    shard(ok, tp, tmp_path / "archive/m.irpa", "--irpa", tmp_path / "m.irpa")
    shard(ok, tp, tmp_path / "checkpoint_/m.irpa", "--checkpoint", checkpoint)
    theirs = sorted(path.name for path in (tmp_path / "theirs").iterdir())
    assert len(theirs) == tp + 1
    for name in theirs:
        wanted = (tmp_path / "theirs" / name).read_bytes()
        assert (tmp_path / "archive" / name).read_bytes() == wanted, name
        assert (tmp_path / "checkpoint_" / name).read_bytes() == wanted, name


def test_the_record_says_that_the_merged_ranks_are_the_checkpoint(
    ok, reading, digests, step, tmp_path
):
    shard(ok, 4, tmp_path / "m.irpa", "--checkpoint", DEMO)
    ranks = tensor_parallel.rank_files(tmp_path / "m.irpa", 4)
    told = (*digests(DEMO), *reading(DEMO), "--dtype", "f16")
    words = (*told, "--root", tmp_path / "m.irpa", "--ranks", *ranks, "--record")
    ok("iree", "verify_shards.py", *words, tmp_path / "record.json")
    checks = json.loads((tmp_path / "record.json").read_bytes())["checks"]
    assert (checks["tensors"], checks["ranks"]) == (39, 4)
    with ranks[2].open("r+b") as file:
        file.seek(1_000_000)
        byte = file.read(1)[0]
        file.seek(1_000_000)
        file.write(bytes([byte ^ 0x40]))
    done = step("iree", "verify_shards.py", *words, tmp_path / "second.json")
    assert done.returncode == 1 and "is not the checkpoint's in F16" in done.stderr
    assert not (tmp_path / "second.json").exists()


@pytest.mark.parametrize("dtype, turned, said", [
    ("f16", -1, "token_embd.weight is missing, expected"),  # ranks in the wrong order
    ("bf16", 1, "is ('F16', (1024, 512)), expected ('BF16', (1024, 512))"),  # the set of another dtype
])  # fmt: skip
def test_a_set_that_is_not_the_one_asked_for_is_refused(
    dtype, turned, said, ok, reading, digests, step, tmp_path
):
    shard(ok, 2, tmp_path / "m.irpa", "--checkpoint", DEMO)
    ranks = tensor_parallel.rank_files(tmp_path / "m.irpa", 2)[::turned]
    told = (*digests(DEMO, dtype), *reading(DEMO), "--dtype", dtype)
    words = (*told, "--root", tmp_path / "m.irpa", "--ranks", *ranks)
    done = step("iree", "verify_shards.py", *words, "--record", tmp_path / "r.json")
    assert done.returncode == 1 and said in done.stderr


@pytest.mark.parametrize("tp", [3, 16])
def test_a_size_that_does_not_divide_is_refused_before_any_work(tp, step, tmp_path):
    done = step(
        "convert", "shard_irpa.py", "--checkpoint", DEMO, "--tp", tp, "--root", tmp_path / "m.irpa"
    )
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert f"cannot be split over {tp} ranks" in done.stderr
    assert not list(tmp_path.glob("*.irpa"))


def test_an_export_of_a_size_that_does_not_divide_is_refused(step, tmp_path):
    words = ("--mlir", tmp_path / "m.mlir", "--server-config", tmp_path / "m.json")
    done = step("iree", "export_mlir.py", "--config", DEMO / "config.json", "--tp", 16, *words)
    assert done.returncode == 1 and "8 KV heads cannot be split over 16 ranks" in done.stderr
    assert "choose 8" in done.stderr


def test_a_context_that_pages_do_not_divide_is_refused_with_one_that_does(step, tmp_path):
    config = config_of(tmp_path / "c", max_position_embeddings=500)
    words = ("--mlir", tmp_path / "m.mlir", "--server-config", tmp_path / "m.json")
    done = step("iree", "export_mlir.py", "--config", config, *words, "--", "--block-seq-stride=32")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "max_position_embeddings is 500, expected a multiple of the page size, 32" in done.stderr
    assert "choose 4 as block_seq_stride" in done.stderr


def test_a_number_of_devices_that_does_not_match_is_refused(step, tmp_path):
    affinity = "{stream.affinity = #hal.device.promise<@__device_1>}"
    (tmp_path / "m.mlir").write_text(f"util.global private @w {affinity}\nfunc.func @f\n")
    flags = [f"--iree-hal-target-device=local[{n}]" for n in range(3)]
    words = ("--mlir", tmp_path / "m.mlir", "--vmfb", tmp_path / "m.vmfb", "--", *flags)
    done = step("iree", "compile_vmfb.py", *words)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert (
        "is for 2 devices, the flags name 3; name 2, or compile the program of _tp3" in done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "tp, flags",
    [
        (1, ("--bs-prefill=1,2", "--bs-decode=1", *PROGRAMS["f32"])),
        (2, ("--bs-prefill=1", "--bs-decode=2")),
    ],
)
def test_the_stitched_program_is_the_one_traced_whole(tp, flags, ok, python, tmp_path):
    config = config_of(tmp_path / "c", num_hidden_layers=5)
    export(ok, config, tp, tmp_path / "stitched.mlir", *flags)
    export(ok, config, tp, tmp_path / "whole.mlir", *flags, whole=True)
    programs = (tmp_path / "stitched.mlir", tmp_path / "whole.mlir")
    assert subprocess.run([python("iree"), "-c", EQUAL, *programs], check=False).returncode == 0
    first, second = (
        (tmp_path / f"{name}.mlir.json").read_bytes() for name in ("stitched", "whole")
    )
    assert first == second
    for call in programs[0].read_text().split("func.func @")[1:]:
        moved = re.findall(
            r"tensor\.transfer \S+ : tensor<\d+x[\d?]+x1x16xf\d+>.*@__device_(\d)>", call
        )
        tables = sorted(2 * [*map(str, range(tp))]) if tp > 1 else []
        assert sorted(moved) == tables, "each rank has rotary tables of its own"


@pytest.mark.slow
def test_a_deep_programs_dispatches_are_those_that_the_compiler_forms_of_the_whole(
    ok, python, tmp_path, monkeypatch
):
    mlir = tmp_path / "m.mlir"
    export(ok, config_of(tmp_path / "c", num_hidden_layers=10), 2, mlir)
    table = HARDWARE["gfx942"]
    devices = [f"--iree-hal-target-device={table['target']}[{n}]" for n in range(2)]
    # as the step finds it: bin/iree-compile waits for it, and to run_awake a minute of that is sleep
    packages = python("iree").parents[1] / "lib/python3.11/site-packages"
    command = [str(packages / "iree/compiler/_mlir_libs/iree-compile"), "-", *devices]
    command += [*table["flags"], *table["multi_device_flags"]]
    monkeypatch.setattr(dispatches, "WORTH", 20)  # blocks times devices
    formed = compile_vmfb.dispatches_of(mlir, command, 2, tmp_path)
    assert formed
    whole = tmp_path / "whole.mlir"
    compile_vmfb.run_awake([*command, "--compile-to=flow", "-o", str(whole)], mlir)
    found, wanted = (dispatches.canonical(path.read_text()) for path in (formed, whole))
    assert found == wanted and len(found) > 1000
    end = [*command, "--compile-from=flow", "-o", str(tmp_path / "m.vmfb")]
    done = compile_vmfb.run_awake(end, formed)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(dispatches, "WORTH", 21)
    assert not compile_vmfb.dispatches_of(mlir, command, 2, tmp_path), "it is small"


@pytest.mark.slow
def test_the_demo_over_two_ranks_is_served_and_answers_as_transformers(shared, tmp_path):
    built = "artifacts/demo_tp2"
    records = [f"{built}.{kind}.verified.json" for kind in ("irpa", "vmfb", "shortfin")]
    done = shared(tmp_path, "--", *records)
    assert done.returncode == 0, done.stderr
    found = [json.loads((tmp_path / record).read_bytes())["checks"] for record in records]
    assert found[0]["ranks"] == 2
    assert found[1]["greedy_equal"] == found[1]["prompts"] >= 20
    assert found[1]["prompt_tokens"][1] >= 400
    assert found[2]["greedy_equal"] == found[2]["prompts"]
    launch = (tmp_path / f"{built}.shortfin/serve").read_text()
    assert "--parameters model.irpa model.rank0.irpa model.rank1.irpa" in launch


def entry(folder):
    """mine.yaml there, with the model of two blocks in two/: each takes as long as the whole of a rank."""
    own = {"path": "two", "name": "Two", "architecture": "LlamaForCausalLM", "hardware": "cpu"}
    own |= {"pre_tokenizer": "llama-bpe", "corpus_tokens": 1024, "tp": [1, 2, 4, 8]}
    own |= {"iree": {"bs_prefill": [1], "bs_decode": [1]}}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"models": {"two": own}}))
    return "--configfile", "mine.yaml", "--"


@pytest.mark.slow
def test_a_model_over_four_and_eight_ranks_answers_as_transformers(snakemake, tmp_path):
    checkpoints.variant(tmp_path / "two", "as many KV heads", tame=True, num_hidden_layers=2)
    records = [f"artifacts/two_{name}.verified.json" for name in ("tp4.shortfin", "tp8.vmfb")]
    done = snakemake(tmp_path, *entry(tmp_path), *records)
    assert done.returncode == 0, done.stderr
    for record in records:
        checks = json.loads((tmp_path / record).read_bytes())["checks"]
        assert checks["greedy_equal"] + checks["greedy_ties"] == checks["prompts"] >= 20


@pytest.mark.slow
def test_compiles_for_gpus_that_need_another_attention_kernel(snakemake, tmp_path):
    config_of(tmp_path / "two", num_hidden_layers=2)  # of narrower ones iree-compile fails for sm80
    targets = [f"artifacts/two_{name}.vmfb" for name in ("tp1.sm80", "tp2.sm80", "tp1.rdna3")]
    done = snakemake(tmp_path, *entry(tmp_path), *targets)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "artifacts/two_tp1.decomposed.mlir").exists()
    for target in targets:
        assert (tmp_path / target).stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["gfx942", "gfx90a", "gfx1100"])
def test_compiles_real_shapes_for_two_gpus(hardware, ok, tmp_path, tmp_path_factory):
    """Dimensions of Llama 3.1 8B, two blocks: the demo's tiny ones mislead this compiler."""
    wide = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
    sizes = {"head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 131072}
    with once(tmp_path_factory, "real-shapes") as (folder, exported):
        if not exported:
            config = config_of(folder / "c", num_hidden_layers=2, **wide, **sizes)
            export(ok, config, 2, folder / "m.mlir")
    table = HARDWARE[hardware]
    devices = [f"--iree-hal-target-device={table['target']}[{n}]" for n in range(2)]
    words = ("--mlir", folder / "m.mlir", "--vmfb", tmp_path / "m.vmfb", "--", *devices)
    ok("iree", "compile_vmfb.py", *words, *table["flags"], *table.get("multi_device_flags", ()))
    assert hardware.encode() in (tmp_path / "m.vmfb").read_bytes()


@pytest.mark.slow
def test_a_model_with_biases_computes_in_float16_and_compiles_for_nvidia(ok, tmp_path):
    """GGUF's biases are float32; added as they are, every product behind the first was float32."""
    config = config_of(tmp_path / "c", num_hidden_layers=1, attention_bias=True, mlp_bias=True)
    flags = ("--bs-prefill=4", "--bs-decode=4", "--attention-kernel=decomposed")
    export(ok, config, 1, tmp_path / "m.mlir", *flags)
    weight = r"aten\.matmul .*, !torch\.vtensor<\[\d+,\d+\],(f\d+)> ->"
    assert {*re.findall(weight, (tmp_path / "m.mlir").read_text())} == {"f16"}
    table = HARDWARE["sm80"]
    words = ("--mlir", tmp_path / "m.mlir", "--vmfb", tmp_path / "m.vmfb")
    device = f"--iree-hal-target-device={table['target']}"
    ok("iree", "compile_vmfb.py", *words, "--", device, *table["flags"])


@pytest.mark.slow
def test_the_program_of_a_second_fine_tune_is_there_before_its_weights_are(
    snakemake, tmp_path, monkeypatch
):
    """Two models of one architecture on a hub that would not give a single weight."""
    entries, names = {}, ("first", "second")
    for name in names:
        folder = tmp_path / "hub/org" / name
        checkpoints.weightless(folder, "llama8b", 4)
        (folder / "config.json").write_bytes((DEMO / "config.json").read_bytes())
        entries[name] = {
            "hub": f"org/{name}", "revision": COMMIT, "shards": 4, "name": name,
            "pre_tokenizer": "llama-bpe",
            "architecture": "LlamaForCausalLM", "hardware": "cpu", "tp": [1, 2],
        }  # fmt: skip
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"models": entries}))
    with Hub(tmp_path / "hub") as hub:
        for name in names:
            done = snakemake(
                tmp_path, "--configfile", tmp_path / "mine.yaml", "--", f"artifacts/{name}_tp1.vmfb",
                environment={"HF_ENDPOINT": hub.url, "HF_TOKEN": "none"},
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        asked = [request[1] for request in hub.requests if "/resolve/" in request[1]]
    assert "artifacts/second_tp1.f32.mlir" in done.stderr and "restored" in done.stderr
    assert not ran(done.stderr) & {"compile_vmfb", "export_mlir"}
    assert {path.rpartition("/")[2] for path in asked} == {"config.json"}
    first, second = (tmp_path / f"artifacts/{name}_tp1.vmfb" for name in names)
    assert first.read_bytes() == second.read_bytes()
