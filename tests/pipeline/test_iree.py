"""From config.json to a program that answers as transformers does; with the real tools."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import checkpoints
import faults
from conftest import ROOT, lasting, once
from ingot.base import digest
from ingot.base.refused import Refused
from ingot.driver.catalogue import schema
from ingot.driver.catalogue.formats.iree import PROGRAMS
from ingot.driver.commands.demo import QUESTION
from ingot.driver.toolchains import toolchains
from ingot.formats.iree.shortfin import Server
from ingot.parity.hard_texts import STRINGS

DEMO = checkpoints.DEMO
HARDWARE = schema.read(ROOT / schema.FILE)["hardware"]
EXPORT = (
    "--bs-prefill=1", "--bs-decode=1", "--block-seq-stride=32", "--device-block-count=512",
    *PROGRAMS["f32"],
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(shared, tmp_path_factory):
    """The folder of the demo's artifacts, built and verified once for this module."""
    targets = [f"artifacts/demo{rest}" for rest in (
        ".gguf.verified.json", ".irpa.verified.json", "_tp1.vmfb.verified.json",
        "_tp1.shortfin.verified.json", "_tp1.mlir", ".gguf", ".irpa", "_tp1.vmfb", "_tp1.shortfin",
        "_tp1.f32.mlir", ".reading.json", ".reference.npz", ".texts.json", ".scores.npy",
    )]  # by name: what the shared store has comes without what it was made from  # fmt: skip
    with once(tmp_path_factory, "demo") as (folder, built):
        if not built:
            done = shared(folder, "--", *targets)
            assert done.returncode == 0, done.stderr
            (folder / "said").write_text(done.stdout + done.stderr)
    return folder / "artifacts"


def test_the_whole_demo_is_less_than_forty_lines_in_a_pipe(demo):
    said = (demo.parent / "said").read_text()
    assert len(lasting(said)) < 40 and not re.search(r"[\x00-\x09\x0b-\x1f]", said), said
    assert re.search(r"demo_tp1.vmfb.verified.json  \(.* passed against transformers", said)


def export(run, config, folder, *more):
    folder.mkdir(parents=True, exist_ok=True)
    run(
        "iree", "export_mlir.py", "--config", config, "--mlir", folder / "m.mlir",
        "--server-config", folder / "m.config.json", *more, "--", *EXPORT,
    )  # fmt: skip
    return folder / "m.mlir"


def compiled(run, mlir, vmfb, hardware):
    table = HARDWARE[hardware]
    return run(
        "iree", "compile_vmfb.py", "--mlir", mlir, "--vmfb", vmfb, "--",
        f"--iree-hal-target-device={table['target']}", *table["flags"],
        *table.get("single_device_flags", ()),
    )  # fmt: skip


ARCH = {  # the program that hardware is compiled from; EF_AMDGPU_MACH of its code objects
    "cpu": ("demo_tp1.f32.mlir", None),
    "gfx942": ("demo_tp1.mlir", 0x4C),
    "gfx90a": ("demo_tp1.mlir", 0x3F),
    "gfx1100": ("demo_tp1.mlir", 0x41),
}


def code_objects(vmfb):
    """The AMD GPUs that the ELF files inside a module hold code for."""
    found, data = set(), vmfb.read_bytes()
    for match in re.finditer(rb"\x7fELF\x02\x01", data):
        machine, flags = (
            int.from_bytes(data[match.start() + at : match.start() + at + size], "little")
            for at, size in ((18, 2), (48, 4))
        )
        if machine == 224:  # EM_AMDGPU
            found.add(flags & 0xFF)
    return found


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_program_of_the_skeleton_is_that_of_the_real_archive(demo, ok, tmp_path):
    real = export(ok, DEMO / "config.json", tmp_path, "--parameters", demo / "demo.irpa")
    assert real.read_bytes() == (demo / "demo_tp1.f32.mlir").read_bytes()
    said = (tmp_path / "m.config.json").read_bytes()
    assert (
        json.loads(said)["paged_kv_cache"]
        == json.loads((demo / "demo_tp1.f32.config.json").read_bytes())["paged_kv_cache"]
    )


def test_greedy_tokens_of_the_program_are_transformers(demo):
    checks = json.loads((demo / "demo_tp1.vmfb.verified.json").read_bytes())["checks"]
    assert checks["greedy_equal"] == checks["prompts"] >= 20
    assert checks["prompt_tokens"][0] <= 5 and checks["prompt_tokens"][1] >= 400
    assert checks["largest_logit_difference"] <= 1e-5 * checks["largest_logit"]


def test_greedy_text_of_the_server_is_transformers(demo):
    checks = json.loads((demo / "demo_tp1.shortfin.verified.json").read_bytes())["checks"]
    assert checks["greedy_equal"] == checks["prompts"] >= 20
    assert checks["texts_equal"] > len(STRINGS) and checks["chats_equal"] == 20


