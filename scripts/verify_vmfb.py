"""Run a compiled program and compare it with transformers.  Runs in envs/iree.

Each prompt is prefilled, then the reference's tokens are fed one by one: the token chosen at every
step must be the reference's, unless float16 cannot tell the reference's two best apart, and no
logit may be further off than the tolerance.  The prompts take turns through all exported batches.
"""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.entry import run
from ingot.refused import Refused
from ingot.terminal.console import stderr_to_log
from ingot.verify import verification

WINDOWS = 8  # of the corpus: on a CPU one takes a second even of the demo
RUNTIME = (RuntimeError, ValueError, IndexError, KeyError, NotImplementedError)  # as IREE raises
WEIGHTS = {"bfloat16": "bf16"}  # a program of float32 has those of float16


def verify_vmfb(
    vmfb: Path,
    config: Path,
    parameters: list[Path],
    reference: Path,
    texts: Path,
    scores: Path,
    device: str,
    record: Path,
) -> None:
    sha256 = verification.digest(vmfb)
    with stderr_to_log(f"{vmfb}: running the prompts"):
        import numpy as np

        from ingot.parity import divergence, limits
        from ingot.parity import texts as texts_of
        from ingot.parity.greedy import GreedyCheck
        from ingot.parity.reference import TOLERANCE, read

        answers = read(reference)
        program = Program(vmfb, json.loads(config.read_bytes()), parameters, device)
        check, largest = GreedyCheck(answers, program.dtype), 0.0
        for turn, answer in enumerate(answers):
            rows = program.logits(turn, answer.prompt, answer.tokens)
            if not np.isfinite(rows).all():
                length = len(answer.prompt)
                raise Refused(
                    f"{vmfb}: logits of a prompt of {length} tokens are not finite; see {config}"
                )
            largest = max(largest, float(np.abs(rows - answer.logits).max()))
            check.steps(answer, rows.argmax(axis=-1))
        limit, kind = TOLERANCE[program.dtype], WEIGHTS.get(program.dtype, "f16")
        if largest > limit * check.top:
            raise Refused(
                f"{vmfb}: a logit is off by {largest:.4f}, expected at most {limit * check.top:.4f}; is "
                "the rope scaling in the program?"
            )
        numbers = divergence.measure(vmfb, texts_of.read(texts), scores, program.prefilled, WINDOWS)
    verification.write(
        record,
        vmfb,
        sha256,
        "transformers in float32, greedy",
        {
            **check.checks(vmfb),
            "largest_logit_difference": round(largest, 6),
            "largest_logit": round(check.top, 6),
            "difference_limit": {"dtype": program.dtype, "share_of_largest_logit": limit},
            "numbers": divergence.held(vmfb, numbers, limits.numbers(kind, {}), "build it again"),
        },
        batches={"prefill": program.prefill_sizes, "decode": program.decode_sizes},
        parameters=[verification.digest(path) for path in parameters],
        versions=verification.versions("iree-base-runtime", "transformers", "torch"),
    )


@contextmanager
def refused_by_runtime(vmfb: Path) -> Iterator[None]:
    """What the runtime says of a program, in one line."""
    try:
        yield
    except RUNTIME as error:
        said = (str(error).splitlines() or [repr(error)])[0]
        raise Refused(
            f"{vmfb}: {said}, expected a program that runs on this device; build it again"
        ) from None


