"""What is built again, what is restored, what is left alone: the real command, with a store."""

import fcntl
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from conftest import IRPA, ROOT, needs_mounts, planned, ran
from ingot.base import digest, memo
from ingot.driver.toolchains import toolchains
from ingot.store.records import Store

GGUF = "artifacts/demo.gguf"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


BOTH = {"safetensors_to_gguf", "gguf_to_irpa"}


@pytest.fixture
def built(rested):
    """What changes here, changes after a run that noop.py would know again."""
    return rested


def test_a_script_whose_imports_cannot_be_followed_is_one_line_for_what_runs_it(clone, build):
    folder = clone("a")
    script = folder / "scripts/gguf_to_irpa.py"
    script.write_text(f"{script.read_text()}\nimport importlib\nimportlib.import_module('more')\n")
    said = build(folder, "-n", "--", IRPA, fails=True)
    reason = "import_module, by which it may read a file that is in no key"
    last = said.strip().splitlines()[-1]
    assert last.startswith("error: ") and reason in last and "Traceback" not in said
    build(folder, "-n", "--", "artifacts/demo.gguf")


def test_a_new_clone_restores_the_target_alone_and_runs_nothing(clone, build):
    first = clone("a")
    assert ran(build(first)) == BOTH
    second = clone("elsewhere")
    said = build(second)
    assert not ran(said) and f"restore  {IRPA}" in said and "Nothing to be done" in said
    assert [path.name for path in (second / "artifacts").iterdir()] == ["demo.irpa"]
    assert (second / IRPA).read_bytes() == (first / IRPA).read_bytes()


def test_a_dry_run_says_what_would_be_restored_and_what_would_run_and_why(clone, build):
    folder = clone("a")
    said = build(folder, "-n", "--", IRPA)
    assert planned(said)[GGUF] == ("safetensors_to_gguf", "new")
    why = f"{GGUF} is not built yet; will be decided once it is"
    assert planned(said)[IRPA] == ("gguf_to_irpa", why)
    build(folder)
    shutil.rmtree(folder / "artifacts")
    assert planned(build(folder, "-n", "--", IRPA)) == {IRPA: ("", "")}
    assert not (folder / "artifacts").exists()
    said = build(folder, "-n", "--", "artifacts/demo.bf16.gguf")
    assert planned(said)["artifacts/demo.bf16.gguf"][1] == "new", (
        "another target's record says nothing"
    )


def test_a_step_that_gives_the_same_bytes_ends_the_matter(build, built):
    folder = built("a")
    edit(folder / "scripts/safetensors_to_gguf.py", "import functools", "import functools  # new")
    said = build(folder)
    assert ran(said) == {"safetensors_to_gguf"}
    assert "no longer needed" in said or "unchanged" in said
    assert "Nothing to be done" in build(folder)


def test_touch_reruns_nothing(build, built):
    folder = built("a")
    for path in (*folder.glob("models/demo/*"), *folder.glob("scripts/**/*.py")):
        os.utime(path)
    assert "Nothing to be done" in build(folder)


@pytest.mark.parametrize("when", [0, 4_000_000_000])
def test_times_of_files_decide_nothing(build, when, built):
    folder = built("a")
    for path in (*folder.glob("models/demo/*"), *folder.glob("scripts/**/*.py"), folder / IRPA):
        os.utime(path, (when, when))
    assert "Nothing to be done" in build(folder)


def test_an_edit_of_the_same_size_and_time_is_seen(build, built):
    folder = built("a")
    assert "Nothing to be done" in build(folder)  # a copy's files have no memo before this
    shard = folder / "models/demo/model-00001-of-00002.safetensors"
    before = shard.stat()
    with shard.open("r+b") as file:
        file.seek(before.st_size - 1)
        byte = file.read(1)
        file.seek(before.st_size - 1)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert ran(build(folder)) == BOTH


def test_an_artifact_edited_by_hand_is_put_right_when_it_is_asked_for(build, built):
    folder = built("a")
    right = (folder / IRPA).read_bytes()
    (folder / IRPA).unlink()
    (folder / IRPA).write_bytes(b"mine")
    assert f"restore  {IRPA}" in build(folder)
    assert (folder / IRPA).read_bytes() == right


