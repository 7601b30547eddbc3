"""What three caches do when something changes: Ingot's store, Snakemake's `cache:`, DVC.

    .venv/bin/python bench/wrong_hits.py [--json] [--only WORD] [--systems ingot,snakemake,dvc]

The same pipeline, rule for rule, under each: the demo's GGUF and IRPA, a hub model, and five small
rules.  For each class of change (bench/mutations.py) it is built, changed, and built again twice:
in a fresh clone that has only the cache, and in the folder where it was built.  What comes out is
checked against what the same system builds of the changed project from nothing.

A wrong hit is an output that differs.  A needless rebuild is a step that ran after a change that
decides nothing.  DVC is told of each rule as a stage: its command, its inputs, its outputs.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/doubles"), str(ROOT / "scripts"), str(ROOT / "bench")]
import mutations  # noqa: E402
from mutations import Case  # noqa: E402

import checkpoints  # noqa: E402
from fake_hub import Hub  # noqa: E402
from ingot.base import digest  # noqa: E402
from ingot.driver.toolchains import toolchains  # noqa: E402

SNAKEMAKE = ROOT / ".venv/bin/snakemake"
PARTS = ("Snakefile", "models.schema.json", "rules", "scripts", "envs", "profiles", "models")
DISK = 1 << 30  # bytes of the file system whose power fails
HUB_TARGET = "artifacts/tiny.gguf"
DUMP = """
import json as _json
from snakemake.dag import DAG as _DAG


async def _dump(dag, *_, **__):
    jobs = [job for job in dag.jobs if job.output and job.rule.name != "toolchain"]
    print("STAGES" + _json.dumps([
        {"cmd": job.shellcmd, "deps": [str(f) for f in job.input if "logs/toolchain" not in f],
         "outs": list(map(str, job.output))} for job in jobs]), flush=True)
    import os
    os._exit(0)


_DAG.postprocess = _dump
"""


class System:
    """One cache under test.  `prepare` turns a copy of the pipeline into its own."""

    name: str
    run: Callable[[Case], subprocess.CompletedProcess]

    def prepare(self, folder: Path, cache: Path) -> None:
        pass

    def call(self, case: Case, words, **more) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*case.wrap, *map(str, words)],
            cwd=case.folder,
            env={**os.environ, **ENVIRONMENT, **case.environment, **more},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def snakemake(self, case: Case, *words, **more) -> subprocess.CompletedProcess:
        command = [
            SNAKEMAKE,
            "-c2",
            "-q",
            "rules",
            "host",
            *words,
            *case.words,
            "--",
            *case.targets,
        ]
        return self.call(case, command, **more)


class Ingot(System):
    name = "ingot"

    def run(self, case):
        return self.snakemake(case, INGOT_STORE=str(case.cache))


class Snakemake(System):
    """The same rules with `cache: True`, without Ingot's hook."""

    name = "snakemake"

    def prepare(self, folder, cache):
        cache.mkdir(exist_ok=True)
        plain(folder)
        for file in (folder / "rules").glob("*.smk"):
            text = file.read_text()
            for rule in ("safetensors_to_gguf", "gguf_to_irpa", "fetch_listing", "fetch_file"):
                text = text.replace(f"rule {rule}:\n", f"rule {rule}:\n    cache: True\n")
            # lab_list reads a folder: with `cache:` Snakemake stops there (IsADirectoryError), so
            # it runs uncached in each new clone, which is not checked against it
            before, here, after = text.partition("rule lab_list:")
            text = before + here + after.replace("echo x >> ran; ", "", 1)
            for rule in ("say", "join", "concat", "pack", "split"):
                text = text.replace(f"rule lab_{rule}:\n", f"rule lab_{rule}:\n    cache: True\n")
            lines, kept, skip = text.splitlines(), [], 0
            for line in lines:  # Snakemake refuses a rule that has both
                skip = 2 if line.strip() == "benchmark:" else skip
                if skip:
                    skip -= 1
                else:
                    kept.append(line)
            file.write_text("\n".join(kept) + "\n")

    def run(self, case):
        place = str(case.cache)
        return self.snakemake(
            case, "--cache", SNAKEMAKE_OUTPUT_CACHE=place, INGOT_STORE=f"{place}-memo"
        )


