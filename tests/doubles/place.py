"""Put the stand-ins where a machine with a GPU has the real ones."""

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VERSIONS = {"tensorrt_llm": "1.2.1+standin", "tensorrt": "10.14.1.48"}


GPU = "GPU-0aaa, NVIDIA Stand-in 80GB, 9.0, 81559"


def toolchain(folder: Path, versions: dict[str, str] = VERSIONS, gpus: str = GPU) -> Path:
    """A prefix with bin/trtllm-build and bin/nvidia-smi; returns its bin, to be put on the PATH.

    The versions say that it is no real one: they are in the key, so that an engine of its making is
    never taken for a real engine.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name, version in versions.items():
        info = packages / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    program(folder, "trtllm-build", (HERE / "trtllm_build.py").read_text())
    program(folder, "nvidia-smi", f"print({gpus!r})\n")
    return folder / "bin"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / "bin" / name
    path.write_text(f"#!{folder}/bin/python\n{text}")
    path.chmod(0o755)


def backends(folder: Path, python: Path) -> Path:
    """Triton's backends: the real one for Python, and our stand-in as tensorrtllm."""
    ask = (
        "import pathlib, sys; from ingot.formats.tensorrt.triton.server import python_backend as p;"
    )
    ask += "p(pathlib.Path(sys.argv[1]))"
    environment = {"PYTHONPATH": str(HERE.parents[1] / "scripts")}
    subprocess.run([python, "-c", ask, folder], env=environment, check=True)
    shutil.copytree(HERE / "backends/tensorrtllm", folder / "tensorrtllm")
    shutil.copy(HERE / "llama.py", folder / "tensorrtllm")
    return folder


def llm_api(folder: Path, site_packages: Path) -> Path:
    """An interpreter that has the server's packages, and our stand-in for tensorrt_llm."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "triton.pth").write_text(f"{site_packages}\n")
    shutil.copytree(HERE / "tensorrt_llm", packages / "tensorrt_llm")
    shutil.copy(HERE / "llama.py", packages)
    return folder / "bin/python"
