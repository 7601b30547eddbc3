"""Ten ways to fail: what a person sees is a few lines, and the first names the artifact and the cause."""

import os
import re
import subprocess

import pytest

import checkpoints
from conftest import ROOT, needs_mounts
from fake_hub import Hub

pytestmark = pytest.mark.slow
GGUF = "artifacts/demo.gguf"
ENTRY = "name: Mine, shards: 2, architecture: LlamaForCausalLM, pre_tokenizer: llama-bpe"
MINE = "models: {{mine: {{{}, " + ENTRY + "}}}}"
SHARD = "c/model-00001-of-00002.safetensors"
# before anything fails; of a slow machine how far a step is
GOOD = re.compile(r"(Using workflow|plan|start|done|restore|run) |.+: +\d+ (s so far|%)")
THEIRS = re.compile(
    r"RuleException|CalledProcessError|Traceback|WorkflowError|compgen|message: None"
)


@pytest.fixture
def fails(clone, snakemake, store, tmp_path):
    """fails(target, cause): `said` of a run that fails: at most 12 lines, the first of which is so."""
    folder = clone("a")

    def run(target, **environment):
        environment = {"INGOT_STORE": str(store), **environment}
        return snakemake(folder, "-s", folder / "Snakefile", "--", target, environment=environment)

    def fails(target, cause, **environment):
        return judged(run(target, **environment), target, cause)

    fails.folder, fails.run = folder, run  # ty: ignore[missing-attribute]
    return fails


def judged(done, target, cause):
    assert done.returncode == 1, done.stderr
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line]
    said = lines[next(n for n, line in enumerate(lines) if not GOOD.match(line)) :]
    assert re.match(rf"(error: |failed   ){re.escape(target)}: .*{cause}", said[0]), "\n".join(
        lines
    )
    assert len(said) <= 12 and not THEIRS.search("\n".join(lines)), "\n".join(lines)
    return said


