"""Batches of training nodes and sampled neighbours (``train.sampler``): which nodes, which neighbours, in memory that is reused.

An epoch deals the training nodes to ceil(V / ``train.batch_size``) batches of nearly equal size, by a permutation of its own.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.clients.combinations import check_batches
from fedgraph_flwr.clients.epochs import Epochs, Places, refuse_above
from fedgraph_flwr.clients.subgraph_batches import ClusterBatches, EdgeClusterBatches, SaintBatches
from fedgraph_flwr.numerics.blocks import BatchInputs, FeatureRows, GraphInputs, Neighbours, batch_inputs
from fedgraph_flwr.numerics.sampler import NeighbourSampler
from fedgraph_flwr.tasks import Batch
from fedgraph_flwr.tasks.edges import Edges

AHEAD = 1 << 22
"""Bytes of a batch's features from which a thread makes the next batch; smaller ones take less time than they would wait."""


def in_order(make: Callable[[int], Batch], steps: int, ahead: bool) -> Iterator[Batch]:
    """Yield the batch of each step; a thread makes big ones while the step before trains, since kernels release Python's lock.

    Batches are the same either way. An error is raised at its own step, and the thread ends with the iterator.

    Args:
        make: index of a step → its batch, valid until the next but one is made.
        steps: number of steps.
        ahead: whether a thread may make batches.
    """
    if not steps:
        return
    batch = make(0)
    features = getattr(batch.inputs, "x", None)
    if not (ahead and isinstance(features, Tensor) and features.nbytes >= AHEAD):
        yield batch
        yield from map(make, range(1, steps))
        return
    with ThreadPoolExecutor(1, "batches") as pool:
        for index in range(1, steps):
            following = pool.submit(make, index)
            yield batch
            batch = following.result()
        yield batch


class NeighbourBatches(Epochs):
    """Batches of one client.

    Args:
        client: with its model, its inputs of the whole graph, and its training nodes [V].

    Raises:
        FedGraphError: there are fewer training nodes than a batch has.
    """

    def __init__(self, client: Any):
        train, count = client.cfg.train, client.num_train
        if count:
            who = f"training nodes of client {client.graph.client}"
            refuse_above("train.batch_size", train.batch_size, count, who)
        per_epoch = max(-(-count // train.batch_size), 1) if train.batch_size else 1
        super().__init__(client.cfg, client.graph.client, per_epoch)
        self.nodes, self.y, self.device = client.train_nodes.cpu().numpy(), client.batch.y, client.device
        self.open(client)

    def open(self, client: Any) -> None:
        """Prepare what batches are drawn from."""
        inputs, dtype = client.inputs, client.dtype
        whole = None if isinstance(inputs, GraphInputs) else client.model.neighbours(client.graph, self.device, dtype)
        self.neighbours = inputs.neighbours if whole is None else whole
        self.sampler = self.sampler_of(self.neighbours)
        self.rows = FeatureRows(inputs.x, self.device, dtype, buffers=2)  # one is read while the next is filled

    def sampler_of(self, neighbours: Neighbours) -> NeighbourSampler:
        """Return what draws these neighbours."""
        train = self.cfg.train
        given: dict[str, Any] = {
            "stable": train.stable_draws,
            "back": neighbours.back,
            "fanout_back": train.fanout_back,
        }
        return NeighbourSampler(neighbours.indptr, neighbours.indices, train.fanout, **given)

    def deal(self, random: np.random.Generator) -> Places:
        """Return the training nodes of each batch, as places among all training nodes."""
        return np.array_split(random.permutation(len(self.nodes)), self.per_epoch)

    def step(self, server_round: int, exchange: int, index: int) -> Batch:
        """Return the batch of a step, by the arguments of `key`; its features are valid until the next batch but one."""
        places, key = self.drawn(server_round, exchange, index)
        return Batch(self.around(self.nodes[places], key), None, self.y[torch.from_numpy(places).to(self.device)])

    def around(self, seeds: NDArray[np.int64], key: int, neighbours: Neighbours | None = None) -> BatchInputs:
        """Return the inputs of different nodes, valid until the next batch but one.

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


class TypedBatches(NeighbourBatches):
    """Batches of a client with typed nodes and edges: each hop draws up to the fan-out from each edge type."""

    def open(self, client: Any) -> None:
        """Take the model, which holds the edges of its client by type."""
        self.model: Any = client.model

    def step(self, server_round: int, exchange: int, index: int) -> Batch:
        """As of `NeighbourBatches`; nodes are ascending, as the model reads them."""
        places, key = self.drawn(server_round, exchange, index)
        places = np.sort(places)
        train = self.cfg.train
        inputs = self.model.sampled_inputs(self.nodes[places], train.fanout, key, train.stable_draws)
        return Batch(inputs, None, self.y[torch.from_numpy(places).to(self.device)])


def of(client: Any) -> NeighbourBatches | ClusterBatches | SaintBatches | None:
    """Return the batches of a client; None without ``train.sampler``."""
    sampler = client.cfg.train.sampler
    if sampler == "none":
        return None
    check_batches(client.cfg, client.model)
    if sampler == "clusters":
        return EdgeClusterBatches(client) if isinstance(client.task, Edges) else ClusterBatches(client)
    if sampler == "saint":
        return SaintBatches(client)
    return TypedBatches(client) if client.model.capabilities.heterogeneous else NeighbourBatches(client)
