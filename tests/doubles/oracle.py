"""Convert checkpoints by llama.cpp's own converter, each to each dtype.  Runs in envs/iree.

    python oracle.py LLAMA_CPP NAME DTYPE... <<< '[[CHECKPOINT, OUT, PRE], ...]'

The converter knows a tokenizer by a hash, and ours are in no table: PRE is what it shall find.  What it
cannot convert leaves no file, and a line on stderr.
"""

import json
import runpy
import sys

source, name, *dtypes = sys.argv[1:]
sys.path[:0] = [source, f"{source}/gguf-py"]
for module in [one for one in sys.modules if one.partition(".")[0] == "gguf"]:
    del sys.modules[module]  # the toolchain's own, in a fork that has imported it
import conversion.base  # noqa: E402

for checkpoint, out, pre in json.load(sys.stdin):
    conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer, pre=pre: pre
    for dtype in dtypes:
        sys.argv = ["convert_hf_to_gguf.py", checkpoint, "--outfile", f"{out}/{dtype}.gguf"]
        sys.argv += ["--outtype", dtype, "--model-name", name]
        try:
            runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
        except Exception as error:
            print(f"{checkpoint} to {dtype}: {error!r}", file=sys.stderr)