def by_hand(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def edited(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.skipif(not os.geteuid(), reason="root may read all")
@pytest.mark.parametrize(
    "name, said",
    [
        ("c", "artifacts/mine.gguf: {}/c/config.json: Permission denied, expected to read it; see ls -l"),
        (".", "artifacts/mine.gguf: {}/c/config.json: Permission denied, expected to read it; see ls -l"),
        (SHARD, f"{{}}/{SHARD}: Permission denied, expected to read it; see ls -l"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_somebody_else(name, said, snakemake, ingot, tmp_path):
    """A line names what may not be read; other models are built as ever."""
    away, here = tmp_path / "away", tmp_path / "here"
    checkpoints.llama31(away / "c")
    here.mkdir()
    (here / "mine.yaml").write_text(MINE.format(f"path: {away}/c"))
    mine, mode = ("--configfile", "mine.yaml"), (away / name).stat().st_mode
    (away / name).chmod(0)
    done, other = (
        snakemake(here, *mine, "-n", "--", f"artifacts/{model}.gguf") for model in ("mine", "demo")
    )
    commands = [ingot(*words, "mine", *mine, cwd=here) for words in (("targets",), ("plan",))]
    (away / name).chmod(mode)
    told = (done.stderr + done.stdout).splitlines()
    known = [one for one in told if one.startswith(f"error: {said.format(away)}")]
    assert done.returncode == 1 and known, told
    assert not THEIRS.search(done.stdout) and other.returncode == 0, other.stdout
    if name != SHARD:  # of which something is known
        for done in commands:
            assert done.returncode == 1 and "ermission denied" in done.stderr, done.stderr


def test_a_wrong_name(fails):
    assert (
        len(fails("artifacts/demoo.gguf", "unknown model demoo; nearest: artifacts/demo.gguf")) == 1
    )


def test_an_unknown_folder(fails):
    (fails.folder / "models.local.yaml").write_text(MINE.format("path: nowhere/mine"))
    fails("artifacts/mine.gguf", "nowhere/mine")


@pytest.fixture
def hub(tmp_path):
    checkpoints.llama31(tmp_path / "hub/org/tiny")
    with Hub(tmp_path / "hub") as running:
        yield running


def test_dimensions_that_the_fetched_config_contradicts(fails, hub, snakemake, store):
    sizes = "hidden: 256, ffn: 384, heads: 8, kv_heads: 4, head_dim: 32, vocab: 1056, context: 512"
    entry = f"hub: org/tiny, dimensions: {{layers: 99, {sizes}}}"
    (fails.folder / "models.local.yaml").write_text(MINE.format(entry))
    done = snakemake(
        fails.folder, "-s", fails.folder / "Snakefile", "--", "artifacts/mine.gguf",
        environment={"INGOT_STORE": str(store), "HF_ENDPOINT": hub.url, "HF_TOKEN": "none"},
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    said = "error: models.mine.dimensions.layers: 99, but artifacts/mine.hf/config.json says 3; write 3"
    assert said in lines and "File" not in done.stderr


def test_a_missing_file_is_said_also_where_what_was_made_of_another_is_here(fails, ingot):
    """Snakemake took the texts of before for a source, and the file was verified by them: passed."""
    (fails.folder / "artifacts").mkdir()
    (fails.folder / "artifacts/demo.texts.json").write_text("{}")
    (fails.folder / "models.local.yaml").write_text("models: {demo: {corpus: nowhere.txt}}")
    fails(
        "artifacts/demo.texts.json", "nowhere.txt: missing, expected it there for rule encode_texts"
    )
    for done in (fails.run("artifacts/demo.gguf.verified.json"),
                 ingot("explain", "artifacts/demo.texts.json", cwd=fails.folder)):  # fmt: skip
        assert re.search("demo.texts.json: .*nowhere.txt: missing, expected", done.stderr), (
            done.stderr
        )
        assert done.returncode == 1 and done.stderr.count("\n") <= 2


def test_gated_without_a_token(fails, hub):
    (fails.folder / "models.local.yaml").write_text(MINE.format("hub: org/tiny, gated: true"))
    said = fails(
        "artifacts/mine.hf/listing.json",
        "gated, and no token is set",
        HF_ENDPOINT=hub.url,
        HF_TOKEN="",
    )
    assert "HF_TOKEN" in said[0]


def test_404(fails, hub):
    (fails.folder / "models.local.yaml").write_text(
        MINE.format("hub: org/tiny, revision: " + "a" * 40)
    )
    fails("artifacts/mine.hf/listing.json", "404", HF_ENDPOINT=hub.url, HF_TOKEN="")


@needs_mounts
def test_a_full_disk(fails, tmp_path, store):
    (fails.folder / "artifacts").mkdir(exist_ok=True)
    snakemake = ROOT / ".venv/bin/snakemake"
    script = f"mount -t tmpfs -o size=6m none artifacts; {snakemake} -c2 -- {GGUF}"
    done = by_hand(["unshare", "-Urm", "sh", "-c", script], fails.folder)
    judged(done, GGUF, "do not fit on the disk")


def test_out_of_memory(fails):
    script = fails.folder / "scripts/safetensors_to_gguf.py"
    eats = "    import ingot.base.entry\n\n    ingot.base.entry.run(lambda: bytearray(1 << 50))"
    edited(script, "    step(safetensors_to_gguf)", eats)
    fails(GGUF, "out of memory")


def test_an_error_of_iree_compile(fails, shared):
    edited(
        fails.folder / "models.yaml",
        "--iree-llvmcpu-stack-allocation-limit=65536",
        "--iree-no-such-flag",
    )
    fails("artifacts/demo_tp1.vmfb", "iree-compile stopped", INGOT_STORE=str(shared.store))


def test_a_step_that_is_killed(fails):
    edited(
        fails.folder / "scripts/safetensors_to_gguf.py",
        'if __name__ == "__main__":',
        'if __name__ == "__main__":\n    import os; os.kill(os.getpid(), 9)',
    )
    said = fails(
        GGUF, "safetensors_to_gguf was ended by SIGKILL, as the kernel does where memory runs out"
    )
    again = next(line for line in said if line.startswith("again"))
    command = again.removeprefix("again").partition("(this step alone)")[0]
    edited(fails.folder / "scripts/safetensors_to_gguf.py", "getpid(), 9)", "getpid(), 0)")
    by_hand = subprocess.run(
        command, shell=True, cwd=fails.folder, capture_output=True, text=True, check=False
    )
    assert by_hand.returncode == 0 and (fails.folder / GGUF).exists(), by_hand.stderr


def test_a_damaged_shard(fails):
    for shard in fails.folder.glob("models/demo/model-00001*"):
        data = shard.read_bytes()
        shard.unlink()
        shard.write_bytes(data[:-100])
    fails(GGUF, "model-00001-of-00002.safetensors")


def test_a_verification_that_does_not_hold(fails):
    script = fails.folder / "scripts/safetensors_to_trtllm.py"
    edited(script, "        data = read()", "        data = read()\n        data[0] ^= 1")
    fails(
        "artifacts/demo_tp2.trtllm-ckpt.verified.json",
        "artifacts/demo_tp2.trtllm-ckpt: tensor .* is not the checkpoint's",
    )
