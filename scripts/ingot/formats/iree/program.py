"""A compiled program, run by the IREE runtime on the devices that it is for."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingot.base.refused import Refused

RUNTIME = (RuntimeError, ValueError, IndexError, KeyError, NotImplementedError)  # as IREE raises


@contextmanager
def refused_by_runtime(vmfb: Path) -> Iterator[None]:
    """What the runtime says of a program, in one line."""
    try:
        yield
    except RUNTIME as error:
        said = (str(error).splitlines() or [repr(error)])[0]
        raise Refused(f"{vmfb}: {said}, expected a program that runs on this device") from None


class Program:
    """A vmfb on its devices, called as the server calls it: paged KV cache, page 0 as scratch.

    A program for N devices takes N caches, one per rank; a CPU is as many devices as wanted.
    `config` is the server's, `device` a driver of the runtime: local-task, cuda, hip.
    """

    def __init__(self, vmfb: Path, config: dict, parameters: list[Path], device: str):
        import iree.runtime as rt
        import numpy as np

        self.rt, self.np, self.vmfb = rt, np, vmfb
        cache = config["paged_kv_cache"]
        elements = cache["paged_kv_block_size_elements_per_device"]
        instance = rt.VmInstance()
        with refused_by_runtime(vmfb):
            devices = self.devices(device, len(elements))
        self.device = devices[0]
        index = rt.ParameterIndex()
        for path in parameters[1:] or parameters:  # a set's root holds no tensor
            index.load(str(path))
        with refused_by_runtime(vmfb):
            self.module = rt.load_vm_modules(
                rt.create_io_parameters_module(instance, index.create_provider("model")),
                rt.create_hal_module(instance, devices=devices),
                # rt.VmModule.mmap opens for writing, which a file of the store forbids
                rt.VmModule.copy_buffer(instance, vmfb.read_bytes()),
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

    def devices(self, driver: str, ranks: int) -> list:
        """One per rank: a CPU is as many as wanted.  Refused: fewer GPUs than ranks."""
        if driver == "local-task":
            # With 8 ranks on local-task every prompt ends in hal.device.queue.alloca: ABORTED.
            found = self.rt.get_driver("local-sync" if ranks > 1 else driver)
            return [found.create_default_device() for _ in range(ranks)]
        found = self.rt.get_driver(driver)
        known = [one["device_id"] for one in found.query_available_devices()]
        # two ranks on one H100 wait for each other without end in the first call
        if len(known) < ranks:
            raise Refused(
                f"{self.vmfb}: {driver} finds {len(known)} of {ranks} devices, expected all; name "
                "another device, or run where there are as many"
            )
        return [found.create_device(one) for one in known[:ranks]]

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
