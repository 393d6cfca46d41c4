"""Process settings of a simulation, restored afterwards in the caller's process."""

import ctypes
import gc
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # names of glibc's malloc.h
_KEPT = (1 << 30, (1 << 31) - 1)
_USUAL = (32 << 20, 64 << 20)  # values that glibc adapts to with large arrays


@contextmanager
def same_process_state() -> Iterator[None]:
    """Restore random streams, thread count and garbage-collection thresholds after the block."""
    streams = (torch.get_rng_state(), np.random.get_state(), random.getstate())
    threads = torch.get_num_threads()
    habits = gc.get_threshold()
    try:
        yield
    finally:
        torch.set_rng_state(streams[0])
        np.random.set_state(streams[1])
        random.setstate(streams[2])
        torch.set_num_threads(threads)
        gc.set_threshold(*habits)


def reduce_gc() -> None:
    """Run full garbage collections ten times less often.

    With a thousand live clients they take a sixth of a round, spent on permanent objects.
    """
    gc.set_threshold(*gc.get_threshold()[:2], 100)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Apply `keep_freed_memory` during the block, then return free memory to the system."""
    keep_freed_memory()
    try:
        yield
    finally:
        if _set(*_USUAL):
            ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Keep up to 2 GiB of freed tensor memory for reuse instead of returning it to the system.

    With tens of megabytes of parameters, requesting pages again takes up to a third of a round.
    This applies to glibc only, and not if the environment configures its ``malloc``.
    """
    _set(*_KEPT)


def _set(mmap_threshold: int, trim_threshold: int) -> bool:
    if not (mallopt := _mallopt()):
        return False
    # maximum of older versions
    taken = mallopt(_MMAP_THRESHOLD, mmap_threshold) or mallopt(_MMAP_THRESHOLD, _USUAL[0])
    return bool(taken and mallopt(_TRIM_THRESHOLD, trim_threshold))


def _mallopt() -> Callable[[int, int], int] | None:
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return None
    try:
        mallopt: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # no C library, or one without mallopt
        return None
    return mallopt
