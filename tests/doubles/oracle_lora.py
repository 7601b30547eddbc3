"""Convert an adapter by llama.cpp's own converter.  Runs in envs/iree.

    python oracle_lora.py LLAMA_CPP ARCHIVE NAME BASE ADAPTER OUT

The script is taken from ARCHIVE, the source that LLAMA_CPP was built of; the adapter has no model card.
"""

import runpy
import sys
import tarfile
from pathlib import Path

source, archive, name, base, adapter, out = sys.argv[1:]
sys.path[:0] = [source, f"{source}/gguf-py"]
for module in [one for one in sys.modules if one.partition(".")[0] == "gguf"]:
    del sys.modules[module]  # the toolchain's own, in a fork that has imported it
import gguf  # noqa: E402

with tarfile.open(archive) as package:
    found = next(one for one in package.getnames() if one.endswith("/convert_lora_to_gguf.py"))
    script = Path(f"{out}.py")
    script.write_bytes(package.extractfile(found).read())
gguf.Metadata.load = staticmethod(lambda *words, **more: gguf.Metadata(name=name))
sys.argv = [str(script), "--base", base, "--outfile", out, adapter]
runpy.run_path(str(script), run_name="__main__")