class Dvc(System):
    name = "dvc"

    def prepare(self, folder, cache):
        plain(folder)
        with (folder / "rules/common.smk").open("a") as file:
            file.write(DUMP)
        case = Case(folder, cache, folder)
        for words in (
            ["init", "--no-scm", "-q"], ["config", "core.analytics", "false"],
            ["config", "cache.dir", cache], ["config", "core.autostage", "false"],
        ):  # fmt: skip
            self.call(case, [DVC, *words])

    def run(self, case):
        memo = f"{case.cache}-memo"
        told = self.snakemake(replace(case, words=[]), "-n", INGOT_STORE=memo)
        lines = [line for line in told.stdout.splitlines() if line.startswith("STAGES")]
        if not lines:
            return told
        stages = json.loads(lines[0].removeprefix("STAGES"))
        named = {f"s{number}": {"cmd": f"mkdir -p lab artifacts logs $(dirname {' '.join(s['outs'])});"
                                       f" mkdir -p {' '.join(LOGS)};\n{s['cmd']}",
                                "deps": sorted(set(s["deps"])), "outs": s["outs"]}
                 for number, s in enumerate(stages)}  # fmt: skip
        # a stage is known by its outputs, so that its number says nothing
        stages = {
            stage["outs"][0].replace("/", "-").replace(".", "-"): stage for stage in named.values()
        }
        (case.folder / "dvc.yaml").write_text(json.dumps({"stages": stages}))
        scripts = str(case.folder / "scripts")
        words = [sys.executable, "-m", "ingot.driver.commands.cli", "toolchain", "lab"]
        self.call(replace(case, wrap=[]), words, PYTHONPATH=scripts)
        return self.call(case, [DVC, "repro", "-q"], INGOT_STORE=memo)


LOGS = [f"logs/{name}" for name in (
    "safetensors_to_gguf", "gguf_to_irpa", "fetch_listing", "fetch_file/tiny")]  # fmt: skip
ENVIRONMENT: dict[str, str] = {"DVC_NO_ANALYTICS": "1"}
DVC = Path()


def plain(folder: Path) -> None:
    """Take Ingot's hook out."""
    common = folder / "rules/common.smk"
    text, call = common.read_text(), "    hook.install(config, ROOT)\n"
    assert call in text, "the hook is installed by another line"
    common.write_text(text.replace(call, ""))


def project(folder: Path) -> None:
    """The pipeline with the small rules; each step that runs says so in the file `ran`."""
    folder.mkdir(parents=True)
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / part, folder / part)
    text = (ROOT / "models.yaml").read_text()
    (folder / "models.yaml").write_text(
        text.replace(
            "models:\n",
            "models:\n  tiny:\n    hub: org/tiny\n    revision: '" + "1" * 40 + "'\n    shards: 2\n"
            "    name: Tiny\n    architecture: LlamaForCausalLM\n    pre_tokenizer: llama-bpe\n",
            1,
        )
    )
    shutil.copy(ROOT / "bench/fixture/lab.smk", folder / "rules")
    shutil.copy(ROOT / "bench/fixture/lab_step.py", folder / "scripts")
    for name in ("lab_module.py", "lab_deeper.py"):
        shutil.copy(ROOT / "bench/fixture" / name, folder / "scripts/ingot")
    with (folder / "Snakefile").open("a") as file:
        file.write('\n\ninclude: "rules/lab.smk"\n')
    (folder / "lab.yaml").write_text('words: ["a b", c]\nflags: ["--order=1", "--loud=1"]\n')
    (folder / "envs/lab").mkdir()
    (folder / "envs/lab/requirements.lock").write_text("# nothing is needed, 1\n")
    (folder / "labdata").mkdir()
    (folder / "labdata/one").write_text("one\n")
    (folder / "labdata/two").write_text("two\n")
    (folder / "labtree/deep").mkdir(parents=True)
    (folder / "labtree/tool").write_text("tool")
    (folder / "labtree/deep/file").write_text("file")
    (folder / "labtree/link").symlink_to("tool")
    for file in (folder / "rules").glob("*.smk"):
        rules = file.read_text()
        rules = rules.replace("{PYTHON[", "echo x >> ran; {PYTHON[")
        rules = rules.replace('"cat {input:q}', '"echo x >> ran; cat {input:q}')
        file.write_text(rules)


