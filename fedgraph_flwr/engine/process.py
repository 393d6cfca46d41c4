"""What a simulation asks of the processes that it runs in, and that the caller's has back afterwards."""

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
_USUAL = (32 << 20, 64 << 20)  # which glibc comes to by itself, given large arrays


@contextmanager
def same_process_state() -> Iterator[None]:
    """Random streams, the thread count and the collector's habits are the caller's again, afterwards."""
    streams, threads = (torch.get_rng_state(), np.random.get_state(), random.getstate()), torch.get_num_threads()
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
    """Let Python look through all objects for cycles a tenth as often, young ones as ever.

    With a thousand clients alive that is a sixth of a round, spent on objects that stay.
    """
    gc.set_threshold(*gc.get_threshold()[:2], 100)


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """`keep_freed_memory`; afterwards what is free goes back."""
    keep_freed_memory()
    try:
        yield
    finally:
        if _set(*_USUAL):
            ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Let what one tensor leaves be the next one's, up to 2 GiB of it, instead of going back to the system page by page.

    Where parameters take tens of megabytes, asking for the pages anew is up to a third of a round. Of glibc, unless the
    environment says how its ``malloc`` is to work; another C library does as it did.
    """
    _set(*_KEPT)


def _set(mmap_threshold: int, trim_threshold: int) -> bool:
    if not (mallopt := _mallopt()):
        return False
    taken = mallopt(_MMAP_THRESHOLD, mmap_threshold) or mallopt(_MMAP_THRESHOLD, _USUAL[0])  # an older one's highest
    return bool(taken and mallopt(_TRIM_THRESHOLD, trim_threshold))


def _mallopt() -> Callable[[int, int], int] | None:
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    try:
        found: Callable[[int, int], int] = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # no C library to be had, or one without it
        return None
    return found
