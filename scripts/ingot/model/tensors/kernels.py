"""What envs/convert/kernels.c computes; toolchains that have none of it compute the same by numpy."""

import ctypes
import functools
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ingot.base import machine

NAME = "kernels.so"  # in a toolchain's folder
# of x86-64-v3, in Linux's names
INSTRUCTIONS = {*["avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm"]}
KINDS = {"*": ctypes.c_void_p, "n": ctypes.c_long}


def of(name: str, arguments: str) -> Callable[..., int] | None:
    """A function of the library that returns a number; None where there is none, or the processor is older.

    `arguments`: of each `*`, an array's place, or `n`, a number.  Other threads run meanwhile.
    """
    if not (library := _library(sys.prefix)):
        return None
    function = library[name]
    function.argtypes, function.restype = [KINDS[kind] for kind in arguments], ctypes.c_long
    return function


@functools.cache
def _library(prefix: str) -> ctypes.CDLL | None:
    path = Path(prefix, NAME)
    return ctypes.CDLL(str(path)) if path.exists() and _has_instructions() else None


def _has_instructions() -> bool:
    try:
        with machine.PROCESSOR.open() as lines:  # a paragraph a core, and machines have hundreds
            said = next((line for line in lines if line.startswith("flags")), "")
    except OSError:  # a chroot without /proc
        return False
    return {*said.split()} >= INSTRUCTIONS


def aligned(shape: tuple[int, ...], dtype: type, to: int = 32) -> np.ndarray:
    """Zeros that begin at a multiple of `to` bytes, as those must that are read as vectors."""
    count, size = math.prod(shape), np.dtype(dtype).itemsize
    room = np.zeros(count + to // size, dtype)
    first = -room.ctypes.data % to // size
    return room[first : first + count].reshape(shape)
