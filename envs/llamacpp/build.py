"""Build libllama and unpack llama.cpp's converter, from a source package pinned by its digest.

    <this toolchain's python> build.py FOLDER [WHEELS]

The source is taken from the folder WHEELS where it lies there, and kept in FOLDER/source.

The source is the llama-cpp-python package, which carries llama.cpp at commit
0c1e57098bba43ac29e6e3b677cdceebdd22334f; the compiler is clang out of ziglang, so that none need
be installed on the machine.  Leaves FOLDER/llama.cpp: the converter, and in bin/ libllama.so, with ggml
and, by the sources beside this file, llama.cpp's engine for chat templates and its library for images;
and the tests' oracles.
"""

import hashlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SOURCE, ARCHIVE = "llama-cpp-python==0.3.36", "llama_cpp_python-0.3.36.tar.gz"
DIGEST = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
OWN = [Path(__file__).resolve().parent / name for name in ("chat.cpp", "see.cpp")]
KEPT = ("conversion", "gguf-py", "convert_hf_to_gguf.py", "LICENSE")  # for the tests' oracle
# the same code on every machine: clang out of zig compiles for the one it runs on, and the last bits of a
# quantised block depend on whether a product and a sum are fused
MACHINE = "-target x86_64-linux-gnu.2.28 -mcpu=x86_64_v3"
BARE = "-g0"  # clang out of zig notes lines for a debugger, which takes a fifth of the time
FLAGS = (
    "BUILD_SHARED_LIBS=OFF",
    "CMAKE_BUILD_TYPE=Release",
    "CMAKE_POSITION_INDEPENDENT_CODE=ON",
    "CMAKE_EXE_LINKER_FLAGS=-s",
    # its checks need no program: zig would first compile libraries for one, for a minute and a half
    "CMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
    "GGML_NATIVE=OFF",
    "GGML_OPENMP=OFF",
    "GGML_CCACHE=OFF",
    "LLAMA_BUILD_COMMON=ON",
    "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_SERVER=OFF",
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_TOOLS=ON",
    "LLAMA_CURL=OFF",
    "LLAMA_OPENSSL=OFF",
)
# what parses arguments, renders templates, lays out graphs and moves tensors, no arithmetic that takes
# time: it took three quarters of the compile, most of it to read the same headers; Unity/ has what
# together.cmake names
PLAINLY = (
    "common/", "vendor/", "tools/quantize/", "tools/gguf-split/", "tools/imatrix/",
    "tools/mtmd/mtmd-helper", "ggml/src/gguf", "ggml/src/ggml-backend-", "ggml/src/ggml-opt",
)  # fmt: skip
TOGETHER, UNOPTIMISED = "*/Unity/*", "-O0 -fno-sanitize=undefined"
TOOLS = ("llama-quantize", "llama-imatrix", "llama-gguf-split")  # the tests' oracles