def meddled(folder, with_config):
    """Its step for GGUF begins with this command on config.json."""
    words = "{PYTHON[convert]:q} {input.code[0]:q} \\\n            --checkpoint"
    edit(folder / "rules/gguf.smk", words, f"{with_config} {{input.config:q}}\n        {words}")


def test_an_input_that_changes_while_it_is_read_fails_the_job(clone, build):
    """Its bytes are of neither state; a run that ended well gave them to whoever took them next."""
    meddled(folder := clone("a"), "echo >>")
    said = build(folder, "--", GGUF, fails=True)
    assert "config.json: changed while artifacts/demo.gguf was built; ask for it again" in said
    assert not (folder / GGUF).exists()
    assert ran(build(folder, "--", GGUF, fails=True)) == {"safetensors_to_gguf"}


def test_an_input_that_is_touched_while_it_is_read_puts_nothing_on_record(clone, build):
    meddled(folder := clone("a"), "touch")
    assert "changed while artifacts/demo.gguf was built" in build(folder, "--", GGUF)
    assert ran(build(folder, "--", GGUF)) == {"safetensors_to_gguf"}


def test_a_step_and_the_one_that_reads_it_may_be_one_group(clone, build):
    """As one job of a cluster: what the second reads is on no record before both are done."""
    folder = clone("a")
    assert ran(build(folder, "--groups", *(f"{one}=g" for one in BOTH), "--", IRPA)) == BOTH
    assert "Nothing to be done" in build(folder)


def test_a_failed_job_says_that_the_artifact_of_before_is_removed(built, build):
    folder = built("a")
    right = (folder / GGUF).read_bytes()
    rule, words = folder / "rules/gguf.smk", "{PYTHON[convert]:q} {input.code[0]:q}"
    edit(rule, words, f"false; {words}")
    said = build(folder, "--", GGUF, fails=True)
    assert f"{GGUF}: what stood there is removed, and comes back with what it was made from" in said
    assert not (folder / GGUF).exists()
    edit(rule, f"false; {words}", words)
    build(folder, "--", GGUF)
    assert (folder / GGUF).read_bytes() == right


def test_a_failed_job_is_not_tried_again_while_others_go_on(clone, build):
    folder = clone("a")
    edit(
        folder / "rules/irpa.smk",
        "{PYTHON[convert]:q} {",
        "echo x >>tries; false; {PYTHON[convert]:q} {",
    )
    others = [f"artifacts/demo.{dtype}.gguf" for dtype in ("f32", "bf16", "q8_0")]
    edit(folder / "rules/gguf.smk", "{PYTHON[convert]:q} {", "sleep 0.5; {PYTHON[convert]:q} {")
    build(folder, "-k", "--", IRPA, *others, fails=True)
    assert (folder / "tries").read_text() == "x\n"
    assert all((folder / other).exists() for other in others)


def test_a_job_that_fails_once_is_tried_again(clone, build):
    folder = clone("a")
    once = "test -e once || {{ touch once; false; }}; {PYTHON[convert]:q} {"
    edit(folder / "rules/irpa.smk", "{PYTHON[convert]:q} {", once)
    build(folder, "-k", "--retries", "1", "--", IRPA, "artifacts/demo.bf16.gguf")
    assert (folder / IRPA).exists()


def test_until_restores_nothing_beyond(build, built):
    folder = built("a")
    shutil.rmtree(folder / "artifacts")
    build(folder, "--until", "safetensors_to_gguf", "--", IRPA)
    assert [path.name for path in (folder / "artifacts").iterdir()] == ["demo.gguf"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_cached_bytecode_of_an_edited_module_is_not_run(
    elsewhere, clone, build, tmp_path, monkeypatch
):
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    if elsewhere:  # as where toolchains are another user's
        monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "bytecode"))
    folder = clone("a")
    module = folder / "scripts/ingot/formats/gguf/metadata.py"
    os.utime(module, (1, 1))
    build(folder)
    first = (folder / IRPA).read_bytes()
    edit(module, '"general.type"', '"general.kind"')
    os.utime(module, (1, 1))
    build(folder)
    assert b"general.kind" in (folder / IRPA).read_bytes() != first
    assert bool([*tmp_path.glob("bytecode/**/metadata.*.pyc")]) == elsewhere


