"""What vLLM says of a checkpoint: greedy tokens beside transformers', and its own count of its KV cache.

    python vllm_answers.py CHECKPOINT READING REFERENCE [--dtype D]     # by an interpreter of envs/vllm

Without a dtype it is float32, or bfloat16 where vLLM has no other kernel.  One JSON object on stdout, with
the plan's count beside; a line on stderr where vLLM cannot serve it.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_OMP_THREADS_BIND="nobind", HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from ingot.base.refused import Refused  # noqa: E402
from ingot.parity.greedy import GreedyCheck  # noqa: E402
from ingot.parity.reference import read  # noqa: E402
from ingot.serving.vllm import bundle, plan  # noqa: E402

LENGTH, HELD, AT_ONCE = 500, 64 << 20, 64  # tokens, no whole blocks; bytes of cache; tokens
GPU = 16  # GiB of one, enough for all that is asked
BF16 = "requires BF16"  # its kernels for linear attention on CPUs
SETTINGS = {
    "memory": 0, "arguments": ["--max-num-batched-tokens", str(AT_ONCE)], "max_model_len": LENGTH,
    "kv_cache_bytes": HELD,
}  # fmt: skip


def answers(checkpoint: Path, reading: Path, reference: Path, dtype: str) -> dict:
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    known = read(reference)
    shape = bundle.numbers(checkpoint / "config.json", 1, [reading])
    settings = SETTINGS | {"memory": 0 if current_platform.is_cpu() else GPU}
    planned = plan.planned(shape, settings, 1, dtype, "the plan")
    block = planned.cache.block if planned.cache and settings["memory"] else plan.BLOCK["cpu"]
    model = LLM(
        str(checkpoint), dtype=dtype, enforce_eager=True, max_model_len=LENGTH,
        max_num_seqs=4, max_num_batched_tokens=AT_ONCE, kv_cache_memory_bytes=HELD,
        distributed_executor_backend="uni", block_size=block,
    )  # fmt: skip
    told = model.llm_engine.vllm_config.cache_config.kv_cache_size_tokens
    found = {"dtype": dtype, "planned": planned.kv_tokens}
    found |= {"cache": planned.kv_tokens if planned.cache is None else told}
    asked = [
        SamplingParams(temperature=0, max_tokens=len(one.tokens), ignore_eos=True) for one in known
    ]
    prompts = [{"prompt_token_ids": list(one.prompt)} for one in known]
    check = GreedyCheck(known, dtype)
    try:
        for one, said in zip(known, model.generate(prompts, asked, use_tqdm=False), strict=True):
            check.tokens(one, list(said.outputs[0].token_ids))
        check.checks(checkpoint)
    except Refused as refused:
        found["why"] = str(refused)
    except Exception as error:
        if BF16 in str(error) and dtype == "float32":
            raise
        found["why"] = stopped(error)
    return found


def stopped(error: Exception) -> str:
    """Whatever a family runs into in vLLM, in a line."""
    return " ".join(f"vLLM stops ({type(error).__name__}: {error})".split())[:300]


if __name__ == "__main__":
    words = [Path(word) for word in sys.argv[1:4]]
    asked = sys.argv[5] if sys.argv[4:5] == ["--dtype"] else ""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                found = answers(*words, asked or "float32")
            except AssertionError as error:
                if BF16 not in str(error):
                    raise
                found = answers(*words, "bfloat16")
    except Exception as error:
        sys.exit(str(error) if isinstance(error, Refused) else stopped(error))
    print(json.dumps(found))
