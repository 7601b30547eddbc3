"""The changes that bench/wrong_hits.py makes: what decides an output, and what decides nothing.

Each is a function of a Case: `folder` is the project, `cache` where the system keeps what it built,
`artifacts` the folder of a finished build, `environment`, `targets`, `words` and `wrap` go into the
command.  Its docstring is its name in the table.
"""

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DEMO = "models/demo"
SHARD = f"{DEMO}/model-00002-of-00002.safetensors"
TARGETS = [
    "artifacts/demo.irpa",
    "lab/quiet.said",
    "lab/joined",
    "lab/concat",
    "lab/listed",
    "lab/packed",
    "lab/first",
    "lab/second",
]


@dataclass
class Case:
    folder: Path
    cache: Path
    artifacts: Path  # the folder in which the same was built before
    environment: dict[str, str] = field(default_factory=dict)
    targets: list[str] = field(default_factory=lambda: list(TARGETS))
    words: list[str] = field(default_factory=list)
    wrap: list[str] = field(default_factory=list)
    results: list[str] | None = None  # what is compared, where that is not the targets
    mine: bytes | None = None  # a user's own file below artifacts or lab, that may not be lost
    from_nothing: bool = False  # built without anything before: what is right

    def edit(self, path: str, old: str, new: str) -> None:
        text = (self.folder / path).read_text()
        if old not in text:
            raise AssertionError(f"{path}: {old!r} is not in it")
        (self.folder / path).write_text(text.replace(old, new, 1))

    def cached(self, artifact: str) -> list[Path]:
        """The files of the cache that hold what `artifact` holds."""
        wanted = (self.artifacts / artifact).read_bytes()
        files = (Path(top) / name for top, _, names in os.walk(self.cache) for name in names)
        return [f for f in files if f.is_file() and f.stat().st_size == len(wanted)
                and f.read_bytes() == wanted]  # fmt: skip


def remove(folder: Path) -> None:
    """A folder, or Snakemake's link to one in its cache."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


DECIDES: list[Callable] = []
DECIDES_NOTHING: list[Callable] = []


def decides(function):
    DECIDES.append(function)
    return function


def decides_nothing(function):
    DECIDES_NOTHING.append(function)
    return function


LAB = "rules/lab.smk"
STEP = "scripts/lab_step.py"
TWO_DISKS = Path(__file__).parent / "fixture/two_disks.py"


@decides
def wildcard(case):
    """a wildcard that is only in the shell text"""
    case.targets = ["lab/loud.said"]


@decides
def inputs_swapped(case):
    """two named inputs swapped"""
    case.edit(LAB, 'base="labdata/one",\n        delta="labdata/two"',
              'base="labdata/two",\n        delta="labdata/one"')  # fmt: skip


@decides
def unnamed_swapped(case):
    """two unnamed inputs swapped"""
    case.edit(LAB, '"labdata/one",\n        "labdata/two"', '"labdata/two",\n        "labdata/one"')


@decides
def outputs_exchanged(case):
    """two outputs exchanged"""
    case.edit(LAB, 'first="lab/first",\n        second="lab/second"',
              'second="lab/second",\n        first="lab/first"')  # fmt: skip


@decides
def input_dropped(case):
    """an input dropped"""
    case.edit(LAB, '"labdata/one",\n        "labdata/two"', '"labdata/one"')


@decides
def script(case):
    """a script"""
    case.edit(STEP, 'f"mode {', 'f"Mode {')


@decides
def module(case):
    """a module that a script imports"""
    case.edit("scripts/ingot/lab_module.py", 'f"a{', 'f"b{')


@decides
def deeper(case):
    """a module that this module imports"""
    case.edit("scripts/ingot/lab_deeper.py", "1", "2")


@decides
def script_same_size_and_time(case):
    """a script, with the same size and time"""
    path = case.folder / STEP
    state = path.stat()
    case.edit(STEP, 'f"mode {', 'f"Mode {')
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@decides
def converter(case):
    """the converter's own code"""
    case.edit("scripts/ingot/formats/gguf/metadata.py", '"general.type"', '"general.kind"')


@decides
def archive_writer(case):
    """the archive writer's own code"""
    case.edit("scripts/gguf_to_irpa.py", '{"schema": "GGUF"', '{"schema": "gguf"')


@decides
def shell_text(case):
    """the shell text"""
    case.edit(LAB, "--words {wildcards.word:q}", "--words {wildcards.word:q} twice")