def outputs(case: Case, bits: bool) -> dict[str, str]:
    """What each target holds, and with `bits` which files are executable; `absent` when not there."""
    found = {}
    for target in case.results or case.targets:
        path = case.folder / target
        if path.is_dir():
            entries = []
            for entry in sorted(path.rglob("*")):
                if entry.name != digest.ORCHESTRATOR and entry.is_file():
                    bit = bits and bool(entry.stat().st_mode & 0o100)
                    entries.append((str(entry.relative_to(path)), bit, digest.read(entry)))
            found[target] = digest.of_json(entries)
        else:
            found[target] = digest.read(path) if path.is_file() else "absent"
    return found


def lost(case: Case) -> bool:
    """Is the user's own file nowhere any more?"""
    files = (
        [path for path in (case.folder / "lab").iterdir() if path.is_file()] if case.mine else []
    )
    return case.mine is not None and case.mine not in [path.read_bytes() for path in files]


def count(folder: Path) -> int:
    ran = folder / "ran"
    found = ran.read_text().count("x") if ran.exists() else 0
    ran.unlink(missing_ok=True)
    return found


@dataclass
class Verdict:
    wrong: bool
    failed: bool
    ran: int  # steps, in the fresh clone and in the old folder
    why: str = ""


class Disk:
    """A file system in an image: what was not on the disk when its power failed is gone."""

    def __init__(self, folder: Path):
        self.folder, self.image = folder, folder.with_name(f"{folder.name}.img")

    def __enter__(self):
        self.folder.mkdir(parents=True)
        with self.image.open("wb") as file:
            file.truncate(DISK)
        self._call("mkfs.ext4", "-q", self.image)
        self._call("mount", "-o", "loop", self.image, self.folder)
        return self

    def __exit__(self, *_):
        self._call("umount", "-l", self.folder)
        self.image.unlink()

    def lose_power(self) -> None:
        copy = self.image.with_suffix(".copy")
        self._call("cp", "--sparse=always", self.image, copy)  # as the device had been given it
        self._call("umount", self.folder)
        copy.replace(self.image)
        self._call("mount", "-o", "loop", self.image, self.folder)

    def _call(self, *words) -> None:
        subprocess.run(list(map(str, words)), check=True)


def judge(system: System, mutation, place: Path) -> Verdict:
    """Build, change, build again: in a fresh clone, and in place."""
    if mutation is not mutations.power_loss:
        return _judge(system, mutation, place, place, lambda: None)
    with Disk(place / "disk") as disk:
        return _judge(system, mutation, place, disk.folder, disk.lose_power)


def _judge(system: System, mutation, place: Path, disk: Path, between: Callable) -> Verdict:
    """`disk` has the first project and the cache; `between` happens when the first build is done."""
    aside, place = place, disk
    cache = place / "cache"
    first = Case(place / "p", cache, place / "p")
    if mutation.__name__ == "hub_moved":
        first.targets = [HUB_TARGET]
    project(first.folder)
    system.prepare(first.folder, cache)
    subprocess.run(["sync", "-f", place], check=True)  # the project is not what a power loss takes
    done = system.run(first)
    if done.returncode:
        if system is ENGINE:
            sys.exit(f"ingot: the first build stopped:\n{(done.stdout + done.stderr)[-3000:]}")
        return Verdict(False, True, 0)  # Snakemake's cache gives one hub file for another
    count(first.folder)
    between()

    truth = Case(aside / "truth/p", aside / "truth/cache", first.folder, from_nothing=True)
    project(truth.folder)
    system.prepare(truth.folder, truth.cache)
    mutation(truth)
    from_nothing = system.run(truth)
    bits = mutation is mutations.executable_output  # DVC loses them whenever it restores a folder
    wanted = outputs(truth, bits)

    fresh = Case(place / "fresh/p", cache, first.folder)
    project(fresh.folder)
    system.prepare(fresh.folder, cache)
    if (first.folder / "dvc.lock").exists():  # it is part of a project, as git keeps it
        shutil.copy(first.folder / "dvc.lock", fresh.folder)
    inplace = replace(first, targets=list(first.targets), environment={}, words=[], wrap=[])
    verdict = Verdict(False, from_nothing.returncode != 0, 0)
    explained = ""
    for case in (fresh, inplace):
        mutation(case)
        if system.name == "ingot":
            explained = explained or explanation(case)
        done = system.run(case)
        found = outputs(case, bits)
        wrong = [t for t in found if found[t] not in (wanted[t], "absent")]
        wrong = [t for t in wrong if wanted[t] != "absent"]
        verdict.wrong |= bool(wrong) or lost(case)
        verdict.failed |= done.returncode != 0 or "absent" in found.values()
        verdict.ran += count(case.folder)
    verdict.why = explained
    return verdict


