"""Epochs of batches of one client (``train.sampler``): which batch a step takes, and from which stream it draws.

Epochs continue over the rounds: step s of round t is step (t - 1) S + s of the client. Everything that is drawn is a function of
the seed, the client and the step, so a resumed run and every engine see the same batches.
"""

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.blocks import BatchInputs, Neighbours
from fedgraph_flwr.wire.messages import derive_seed

Places = list[NDArray[np.int64]]


def refuse_above(key: str, value: int, most: int, what: str) -> None:
    """Refuse a key's value above ``most``, the number of ``what``."""
    if value > most:
        raise FedGraphError(f"{key}={value} is more than the {most} {what}: set it to at most {most}")


class Epochs:
    """Steps of one client.

    Args:
        cfg: the run's configuration.
        client: index of the client.
        per_epoch: number of batches of an epoch, at least 1.
    """

    def __init__(self, cfg: RunConfig, client: int, per_epoch: int):
        self.cfg, self.client, self.per_epoch = cfg, client, per_epoch
        self._dealt: tuple[int, Places] = -1, []

    def deal(self, random: np.random.Generator) -> Places:
        """Return what each batch of an epoch takes."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Steps per round."""
        train = self.cfg.train
        return train.local_epochs * self.per_epoch or train.steps_of(self.client)

    def part(self, server_round: int, index: int) -> NDArray[np.int64]:
        """Return what `deal` gave the batch of a step of a round's local training."""
        epoch, place = divmod((max(server_round, 1) - 1) * self.steps + index, self.per_epoch)
        if self._dealt[0] != epoch:
            random = np.random.default_rng(derive_seed(self.cfg.own_seed, self.client, "epoch", epoch))
            self._dealt = epoch, self.deal(random)
        return self._dealt[1][place]

    def key(self, server_round: int, exchange: int, index: int) -> int:
        """Return the key of a step's draws, below 2^64.

        Args:
            server_round: of the current message.
            exchange: number of earlier exchanges of the same phase in this round.
            index: of the step in this local training.
        """
        earlier = [exchange] if exchange else []
        return derive_seed(self.cfg.own_seed, self.client, server_round, "sample", *earlier, index)

    def drawn(self, server_round: int, exchange: int, index: int) -> tuple[NDArray[np.int64], int]:
        """Return what a step's batch takes, with ``neighbors`` the places of its items among all training items, and its key."""
        return self.part(server_round, index), self.key(server_round, exchange, index)

    def around(self, seeds: NDArray[np.int64], key: int, neighbours: Neighbours | None = None) -> BatchInputs:
        """Return the inputs of different nodes with sampled neighbours; only ``neighbors`` samples around given nodes."""
        raise NotImplementedError