@decides
def shell_pipe(case):
    """the program in the shell text"""
    case.edit(LAB, "cat {input:q}", "tac {input:q}")


@decides
def lock(case):
    """a toolchain's lock"""
    case.edit("envs/lab/requirements.lock", "1", "2")


@decides
def parameter(case):
    """a parameter"""
    case.edit("lab.yaml", 'words: ["a b", c]', 'words: ["a b", d]')


@decides
def parameter_type(case):
    """a parameter's type: a list to a text of the same words"""
    case.edit("lab.yaml", 'words: ["a b", c]', 'words: "a b c"')


@decides
def parameter_order(case):
    """the order of a list parameter"""
    case.edit("lab.yaml", 'words: ["a b", c]', 'words: [c, "a b"]')


@decides
def parameter_split(case):
    """a list parameter split elsewhere"""
    case.edit("lab.yaml", 'words: ["a b", c]', "words: [a, b c]")


@decides
def flag_order(case):
    """the order of flags"""
    case.edit("lab.yaml", 'flags: ["--order=1", "--loud=1"]', 'flags: ["--loud=1", "--order=1"]')


@decides
def flag_added(case):
    """a flag twice, the second with another value"""
    case.edit("lab.yaml", '"--loud=1"]', '"--loud=1", "--loud=2"]')


@decides
def flags_dropped(case):
    """all flags dropped"""
    case.edit("lab.yaml", 'flags: ["--order=1", "--loud=1"]', "flags: []")


@decides
def catalogue_dtype(case):
    """a catalogue setting: dtype"""
    case.edit("models.yaml", "    name: Ingot Demo\n", "    name: Ingot Demo\n    dtype: bf16\n")


@decides
def catalogue_name(case):
    """a catalogue setting: name"""
    case.edit("models.yaml", "name: Ingot Demo", "name: Another Demo")


@decides
def catalogue_license(case):
    """a catalogue setting: license"""
    case.edit("models.yaml", "license: apache-2.0", "license: mit")


@decides
def catalogue_path(case):
    """a catalogue setting: another checkpoint"""
    shutil.copytree(case.folder / DEMO, case.folder / "models/other")
    tensor_of(case.folder / "models/other/model-00002-of-00002.safetensors")
    case.edit("models.yaml", "path: models/demo", "path: models/other")


@decides
def content(case):
    """an input's content"""
    (case.folder / "labdata/one").write_text("something else altogether\n")


@decides
def content_same_size(case):
    """an input's content, same size"""
    (case.folder / "labdata/one").write_text("ONE\n")


@decides
def content_same_size_and_time(case):
    """an input's content, same size and time"""
    path = case.folder / "labdata/one"
    state = path.stat()
    path.write_text("ONE\n")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@decides
def content_older(case):
    """an input replaced by an older file"""
    path = case.folder / "labdata/one"
    path.write_text("old\n")
    os.utime(path, (1, 1))


@decides
def contents_exchanged(case):
    """two inputs' contents exchanged"""
    one, two = case.folder / "labdata/one", case.folder / "labdata/two"
    one.rename(one.with_name("t"))
    two.rename(one)
    one.with_name("t").rename(two)


def tensor_of(path: Path) -> None:
    """Flip one bit of the last tensor."""
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-2, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


@decides
def one_tensor(case):
    """one bit of one tensor"""
    tensor_of(case.folder / SHARD)


