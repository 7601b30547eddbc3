"""Convert one checkpoint by llama.cpp's own converter, to each dtype.  Runs in envs/iree.

    python oracle.py LLAMA_CPP CHECKPOINT OUT NAME PRE DTYPE...

The converter knows a tokenizer by a hash, and ours are in no table: PRE is what it shall find.
"""

import runpy
import sys

source, checkpoint, out, name, pre, *dtypes = sys.argv[1:]
sys.path[:0] = [source, f"{source}/gguf-py"]
import conversion.base  # noqa: E402

conversion.base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
for dtype in dtypes:
    sys.argv = ["convert_hf_to_gguf.py", checkpoint, "--outfile", f"{out}/{dtype}.gguf"]
    sys.argv += ["--outtype", dtype, "--model-name", name]
    runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")