def explanation(case: Case) -> str:
    """The first reason that `ingot explain` gives for what runs."""
    answer = case.folder.parent / "plan.json"
    ENGINE.snakemake(case, "-n", INGOT_STORE=str(case.cache), INGOT_EXPLAIN=str(answer))
    jobs = json.loads(answer.read_text()) if answer.exists() else []
    reasons = [
        (job.get("differences") or [job["why"]])[0]
        for job in jobs
        if job["action"] == "run" and job["rule"] != "toolchain"
    ]
    known = [reason for reason in reasons if "will be decided" not in reason]
    return (known or reasons or [""])[0]


ENGINE = Ingot()
SYSTEMS = {system.name: system for system in (ENGINE, Snakemake(), Dvc())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="totals as the last line")
    parser.add_argument("--only", default="", help="classes whose name has this in it")
    parser.add_argument("--after", type=int, default=0, help="leave out this many of the first")
    parser.add_argument("--systems", default="ingot,snakemake,dvc")
    options = parser.parse_args()
    systems = [SYSTEMS[name] for name in options.systems.split(",")]
    global DVC
    if "dvc" in options.systems:
        DVC = toolchains.build(ROOT, "dvc") / "bin/dvc"
    classes = [(m, True) for m in mutations.DECIDES] + [
        (m, False) for m in mutations.DECIDES_NOTHING
    ]
    classes = [(m, d) for m, d in classes[options.after :] if options.only in m.__name__]
    if os.geteuid():
        print("power_loss: left out, it needs root to mount", file=sys.stderr)
        classes = [(m, d) for m, d in classes if m is not mutations.power_loss]
    elif "WRONG_HITS_APART" not in os.environ:  # what is mounted here is nobody else's to see
        os.environ["WRONG_HITS_APART"] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, __file__, *sys.argv[1:]])
    totals = {s.name: {"wrong": 0, "needless": 0, "failed": 0, "classes": 0} for s in systems}
    with tempfile.TemporaryDirectory() as place, hub(Path(place)) as url:
        envs = Path(place, "envs")
        envs.mkdir()
        for name in ("convert", "hub"):
            built = toolchains.build(ROOT, name)
            (envs / built.name).symlink_to(built)
        ENVIRONMENT.update(INGOT_ENVS=str(envs), HF_ENDPOINT=url, HF_TOKEN="")

        def work(numbered):
            number, (mutation, decides) = numbered
            row = {}
            for system in systems:
                folder = Path(place, f"{number}-{system.name}")
                row[system.name] = judge(system, mutation, folder)
                shutil.rmtree(folder, ignore_errors=True)
            return mutation, decides, row

        print(f"{'what changed':58}" + "".join(f"{s.name:>12}" for s in systems) + "  ingot says")
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            for mutation, decides, row in pool.map(work, enumerate(classes)):
                words = []
                for name, verdict in row.items():
                    needless = not decides and verdict.ran > 0
                    total = totals[name]
                    total["classes"] += 1
                    total["wrong"] += verdict.wrong
                    total["needless"] += needless
                    total["failed"] += verdict.failed
                    words.append(
                        "WRONG" if verdict.wrong else "failed" if verdict.failed
                        else "needless" if needless else "right"
                    )  # fmt: skip
                why = row["ingot"].why if "ingot" in row else ""
                text = f"{mutation.__doc__[:57]:58}" + "".join(f"{word:>12}" for word in words)
                print(f"{text}  {why[:90]}", flush=True)
    for name, total in totals.items():
        print(
            f"{name}: {total['wrong']} wrong hits, {total['needless']} needless rebuilds, "
            f"{total['failed']} that failed, of {total['classes']} classes"
        )
    if options.json:
        print(json.dumps(totals))
    if totals.get("ingot", {}).get("wrong"):
        sys.exit(1)


@contextlib.contextmanager
def hub(place: Path):
    """A hub that has org/tiny at two commits."""
    checkpoints.llama31(place / "hub/org/tiny")
    for number in (1, 2):
        folder = place / f"hub/org/tiny@{str(number) * 40}"
        shutil.copytree(place / "hub/org/tiny", folder)
        if number == 2:
            mutations.tensor_of(folder / "model-00002-of-00002.safetensors")
    with Hub(place / "hub") as server:
        yield server.url


if __name__ == "__main__":
    main()
