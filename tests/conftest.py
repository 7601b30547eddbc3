"""Running steps as the rules do: by path, in their toolchain's interpreter, from another folder."""

import contextlib
import fcntl
import gc
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import checkpoints
import queues
import slurm
from checkout import checkout
from forking import AT_START, HUB, SLOW, Forking, ForkingSnakemake
from ingot.base import sealed
from ingot.base.entry import GARBAGE
from ingot.driver.catalogue import schema
from ingot.driver.catalogue.rules import environment as environments
from ingot.driver.toolchains import toolchains
from ingot.store.records import Action, Store

ROOT = Path(__file__).resolve().parents[1]
IRPA = "artifacts/demo.irpa"
KEY = "ab" * 32  # of an action that nobody ran
QUICK = ("hub", "convert")  # toolchains that are there in a minute
FEW = 4  # tokens a prompt, where a verification has twelve: it must refuse all the same
environments.keep_bytecode()
gc.set_threshold(*GARBAGE)
os.environ.setdefault(environments.WAITS, "passive")  # as steps have it
schema.LOCAL = "of nobody"  # what a developer has added to this folder is no matter of the tests


@pytest.fixture(autouse=True)
def settings_end_with_their_test():
    """One that did not sent the tests behind it to another cache, where they built all toolchains again."""
    before = dict(os.environ)
    yield
    for name in [name for name in os.environ if name.startswith("INGOT_")]:
        if name not in before:
            del os.environ[name]
    os.environ.update(before)


CAN_MOUNT = (
    subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode == 0
)
needs_mounts = pytest.mark.skipif(not CAN_MOUNT, reason="this kernel allows no user namespaces")


def pytest_collection_modifyitems(items):
    """What starts Snakemake, a server or torch takes seconds at least: no part of `make quick`."""
    for item in items:
        if (needs := item.get_closest_marker("root")) and os.geteuid():
            item.add_marker(pytest.mark.skip(reason=f"needs root: {needs.args[0]}"))
        used = {*getattr(item, "fixturenames", ())}
        theirs = {"peers", "reading", "forked", "snakemake"} & used
        if theirs or {"pipeline", "servers", "cluster", "ci"} & set(item.path.parts):
            item.add_marker(pytest.mark.slow)
    items[:] = queues.ordered(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))


def processor_times():
    """Seconds of all cores since the machine started: all, and idle ones."""
    numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(numbers), numbers[3] + numbers[4]


BEGAN = processor_times()


def pytest_terminal_summary(terminalreporter):
    """What more processes at once could still use."""
    whole, idle = (now - then for now, then in zip(processor_times(), BEGAN, strict=True))
    terminalreporter.write_line(f"of the cores' time {idle / max(whole, 1):.0%} was idle")


@pytest.fixture(scope="session")
def python():
    """python("iree") is the interpreter of that toolchain, built if it is not there yet."""
    return lambda name: toolchains.build(ROOT, name) / "bin" / "python"


@pytest.fixture
def compiled(monkeypatch):
    """compiled() gives this process the compiled library of toolchain `convert`."""
    return lambda: monkeypatch.setattr(sys, "prefix", str(toolchains.build(ROOT, "convert")))


@pytest.fixture(scope="session")
def interpreter(python, tmp_path_factory):
    """interpreter("iree") has imported what is slow to import, for all workers: of many runs in its forks
    each pays its own work, and not again for torch."""
    interpreters: dict[str, Forking] = {}

    def found(name):
        if name not in interpreters:
            place = shared_folder(tmp_path_factory) / f"python-{name}"
            interpreters[name] = Forking(python(name), HUB if name == "hub" else SLOW, place)
        return interpreters[name]

    yield found
    for one in interpreters.values():
        one.close()


@pytest.fixture(scope="session")
def forked(interpreter):
    """forked("iree", script, ...) runs a script in a fork of that toolchain's interpreter."""
    return lambda name, script, *words, **options: interpreter(name).run(script, *words, **options)


