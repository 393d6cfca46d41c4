"""Histograms of boosting: what a server that chooses edges and growing trees reads of single rows."""

from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.boosting import BoostingClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import boosting
from fedgraph_flwr.methods.boosting import UNIT
from fedgraph_flwr.methods.cells import Cells
from fedgraph_flwr.numerics.forest import constants
from fedgraph_flwr.secure.policy import Policy
from tests.conftest import client_graph

HISTOGRAM = ["strategy=boosting", "strategy.mode=histogram", "num_clients=3", "privacy.secagg=true", "dtype=float64"]
FLOOR = 5


def node(client: int, floor: int = FLOOR, size: int = 300, missing: float = 0.0) -> BoostingClient:
    """A party's node with an own policy; its model starts at the base rate 0."""
    graph = client_graph(client, size)
    graph.x = graph.x.double()
    graph.x[torch.rand(graph.x.shape, generator=torch.Generator().manual_seed(client)) < missing] = torch.nan
    made = BoostingClient(compose(HISTOGRAM), graph)
    made.policy = Policy(min_nodes=floor)
    made.receive({"base": {"score": np.zeros(3)}})
    return made


def edges_of_server(clients: list[BoostingClient]) -> Any:
    """An edge between all neighbouring pairs of pooled values, as far as a message may hold them."""
    pooled = np.concatenate([client.x[client.rows] for client in clients])
    return [np.unique(np.quantile(column[~np.isnan(column)], np.linspace(0, 1, 255)))[:-1] for column in pooled.T]


def tree_of_one(edges: Any, row: np.ndarray, columns: list[int]) -> Any:
    """A growing tree that splits off all rows but those in one row's bins, and the node where these are."""
    forest = constants(np.zeros(3))
    nodes: dict[str, list[Any]] = {
        name: [] for name in ("feature", "threshold", "left", "right", "default_left", "value")
    }

    def add(feature: int, threshold: float, left: int, right: int) -> None:
        for name, value in zip(nodes, (feature, threshold, left, right, False, 0.0), strict=True):
            nodes[name].append(value)

    place = 0
    for column in columns:
        at = int(np.searchsorted(edges[column], row[column]))
        for edge, inside_left in ((at, True), (at - 1, False)):
            if 0 <= edge < len(edges[column]):
                add(column, edges[column][edge], place + 1, place + 2)
                if inside_left:  # the rows inside come last, so that the tree grows from its last node
                    nodes["left"][-1], nodes["right"][-1] = place + 2, place + 1
                add(-1, 0.0, 0, 0)
                place += 2
    add(-1, 0.0, 0, 0)
    size = len(nodes["feature"])
    for name, values in nodes.items():
        forest[name] = np.concatenate([np.array(values, forest[name].dtype), forest[name][1:]])
    forest["start"] = np.array([0, size, size + 1], np.int32)
    return forest, place


def request(forest: Any, number: int) -> Any:
    return {"forest": forest, "nodes": {"tree": np.zeros(1, np.int32), "node": np.array([number], np.int32)}}