def build(folder: Path, wheels: Path | None = None) -> None:
    archive = source(folder / "source", wheels)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = unpack(archive, Path(scratch))
        print(
            "toolchain llamacpp: compiling llama.cpp, some three minutes",
            file=sys.stderr,
            flush=True,
        )
        built = compile_all(tree, Path(scratch))
        (folder / "llama.cpp/bin").mkdir(parents=True)
        for name in ("libllama.so", *TOOLS):
            shutil.move(built / name, folder / "llama.cpp/bin" / name)
        for name in KEPT:
            shutil.move(tree / name, folder / "llama.cpp" / name)
    run(sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", "ziglang", "cmake", "ninja")


def source(place: Path, wheels: Path | None) -> Path:
    """The source package, from `wheels` or else from the index."""
    place.mkdir()
    known = sorted(wheels.glob(ARCHIVE)) if wheels else []
    for path in known:
        shutil.copy(path, place)
    if not known:
        download(place)
    (archive,) = place.glob(ARCHIVE)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != DIGEST:
        sys.exit(f"{archive.name}: sha256 {found}, expected {DIGEST}; remove it and fetch it again")
    return archive


def download(place: Path) -> None:
    flags = ("--no-deps", "--no-build-isolation", "--no-binary", "llama-cpp-python")
    run(sys.executable, "-m", "pip", "download", "--quiet", *flags, "-d", place, SOURCE)


def unpack(archive: Path, scratch: Path) -> Path:
    with tarfile.open(archive) as package:
        package.extractall(
            scratch
        )  # ours by its digest; `filter` came with 3.11.4, Debian has 3.11.2
    return next(scratch.glob("llama_cpp_python-*/vendor/llama.cpp"))


def compile_all(tree: Path, scratch: Path) -> Path:
    programs, zig = {}, Path(importlib.util.find_spec("ziglang").origin).with_name("zig")
    for word in ("cc", "c++", "ar", "ranlib"):  # a bare Debian has none of them
        wrapper = scratch / word
        lines = ["#!/bin/sh", f'exec {shlex.quote(str(zig))} {word} "$@"']
        if word in ("cc", "c++"):
            lines[1] = f"{lines[1]} {MACHINE} {BARE} $ONLY"
            places = "|".join(f"*{shlex.quote(f' -c {tree}/{name}')}*" for name in PLAINLY)
            lines.insert(1, f'case "$*" in {places}|{TOGETHER}) set -- "$@" {UNOPTIMISED} ;; esac')
        wrapper.write_text("\n".join(lines) + "\n")
        wrapper.chmod(0o755)
        programs[word] = str(wrapper)
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # zig keeps its own objects: not in the user's home
    environment = {
        **os.environ,
        "CC": programs["cc"],
        "CXX": programs["c++"],
        "PATH": tools,
        "ZIG_GLOBAL_CACHE_DIR": str(scratch / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(scratch / "zig"),
        "ONLY": "",  # of the wrappers: a flag more
    }
    out = scratch / "build"
    archivers = (f"CMAKE_AR={programs['ar']}", f"CMAKE_RANLIB={programs['ranlib']}")
    own = f"CMAKE_PROJECT_INCLUDE={Path(__file__).with_name('together.cmake')}"
    settings = [f"-D{flag}" for flag in (*FLAGS, *archivers, own)]
    only = {**environment, "ONLY": "-c"}
    run("cmake", "-G", "Ninja", "-S", tree, "-B", out, *settings, env=only)
    with libraries(programs["c++"], scratch, environment):
        run("cmake", "--build", out, "--target", *TOOLS, "mtmd", env=environment)
    bundle(programs["c++"], tree, out, environment)
    return out / "bin"


@contextmanager
def libraries(compiler: str, scratch: Path, environment: dict) -> Iterator[None]:
    """Meanwhile zig compiles the C++ library, on one core, for which the first program would wait.

    Whether it is stripped makes it another to zig: by the flags that programs are linked with.
    """
    (scratch / "empty.cpp").write_text("int main() {}\n")
    words = [compiler, "-O3", "-s", scratch / "empty.cpp", "-o", scratch / "empty"]
    with subprocess.Popen(
        words, env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            with suppress(ProcessLookupError):  # zig, and each clang that it started
                os.killpg(process.pid, signal.SIGKILL)


def bundle(compiler: str, tree: Path, out: Path, environment: dict) -> None:
    """One shared library of all: each that clang out of zig links has a C++ runtime of its own."""
    names = ("common", "ggml/include", "include", "vendor", "tools/mtmd")
    folders = [f"-I{tree / name}" for name in names]
    archives = {path.name: path for path in out.rglob("lib*.a")}
    # of mtmd's helper and the common parts what our own sources call, and what those need of vendor/
    whole = [archives.pop(f"lib{name}.a") for name in ("llama", "ggml", "ggml-cpu", "ggml-base")]
    run(
        compiler, "-std=c++17", "-O1", "-fPIC", "-shared", "-s", *folders, *OWN,
        "-Wl,-z,defs", "-Wl,--whole-archive", *whole, "-Wl,--no-whole-archive",
        "-Wl,--start-group", *archives.values(), "-Wl,--end-group", "-lpthread", "-ldl", "-lm",
        "-o", out / "bin/libllama.so", env=environment,
    )  # fmt: skip


def run(*command, env: dict | None = None) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        sys.exit(f"{' '.join(words[:4])} ...: exit status {done.returncode}:\n{tail}")


if __name__ == "__main__":
    build(*(Path(word).resolve() for word in sys.argv[1:]))
