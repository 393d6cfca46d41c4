"""Batches of training nodes and sampled neighbours (``train.sampler``): which nodes, which neighbours, in memory that is reused.

An epoch deals the training nodes to ceil(V / ``train.batch_size``) batches of nearly equal size, by a permutation of its own.
Epochs continue over the rounds: step s of round t is step (t - 1) S + s of the client. Both the permutation and the draws are
functions of the seed, the client and the step, so a resumed run and every engine see the same batches.
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.blocks import BatchInputs, FeatureRows, GraphInputs, Neighbours, batch_inputs
from fedgraph_flwr.numerics.sampler import NeighbourSampler
from fedgraph_flwr.tasks import Batch
from fedgraph_flwr.wire.messages import derive_seed


def check_fanout(cfg: RunConfig, model: Model) -> None:
    """Refuse a model that reads whole graphs, and a fan-out of another length than its layers.

    Raises:
        FedGraphError: with what is accepted.
    """
    hops, fanout = model.sampled_hops, cfg.train.fanout
    if hops is None:
        norm = f" with model.norm={model.norm}" if getattr(model, "norm", "none") == "batch" else ""
        raise FedGraphError(
            f"train.sampler={cfg.train.sampler} does not support model={cfg.model.name}{norm}, which needs a whole graph in every"
            " step: set train.sampler=none, or a model such as sage or gcn"
        )
    if len(fanout) != hops:
        raise FedGraphError(
            f"train.fanout={fanout} has {len(fanout)} numbers, but model={cfg.model.name} with model.layers={cfg.model.layers}"
            f" reads neighbours in {hops} layers: set train.fanout to {hops} numbers, the first for neighbours of the batch"
        )


class NeighbourBatches:
    """Batches of one client.

    Args:
        cfg: the run's configuration.
        client: index of the client.
        model: its model.
        graph: the client's graph.
        inputs: the model's inputs of the whole graph.
        nodes: training nodes [V].
        y: their labels [V].

    Raises:
        FedGraphError: the model or the number of training nodes does not go with the configuration.
    """

    def __init__(
        self, cfg: RunConfig, client: int, model: Model, graph: ClientGraph, inputs: Any, nodes: Tensor, y: Tensor
    ):
        check_fanout(cfg, model)
        train, count = cfg.train, nodes.numel()
        if train.batch_size > count > 0:
            raise FedGraphError(
                f"train.batch_size={train.batch_size} is larger than the {count} training nodes of client {client}: set it to at"
                f" most {count}, or to 0 for all training nodes"
            )
        self.cfg, self.client, self.y = cfg, client, y
        self.nodes = nodes.cpu().numpy()
        self.device = nodes.device
        self.per_epoch = max(-(-count // train.batch_size), 1) if train.batch_size else 1
        self._dealt: tuple[int, list[NDArray[np.int64]]] = -1, []
        self.open(model, graph, inputs)

    def open(self, model: Model, graph: ClientGraph, inputs: Any) -> None:
        """Prepare what batches are drawn from."""
        dtype = torch.float64 if self.cfg.dtype == "float64" else torch.float32
        blockwise = isinstance(inputs, GraphInputs)
        self.neighbours = inputs.neighbours if blockwise else model.neighbours(graph, self.device, dtype)
        self.sampler = self.sampler_of(self.neighbours)
        self.rows = FeatureRows(inputs.x, self.device, dtype)

    def sampler_of(self, neighbours: Neighbours) -> NeighbourSampler:
        """Return what draws these neighbours."""
        train = self.cfg.train
        return NeighbourSampler(neighbours.indptr, neighbours.indices, train.fanout, stable=train.stable_draws)

    @property
    def steps(self) -> int:
        """Steps per round."""
        train = self.cfg.train
        return train.local_epochs * self.per_epoch or train.steps_of(self.client)

    def step(self, server_round: int, exchange: int, index: int) -> Batch:
        """Return the batch of a step; its features are valid until the next batch.

        Args:
            server_round: of the current message.
            exchange: number of earlier exchanges of the same phase in this round.
            index: of the step in this local training.
        """
        places, key = self.drawn(server_round, exchange, index)
        return Batch(self.around(self.nodes[places], key), None, self.y[torch.from_numpy(places).to(self.device)])

    def drawn(self, server_round: int, exchange: int, index: int) -> tuple[NDArray[np.int64], int]:
        """Return the places of a step's items among all training items, and the key of its draws."""
        epoch, part = divmod((max(server_round, 1) - 1) * self.steps + index, self.per_epoch)
        earlier = [exchange] if exchange else []
        key = derive_seed(self.cfg.seed, self.client, server_round, "sample", *earlier, index)
        return self._parts(epoch)[part], key

    def around(self, seeds: NDArray[np.int64], key: int, neighbours: Neighbours | None = None) -> BatchInputs:
        """Return the inputs of different nodes, valid until the next batch.

        Args:
            seeds: the nodes.
            key: of the draws.
            neighbours: the graph's edges in this step; None: all.
        """
        given, sampler = self.neighbours, self.sampler
        if neighbours is not None:
            given, sampler = neighbours, self.sampler_of(neighbours)
        block = sampler.sample(seeds, key)
        return batch_inputs(self.rows.take(block.nodes), given, block)

    def _parts(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, as places among the training nodes."""
        if self._dealt[0] != epoch:
            random = np.random.default_rng(derive_seed(self.cfg.seed, self.client, "epoch", epoch))
            self._dealt = epoch, np.array_split(random.permutation(len(self.nodes)), self.per_epoch)
        return self._dealt[1]


class TypedBatches(NeighbourBatches):
    """Batches of a client with typed nodes and edges: each hop draws up to the fan-out from each edge type."""

    def open(self, model: Any, graph: Any, inputs: Any) -> None:
        """Take the model, which holds the edges of its client by type."""
        self.model = model

    def step(self, server_round: int, exchange: int, index: int) -> Batch:
        """As of `NeighbourBatches`; nodes are ascending, as the model reads them."""
        places, key = self.drawn(server_round, exchange, index)
        places = np.sort(places)
        train = self.cfg.train
        inputs = self.model.sampled_inputs(self.nodes[places], train.fanout, key, train.stable_draws)
        return Batch(inputs, None, self.y[torch.from_numpy(places).to(self.device)])


class Owner(Protocol):
    """What this needs of a client."""

    cfg: RunConfig
    graph: ClientGraph
    model: Model
    inputs: Any
    train_nodes: Tensor
    batch: Batch


def of(client: Owner) -> NeighbourBatches | None:
    """Return the batches of a client; None without ``train.sampler``."""
    if client.cfg.train.sampler == "none":
        return None
    data = client.graph, client.inputs, client.train_nodes, client.batch.y
    kind = TypedBatches if client.model.heterogeneous else NeighbourBatches
    return kind(client.cfg, client.graph.client, client.model, *data)