@decides
def one_tensor_same_time(case):
    """one bit of one tensor, same size and time"""
    path = case.folder / SHARD
    state = path.stat()
    tensor_of(path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


@decides
def two_tensors_exchanged(case):
    """the names of two tensors exchanged"""
    path = case.folder / SHARD
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    k, v = "model.layers.3.self_attn.k_proj.weight", "model.layers.3.self_attn.v_proj.weight"
    header[k], header[v] = header[v], header[k]
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(data[:8] + text.ljust(length) + data[8 + length :])


@decides
def tokenizer(case):
    """the tokenizer"""
    case.edit(
        f"{DEMO}/tokenizer_config.json", '"bos_token":', '"add_bos_token": true, "bos_token":'
    )


@decides
def config(case):
    """the checkpoint's config.json"""
    case.edit(f"{DEMO}/config.json", '"rms_norm_eps": 1e-05', '"rms_norm_eps": 0.001')


@decides
def file_gone(case):
    """a file of the checkpoint gone"""
    (case.folder / DEMO / "generation_config.json").unlink()


@decides
def file_added(case):
    """a file of the checkpoint added"""
    (case.folder / DEMO / "chat_template.jinja").write_text("{{ messages }}")


@decides
def executable(case):
    """a file's executable bit, in a directory input"""
    (case.folder / "labtree/tool").chmod(0o755)


@decides
def renamed(case):
    """a renamed file in a directory input"""
    (case.folder / "labtree/tool").rename(case.folder / "labtree/zool")


@decides
def moved_inside(case):
    """a file moved to another folder of a directory input"""
    (case.folder / "labtree/tool").rename(case.folder / "labtree/deep/tool")


@decides
def folder_added(case):
    """an empty folder in a directory input"""
    (case.folder / "labtree/empty").mkdir()


@decides
def link_changed(case):
    """a link in a directory input pointing elsewhere"""
    link = case.folder / "labtree/link"
    link.unlink()
    link.symlink_to("deep")


@decides
def inside_changed(case):
    """a file's content in a directory input"""
    (case.folder / "labtree/deep/file").write_text("changed")


@decides
def variable(case):
    """an environment variable that the tool reads"""
    case.environment["LAB_MODE"] = "loud"


@decides
def hub_moved(case):
    """a hub revision moved, and pinned anew"""
    case.edit("models.yaml", "revision: '" + "1" * 40, "revision: '" + "2" * 40)
    case.targets = ["artifacts/tiny.gguf"]


def harm_each(case, artifact, harm) -> None:
    for path in case.cached(artifact):
        state = path.stat()
        path.parent.chmod(0o755)
        path.chmod(0o644)
        harm(path, state)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(data)


@decides
def blob_flipped(case):
    """a cached file flipped in place"""
    harm_each(case, "artifacts/demo.irpa", lambda path, state: flip(path))


@decides
def blob_flipped_same_time(case):
    """a cached file flipped in place, same time"""

    def harm(path, state):
        flip(path)
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))

    harm_each(case, "artifacts/demo.irpa", harm)


