"""Merge groups of nodes into clients: the second step of a partition, by the rule of each paper.

Every function takes the groups (at least one node each), the configuration, the number of clients M and a random
generator. It returns the clients' nodes. Groups of equal size keep their order, clients of equal size go by number.
"""

import heapq
from collections.abc import Callable, Iterable

import numpy as np

from fedgraph_flwr.config import PartitionConfig
from fedgraph_flwr.errors import FedGraphError, TooManyClients
from fedgraph_flwr.partition.groups import Groups


def smallest_first(groups: Groups, cfg: PartitionConfig, num_clients: int, rng: np.random.Generator) -> Groups:
    """Groups by size, largest first, each to the client that is the smallest so far (our reading of FedOMD)."""
    _enough(groups, cfg, num_clients)
    return _each_to_smallest(sorted(groups, key=len, reverse=True), num_clients)


def ascending(groups: Groups, cfg: PartitionConfig, num_clients: int, rng: np.random.Generator) -> Groups:
    """Groups by size, smallest first, each to the client with fewest nodes (FedSPA).

    While there are fewer groups than clients, the largest is split in two halves first.
    """
    groups = list(groups)
    while len(groups) < num_clients:
        largest = max(range(len(groups)), key=lambda index: len(groups[index]))
        middle = (len(groups[largest]) + 1) // 2
        groups.append(groups[largest][middle:])
        groups[largest] = groups[largest][:middle]
    return _each_to_smallest(sorted(groups, key=len), num_clients)


def first_fit(groups: Groups, cfg: PartitionConfig, num_clients: int, rng: np.random.Generator) -> Groups:
    """Groups cut at cap = ⌊N/M⌋ + ``delta`` nodes, then packed by first fit (FedStruct).

    A group above cap is split into its first cap nodes and the rest, which is another group. The M largest groups go to one
    client each. Each further group goes to the first client that holds less than ⌊N/M⌋ nodes and stays within cap, counted
    cyclically from the last receiver. If there is none, it goes to the smallest client.
    """
    share = sum(map(len, groups)) // num_clients
    cap = share + cfg.delta
    cut = [group[start : start + cap] for group in groups for start in range(0, len(group), cap)]
    _enough(cut, cfg, num_clients)
    cut.sort(key=len, reverse=True)
    members = [[group] for group in cut[:num_clients]]
    sizes = [len(group) for group in cut[:num_clients]]
    pointer = 0
    for group in cut[num_clients:]:
        fitting = (
            client
            for step in range(num_clients)
            if sizes[client := (pointer + step) % num_clients] < share and sizes[client] + len(group) <= cap
        )
        client = next(fitting, -1)
        if client < 0:
            client = int(np.argmin(sizes))
        else:
            pointer = client
        members[client].append(group)
        sizes[client] += len(group)
    return [np.concatenate(member) for member in members]


def random_merge(groups: Groups, cfg: PartitionConfig, num_clients: int, rng: np.random.Generator) -> Groups:
    """Each group of ``min_size`` nodes or more is a client; each smaller one joins a random client whole (FedHERO).

    This determines the number of clients; ``num_clients`` is ignored.
    """
    large = [[group] for group in groups if len(group) >= cfg.min_size]
    if not large:
        raise FedGraphError(
            f"partition.min_size={cfg.min_size}, but the largest of {len(groups)} groups has"
            f" {max(map(len, groups))} nodes: lower it"
        )
    for group in groups:
        if len(group) < cfg.min_size:
            large[rng.integers(len(large))].append(group)
    return [np.concatenate(member) for member in large]


def none(groups: Groups, cfg: PartitionConfig, num_clients: int, rng: np.random.Generator) -> Groups:
    """Each group is a client."""
    if len(groups) > num_clients:
        raise FedGraphError(
            f"partition={cfg.name} gives {len(groups)} groups, num_clients={num_clients}: set num_clients={len(groups)},"
            " or merge the groups with partition.merge=smallest_first"
        )
    _enough(groups, cfg, num_clients)
    return groups


MERGES: dict[str, Callable[[Groups, PartitionConfig, int, np.random.Generator], Groups]] = {
    "smallest_first": smallest_first,
    "ascending": ascending,
    "first_fit": first_fit,
    "random_merge": random_merge,
    "none": none,
}


def _each_to_smallest(groups: Iterable[np.ndarray], num_clients: int) -> Groups:
    members: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
    sizes = [(0, client) for client in range(num_clients)]  # a heap
    for group in groups:
        size, client = sizes[0]
        members[client].append(group)
        heapq.heapreplace(sizes, (size + len(group), client))
    return [np.concatenate(member) for member in members]


def _enough(groups: Groups, cfg: PartitionConfig, num_clients: int) -> None:
    if len(groups) < num_clients:
        raise TooManyClients(
            f"num_clients={num_clients}, but partition={cfg.name} gives only {len(groups)} groups of nodes:"
            " lower num_clients or use another partition",
            len(groups),
        )
