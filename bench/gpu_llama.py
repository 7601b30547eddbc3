"""Build libllama for NVIDIA's GPUs, and ask it of GGUF files beside transformers.

    python bench/gpu_llama.py build SOURCE FOLDER [--architecture 90]
    python bench/gpu_llama.py ask LIBRARY CASES.json
    python bench/gpu_llama.py speed LIBRARY GGUF [--prompt N] [--generate N]

`build` takes the source package that the toolchain llamacpp keeps (envs/llamacpp/build.py), or its folder
of llama.cpp, and leaves FOLDER/libllama.so, which needs this machine's CPU, too.  nvcc with cuBLAS, cmake,
ninja and g++ must be on the PATH.
`ask` says in a line of JSON for each case what the file gives on the GPU: tokens of texts, dialogues,
greedy tokens and the divergence over the corpus, within the limits of its type.  A case names gguf,
pre_tokenizer, context, dtype, reference, texts and scores.  `speed` is that of `ingot speed`, with the
whole model on the GPU.  Both run in envs/llamacpp.
"""

import argparse
import hashlib
import json
import runpy
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.base.fields import Whole, json_of  # noqa: E402
from ingot.base.refused import Refused, one_line  # noqa: E402

FILES = ("gguf", "pre_tokenizer", "dtype", "reference", "texts", "scores")
CASE = {**dict.fromkeys(FILES, str), "context": Whole()}
MORE = (
    "GGML_CUDA=ON",
    "GGML_CUDA_FA=OFF",  # its kernels are half of the compiler's time, and what compares goes without them
    "GGML_CUDA_NO_VMM=ON",  # so that it needs no driver to link with
    "LLAMA_BUILD_TOOLS=OFF",
    "LLAMA_BUILD_MTMD=ON",
    "LLAMA_BUILD_APP=OFF",
)
ELSEWHERE = (
    "CMAKE_TRY_COMPILE_TARGET_TYPE",
    "CMAKE_EXE_LINKER_FLAGS",
    "LLAMA_BUILD_TOOLS",
    "GGML_NATIVE",
)
SHOWN = (
    "texts_equal",
    "chats_equal",
    "prompts",
    "greedy_equal",
    "greedy_ties",
    "largest_logit_difference",
)
TOOLS = ("nvcc", "cmake", "ninja", "g++")
WHOLE = ("llama", "ggml", "ggml-cpu", "ggml-base", "ggml-cuda")


def build(source: Path, folder: Path, architecture: str) -> None:
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        sys.exit(f"{missing[0]} is not on the PATH, expected {', '.join(TOOLS)}; install it")
    if not source.exists():
        sys.exit(
            f"{source}: missing, expected llama_cpp_python's archive; the toolchain has it in source/"
        )
    made = runpy.run_path(str(ROOT / "envs/llamacpp/build.py"))
    flags = [flag for flag in made["FLAGS"] if flag.split("=")[0] not in ELSEWHERE]
    flags += [*MORE, f"CMAKE_CUDA_ARCHITECTURES={architecture}"]
    if not source.is_dir():
        if (digest := hashlib.sha256(source.read_bytes()).hexdigest()) != made["DIGEST"]:
            sys.exit(f"{source}: sha256 {digest}, expected {made['DIGEST']}; take the toolchain's")
        kept = folder / f"source-{digest[:12]}"
        if not kept.exists():
            shutil.rmtree(folder / "partial", ignore_errors=True)
            made["unpack"](source, folder / "partial")
            (folder / "partial").rename(kept)
        source = next(kept.glob("*/vendor/llama.cpp"))
    out, run = folder / "build", made["run"]  # kept: a build that was stopped goes on
    run("cmake", "-G", "Ninja", "-S", source, "-B", out, *(f"-D{flag}" for flag in flags))
    print(f"{folder}: compiling, half an hour of a core's time", file=sys.stderr, flush=True)
    run("cmake", "--build", out, "--target", "mtmd", "llama", "llama-common")
    names = ("common", "ggml/include", "include", "vendor", "tools/mtmd")
    archives = {path.name: path for path in out.rglob("lib*.a")}
    whole = [str(archives.pop(f"lib{name}.a")) for name in WHOLE]
    # in a list: nvcc hands options of the linker on before all files
    linked = ["--whole-archive", *whole, "--no-whole-archive", "--start-group", *archives.values()]
    run(
        "nvcc", "-std=c++17", "-O1", "-shared", "-Xcompiler", "-fPIC,-s", "-cudart", "static",
        *(f"-I{source / name}" for name in names), *made["OWN"],
        "-Xlinker", ",".join(map(str, [*linked, "--end-group"])),
        "-lcublas", "-lpthread", "-ldl", "-lm", "-o", folder / "libllama.so",
    )  # fmt: skip


