"""What onnxruntime-genai holds at most, in bytes, of a prompt and a few tokens.

python genai_memory.py FOLDER TOKENS          in envs/genai
"""

import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime_genai

folder, count = sys.argv[1], int(sys.argv[2])
model = onnxruntime_genai.Model(folder)
asked = onnxruntime_genai.GeneratorParams(model)
asked.set_search_options(do_sample=False, min_length=4096, max_length=4096)
generator = onnxruntime_genai.Generator(model, asked)
generator.append_tokens(np.arange(count, dtype=np.int32) % 256)
for _ in range(4):
    generator.generate_next_token()
print(1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]))
