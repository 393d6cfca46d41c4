"""What a simulation asks of its process."""

import os
import platform
import subprocess
import sys

import pytest

from tests.support import PATIENCE

FAULTS = """
import ctypes, resource
import torch
from fedgraph_flwr.engine.process import freed_memory_kept

def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        torch.ones(16 << 20)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / (64 << 20)

with freed_memory_kept():
    faults(16)  # until there is room for one among what is free
    kept = faults(8)
print(kept, faults(8), ctypes.CDLL(None).mallopt(-3, 1 << 30))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of glibc")
@pytest.mark.parametrize("own", [{}, {"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}])
def test_memory_that_a_tensor_left_is_the_next_ones(own):
    """Of eight tensors in turn few ask for pages; where malloc is the user's, all do. Afterwards the free ones are gone."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS],
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    kept, after, accepted = map(float, done.stdout.split())
    if not accepted:
        pytest.skip("this glibc maps every tensor of 64 MiB")
    assert after > 0.9
    assert kept > 7 if own else kept < 4