def test_outputs_in_another_order_are_another_action(clone, build):
    folder = clone("a")
    rules = folder / "rules/irpa.smk"
    rules.write_text(
        rules.read_text() + '\n\nrule two:\n    output:\n        a="x/a",\n        b="x/b",\n'
        '    shell:\n        "echo a >{output.a}; echo b >{output.b}"\n'
    )
    build(folder, "--", "x/a")
    shutil.rmtree(folder / "x")
    edit(rules, 'a="x/a",\n        b="x/b"', 'b="x/b",\n        a="x/a"')
    build(folder, "--", "x/a", "x/b")
    assert (folder / "x/a").read_text() == "a\n"


def test_a_file_beside_the_checkpoint_decides_nothing(clone, build):
    """Steps see the files that are in the key, not the folder."""
    folder = clone("a")
    build(folder, "--", GGUF)
    first = (folder / GGUF).read_bytes()
    (folder / "models/demo/special_tokens_map.json").write_text("{}")
    (folder / "models/demo/consolidated.safetensors").write_bytes(b"junk")
    shutil.rmtree(folder / "artifacts")
    assert ran(build(folder, "-F", "--", GGUF)) == {"safetensors_to_gguf"}
    assert (folder / GGUF).read_bytes() == first


@pytest.mark.parametrize("option", ["--force", "-F", "-R gguf_to_irpa"])
def test_what_a_run_that_ended_well_built_is_built_again_when_forced(clone, build, option):
    """Its claims outlive it: taken in again and again, nothing was ever built, and the run did not end."""
    folder = clone("a")
    build(folder)
    said = build(folder, *option.split(), "--", IRPA, timeout=60)
    assert "gguf_to_irpa" in ran(said) and "taken in" not in said


def test_forced_jobs_run_and_others_do_not(build, built):
    folder = built("a")
    assert ran(build(folder, "-R", "safetensors_to_gguf", "--", IRPA)) == {"safetensors_to_gguf"}
    assert ran(build(folder, "-F", "--", IRPA)) == BOTH


def test_another_model_of_the_same_content_shares_what_was_built(build, built):
    folder = built("a")
    shutil.copytree(folder / "models/demo", folder / "models/twin")
    config = yaml.safe_load((folder / "models.yaml").read_text())
    config["models"]["twin"] = {**config["models"]["demo"], "path": "models/twin"}
    (folder / "models.yaml").write_text(yaml.safe_dump(config))
    assert "restore  artifacts/twin.irpa" in build(folder, "--", "artifacts/twin.irpa")


# Faults


def flip(blob):
    state = blob.stat()
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 1
    with blob.open("r+b") as file:
        file.write(data)
    blob.chmod(state.st_mode)
    os.utime(blob, ns=(state.st_atime_ns, state.st_mtime_ns))