def parts(demo, tokenizer=DEMO):
    """What the demo's bundle is assembled from."""
    return (
        "--vmfb", demo / "demo_tp1.vmfb", "--config", demo / "demo_tp1.f32.config.json",
        "--parameters", demo / "demo.irpa", "--device", "local-task",
        "--tokenizer", tokenizer / "tokenizer.json", tokenizer / "tokenizer_config.json",
        "--lock", ROOT / "envs/iree/requirements.lock",
    )  # fmt: skip


def test_a_bundle_with_another_tokenizer_or_template_has_no_record(demo, step, tmp_path):
    """Two tokens of its vocabulary swapped; a template that forgets the opening of an answer."""
    for name, change in {
        "tokenizer.json": lambda text: (
            text.replace('"e": ', '"?": ').replace('"a": ', '"e": ').replace('"?": ', '"a": ')
        ),
        "tokenizer_config.json": lambda text: text.replace("add_generation_prompt", "no_such_word"),
    }.items():
        bundle = tmp_path / name.partition(".")[0]
        shutil.copytree(demo / "demo_tp1.shortfin", bundle)
        before = (bundle / name).read_text()
        (bundle / name).write_text(change(before))
        assert (bundle / name).read_text() != before
        faults.reseal(bundle)
        for source, said in ((bundle, "as by transformers"), (DEMO, f"{name}: its bytes differ")):
            done = step(
                "iree", "verify_shortfin.py", *parts(demo, source), "--bundle", bundle, "--reference",
                demo / "demo.reference.npz", "--texts", demo / "demo.texts.json",
                "--record", tmp_path / "m.json",
            )  # fmt: skip
            assert done.returncode == 1 and said in done.stderr, name


def corpus(demo):
    return ("--texts", demo / "demo.texts.json", "--scores", demo / "demo.scores.npy")