class Program:
    """A vmfb on its devices, called as the server calls it: paged KV cache, page 0 as scratch.

    A program for N devices takes N caches, one per rank; a CPU is as many devices as wanted.
    """

    def __init__(self, vmfb: Path, config: dict, parameters: list[Path], device: str):
        import iree.runtime as rt
        import numpy as np

        self.rt, self.np, self.vmfb = rt, np, vmfb
        cache = config["paged_kv_cache"]
        elements = cache["paged_kv_block_size_elements_per_device"]
        # With 8 ranks on local-task every prompt ends in hal.device.queue.alloca: ABORTED.
        several = device == "local-task" and len(elements) > 1
        instance, driver = rt.VmInstance(), rt.get_driver("local-sync" if several else device)
        if device == "local-task":
            devices = [driver.create_default_device() for _ in elements]
        else:
            devices = [driver.create_device(number) for number in range(len(elements))]
        self.device = devices[0]
        index = rt.ParameterIndex()
        for path in parameters[1:] or parameters:  # a set's root holds no tensor
            index.load(str(path))
        with refused_by_runtime(vmfb):
            self.module = rt.load_vm_modules(
                rt.create_io_parameters_module(instance, index.create_provider("model")),
                rt.create_hal_module(instance, devices=devices),
                rt.VmModule.mmap(instance, str(vmfb)),
                config=rt.Config(device=self.device),
            )[-1]
        self.stride, self.dtype = cache["block_seq_stride"], cache["kv_cache_dtype"]
        self.prefill_sizes = sorted(config["prefill_batch_sizes"])
        self.decode_sizes = sorted(config["decode_batch_sizes"])
        pages = -(-config["max_seq_len"] // self.stride) + 1
        self.pages = [
            rt.asdevicearray(one, np.zeros((pages, count), self.dtype))
            for one, count in zip(devices, elements, strict=True)
        ]

    def logits(self, turn: int, prompt: list[int], tokens: list[int]):
        """Float32 [len(tokens), vocab]: what each of `tokens` would be chosen from.

        `turn` picks the batch sizes; the request is in the first row, the others are idle.
        """
        np = self.np
        found = [self.prefilled(prompt, turn)[-1]]
        rows = self.decode_sizes[turn % len(self.decode_sizes)]
        for done, token in enumerate(tokens[:-1], len(prompt)):
            out = self.call(
                "decode",
                rows,
                self.column(rows, token, 0)[:, None],
                self.column(rows, done + 1, 1),
                self.column(rows, done, 0),
                self.block_ids(rows, -(-(done + 1) // self.stride)),
            )
            found.append(out[0, 0])
        return np.stack(found).astype(np.float32)

    def prefilled(self, prompt: list[int], turn: int = 0):
        """Float32 [len(prompt), vocab]: after each token of a prompt."""
        np = self.np
        blocks = -(-len(prompt) // self.stride)
        rows = self.prefill_sizes[turn % len(self.prefill_sizes)]
        text = np.zeros((rows, blocks * self.stride), np.int64)
        text[0, : len(prompt)] = prompt
        lengths = self.column(rows, len(prompt), 1)
        out = self.call("prefill", rows, text, lengths, self.block_ids(rows, blocks))
        return out[0, : len(prompt)].astype(np.float32)

    def call(self, kind: str, rows: int, *arguments):
        arrays = [self.rt.asdevicearray(self.device, array) for array in arguments]
        with refused_by_runtime(self.vmfb):
            return self.module[f"{kind}_bs{rows}"](*arrays, *self.pages).to_host()

    def column(self, rows: int, first: int, rest: int):
        return self.np.array([first] + [rest] * (rows - 1), self.np.int64)

    def block_ids(self, rows: int, blocks: int):
        ids = self.np.zeros((rows, blocks), self.np.int64)
        ids[0] = range(1, blocks + 1)
        return ids


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vmfb", type=Path, required=True, help="the program to run")
    parser.add_argument("--config", type=Path, required=True, help="the server's config")
    parser.add_argument("--parameters", type=Path, nargs="+", required=True, help="IRPA files")
    parser.add_argument("--reference", type=Path, required=True, help="by generate_reference.py")
    parser.add_argument("--texts", type=Path, required=True, help="by encode_texts.py")
    parser.add_argument("--scores", type=Path, required=True, help="by score_corpus.py")
    parser.add_argument("--device", required=True, help="local-task or hip")
    parser.add_argument("--record", type=Path, required=True, help="the record to write")
    verify_vmfb(**vars(parser.parse_args(argv)))


if __name__ == "__main__":
    run(main)