def truncate(blob):
    blob.chmod(0o644)
    os.truncate(blob, blob.stat().st_size // 2)


def swap(blob):
    blob.unlink()
    blob.write_bytes(b"another file")


@pytest.mark.parametrize("harm", [flip, truncate, swap, Path.unlink])
@pytest.mark.parametrize("deleted", [True, False])
def test_a_damaged_blob_is_never_served(build, store, harm, deleted, built):
    folder = built("a")
    right = (folder / IRPA).read_bytes()
    assert "Nothing to be done" in build(folder)  # a copy's blobs have no memo before this
    harm((folder / IRPA).resolve())
    if deleted:
        (folder / IRPA).unlink()
    said = build(folder)
    assert "gguf_to_irpa" in ran(said) and f"{IRPA} was built before, but its bytes" in said
    assert (folder / IRPA).read_bytes() == right


def test_a_damaged_record_is_a_miss(build, store, built):
    folder = built("a")
    (pointer,) = store.glob("actions/gguf_to_irpa/*")
    whole = pointer.read_bytes()
    for text in (whole[:50], whole.replace(b'"size"', b'"siZe"'), b""):
        pointer.write_bytes(text)
        (folder / IRPA).unlink()
        assert ran(build(folder)) == {"gguf_to_irpa"}
    assert Store(store).read(pointer)


def test_a_record_of_another_action_is_a_miss(build, store, built):
    folder = built("a")
    build(folder, "--", "artifacts/demo.bf16.gguf")
    one, two = store.glob("actions/safetensors_to_gguf/*")
    shutil.copy(one, two)
    shutil.rmtree(folder / "artifacts")
    build(folder, "--", GGUF, "artifacts/demo.bf16.gguf")
    assert (folder / GGUF).read_bytes() != (folder / "artifacts/demo.bf16.gguf").read_bytes()


def test_two_builds_of_one_target_at_once_on_one_store(clone, build, ingot):
    folders = [clone("a"), clone("b"), clone("c")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(build, folders))
    assert len({(folder / IRPA).read_bytes() for folder in folders}) == 1
    assert ingot("store", "fsck").returncode == 0


def test_a_store_that_moved_is_used_at_its_new_place(build, store, built):
    folder = built("a")
    store.rename(store.with_name("moved"))
    assert not (folder / IRPA).exists()  # a link to nothing
    said = build(folder, INGOT_STORE=str(store.with_name("moved")))
    assert not ran(said) and (folder / IRPA).stat().st_size > 1_000_000


@pytest.mark.parametrize("victim", ["snakemake", "step", "all"])
def test_a_plain_rerun_after_sigkill_ends_well(clone, build, store, ingot, victim):
    folder = clone("a")
    edit(folder / "rules/irpa.smk", "{PYTHON[convert]:q} {", "sleep 1.5; {PYTHON[convert]:q} {")
    process = subprocess.Popen(
        [ROOT / ".venv/bin/snakemake", "-s", folder / "Snakefile", "-q", "all", "--", IRPA],
        cwd=folder, env={**os.environ, "INGOT_STORE": str(store)}, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(store.glob("actions/safetensors_to_gguf/*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [int(word) for file in threads for word in file.read_text().split()]
    assert children
    for pid in {"snakemake": [process.pid], "step": children}.get(victim, [process.pid, *children]):
        os.kill(pid, signal.SIGKILL)
    process.wait(60)
    assert ran(build(folder)) == {"gguf_to_irpa"}
    assert ingot("store", "fsck").returncode == 0


# Real disks that fill up, and real read-only ones: mounts in a user namespace of our own


def mounted(folder, script, **environment):
    return subprocess.run(
        ["unshare", "-Urm", "sh", "-c", script], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "SNAKEMAKE": f"{ROOT}/.venv/bin/snakemake -c2", **environment},
        check=False,
    )  # fmt: skip


@needs_mounts
def test_a_step_on_a_full_disk_leaves_nothing_half_written(clone, tmp_path):
    folder = clone("a")
    (folder / "artifacts").mkdir()
    done = mounted(
        folder,
        "mount -t tmpfs -o size=6m none artifacts; $SNAKEMAKE -- artifacts/demo.irpa; ls -A artifacts",
        INGOT_STORE=str(tmp_path / "store"),
    )
    assert "do not fit on the disk" in done.stderr and "Traceback" not in done.stderr
    assert not done.stdout.split()


@needs_mounts
@pytest.mark.parametrize("size", ["8m", "120k"])
def test_a_store_on_a_full_disk_keeps_the_finished_output(clone, tmp_path, size):
    """8 MB hold the memos but no blob; 120 KB are full before the first record is written."""
    folder = clone("a")
    (tmp_path / "store").mkdir()
    done = mounted(
        folder,
        f"mount -t tmpfs -o size={size} none $INGOT_STORE; $SNAKEMAKE -- artifacts/demo.irpa; echo $?;"
        "ls -AL artifacts; sha256sum artifacts/demo.irpa",
        INGOT_STORE=str(tmp_path / "store"),
    )
    assert done.stdout.split()[:3] == ["0", "demo.gguf", "demo.irpa"], done.stderr
    assert "built, but not stored" in done.stderr and "Traceback" not in done.stderr
    whole = mounted(
        folder, "$SNAKEMAKE -- artifacts/demo.irpa; sha256sum artifacts/demo.irpa",
        INGOT_STORE=str(tmp_path / "other"),
    )  # fmt: skip
    assert whole.stdout.split()[0] == done.stdout.split()[3]


@needs_mounts
@pytest.mark.parametrize(
    "store",
    ["mount -t tmpfs -o size=8m none $INGOT_STORE",
     "mount --bind $INGOT_STORE $INGOT_STORE; mount -o remount,ro,bind $INGOT_STORE"],
    ids=["full", "read-only"],
)  # fmt: skip
def test_a_second_run_over_a_store_that_keeps_nothing_uses_what_the_first_built(
    clone, tmp_path, store
):
    """It did not end: what was built was taken in, was on no record afterwards, was taken in."""
    folder = clone("a")
    (tmp_path / "kept").mkdir()
    run = "timeout 90 $SNAKEMAKE -- artifacts/demo.irpa; echo $?"
    done = mounted(folder, f"{store}; {run}; {run}", INGOT_STORE=str(tmp_path / "kept"))
    assert done.stdout.split() == ["0", "0"], done.stderr
    assert len(ran(done.stderr)) == 2 and done.stderr.count("start    artifacts/demo.irpa") == 1
    assert "Traceback" not in done.stderr


@needs_mounts
def test_a_read_only_store_serves_hits_and_misses_are_built_beside_it(clone, build, store, built):
    built("a")
    other = clone("b")
    done = mounted(
        other,
        "mount --bind $INGOT_STORE $INGOT_STORE; mount -o remount,ro,bind $INGOT_STORE;"
        "$SNAKEMAKE -- artifacts/demo.irpa; $SNAKEMAKE -- artifacts/demo.bf16.gguf; ls -A artifacts",
    )
    assert "restore  artifacts/demo.irpa" in done.stderr, done.stderr
    assert done.stdout.split() == ["demo.bf16.gguf", "demo.irpa"]
    assert done.stderr.count(f"{store}: not writable, so what this run builds is on no record") == 1
    assert "Traceback" not in done.stderr


def test_the_key_knows_nothing_of_user_host_or_cores(clone, build, tmp_path):
    build(clone("a"), HOME=str(tmp_path), INGOT_ENVS=str(toolchains.cache()))
    words = ("--cores", "1", "--", IRPA)
    said = build(clone("b"), *words, USER="somebody", HOSTNAME="elsewhere", LC_ALL="de_DE.UTF-8")
    assert not ran(said)


def test_a_step_sees_only_the_variables_that_are_listed(clone, build):
    folder = clone("a")
    edit(folder / "rules/irpa.smk", "{PYTHON[convert]:q} {", "env >seen; {PYTHON[convert]:q} {")
    build(
        folder,
        GGML_SECRET="1",
        PYTHONPATH="/nowhere",
        HF_TOKEN="t",
        HF_ENDPOINT="e",
        PIP_RETRIES="5",
    )
    seen = (folder / "seen").read_text()
    names = {line.partition("=")[0] for line in seen.splitlines()}
    assert {"HF_ENDPOINT", "PIP_RETRIES"} <= names and not names & {
        "HF_TOKEN",
        "GGML_SECRET",
        "PYTHONPATH",
    }


def test_a_rule_whose_shell_text_hides_something_has_no_key(clone, build):
    folder = clone("a")
    edit(folder / "rules/irpa.smk", '"""IRPA, the', 'HIDDEN = "x"\n"""IRPA, the')
    edit(folder / "rules/irpa.smk", "--gguf {input.gguf:q}", "--gguf {input.gguf:q} {HIDDEN}")
    said = build(folder, fails=True)
    assert "rule gguf_to_irpa: its shell text fills in {HIDDEN}, expected only inputs" in said


def test_a_record_of_other_bytes_does_not_outlive_a_new_build(clone, build):
    """It said "passed" beside a file that nobody had checked, and `ingot numbers` repeated it."""
    folder = clone("a")
    target = "artifacts/demo_tp2.irpa"  # whose record takes no run of transformers
    record = folder / f"{target}.verified.json"
    build(folder, "--", target, f"{target}.verified.json")
    said = build(folder, "--", target)
    assert record.is_symlink() and "removed" not in said
    config = folder / "models/demo/config.json"
    config.write_text(config.read_text().replace("500000", "500001"))
    said = build(folder, "--", target)
    assert (
        not record.exists()
        and "so it is removed; snakemake artifacts/demo_tp2.irpa.verified" in said
    )
    build(folder, "--", f"{target}.verified.json")
    assert record.exists()


def test_the_store_answers_for_digests_without_reading(clone, build):
    folder = clone("a")
    build(folder)
    assert memo.known(folder / IRPA) == digest.of(folder / IRPA)
    assert memo.known(folder / IRPA) == f"sha256:{digest.read(folder / IRPA)}"
    assert (folder / IRPA).resolve().stat().st_mode & 0o777 == 0o444


def test_a_k_quant_is_built_and_restored(clone, build):
    """Its toolchain is compiled by a script, which is part of its lock."""
    folder = clone("a")
    build(folder, "--", "artifacts/demo.q4_k_m.gguf")
    (folder / "artifacts/demo.q4_k_m.gguf").unlink()
    said = build(folder, "--", "artifacts/demo.q4_k_m.gguf")
    assert "restore  artifacts/demo.q4_k_m.gguf" in said and not ran(said)


def test_a_users_own_file_or_folder_is_never_replaced(clone, build):
    folder = clone("a")
    own = folder / "artifacts/demo.gguf"
    own.parent.mkdir()
    own.write_bytes(b"mine")
    (folder / IRPA).mkdir()
    (folder / IRPA / "notes").write_text("mine, too")
    said = build(folder)  # of which both are outputs
    kept = {path.name.partition(".yours-")[0]: path for path in own.parent.glob("*.yours-*")}
    assert kept["demo.gguf"].read_bytes() == b"mine"
    assert (kept["demo.irpa"] / "notes").read_text() == "mine, too"
    assert said.count("held what is on no record, expected an artifact or nothing; moved to") == 2
    own.unlink()
    own.write_bytes(b"once more")
    said = build(folder, "--", "artifacts/demo.gguf")  # a hit
    assert "restore" in said and len(list(own.parent.glob("demo.gguf.yours-*"))) == 2


def test_the_target_of_until_is_kept_as_the_others_are(clone, build):
    folder = clone("a")
    build(folder, "--config", "keep=targets", "--until", "safetensors_to_gguf", "--", IRPA)
    assert (folder / "artifacts/demo.gguf").exists()
    build(folder, "--config", "keep=targets", "--omit-from", "gguf_to_irpa", "--", IRPA)
    assert (folder / "artifacts/demo.gguf").exists()


def test_the_root_of_a_set_comes_back_with_its_ranks(clone, build):
    folder = clone("a")
    build(folder, "--", "artifacts/demo_tp2.irpa")
    shutil.rmtree(folder / "artifacts")
    build(folder, "--", "artifacts/demo_tp2.irpa")
    names = sorted(path.name for path in (folder / "artifacts").glob("*.irpa"))
    assert names == ["demo_tp2.irpa", "demo_tp2.rank0.irpa", "demo_tp2.rank1.irpa"]


def test_a_dry_run_waits_for_no_lock(build, store, built):
    folder = built("a")
    with (store / ".content.busy").open("a") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        assert "Nothing to be done" in build(folder, "-n", "--", IRPA)


def test_a_checkpoints_path_may_end_in_a_slash_and_a_copy_beside_it_is_no_input(
    clone, build, tmp_path, built
):
    folder = built("a")
    catalogue = {"models": {"demo": {"path": "models/demo/"}}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(catalogue))
    (folder / "models/demo/model.safetensors.index.json.bak").write_text("{}")
    assert "Nothing to be done" in build(folder, "--configfile", "mine.yaml", "--", IRPA)