@pytest.fixture
def step(python, interpreter, request, tmp_path):
    """step("hub", "fetch_file.py", "--file", ...) runs a script; .returncode, .stdout, .stderr.

    In a process of its own where the environment is more than a path and a home, which imports may read;
    but for the hub's, where what reads it is not imported before.
    """

    def run(name, script, *arguments, environment=None, timeout=600):
        assert name in QUICK or request.node.get_closest_marker("slow"), f"{name}: mark it slow"
        words = [python(name), ROOT / "scripts" / script, *arguments]
        kept = ("PATH", environments.BYTECODE, environments.WAITS)
        alone = {one: os.environ[one] for one in kept if one in os.environ} | {
            "HOME": str(tmp_path)
        }
        given = {**alone, **(environment or {})}
        early = any(map(AT_START.match, environment or ())) if name == "hub" else environment
        if not early:
            return interpreter(name).in_time(
                *words[1:], seconds=timeout, cwd=tmp_path, environment=given
            )
        return subprocess.run(
            [str(word) for word in words],
            cwd=tmp_path,
            env=given,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture
def ok(step):
    """Like `step`, and fails with the step's own words when it fails."""

    def run(*arguments, **options):
        done = step(*arguments, **options)
        assert done.returncode == 0, done.stderr + done.stdout[-2000:]
        return done

    return run


@pytest.fixture(scope="session")
def command(tmp_path_factory):
    """command(cwd, *words) runs the real `snakemake` there, in a fork that need not import it again."""
    place = shared_folder(tmp_path_factory) / "python-snakemake"
    snakemake = ForkingSnakemake(ROOT / ".venv/bin/snakemake", place)

    def run(cwd, *words, environment=None, timeout=900):
        mine = {name: said for name, said in os.environ.items() if not name.startswith("PYTEST")}
        environment = {**mine, **(environment or {})}
        return snakemake.run(*words, cwd=cwd, environment=environment, timeout=timeout)

    yield run
    snakemake.close()


@pytest.fixture(scope="session")
def snakemake(command):
    """snakemake(cwd, *arguments) runs the real command on this repository's Snakefile.

    Each folder has a store of its own, so that nothing is restored from another test's.
    """

    def run(cwd, *arguments, environment=None, timeout=900):
        environment = {"INGOT_STORE": str(Path(cwd) / ".store"), **(environment or {})}
        words = ("-s", ROOT / "Snakefile", "--cores", "2", *arguments)
        return command(cwd, *words, environment=environment, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def told(snakemake, tmp_path_factory):
    """told(store) puts there what transformers says of the demo: made once for all such tests."""
    names = ("reading.json", "reference.npz", "scores.npy")
    wanted = [f"artifacts/demo.{name}" for name in names]

    def fill(place):
        with once(tmp_path_factory, "told") as (template, done):
            kept = template / "store"
            if not done:
                said = snakemake(template, "--", *wanted, environment={"INGOT_STORE": str(kept)})
                assert said.returncode == 0, said.stderr
        ignored = shutil.ignore_patterns("folders")
        shutil.copytree(kept, place, ignore=ignored, dirs_exist_ok=True)

    return fill


@pytest.fixture(scope="session")
def shared(snakemake, told, tmp_path_factory):
    """Like `snakemake`, with one store for all such tests: each reference is generated once."""
    place = shared_folder(tmp_path_factory) / "shared-store"
    with once(tmp_path_factory, "filled") as (_, done):
        if not done:
            told(place)

    def run(cwd, *arguments, environment=None, **options):
        environment = {**(environment or {}), "INGOT_STORE": str(place)}
        return snakemake(cwd, *arguments, environment=environment, **options)

    run.store = place  # ty: ignore[missing-attribute]
    return run


@pytest.fixture
def clone(tmp_path):
    """clone("a") is a copy of the pipeline in a folder of that name; all share one store."""

    return lambda name: checkout(tmp_path / name)


@pytest.fixture
def built(clone, store, snakemake, tmp_path_factory):
    """built("a") is a clone in which the demo's IRPA was built, as it was once for all such tests."""
    with once(tmp_path_factory, "built") as (template, done):
        if not done:
            place = {"INGOT_STORE": str(template / "store")}
            said = snakemake(template, "--", IRPA, environment=place)
            assert said.returncode == 0, said.stderr

    def copy(name):
        folder = clone(name)
        if not store.exists():
            shutil.copytree(template / "store", store, ignore=shutil.ignore_patterns("folders"))
        (folder / "artifacts").mkdir()
        for link in (template / "artifacts").iterdir():
            blob = link.resolve().name
            (folder / "artifacts" / link.name).symlink_to(store / "blobs/sha256" / blob)
        return folder

    return copy


@pytest.fixture
def rested(built, build):
    """The same, where runs have found nothing to do: one more such run is known by noop.py."""

    def copy(name):
        folder = built(name)
        for _ in range(2):  # the first makes folders
            time.sleep(0.05)  # a run cannot be sure of a file that was written as it began
            assert "Nothing to be done" in build(folder)
        return folder

    return copy


@pytest.fixture
def store(tmp_path, monkeypatch):
    place = tmp_path / "store"
    monkeypatch.setenv("INGOT_STORE", str(place))
    return place


@pytest.fixture
def folder(tmp_path, monkeypatch, store):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("source")
    return tmp_path


@pytest.fixture
def filled(store, tmp_path, monkeypatch):
    """A store with the record of a folder: a file, a link, and one more file below."""
    monkeypatch.chdir(tmp_path)
    Path("artifacts/f/deep").mkdir(parents=True)
    Path("artifacts/f/tool").write_bytes(b"tool")
    Path("artifacts/f/deep/m").write_bytes(b"weights")
    Path("artifacts/f/here").symlink_to("deep")
    found = Store()
    assert found.prepare()
    outputs = [{**found.take(Path("artifacts/f")), "title": "f"}]
    found.record(Action("rule", KEY, {"rule": "rule"}, outputs, {}, {}))
    return found


@pytest.fixture
def build(snakemake, store):
    """build(folder, target, ...) runs Snakemake there; what it said, or a failed test."""

    def run(folder, *words, fails=False, timeout=900, **environment):
        done = snakemake(
            folder, "-s", folder / "Snakefile", *(words or ("--", IRPA)),
            environment={"INGOT_STORE": str(store), **environment}, timeout=timeout,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert (done.returncode != 0) == fails, said
        return said

    return run


@pytest.fixture
def ingot(store, tmp_path):
    """ingot("store", "gc", ...) runs the command on this test's store."""

    def run(*words, cwd=None, environment=None):
        return subprocess.run(
            [str(word) for word in (ROOT / ".venv/bin/ingot", *words)],
            cwd=cwd or tmp_path,
            env={**os.environ, "INGOT_STORE": str(store), **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def lasting(said):
    """The lines of a run, but those that come every half minute or ten percent: a slow machine has more."""
    return [line for line in said.splitlines() if not re.search(r" s so far$| % .* left$", line)]


def planned(said):
    """What a dry run says of each file: {path: (rule, why)}; restored ones have no rule."""
    size = r"\S+(?: \w+)?"
    rows = re.findall(rf"^(?:run|restore) +{size} +{size} +{size}  (\S+)(.*)$", said, re.M)
    found = {path: re.match(r"[^(]*\((\w+): (.*)\)", rest) for path, rest in rows}
    return {path.rstrip(","): why.groups() if why else ("", "") for path, why in found.items()}


def ran(said):
    """The rules that Snakemake says it started, toolchains aside."""
    return {*re.findall(r"^start    .*  \((\w+)\)$", said, re.M)} - {"toolchain"}


def convert(run, checkpoint, gguf, dtype="f16", pre=None, license=None, *flags):
    more = ["--license", license] if license else []
    return run(
        "convert", "safetensors_to_gguf.py", "--checkpoint", checkpoint, "--gguf", gguf,
        "--dtype", dtype, "--name", "A name", "--pre-tokenizer", pre or "llama-bpe", *more, *flags,
    )  # fmt: skip


def llama_cpp(forked, asked, dtypes):
    """llama.cpp's own converter on [checkpoint, folder, pre-tokenizer]s: FOLDER/DTYPE.gguf of each."""
    converter = toolchains.build(ROOT, "llamacpp") / "llama.cpp"
    words = (ROOT / "tests/doubles/oracle.py", converter, "A name", *dtypes)
    return forked("iree", *words, given=json.dumps(asked))


@pytest.fixture
def reading(ok, tmp_path_factory):
    """reading(folder) are the options of what transformers makes of its config.json, by the real step."""

    def run(folder, way="own"):
        config = Path(folder) / "config.json"
        name = f"reading-{hashlib.sha256(config.read_bytes()).hexdigest()[:16]}"
        with once(tmp_path_factory, name) as (place, done):
            if not done:
                found = ("--config", config, "--reading", place / "reading.json")
                ok("transformers", "read_config.py", *found, "--way", way)
        return ["--reading", place / "reading.json"]

    return run


@pytest.fixture
def digests(ok, tmp_path_factory):
    """digests(folder, dtype) are the options of what its weights are in a dtype, by the real step."""

    def run(folder, dtype="f16"):
        files = [(str(path), path.stat().st_mtime_ns) for path in sorted(Path(folder).iterdir())]
        told = hashlib.sha256(repr([dtype, files]).encode()).hexdigest()[:16]
        with once(tmp_path_factory, f"digests-{told}") as (place, done):
            if not done:
                found = ("--checkpoint", folder, "--dtype", dtype, "--digests", place / "d.json")
                ok("convert", "digest_weights.py", *found)
        return ["--digests", place / "d.json"]

    return run


@pytest.fixture
def tiny(interpreter, tmp_path):
    """tiny("qwen3") is a small random checkpoint of that family, as transformers saves it."""

    def run(kind):
        words = (ROOT / "tests/doubles/tiny_models.py", tmp_path / "tiny", ROOT / "models/demo")
        done = interpreter("transformers").run(*words, kind)
        assert "architecture" in json.loads(done.stdout)[kind], done.stdout
        return tmp_path / "tiny" / kind

    return run


@pytest.fixture
def edit():
    """edit(folder, name, bytes) leaves a folder whose SHA256SUMS holds."""

    def run(folder, name, data):
        (folder / name).unlink()
        (folder / name).write_bytes(data)
        (folder / sealed.SUMS).unlink()
        sealed.seal(folder)

    return run


@pytest.fixture
def peers(ok, reading, tmp_path):
    """peers(checkpoint) are the options of what transformers makes of it, by the real steps."""

    def run(checkpoint, prompts=(), corpus=ROOT / "models/corpus.txt", tokens=1024, way="own"):
        place = tmp_path / "peers"
        options = {name: place / name for name in ("reference", "texts", "scores")}
        folder = ("--checkpoint", checkpoint)
        read = reading(checkpoint, way)
        ok(
            "transformers", "generate_reference.py", *folder, *read, "--prompts", *prompts,
            "--steps", FEW, "--reference", options["reference"],
        )  # fmt: skip
        ok(
            "transformers", "encode_texts.py", *folder, *read, "--corpus", corpus, "--tokens", tokens,
            "--texts", options["texts"],
        )  # fmt: skip
        written = ("--texts", options["texts"], "--scores", options["scores"])
        ok("transformers", "score_corpus.py", *folder, *written)
        return [*(word for name, path in options.items() for word in (f"--{name}", path)), *read]

    return run


@pytest.fixture(scope="session")
def sentencepiece(python):
    return checkpoints.sentencepiece_model(
        lambda code: (
            subprocess.run([python("convert"), "-c", code], capture_output=True, check=True).stdout
        )
    )


@pytest.fixture(scope="session")
def pieces(python, tmp_path_factory):
    """A folder of two SentencePiece tokenizers: one that puts a blank before a text, one that puts none."""
    with once(tmp_path_factory, "pieces") as (place, done):
        script, texts = ROOT / "tests/doubles/sentencepieces.py", ROOT / "models/corpus.txt"
        for name, more in (("plain", ["--plain"]), ("prefixed", [])) if not done else ():
            command = [python("llamacpp-hf"), script, place / name, texts, *more]
            subprocess.run([*map(str, command)], capture_output=True, check=True)
    return place


def shared_folder(factory):
    """The folder of this run of pytest, whichever worker asks."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextlib.contextmanager
def once(factory, name):
    """A folder that all workers of a run share, and whether it was filled already: by one of them."""
    base = shared_folder(factory)
    folder = base / f"shared-{name}"
    folder.mkdir(exist_ok=True)
    with (base / f"shared-{name}.busy").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        filled = (base / f"shared-{name}.filled").exists()
        yield folder, filled
        (base / f"shared-{name}.filled").touch()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    slurm.skip_where_missing()
    with slurm.Slurm(tmp_path_factory.mktemp("slurm") / "cluster") as found:
        yield found


@pytest.fixture
def start(cluster, store):
    """start(folder, target) starts the documented command there, and returns its process."""
    started = []

    def run(folder, *targets, **environment):
        command = [ROOT / ".venv/bin/snakemake", *targets, "--profile", "slurm"]
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **cluster.environment, "INGOT_STORE": str(store),
                 "INGOT_SUBMIT": "all", **environment},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    for job in cluster.jobs():
        cluster.call("scancel", job)


@pytest.fixture
def submit(start, cluster):
    """submit(folder, target): what it said, and how many jobs were submitted."""

    def run(folder, *targets, fails=False, **environment):
        before = cluster.submitted()
        process = start(folder, *targets, **environment)
        said, _ = process.communicate(timeout=240)
        assert (process.returncode != 0) == fails, said
        looked = "first use of" in said  # by one job, of `ingot doctor`
        return said, cluster.submitted() - before - looked

    return run