def rows_read(clients: list[BoostingClient], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Return how many training rows a server reads alone in the sum of a node, with the class, and how many it tried."""
    edges = edges_of_server(clients)
    for client in clients:
        client.receive({"bins": boosting.packed_edges(edges)})
    read, targets = 0, [(client, row) for client in clients for row in client.rows[:5]]
    for client, row in targets:
        forest, number = tree_of_one(edges, client.x[row], [0, 1, 2])
        for member in clients:
            member.begin_histograms()  # each target has a round of its own
        total = sum(member.grow(request(forest, number), {})[0]["histogram"]["sums"] for member in clients) * UNIT
        bins = np.flatnonzero(total[0, :, 2].round() == 1)
        value = boosting.binned(client.x[row][None], edges)[0]
        offsets = np.cumsum([0, *(len(cuts) + 2 for cuts in edges)])[:-1]
        read += bins.tolist() == (offsets + value).tolist()
    return read, len(targets)


def test_growing_trees_isolate_no_row(monkeypatch):
    """Without the floor, each row that three columns isolate is read with all of its bins and its class."""
    monkeypatch.setattr(BoostingClient, "check_policy", lambda self: None)
    read, tried = rows_read([node(c, floor=0) for c in range(3)], monkeypatch)
    assert read > 0.8 * tried
    read, _ = rows_read([node(c) for c in range(3)], monkeypatch)
    assert read == 0


@pytest.mark.parametrize("missing", [0.0, 0.1, 0.97])
def test_no_bin_of_a_node_has_few_items(missing):
    """Of every node that honest or other trees reach; sums of children are those that their parent showed."""
    client = node(0, missing=missing)
    edges = boosting.agreed_edges(5, 32, lambda bounds: boosting.bin_counts(client.x[client.rows], bounds))
    client.receive({"bins": boosting.packed_edges(edges)})
    client.begin_histograms()
    wide = boosting.held_bins(edges)
    growth = client.growth
    seen, nodes = 0, {}
    while growth.open:
        sums = client.sums(growth.forest(), growth.tree, growth.node)
        counts = sums[..., 2] * UNIT
        assert ((counts == 0) | (counts >= FLOOR)).all()
        assert not counts[:, ~wide].any()
        np.testing.assert_allclose(counts.sum(axis=2), counts.sum(axis=2)[:, :1].repeat(5, axis=1))
        nodes |= {(t, n): s.sum(axis=1)[0] for t, n, s in zip(growth.tree, growth.node, sums, strict=True)}
        seen += len(sums)
        growth.split(sums)
    forest = growth.forest()
    for tree, number in nodes:
        at = forest["start"][tree] + number
        ends = [(tree, int(forest[way][at])) for way in ("left", "right")]
        if forest["feature"][at] >= 0 and all(end in nodes for end in ends):
            np.testing.assert_allclose(nodes[ends[0]] + nodes[ends[1]], nodes[tree, number], atol=1e-12)
    assert seen > 3 or missing > 0.5


def test_items_of_unknown_targets_are_not_counted_alone(monkeypatch):
    """Of several labels or numbers, some are unknown: their items were counted in a bin of missing values that no other had."""
    client = node(0, missing=0.01)
    alone = np.isnan(client.x[client.rows][:, 0])
    assert 0 < alone.sum() < FLOOR
    targets = np.where(alone[:, None], np.nan, client.targets_of(client.rows))
    monkeypatch.setattr(client, "targets_of", lambda rows: targets)
    client.receive({"bins": boosting.packed_edges([np.linspace(-2, 2, 20)] * 5)})
    client.begin_histograms()
    counts = client.sums(client.growth.forest(), client.growth.tree, client.growth.node)[..., 2] * UNIT
    assert ((counts == 0) | (counts >= FLOOR)).all()
    np.testing.assert_allclose(counts.sum(axis=2), len(client.rows))


def test_counts_of_values_have_no_few_items():
    client = node(0, missing=0.96)
    coarse = boosting.first_edges(5)
    counts = client.bins({"bins": boosting.packed_edges(coarse)}, {})[0]["counts"]["count"] * UNIT
    assert ((counts == 0) | (counts >= FLOOR)).all()
    known = (~np.isnan(client.x[client.rows])).sum(axis=0)
    assert counts.sum() == known[known >= FLOOR].sum()


def dyadic(nodes: Any, floor: int, low: int, size: int, cells: list[Any]) -> None:
    """Split [low, low + 2^size) of keys by hand: each of ``nodes`` is (keys within, items that joined below, above)."""
    held = np.concatenate([keys for keys, _, _ in nodes])
    middle = low + (1 << (size - 1)) if size else low
    parts = [(keys[keys < middle], keys[keys >= middle]) for keys, _, _ in nodes]
    first, second = (sum(len(part[half]) for part in parts) for half in (0, 1))
    if len(np.unique(held)) == 1:
        return cells.append((held[0], held))
    if not first or not second:  # a smaller cell has all
        return dyadic(nodes, floor, low if first else middle, size - 1, cells)

    def enough(counts: Any) -> bool:
        return all(count == 0 or count >= floor for count in counts)

    below, above = [[len(part[half]) for part in parts] for half in (0, 1)]
    sides = enough(below), enough(above)
    both = enough([n + b for n, (_, b, _) in zip(below, nodes, strict=True)])
    both = both and enough([n + a for n, (_, _, a) in zip(above, nodes, strict=True)])
    if all(sides) and both:
        dyadic([(part[0], b, 0) for part, (_, b, _) in zip(parts, nodes, strict=True)], floor, low, size - 1, cells)
        dyadic([(part[1], 0, a) for part, (_, _, a) in zip(parts, nodes, strict=True)], floor, middle, size - 1, cells)
    elif sides[0] and all(n < floor for n in above):
        start = len(cells)
        inside = [(part[0], b, a + len(part[1])) for part, (_, b, a) in zip(parts, nodes, strict=True)]
        dyadic(inside, floor, low, size - 1, cells)
        cells[-1] = (cells[-1][0], np.concatenate([cells[-1][1], held[held >= middle]]))
        assert len(cells) > start
    elif sides[1] and all(n < floor for n in below):
        start = len(cells)
        inside = [(part[1], b + len(part[0]), a) for part, (_, b, a) in zip(parts, nodes, strict=True)]
        dyadic(inside, floor, middle, size - 1, cells)
        cells[start] = (cells[start][0], np.concatenate([cells[start][1], held[held < middle]]))
    else:
        cells.append((middle, held))


@pytest.mark.parametrize("seed", range(12))
def test_cells_follow_a_second_derivation(seed):
    """Of roots and of two siblings, with edges at values of the data."""
    rng = np.random.default_rng(seed)
    floor, count = int(rng.integers(2, 8)), int(rng.integers(20, 200))
    x = np.round(rng.normal(scale=rng.choice([0.1, 3, 1000]), size=(count, 1)), int(rng.integers(0, 4)))
    edges = [np.unique(rng.choice(x[:, 0], 20))]
    cells = Cells(x, edges, floor)
    keys = boosting.float_keys(x[:, 0].astype(np.float32))
    for nodes in (np.zeros(count, np.int64), rng.integers(2, size=count)):
        split = cells.split(cells.counts(nodes, int(nodes.max()) + 1)[None])
        places, expected = cells.places(split)[0][cells.leaf[:, 0]], list[Any]()
        dyadic([(keys[nodes == n], 0, 0) for n in range(nodes.max() + 1)], floor, -(1 << 32), 33, expected)
        for middle, held in expected:
            where = np.searchsorted(edges[0], boosting.key_values(np.array([middle]))[0], side="left")
            assert (places[np.isin(keys, held)] == where).all()
            for node in range(nodes.max() + 1):
                total = np.isin(keys[nodes == node], held).sum()
                assert total == 0 or total >= floor


def normal_nodes(seed: int, shift: float = 0.0) -> tuple[BoostingClient, Any]:
    """A node of 400 rows with continuous values, and edges that a server chose, one at each of 1,022 quantiles and shifted."""
    client = node(seed, size=600)
    values = client.x[client.rows]
    near = np.linspace(0, 1, 1022)
    return client, [np.unique(np.quantile(column, near) + shift * column.std()) for column in values.T]


def read_values(client: BoostingClient, edges: Any, others: np.ndarray) -> list[np.ndarray]:
    """Which values of a node, and of others, a server names to 0.1 % by the middles of the bins that it sees [V, F]."""
    client.memory.pop("bins", None)
    vars(client).pop("cells", None)
    client.receive({"bins": boosting.packed_edges(edges)})
    client.begin_histograms()
    sums = client.sums(client.growth.forest(), client.growth.tree, client.growth.node)[0, :, :, 2] * UNIT
    masks = []
    for x in (client.x[client.rows], others):
        named = np.zeros(x.shape, bool)
        for f, cuts in enumerate(edges):
            for b in np.flatnonzero(sums[f, 1 : len(cuts)]) + 1:
                named[:, f] |= np.abs(x[:, f] - (cuts[b - 1] + cuts[b]) / 2) <= 0.001 * np.abs(x[:, f])
        masks.append(named)
    return masks


@pytest.mark.parametrize("seed", range(2))
def test_bins_of_one_run_and_of_ten_name_no_values(seed):
    """Groups counted in the bin of their middle row: one run read 8 % of these values, and ten runs with shifted edges 46 %.

    About as many values that the node does not have are named by chance.
    """
    others = normal_nodes(seed + 5)[0]
    others = others.x[others.rows]
    named: list[np.ndarray] = []
    for run in range(10):
        client, edges = normal_nodes(seed, shift=run * 1e-3)
        client.params.bins = 1023
        masks = read_values(client, edges, others)
        named = masks if not named else [a | b for a, b in zip(named, masks, strict=True)]
        share, chance = (mask.mean() for mask in named)
        assert share < 2 * chance + 0.02, (run, share, chance)


@pytest.mark.parametrize("missing", [0.0, 0.03, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_parent_less_its_children_leaves_no_few_rows(seed, missing):
    """At each bound of each column. Children had other groups of bins than their parent, so that nets were 1 to 4 rows."""
    client = node(seed, missing=missing, size=500)
    edges = boosting.agreed_edges(5, 64, lambda bounds: boosting.bin_counts(client.x[client.rows], bounds))
    client.receive({"bins": boosting.packed_edges(edges)})
    client.begin_histograms()
    growth, seen, last = client.growth, {}, 0
    while growth.open:
        sums = client.sums(growth.forest(), growth.tree, growth.node)[..., 2] * UNIT
        seen |= {(t, n): s.round().cumsum(axis=1) for t, n, s in zip(growth.tree, growth.node, sums, strict=True)}
        growth.split(sums=client.sums(growth.forest(), growth.tree, growth.node))
    forest = growth.forest()
    for tree, number in seen:
        at = forest["start"][tree] + number
        ends = [(tree, int(forest[way][at])) for way in ("left", "right")]
        if forest["feature"][at] >= 0 and all(end in seen for end in ends):
            net = np.abs(seen[tree, number] - seen[ends[0]] - seen[ends[1]])
            assert ((net == 0) | (net >= FLOOR)).all()
            last += 1
    assert last > 3 or missing


def test_a_node_with_few_items_sends_zeros():
    client = node(0, size=6)
    client.receive({"bins": boosting.packed_edges([np.zeros(1)] * 5)})
    assert len(client.rows) < FLOOR
    client.begin_histograms()
    assert not client.send()[0]["histogram"]["sums"].any()


@pytest.mark.parametrize(("floor", "least", "most"), [(0, 1.0, 1.0), (FLOOR, 0.0, 0.3)])
def test_a_planted_model_shows_groups_of_rows(monkeypatch, floor, least, most):
    """What remains: if the model leaves one row alone with a slope, its target and the place of its group are read."""
    monkeypatch.setattr(BoostingClient, "check_policy", lambda self: None)
    clients = [node(c, floor=floor) for c in range(3)]
    edges = edges_of_server(clients)
    for client in clients:
        client.receive({"bins": boosting.packed_edges(edges)})
    offsets = np.cumsum([0, *(len(cuts) + 2 for cuts in edges)])[:-1]
    exact = targets = 0
    for owner in clients:
        for place in range(0, len(owner.rows), 30):
            total = 0.0
            for client in clients:
                client.begin_histograms()
                raw = np.full((len(client.rows), 3), [800.0, -800.0, -800.0])
                if client is owner:
                    raw[place] = 0.0
                client.memory["raw"] = torch.from_numpy(raw)
                total = total + client.send()[0]["histogram"]["sums"]
            positions = np.flatnonzero(total[1, :, 1] > 0)
            assert len(positions) == 5
            exact += (positions == offsets + boosting.binned(owner.x[owner.rows[place]][None], edges)[0]).sum()
            targets += 5
    assert least <= exact / targets <= most


def test_trees_of_a_round_only_grow_and_split_at_edges():
    clients = [node(0)]
    edges = edges_of_server(clients)
    clients[0].receive({"bins": boosting.packed_edges(edges)})
    clients[0].begin_histograms()
    row = clients[0].x[clients[0].rows[0]]
    forest, number = tree_of_one(edges, row, [0])
    clients[0].grow(request(forest, number), {})
    clients[0].grow(request(forest, number), {})
    twice = request(forest, number)
    twice["nodes"] = {name: np.repeat(array, 2) for name, array in twice["nodes"].items()}
    with pytest.raises(FedGraphError, match="or one twice"):
        clients[0].grow(twice, {})
    other, number = tree_of_one(edges, row, [1])
    with pytest.raises(FedGraphError, match="change the splits"):
        clients[0].grow(request(other, number), {})
    clients[0].begin_histograms()
    clients[0].grow(request(other, number), {})
    clients[0].begin_histograms()
    forest["threshold"] = np.where(forest["feature"] >= 0, forest["threshold"] + 1e-9, 0)
    with pytest.raises(FedGraphError, match="no edge of a bin"):
        clients[0].grow(request(forest, 0), {})


def test_edges_stay_the_same_over_a_run():
    """One edge that moves from round to round would find each value by bisection."""
    client = node(0)
    client.receive({"bins": boosting.packed_edges([np.zeros(1)] * 5)})
    client.receive({"bins": boosting.packed_edges([np.zeros(1)] * 5)})
    with pytest.raises(FedGraphError, match="other edges of bins"):
        client.receive({"bins": boosting.packed_edges([np.ones(1)] * 5)})
