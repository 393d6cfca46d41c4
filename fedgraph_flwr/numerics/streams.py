"""Random bits for dropout masks, from this process's stream or, for stacked clients, from each client's stream."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedgraph_flwr.wire.messages import derive_seed


class Streams:
    """Random streams of stacked clients.

    Args:
        states: generator state per client, which draws advance.
        sizes: N_i, the nodes per client; further rows are padding.
        device: the generator's device.
    """

    def __init__(self, states: list[Tensor], sizes: Sequence[int], device: torch.device):
        self.states, self.sizes, self.generator = states, sizes, generators(device)[-1]

    def bits(self, like: Tensor) -> Tensor:
        """Draw 16 random bits per entry, as `random_bits` does for each client: int16, shape of ``like`` [M, N, ...]."""
        made = torch.zeros(like.shape, dtype=torch.int16, device=like.device)
        for index, size in enumerate(self.sizes):
            part = made[index, :size]
            self.generator.set_state(self.states[index])
            part.copy_(random_bits(part))
            self.states[index] = self.generator.get_state()
        return made


def generators(device: torch.device) -> list[torch.Generator]:
    """Return the generators that a client on this device draws from; the last one is the device's."""
    if device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    return [torch.default_generator, torch.cuda.default_generators[device.index or torch.cuda.current_device()]]


def reseed(seed: int, device: torch.device | None = None) -> None:
    """Seed the generators of the CPU and of ``device``, or of all GPUs, as ``torch.manual_seed`` does.

    That function also stores a stack trace per missing accelerator, which takes up to a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device is None:
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
    elif device.type == "cuda":
        torch.cuda.manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the generators as `reseed` does; afterwards that of the CPU, and of a GPU ``device``, is as it was before."""
    with torch.random.fork_rng(devices=[device] if device and device.type == "cuda" else []):
        reseed(seed)
        yield


def own_stream(*parts: int | str) -> torch.Generator:
    """Return a generator for these parts of a seed (`derive_seed`), on the CPU."""
    return torch.Generator().manual_seed(derive_seed(*parts))


def random_bits(like: Tensor) -> Tensor:
    """Draw 16 random bits per entry: int16, shape of ``like``."""
    drawn = torch.empty((like.numel() + 3) // 4, dtype=torch.int64, device=like.device).random_(-(2**63), None)
    return drawn.view(torch.int16)[: like.numel()].view(like.shape)


_streams: Streams | None = None


@contextmanager
def drawing(streams: Streams) -> Iterator[None]:
    """Let dropout draw from each client's own stream."""
    global _streams
    _streams = streams
    try:
        yield
    finally:
        _streams = None


def bits(like: Tensor) -> Tensor:
    """Draw 16 random bits per entry: int16, shape of ``like``; for stacks [M, N, ...] and under vmap, per client."""
    return random_bits(like) if _streams is None else _EachBits.apply(like, _streams)


class UnderVmap(torch.autograd.Function):
    """Base of functions without a gradient that have a rule for torch's vmap."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep nothing."""


class _EachBits(UnderVmap):
    @staticmethod
    def forward(like: Tensor, streams: Streams) -> Tensor:
        return streams.bits(like)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], like: Tensor, streams: Streams) -> tuple[Tensor, int]:
        return streams.bits(batch_first(info, in_dims[0], like)), 0


def batch_first(info: Any, dim: int | None, tensor: Tensor) -> Tensor:
    """Return an argument of a vmap rule with the batch dimension first."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