@decides
def blob_truncated(case):
    """a cached file truncated"""
    harm_each(case, "artifacts/demo.irpa", lambda path, s: os.truncate(path, s.st_size // 2))


@decides
def blob_emptied(case):
    """a cached file emptied"""
    harm_each(case, "lab/joined", lambda path, state: os.truncate(path, 0))


@decides
def blob_replaced(case):
    """a cached file replaced by another of its size"""

    def harm(path, state):
        path.unlink()
        path.write_bytes(bytes(state.st_size))

    harm_each(case, "artifacts/demo.irpa", harm)


@decides
def blob_deleted(case):
    """a cached file deleted"""
    harm_each(case, "artifacts/demo.irpa", lambda path, state: path.unlink())


@decides
def blob_in_folder(case):
    """a cached file of a directory output flipped"""
    harm_each(case, "lab/packed/data", lambda path, state: flip(path))


@decides
def two_file_systems(case):
    """a source on another file system, with the same inode and times"""
    case.targets = ["lab/joined"]
    case.wrap = ["unshare", "-Urm", sys.executable, str(TWO_DISKS), str(int(not case.from_nothing))]


@decides
def power_loss(case):
    """the power fails at the end of the first build"""
    # what that does to the disk: wrong_hits.Disk
    case.wrap = case.wrap + another_boot(case) if not case.from_nothing else []


def another_boot(case) -> list[str]:
    """A prefix of a command, that sees the id of another boot."""
    boot = case.cache.with_name("boot")
    boot.write_text("00000000-0000-0000-0000-000000000000\n")
    script = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh"]


@decides
def own_file(case):
    """a file of the user's where an artifact goes"""
    path = case.folder / "lab/joined"
    path.parent.mkdir(exist_ok=True)
    if path.is_symlink() or path.exists():
        path.unlink()
    case.mine = b"somebody's own work"
    path.write_bytes(case.mine)


@decides_nothing
def under_a_prefix(case):
    """the pipeline as a module of somebody's own, its rules under a prefix"""
    (case.folder / "own.smk").write_text(
        'configfile: "models.yaml"\nmodule ingot:\n    snakefile: "Snakefile"\n    config: config\n'
        "use rule * from ingot as x_*\n"
    )
    case.words = ["-s", "own.smk"]


@decides_nothing
def until(case):
    """nothing: a build of the targets alone that ends early"""
    remove(case.folder / "artifacts")
    case.targets, case.results = ["artifacts/demo.irpa"], ["artifacts/demo.gguf"]
    case.words = ["--until", "safetensors_to_gguf", "--config", "keep=targets"]


@decides
def artifact_edited(case):
    """an artifact edited by hand"""
    path = case.folder / "lab/joined"
    if path.exists():
        path.unlink()
        path.write_text("mine")


@decides
def intermediate_edited(case):
    """an intermediate edited by hand, the target deleted"""
    path = case.folder / "lab/joined"
    if path.exists():
        path.unlink()
        path.write_text("mine")
        remove(case.folder / "lab/packed")
    case.targets = ["lab/packed"]


@decides_nothing
def executable_output(case):
    """nothing: a folder with an executable file is deleted, and comes back"""
    remove(case.folder / "lab/packed")
    case.targets = ["lab/packed"]


@decides_nothing
def touched_inputs(case):
    """a touch of every input"""
    for place in ("labdata", "labtree", DEMO):
        for path in (case.folder / place).rglob("*"):
            os.utime(path, follow_symlinks=False)


@decides_nothing
def touched_code(case):
    """a touch of every script"""
    for path in (case.folder / "scripts").rglob("*.py"):
        os.utime(path)


@decides_nothing
def future(case):
    """inputs whose times lie in the future"""
    for path in (case.folder / "labdata").iterdir():
        os.utime(path, (4e9, 4e9))


@decides_nothing
def past(case):
    """inputs whose times lie in the past, as after a checkout"""
    for path in (case.folder / DEMO).iterdir():
        os.utime(path, (1, 1))


@decides_nothing
def copied(case):
    """every file copied anew"""
    fresh = case.folder.with_name("copied")
    shutil.copytree(case.folder, fresh, symlinks=True)
    shutil.rmtree(case.folder)
    fresh.rename(case.folder)


@decides_nothing
def moved(case):
    """the clone at another path"""
    case.folder = case.folder.rename(case.folder.with_name("elsewhere"))


@decides_nothing
def another_home(case):
    """another user's HOME"""
    home = case.folder.parent / "home"
    home.mkdir(exist_ok=True)
    case.environment |= {"HOME": str(home), "USER": "somebody", "LOGNAME": "somebody"}


@decides_nothing
def another_host(case):
    """another host name"""
    case.wrap = ["unshare", "-Uru", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]


@decides_nothing
def another_core_count(case):
    """another number of cores"""
    case.words = ["--cores", "1"]


@decides_nothing
def another_language(case):
    """another language and time zone"""
    case.environment |= {"LC_ALL": "C", "LANG": "de_DE.UTF-8", "TZ": "Asia/Tokyo"}


@decides_nothing
def another_tmpdir(case):
    """another TMPDIR"""
    (case.folder.parent / "tmp").mkdir(exist_ok=True)
    case.environment["TMPDIR"] = str(case.folder.parent / "tmp")


@decides_nothing
def unrelated_variable(case):
    """an environment variable that no tool reads"""
    case.environment["SOMETHING_ELSE"] = "1"


@decides_nothing
def unrelated_script(case):
    """a comment in an unrelated script"""
    with (case.folder / "scripts/compile_vmfb.py").open("a") as file:
        file.write("# a comment\n")


@decides_nothing
def unrelated_model(case):
    """an unrelated model in the catalogue"""
    case.edit("models.yaml", "models:\n", "models:\n  other:\n    path: models/demo\n"
              "    name: Other\n    architecture: LlamaForCausalLM\n"
              "    pre_tokenizer: llama-bpe\n")  # fmt: skip


@decides_nothing
def unrelated_setting(case):
    """a setting of the demo that these files do not depend on"""
    case.edit("models.yaml", "bs_prefill: [1]", "bs_prefill: [1, 2]")


@decides_nothing
def unrelated_rule(case):
    """another rule"""
    with (case.folder / LAB).open("a") as file:
        file.write(
            '\n\nrule lab_more:\n    output:\n        "lab/more",\n    shell:\n        "touch {output}"\n'
        )


@decides_nothing
def rule_comment(case):
    """a comment in a rule file"""
    with (case.folder / LAB).open("a") as file:
        file.write("\n# a comment\n")


@decides_nothing
def readme(case):
    """a file beside the inputs that nobody reads"""
    (case.folder / DEMO / "README.md").write_text("new")
    (case.folder / "notes").write_text("new")


@decides_nothing
def umask(case):
    """another umask"""
    case.wrap = ["sh", "-c", 'umask 077 && exec "$@"', "sh"]