# what a type is judged as: on CUDA, ggml and cuBLAS multiply float32 in TF32, whose mantissa is float16's
JUDGED = {"f32": "f16"}


def ask(library: Path, cases: list[dict]) -> int:
    from ingot.formats.gguf import libllama
    from ingot.parity import in_libllama, limits, reference
    from ingot.parity import texts as texts_of

    libllama.FILE, libllama.LAYERS = library, -1
    wrong = []
    for case in cases:
        gguf = Path(case["gguf"])
        dtype = JUDGED.get(case["dtype"], case["dtype"])
        computed = in_libllama.COMPUTED.get(dtype)
        expected = in_libllama.Expected(
            Path(case["reference"]), texts_of.read(Path(case["texts"])), Path(case["scores"]),
            limits.numbers(dtype, {}), computed, reference.TOLERANCE[computed] if computed else None,
        )  # fmt: skip
        begun = time.monotonic()
        try:
            found = in_libllama.ran(gguf, case["pre_tokenizer"], case["context"], expected)
            said = {key: found[key] for key in SHOWN if key in found}
            said |= {key: found["numbers"][key] for key in ("mean_kl", "limits")}
        except Refused as fault:
            said = {"why": str(fault)}
            wrong.append(said["why"])
        said = {"gguf": gguf.name, **said, "seconds": round(time.monotonic() - begun, 2)}
        print(json.dumps(said), flush=True)
    if wrong:
        print(wrong[0], file=sys.stderr)
    return int(bool(wrong))


def speed(library: Path, gguf: Path, prompt: int, generate: int) -> None:
    from ingot.formats.gguf import libllama

    libllama.FILE, libllama.LAYERS = library, -1
    from measure_speed import measure_speed

    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "speed.json"
        for _ in range(2):  # in the first a GPU loads its kernels, one by one
            measure_speed(gguf, prompt, generate, libllama.THREADS, result)
        print(json.dumps({"gguf": gguf.name, **json.loads(result.read_bytes())}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("build", help="a libllama.so for NVIDIA's GPUs")
    one.add_argument(
        "source", type=Path, help="llama_cpp_python's archive, or a folder of llama.cpp"
    )
    one.add_argument("folder", type=Path, help="to write libllama.so into")
    one.add_argument(
        "--architecture", default="native", help="of CUDA, such as 90 (default: native)"
    )
    one = verbs.add_parser("ask", help="what GGUF files give on a GPU")
    one.add_argument("library", type=Path, help="the libllama.so that was built")
    one.add_argument("cases", type=Path, help="a JSON list")
    one = verbs.add_parser("speed", help="tokens per second on a GPU")
    one.add_argument("library", type=Path, help="the libllama.so that was built")
    one.add_argument("gguf", type=Path)
    one.add_argument("--prompt", type=int, default=512, help="tokens (default: 512)")
    one.add_argument("--generate", type=int, default=128, help="tokens (default: 128)")
    asked = parser.parse_args()
    with one_line():
        return done(asked)


def done(asked: argparse.Namespace) -> int:
    if asked.verb != "build" and not asked.library.is_file():
        raise Refused(f"{asked.library}: missing, expected a libllama.so of `build`")
    if asked.verb == "speed":
        speed(asked.library.resolve(), asked.gguf, asked.prompt, asked.generate)
        return 0
    if asked.verb == "build":
        build(asked.source.resolve(), asked.folder.resolve(), asked.architecture)
        return 0
    if not asked.cases.is_file():
        raise Refused(f"{asked.cases}: missing, expected a JSON list of cases")
    cases = json_of(asked.cases, asked.cases.read_bytes(), [CASE])
    return ask(asked.library.resolve(), cases)


if __name__ == "__main__":
    sys.exit(main())
