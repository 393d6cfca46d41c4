"""Who owns what, and what the clients hold: against sets of Python tuples."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import PartitionConfig, compose, group_names
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import assign, cut, pool

N, BLOCKS = 240, 6


def blocks(n=N, num_blocks=BLOCKS, seed=0, isolated=0):
    """A directed graph with dense blocks, loops, repeated and one-way edges, and isolated nodes at the end."""
    rng = np.random.default_rng(seed)
    group = np.arange(n) % num_blocks
    source, target = rng.integers(n - isolated, size=(2, 40 * n))
    kept = (group[source] == group[target]) | (rng.random(40 * n) < 0.05)
    edge_index = torch.from_numpy(np.stack([source[kept], target[kept]]))
    mask = torch.from_numpy(rng.integers(3, size=n))
    centre = rng.normal(size=(num_blocks, 5))
    return Graph(
        x=torch.from_numpy((centre[group] + 0.1 * rng.normal(size=(n, 5))).astype(np.float32)),
        edge_index=edge_index,
        y=torch.from_numpy(group % 3),
        train_mask=mask == 0,
        val_mask=mask == 1,
        test_mask=mask == 2,
        num_classes=3,
        name="blocks",
        group=torch.from_numpy(group),
    )


def config(name):
    return compose([f"partition={name}"]).partition


DISJOINT = {"louvain-fedhero": {"min_size": 20}, "louvain": {}, "metis": {}, "random": {}, "kmeans": {}, "planted": {}}
DISJOINT |= {"dirichlet": {"min_size": 1}}
DISJOINT |= {f"louvain-{paper}": {} for paper in ("fedomd", "fedomd-res20", "fedstruct", "fedspa")}


@pytest.mark.parametrize("name", DISJOINT)
def test_disjoint_covering_and_a_function_of_the_seed(name):
    graph, cfg = blocks(isolated=7), config(name)
    for key, value in DISJOINT[name].items():
        setattr(cfg, key, value)
    parts = assign(graph, cfg, BLOCKS, seed=3)
    assert torch.cat(parts).sort().values.tolist() == list(range(N))
    assert all(part.numel() and part.tolist() == sorted(part.tolist()) for part in parts)
    if cfg.merge != "random_merge":
        assert len(parts) == BLOCKS
    again = assign(graph, cfg, BLOCKS, seed=3)
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    if name in ("random", "metis", "louvain-fedhero", "dirichlet"):
        other = assign(graph, cfg, BLOCKS, seed=4)
        assert [p.tolist() for p in other] != [p.tolist() for p in parts]


def test_every_partitioner_has_a_file():
    assert set(group_names("partition")) >= DISJOINT.keys() | {"overlapping"}


def test_dirichlet_skews_labels_by_its_concentration():
    """Shares of a class have the mean 1 / M and the variance (M − 1) / (M² (M α + 1)), over many draws."""
    y = torch.arange(6000) % 6
    none = torch.zeros(6000, dtype=torch.bool)
    graph = Graph(torch.zeros(6000, 1), torch.zeros(2, 0, dtype=torch.int64), y, none, none, none, 6)
    for alpha in (0.1, 1.0, 100.0):
        shares = []
        for seed in range(20):
            cfg = PartitionConfig("dirichlet", merge="none", min_size=0, alpha=alpha)
            try:
                parts = assign(graph, cfg, 4, seed)
            except FedGraphError:
                continue
            shares += [torch.bincount(y[part], minlength=6) / 1000 for part in parts]
        counts = torch.stack(shares)
        assert counts.mean() == pytest.approx(0.25, abs=1e-3)
        assert counts.var() == pytest.approx(3 / (16 * (4 * alpha + 1)), rel=0.25)


def test_dirichlet_gives_every_client_its_nodes_or_says_why_not():
    cfg = config("dirichlet")
    cfg.alpha, cfg.min_size = 0.3, 12
    assert min(len(part) for part in assign(blocks(), cfg, BLOCKS, 0)) >= 12
    cfg.alpha, cfg.min_size = 1e-3, N // BLOCKS
    with pytest.raises(FedGraphError, match=r"give each of 6 clients 40 .* raise partition\.alpha=0\.001"):
        assign(blocks(), cfg, BLOCKS, 0)
    cfg.min_size = N
    with pytest.raises(FedGraphError, match="lower num_clients"):
        assign(blocks(), cfg, BLOCKS, 0)


@pytest.mark.parametrize("name", ["louvain-fedspa", "kmeans", "planted"])
def test_communities_and_clusters_find_the_blocks(name):
    """Dense, well separated blocks of equal size: every merge rule has to hand them out as they are."""
    graph = blocks()
    parts = assign(graph, config(name), BLOCKS, seed=0)
    groups = {frozenset(graph.group[part].tolist()) for part in parts}
    assert groups == {frozenset([g]) for g in range(BLOCKS)}


def test_direction_and_repetition_of_edges_do_not_matter():
    graph = blocks()
    both = blocks()
    both.edge_index = torch.cat([graph.edge_index, graph.edge_index.flip(0), graph.edge_index[:, :50]], dim=1)
    for name in ("louvain", "metis"):
        one, two = (assign(g, config(name), 4, seed=1) for g in (graph, both))
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("num_clients", [2, 5, 12])
def test_metis_is_balanced_and_cuts_little(num_clients):
    graph = blocks()
    parts = assign(graph, config("metis"), num_clients, seed=0)
    assert max(map(len, parts)) <= 1.1 * N / num_clients + 1
    drawn = assign(graph, config("random"), num_clients, seed=0)
    assert cut_edges(graph, parts) < 0.9 * cut_edges(graph, drawn)


def cut_edges(graph, parts):
    return sum(client.cut_out.size(1) for client in cut(graph, parts))


def test_isolated_nodes_stay_together_in_fedstruct():
    graph = blocks(isolated=9)
    parts = assign(graph, config("louvain-fedstruct"), 4, seed=0)
    holders = {i for i, part in enumerate(parts) if set(part.tolist()) & set(range(N - 9, N))}
    assert len(holders) == 1
    assert max(map(len, parts)) <= N // 4 + 20


def test_overlapping_draws_a_share_of_a_part():
    graph = blocks()
    cfg = PartitionConfig(name="overlapping", merge="none", overlap=0.5, clients_per_part=3)
    parts = assign(graph, cfg, 6, seed=0)
    base = assign(graph, config("metis"), 2, seed=0)
    for i, part in enumerate(parts):
        whole = set(base[i // 3].tolist())
        assert len(part) == len(set(part.tolist())) == len(whole) // 2
        assert set(part.tolist()) < whole
    assert parts[0].tolist() != parts[1].tolist()
    everyone = PartitionConfig(name="overlapping", merge="none", overlap=1.0, clients_per_part=1)
    assert [p.tolist() for p in assign(graph, everyone, 2, 0)] == [p.tolist() for p in base]


@pytest.mark.parametrize("shared", [False, True])
def test_cut_holds_every_edge_where_it_belongs(shared):
    """Against loops over tuples, with disjoint clients and with clients that share nodes and leave some out."""
    graph = blocks(n=40, num_blocks=3)
    rng = np.random.default_rng(1)
    if shared:
        parts = [torch.from_numpy(np.sort(rng.choice(40, 15, replace=False))) for _ in range(3)]
    else:
        parts = assign(graph, config("random"), 3, seed=0)
    clients = cut(graph, parts)
    edges = [tuple(e) for e in graph.edge_index.T.tolist()]
    owner = {v: min(i for i, p in enumerate(parts) if v in p) for v in range(40) if any(v in p for p in parts)}
    for i, (client, part) in enumerate(zip(clients, parts, strict=True)):
        nodes = part.tolist()
        assert client.node_id.tolist() == nodes
        assert (client.client, client.num_clients, client.num_global_nodes) == (i, 3, 40)
        for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(getattr(client, key), getattr(graph, key)[part])
        kept = client.node_id[client.edge_index].T.tolist()
        assert [tuple(e) for e in kept] == [e for e in edges if e[0] in nodes and e[1] in nodes]
        out = [
            (nodes[u], v, o) for u, v, o in zip(*client.cut_out.tolist(), client.cut_out_owner.tolist(), strict=True)
        ]
        assert out == [(u, v, owner[v]) for u, v in edges if u in nodes and v not in nodes and v in owner]
        into = [(nodes[v], u, o) for v, u, o in zip(*client.cut_in.tolist(), client.cut_in_owner.tolist(), strict=True)]
        assert into == [(v, u, owner[u]) for u, v in edges if v in nodes and u not in nodes and u in owner]


@pytest.mark.parametrize("name", ["louvain", "metis", "random"])
def test_kept_and_cut_edges_are_all_edges(name):
    graph = blocks()
    clients = cut(graph, assign(graph, config(name), 5, seed=0))
    kept = [tuple(e) for c in clients for e in c.node_id[c.edge_index].T.tolist()]
    leaving = [(int(c.node_id[u]), v) for c in clients for u, v in c.cut_out.T.tolist()]
    arriving = [(u, int(c.node_id[v])) for c in clients for v, u in c.cut_in.T.tolist()]
    assert Counter(kept + leaving) == Counter(map(tuple, graph.edge_index.T.tolist()))
    assert Counter(leaving) == Counter(arriving)


def test_pool_undoes_cut():
    graph = blocks()
    parts = assign(graph, config("random"), 5, seed=0)
    whole = pool(cut(graph, parts))
    for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
        assert torch.equal(getattr(whole, key), getattr(graph, key))
    assert Counter(map(tuple, whole.edge_index.T.tolist())) == Counter(map(tuple, graph.edge_index.T.tolist()))
    assert all(torch.equal((whole.part == i).nonzero().view(-1), part) for i, part in enumerate(parts))
    assert (whole.client, whole.num_clients) == (0, 1)


def test_pool_of_clients_that_share_nodes_has_each_node_and_edge_once():
    graph = blocks()
    graph.edge_index = torch.unique(graph.edge_index, dim=1)
    cfg = PartitionConfig(name="overlapping", merge="none", overlap=0.5, clients_per_part=3)
    parts = assign(graph, cfg, 6, seed=0)
    whole = pool(cut(graph, parts))
    held = sorted(set(torch.cat(parts).tolist()))
    assert whole.node_id.tolist() == held
    expected = {(u, v) for u, v in graph.edge_index.T.tolist() if u in set(held) and v in set(held)}
    assert sorted(expected) == sorted(map(tuple, whole.node_id[whole.edge_index].T.tolist()))
    assert whole.part.tolist() == [min(i for i, p in enumerate(parts) if v in p) for v in held]


def test_pool_puts_clients_that_know_no_other_side_by_side():
    alone = [blocks(n=24, num_blocks=2, seed=seed) for seed in (0, 1)]
    clients = [replace(cut(graph, [torch.arange(24)])[0], client=i) for i, graph in enumerate(alone)]
    whole = pool(clients)
    assert whole.num_nodes == 48
    assert whole.part.tolist() == [0] * 24 + [1] * 24
    assert torch.equal(whole.x, torch.cat([alone[0].x, alone[1].x]))
    expected = torch.cat([alone[0].edge_index, alone[1].edge_index + 24], dim=1)
    assert Counter(map(tuple, whole.edge_index.T.tolist())) == Counter(map(tuple, expected.T.tolist()))


@pytest.mark.parametrize(
    ("changes", "num_clients", "sentence"),
    [
        ({"name": "metiss"}, 3, "did you mean 'metis'"),
        ({"name": "metis", "merge": "none"}, 41, "num_clients=41 exceeds the 40 nodes of 'blocks'"),
        ({"name": "overlapping", "merge": "none"}, 4, r"overlap must be in \(0, 1\]"),
        ({"name": "overlapping", "merge": "none", "overlap": 0.5, "clients_per_part": 3}, 4, "is not a multiple of"),
        ({"name": "planted", "merge": "none"}, 4, "gives 3 groups, num_clients=4|gives only 3 groups"),
        ({"name": "louvain", "merge": "smallest_first"}, 39, r"gives only \d+ groups"),
    ],
)
def test_wrong_input_is_one_sentence(changes, num_clients, sentence):
    with pytest.raises(FedGraphError, match=sentence):
        assign(blocks(n=40, num_blocks=3), PartitionConfig(**changes), num_clients, seed=0)


def test_planted_needs_groups():
    graph = blocks()
    graph.group = torch.zeros(0, dtype=torch.int64)
    with pytest.raises(FedGraphError, match="'blocks' does not"):
        assign(graph, config("planted"), 3, seed=0)


def test_every_seed_is_another_metis():
    """Its own generator takes 0 and 1 for the same seed."""
    rng = torch.Generator().manual_seed(0)
    graph = blocks()
    graph.edge_index = torch.randint(N, (2, 4 * N), generator=rng)
    drawn = {str([part.tolist() for part in assign(graph, config("metis"), 3, seed=seed)]) for seed in range(6)}
    assert len(drawn) == 6
