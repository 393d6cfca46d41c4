"""Random bits for masks: of this process's stream, or, where clients are computed together, of each client's own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Streams:
    """The random stream of each client, and how many of the padded rows are its nodes.

    Args:
        states: of each client's generator, which draws move on.
        sizes: N_i of each.
        device: whose generator the states are of.
    """

    def __init__(self, states: list[Tensor], sizes: Sequence[int], device: torch.device):
        self.states, self.sizes, self.generator = states, sizes, generators(device)[-1]

    def bits(self, like: Tensor) -> Tensor:
        """16 random bits an entry as `words` draws them for each client alone: int16 in the shape of ``like`` [M, N, ...]."""
        made = torch.zeros(like.shape, dtype=torch.int16, device=like.device)
        for index, size in enumerate(self.sizes):
            part = made[index, :size]
            self.generator.set_state(self.states[index])
            part.copy_(random_bits(part))
            self.states[index] = self.generator.get_state()
        return made


def generators(device: torch.device) -> list[torch.Generator]:
    """Those that draws of a client on a device take by themselves; the device's own is the last."""
    if device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    return [torch.default_generator, torch.cuda.default_generators[device.index or torch.cuda.current_device()]]


def reseed(seed: int, device: torch.device) -> None:
    """As ``torch.manual_seed``, which beside this formats, and keeps, a stack trace an accelerator that is not there."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def random_bits(like: Tensor) -> Tensor:
    """16 random bits an entry, int16, in the shape of ``like``."""
    words = torch.empty((like.numel() + 3) // 4, dtype=torch.int64, device=like.device).random_(-(2**63), None)
    return words.view(torch.int16)[: like.numel()].view(like.shape)


_streams: Streams | None = None


@contextmanager
def drawing(streams: Streams) -> Iterator[None]:
    """Within, dropout draws from each client's own stream."""
    global _streams
    _streams = streams
    try:
        yield
    finally:
        _streams = None


def bits(like: Tensor) -> Tensor:
    """16 random bits an entry, int16, in the shape of ``like``; of a stack [M, N, ...], or under vmap, each client's own."""
    return random_bits(like) if _streams is None else _EachBits.apply(like, _streams)


class _EachBits(torch.autograd.Function):
    @staticmethod
    def forward(like: Tensor, streams: Streams) -> Tensor:
        return streams.bits(like)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], like: Tensor, streams: Streams) -> tuple[Tensor, int]:
        return streams.bits(batch_first(info, in_dims[0], like)), 0


def batch_first(info: Any, dim: int | None, tensor: Tensor) -> Tensor:
    """What a rule for vmap is given, with the batch in front."""
    return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