def test_the_check_fails_when_rope_scaling_is_left_out_of_the_export(demo, ok, step, tmp_path):
    config = json.loads((DEMO / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_scaling": None}))
    mlir = export(ok, tmp_path / "config.json", tmp_path)
    assert mlir.read_bytes() != (demo / "demo_tp1.f32.mlir").read_bytes()
    compiled(ok, mlir, tmp_path / "m.vmfb", "cpu")
    done = step(
        "iree", "verify_vmfb.py", "--vmfb", tmp_path / "m.vmfb",
        "--config", tmp_path / "m.config.json", "--parameters", demo / "demo.irpa",
        "--reference", demo / "demo.reference.npz", *corpus(demo), "--device", "local-task",
        "--record", tmp_path / "m.json",
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"m.vmfb: (a logit is off by|.*token)", done.stderr), done.stderr
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize("hardware", ["cpu", "gfx942"])
def test_the_module_is_the_same_from_another_folder_and_file_name(hardware, demo, ok, tmp_path):
    first, program = tmp_path / "one.vmfb", demo / ARCH[hardware][0]
    compiled(ok, program, first, hardware)
    elsewhere = tmp_path / "another/place"
    elsewhere.mkdir(parents=True)
    shutil.copy(program, elsewhere / "other-name.mlir")
    compiled(ok, elsewhere / "other-name.mlir", elsewhere / "two.vmfb", hardware)
    assert sha256(first) == sha256(elsewhere / "two.vmfb")
    if hardware == "cpu":
        assert sha256(first) == sha256(demo / "demo_tp1.vmfb")


@pytest.mark.parametrize("hardware", ["gfx90a", "gfx1100"])
def test_compiles_for_hardware_that_is_not_here(hardware, demo, ok, tmp_path):
    compiled(ok, demo / "demo_tp1.mlir", tmp_path / "m.vmfb", hardware)
    assert code_objects(tmp_path / "m.vmfb") == {ARCH[hardware][1]}
    for function in (b"prefill_bs1", b"decode_bs1"):
        assert function in (tmp_path / "m.vmfb").read_bytes()


def test_a_failing_compile_shows_its_errors_and_keeps_the_rest_in_the_log(demo, step, tmp_path):
    done = step(
        "iree", "compile_vmfb.py", "--mlir", demo / "demo_tp1.f32.mlir", "--vmfb", tmp_path / "m.vmfb",
        "--", "--iree-hal-target-device=local", *HARDWARE["cpu"]["flags"],
        "--iree-llvmcpu-stack-allocation-limit=1024",
    )  # fmt: skip
    assert done.returncode == 1
    assert "exceeded stack allocation limit" in done.stderr
    assert len(done.stderr.splitlines()) < 100 < len(done.stdout.splitlines())
    assert not list(tmp_path.glob("*vmfb*"))


def test_the_bundle_is_complete_in_itself_and_serves_from_where_it_is_moved(demo, tmp_path):
    moved = tmp_path / "elsewhere"
    shutil.copytree(demo / "demo_tp1.shortfin", moved)
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=moved, check=True)
    text = (moved / "serve").read_text()
    assert str(demo) not in text and "/" not in text.split("--tokenizer_json=")[1].split()[0]
    with Server(moved, toolchains.python(ROOT, "iree")) as server:
        assert server.generate(text=QUESTION) == "Washington, D.C.!"


def test_a_changed_byte_in_the_bundle_is_refused(demo, step, tmp_path):
    bundle = tmp_path / "b.shortfin"
    shutil.copytree(demo / "demo_tp1.shortfin", bundle)
    record = tmp_path / "b.json"
    (bundle / "config.json").write_bytes((bundle / "config.json").read_bytes() + b" ")
    done = step(
        "iree", "verify_shortfin.py", *parts(demo), "--bundle", bundle,
        "--reference", demo / "demo.reference.npz", "--texts", demo / "demo.texts.json",
        "--record", record,
    )  # fmt: skip
    assert (
        done.returncode == 1 and "config.json: its bytes are not those of SHA256SUMS" in done.stderr
    )
    assert not record.exists()


def test_a_file_missing_from_the_bundle_is_refused(demo, tmp_path):
    from ingot.parity import verification

    shutil.copytree(demo / "demo_tp1.shortfin", tmp_path / "b")
    (tmp_path / "b/requirements.lock").unlink()
    with pytest.raises(Refused, match=r"requirements\.lock: in the folder or in SHA256SUMS"):
        verification.digest(tmp_path / "b")


def test_no_file_of_the_bundle_is_shared_with_the_checkout_or_the_checkpoint(demo):
    for name in ("tokenizer.json", "tokenizer_config.json", "requirements.lock", "config.json"):
        assert (demo / "demo_tp1.shortfin" / name).stat().st_nlink == 1


def test_the_check_fails_for_one_wrong_token_that_is_no_tie(demo, python, step, tmp_path):
    """Logits almost right, one of the reference's tokens swapped for its second best."""
    swap = """
import sys, numpy as np
data = dict(np.load(sys.argv[1]))
last = data["token_counts"][0] - 1
data["tokens"][last] = data["logits"][last].argsort()[-2]
np.savez(sys.argv[2], **data)
"""
    changed = tmp_path / "changed.npz"
    words = [python("iree"), "-c", swap, demo / "demo.reference.npz", changed]
    subprocess.run([str(word) for word in words], check=True)
    done = step(
        "iree", "verify_vmfb.py", "--vmfb", demo / "demo_tp1.vmfb",
        "--config", demo / "demo_tp1.f32.config.json", "--parameters", demo / "demo.irpa",
        "--reference", changed, *corpus(demo), "--device", "local-task",
        "--record", tmp_path / "m.json",
    )  # fmt: skip
    assert done.returncode == 1 and "25 of 26 prompts continue as transformers does" in done.stderr


def test_prompts_that_show_nothing_are_refused(step, demo, tmp_path):
    (tmp_path / "few.txt").write_text("Name the capital of France.\n\n")
    done = step(
        "transformers", "generate_reference.py", "--checkpoint", DEMO, "--prompts", tmp_path / "few.txt",
        "--reading", demo / "demo.reading.json", "--reference", tmp_path / "r.npz",
    )  # fmt: skip
    assert done.returncode == 1
    assert "few.txt: 1 prompts of at most" in done.stderr and "expected 20 or more" in done.stderr


def test_ask_serves_a_bundle_once_and_prints_the_answer(demo):
    bundle = demo / "demo_tp1.shortfin"
    command = [ROOT / ".venv/bin/ingot", "ask", bundle, "Name the capital of the United States."]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "Washington, D.C.!\n"


def test_serve_starts_the_bundles_server_with_ingots_own_python(demo):
    class Served(Server):
        def _begin(self):
            words = [ROOT / ".venv/bin/ingot", "serve", self.folder, "--", *self.flags()]
            self.process = subprocess.Popen(
                words, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True
            )
            self.begun += 1

    with Served(demo / "demo_tp1.shortfin", Path("unused")) as server:
        assert "starting " in server.words()
        assert server.generate(text="<|begin_of_text|>Name the capital of France.<|eot_id|>")


@pytest.mark.parametrize(
    "text, said",
    [("word " * 600, r"the question has \d+ tokens, expected fewer than 512, its context"),
     (" ", "the question is empty")],
    ids=["too long", "empty"],
)  # fmt: skip
def test_ask_refuses_what_no_server_could_answer(text, said, demo):
    command = [ROOT / ".venv/bin/ingot", "ask", demo / "demo_tp1.shortfin", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and re.search(said, done.stderr), done.stderr


def test_a_server_that_dies_at_start_is_told_with_its_last_lines(demo, tmp_path):
    bundle = tmp_path / "b.shortfin"
    shutil.copytree(demo / "demo_tp1.shortfin", bundle)
    (bundle / "model.vmfb").unlink()  # a link of the store, which is read-only
    (bundle / "model.vmfb").write_bytes(b"no module")
    with (
        pytest.raises(Refused, match=r"b\.shortfin: the server stopped at start"),
        Server(bundle, toolchains.python(ROOT, "iree")),
    ):
        pass


def test_a_strangers_model_goes_from_path_to_a_verified_program(snakemake, tmp_path):
    """Mistral-shaped, head_dim != hidden / heads, one file without an index; no change here."""
    checkpoints.nemo(tmp_path / "weights", tame=True)
    (tmp_path / "mine.yaml").write_text(
        "models: {mine: {path: weights, name: Mine, architecture: MistralForCausalLM,"
        " pre_tokenizer: tekken, hardware: cpu, corpus_tokens: 1024,"
        " iree: {bs_prefill: [1, 2], bs_decode: [2, 4]}}}"
    )
    target = "artifacts/mine_tp1.vmfb.verified.json"
    done = snakemake(tmp_path, "--configfile", "mine.yaml", "--", target)
    assert done.returncode == 0, done.stderr
    checks = json.loads((tmp_path / target).read_bytes())["checks"]
    assert checks["greedy_equal"] + checks["greedy_ties"] == checks["prompts"] >= 20
    server = json.loads((tmp_path / "artifacts/mine_tp1.f32.config.json").read_bytes())
    assert server["prefill_batch_sizes"] == [1, 2] and server["decode_batch_sizes"] == [2, 4]


def test_tied_and_biased_models_go_from_path_to_a_verified_bundle(snakemake, tmp_path):
    """Llama 3.2's shape (tied, factor 32), also over two ranks; and biases everywhere."""
    checkpoints.variant(tmp_path / "tied", "Llama 3.2", tame=True, num_hidden_layers=2)
    checkpoints.variant(tmp_path / "biased", "both biases", tame=True, num_hidden_layers=2)
    entry = (
        "name: M, architecture: LlamaForCausalLM, pre_tokenizer: llama-bpe, hardware: cpu,"
        " corpus_tokens: 1024"
    )
    small = "iree: {bs_prefill: [1], bs_decode: [1]}"
    (tmp_path / "mine.yaml").write_text(
        f"models: {{tied: {{path: tied, tp: [1, 2], {entry}, {small}}},"
        f" biased: {{path: biased, {entry}, {small}}}}}"
    )
    names = (
        "tied_tp1.shortfin",
        "tied_tp2.vmfb",
        "tied_tp2.irpa",
        "tied.irpa",
        "biased_tp1.shortfin",
    )
    targets = [f"artifacts/{name}.verified.json" for name in names]
    done = snakemake(tmp_path, "--configfile", "mine.yaml", "--", *targets)
    assert done.returncode == 0, done.stderr
    for target in (targets[0], targets[1], targets[4]):
        checks = json.loads((tmp_path / target).read_bytes())["checks"]
        assert checks["greedy_equal"] + checks["greedy_ties"] == checks["prompts"] >= 20
    refused = snakemake(
        tmp_path, "--configfile", "mine.yaml", "--", "artifacts/biased_tp1.trtllm-ckpt"
    )
    assert refused.returncode == 1
    assert "attention_bias is true, which .trtllm-ckpt cannot express" in refused.stderr


def test_no_artifact_depends_on_a_models_name(demo, snakemake, told, tmp_path):
    """Files given by role are not named in an action's key: another name must give the same bytes."""
    entry = schema.read(ROOT / schema.FILE)["models"]["demo"]
    shutil.copytree(DEMO, tmp_path / "elsewhere")
    told(tmp_path / ".store")
    twin = {"models": {"twin": {**entry, "path": "elsewhere"}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(twin))
    kinds = (".gguf.verified.json", ".irpa.verified.json", "_tp1.vmfb", "_tp1.shortfin")
    targets = [f"artifacts/twin{kind}" for kind in kinds]
    done = snakemake(tmp_path, "--configfile", "mine.yaml", "--", *targets)
    assert done.returncode == 0, done.stderr
    for kind in (*kinds, ".gguf", ".irpa", "_tp1.f32.mlir", "_tp1.f32.config.json"):
        ours, theirs = (
            digest.of(p) for p in (tmp_path / f"artifacts/twin{kind}", demo / f"demo{kind}")
        )
        assert ours == theirs, kind
