"""Each merge rule on toys whose outcome is worked out by hand."""

import numpy as np
import pytest

from fedgraph_flwr.config import PartitionConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.merges import MERGES


def groups(*sizes):
    """Groups of consecutive ids of the given sizes."""
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


def merge(rule, sizes, num_clients, seed=0, **options):
    cfg = PartitionConfig(merge=rule, **options)
    return MERGES[rule](groups(*sizes), cfg, num_clients, np.random.default_rng(seed))


def sizes_of(clients):
    return [len(client) for client in clients]


def test_smallest_first_gives_large_groups_first():
    """5 and 4 open the clients; 3 joins the 4 (7), 2 joins the 5 (7), 1 joins the first of the equals (8)."""
    clients = merge("smallest_first", [1, 5, 2, 4, 3], 2)
    assert sizes_of(clients) == [8, 7]
    np.testing.assert_array_equal(np.sort(clients[0]), [0, 1, 2, 3, 4, 5, 6, 7])  # the groups of 1, 5 and 2


def test_ascending_gives_small_groups_first():
    """1 | 2 | then 3 joins the 1 (4), 4 joins the 2 (6), 5 joins the 4 (9): worse balance than largest first."""
    clients = merge("ascending", [1, 5, 2, 4, 3], 2)
    assert sizes_of(clients) == [9, 6]


def test_ascending_halves_the_largest_until_there_are_enough():
    """9 → 5 + 4; then 6 → 3 + 3; so 3, 3, 4, 5 for four clients."""
    assert sizes_of(merge("ascending", [9, 6], 4)) == [3, 3, 4, 5]
    assert sizes_of(merge("ascending", [7], 7)) == [1] * 7


def test_first_fit_cuts_then_packs_round_robin():
    """N 20, M 3, delta 1: share 6, cap 7. 15 → 7, 7, 1; with 3 and 2 by size: 7 | 7 | 3, then 2 and 1.

    Clients 0 and 1 hold at least the share; client 2 takes 2 (5), then 1 (6).
    """
    clients = merge("first_fit", [15, 2, 3], 3, delta=1)
    assert sizes_of(clients) == [7, 7, 6]
    np.testing.assert_array_equal(clients[0], np.arange(7))  # the first cap nodes of the group
    np.testing.assert_array_equal(clients[1], np.arange(7, 14))


def test_first_fit_keeps_its_pointer():
    """N 13, M 3, delta 0: share = cap = 4: the 5 → 4, 1; by size 4 | 2 | 2, then 2, 2, 1.

    2 to client 1 (4, pointer there), 2 to client 2 (4, pointer there), 1 fits nobody: to the smallest, the first of equals.
    """
    assert sizes_of(merge("first_fit", [5, 2, 2, 2, 2], 3, delta=0)) == [5, 4, 4]
    # delta 5: share 4, cap 9: 5 | 2 | 2, then 2 to client 1 (4) and, counting on from it, 2 to client 2 (4).
    clients = merge("first_fit", [5, 2, 2, 2, 2], 3, delta=5)
    assert sizes_of(clients) == [5, 4, 4]
    # share 3: 3 | 1 | 1 and six of 1. Client 1 fills up to 3 before client 2 gets one.
    clients = merge("first_fit", [3] + [1] * 6, 3, delta=5)
    np.testing.assert_array_equal(clients[1], [3, 5, 6])
    np.testing.assert_array_equal(clients[2], [4, 7, 8])


def test_first_fit_falls_back_to_the_smallest_client():
    """N 16, M 3: share = cap = 5. 5 | 4 | 4, then 3: above the cap everywhere, so it joins the first of the smallest."""
    assert sizes_of(merge("first_fit", [5, 4, 4, 3], 3, delta=0)) == [5, 7, 4]


def test_random_merge_keeps_large_groups_as_clients():
    sizes = [60, 10, 50, 49, 200, 3]
    clients = merge("random_merge", sizes, 99)
    assert len(clients) == 3  # those of 60, 50 and 200 nodes; num_clients does not count
    assert sum(sizes_of(clients)) == sum(sizes)
    for client, start, size in zip(clients, (0, 70, 169), (60, 50, 200), strict=True):
        np.testing.assert_array_equal(client[:size], np.arange(start, start + size))
    small = [np.arange(60, 70), np.arange(120, 169), np.arange(369, 372)]
    for group in small:  # whole, with one client
        assert sorted(np.isin(group, client).mean() for client in clients) == [0, 0, 1]


def test_random_merge_draws_the_client():
    first = {tuple(sizes_of(merge("random_merge", [50, 50, 50, 9, 9, 9, 9], 1, seed))) for seed in range(10)}
    assert len(first) > 3
    again = [sizes_of(merge("random_merge", [50, 50, 50, 9, 9, 9, 9], 1, 3)) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("rule", ["smallest_first", "first_fit", "none"])
def test_fewer_groups_than_clients_is_an_error(rule):
    with pytest.raises(FedGraphError, match=r"num_clients=4, but partition=louvain gives only 2 groups"):
        merge(rule, [3, 3], 4)


def test_none_wants_as_many_groups_as_clients():
    assert sizes_of(merge("none", [3, 1, 2], 3)) == [3, 1, 2]
    with pytest.raises(FedGraphError, match="gives 3 groups, num_clients=2: set num_clients=3"):
        merge("none", [3, 1, 2], 2)


def test_random_merge_needs_a_large_group():
    with pytest.raises(FedGraphError, match="min_size=50, but the largest of 2 groups has 7 nodes"):
        merge("random_merge", [7, 3], 1)
