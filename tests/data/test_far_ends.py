"""Columns of far ends: forms of values, and what a client's graph reads of accounts of other clients."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedgraph_baselines.clients.fedgcn import FedGCNClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.checks import check_file
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.far_ends import (
    LEVELS,
    Column,
    edge_maxima,
    far_rows,
    neighbour_means,
    with_far_ends,
    with_shares,
    with_told_records,
)
from fedgraph_flwr.data.features import DAY, END_FORMS, NEVER, SUM, Book, Recipe, columns_at, edge_columns, views
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import client_class
from fedgraph_flwr.partition.clients import cut, make, pool
from fedgraph_flwr.tasks import kind_of

NODES, EDGES = 40, 300


def random_graph() -> Graph:
    """A multigraph whose edges have two features and a label."""
    rng = np.random.default_rng(0)
    masks = [torch.arange(NODES) % 4 < 2, torch.arange(NODES) % 4 == 2, torch.arange(NODES) % 4 == 3]
    return Graph(
        torch.from_numpy(rng.standard_normal((NODES, 5))).float(),
        torch.from_numpy(rng.integers(NODES, size=(2, EDGES))),
        torch.arange(NODES) % 2,
        *masks,
        num_classes=2,
        num_edge_classes=2,
        edge_attr=torch.from_numpy(rng.standard_normal((EDGES, 2))).float(),
        edge_y=torch.arange(EDGES) % 2,
    )


def clients_of(graph: Graph, parts: int) -> list[ClientGraph]:
    return cut(graph, [torch.arange(NODES)[torch.arange(NODES) % parts == i] for i in range(parts)])


def shared(*share: str, floor: int = 1, parts: int = 3) -> list[ClientGraph]:
    return with_shares(clients_of(random_graph(), parts), share, floor, seed=0)


def records_besides(graph: Graph, client: int, parts: int = 3) -> Tensor:
    """The number of edges of each node whose other end is not the client's [N]."""
    count = torch.zeros(NODES, dtype=torch.int64)
    for a, b in graph.edge_index.t().tolist():
        count[a] += b % parts != client
        count[b] += a % parts != client
    return count


def names(count: int) -> list[bytes]:
    return [str(i).encode() for i in range(count)]


def test_buckets_round_down_to_powers_of_two():
    x = np.array([0, 0.01, 0.0625, 0.5, 0.99, 1, -1.9, 3, 1e9, -1e9], dtype=np.float32)
    column = Column("c", 0, "buckets")
    codes = column.encode(x, b"", names(10))
    assert codes.dtype == np.int8
    assert column.decode(codes).tolist() == [0, 0, 0.0625, 0.5, 0.5, 1, -1, 2, 1024, -1024]
    assert column.codes[0] <= codes.min() <= codes.max() <= column.codes[1]


def test_buckets_of_logarithms_are_powers_of_two_of_the_value():
    amounts = np.array([0, 1, 2, 3, 6.9, 7, 1000, 1e12])
    column = Column("sum_in", 0, "buckets", SUM)
    x = ((np.log1p(amounts) - SUM.center) / SUM.scale).astype(np.float32)
    read = np.expm1(column.decode(column.encode(x, b"", names(8))).astype(np.float64) * SUM.scale + SUM.center)
    expected = 2.0 ** np.floor(np.log2(1 + amounts)) - 1
    assert np.allclose(read, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_levels_keep_to_epsilon(epsilon):
    """Of any two true levels, each told level is at most e^ε times as likely; the true one is as likely as stated."""
    count = 6_000
    column = Column("flag", 0, f"eps={epsilon}")
    told = np.stack([column.encode(np.full(count, level), b"key", names(count)) for level in LEVELS])
    rates = np.stack([(told == code).mean(axis=1) for code in range(len(LEVELS))], axis=1)
    k = len(LEVELS)
    expected = np.where(np.eye(k) > 0, np.exp(epsilon), 1) / (np.exp(epsilon) + k - 1)
    assert np.abs(rates - expected).max() < 4 * np.sqrt(0.25 / count)
    again = column.encode(np.full(count, LEVELS[1]), b"key", names(count))
    assert np.array_equal(told[1], again)
    independent = (told[0] == told[1]).mean()  # another value is drawn anew
    assert abs(independent - (expected[0] * expected[1]).sum()) < 0.05


def test_far_ends_carry_the_columns_of_their_owner():
    graph = random_graph()
    for one in shared("1:exact", "3"):
        check_file(one, "the client")
        assert one.num_features == graph.num_features + 2
        marks = one.far["marks"]
        whole = with_far_ends(one)
        x, far = whole.x[one.num_nodes :], whole.node_id[one.num_nodes :]
        assert torch.equal(x[:, 1], graph.x[far, 1])
        assert bool(
            ((x[:, 3].abs() <= graph.x[far, 3].abs()) & (x[:, 3].abs() * 2 > graph.x[far, 3].abs() - 0.0625)).all()
        )
        assert bool((x[:, marks] == 1).all())
        assert not x[:, [0, 2, 4, marks + 1]].any()
        assert not whole.x[: one.num_nodes, marks : marks + 2].any()
        assert not (whole.train_mask | whole.val_mask | whole.test_mask)[one.num_nodes :].any()


def test_accounts_below_the_floor_are_zero_and_marked():
    graph = random_graph()
    degree = records_besides(graph, 0)
    floor = int(degree.median())
    one = shared("1:exact", floor=floor)[0]
    x = far_rows(one, one.far_id)
    few = degree[one.far_id] < floor
    assert few.any()
    assert torch.equal(x[:, one.far["marks"] + 1].bool(), few)
    assert not x[few, 1].any()
    assert torch.equal(x[~few, 1], graph.x[one.far_id[~few], 1])


def test_the_pooled_graph_has_the_columns_and_no_far_ends():
    pooled = pool(shared("1"))
    assert torch.equal(pooled.x[:, :5], random_graph().x)
    assert not pooled.far
    assert not pooled.x[:, 5:].any()


@pytest.mark.parametrize("task", ["nodes", "edges", "links"])
def test_every_task_reads_them(task):
    one = shared("1:exact")[0]
    cfg = compose([f"task={task}", "split.kind=ratio", "model.hidden=8", "num_clients=3"])
    client = client_class(cfg)(cfg, one)
    extra = client.graph.num_nodes - one.num_nodes
    assert extra == one.far_id.numel()
    assert torch.equal(client.graph.x[one.num_nodes :, 1], random_graph().x[client.graph.node_id[one.num_nodes :], 1])
    train_nodes = client.task.masks["train"].nonzero().view(-1)
    if task == "nodes":
        assert int(train_nodes.max()) < one.num_nodes


def test_methods_that_exchange_rows_keep_to_their_own_nodes():
    one = shared("1:exact")[0]
    cfg = compose(["strategy=fedgcn", "model.hidden=8", "num_clients=3"])
    client = FedGCNClient(cfg, one)
    assert client.graph.num_nodes == one.num_nodes
    assert client.graph.cut_in.numel() == one.cut_in.numel() > 0


def test_trees_read_them_at_the_far_ends_of_payments():
    one = shared("1:exact")[0]
    task: Any = kind_of(compose(["task=edges", "split.kind=ratio"]))(compose(["task=edges", "split.kind=ratio"]), one)
    columns = task.columns()[task.order.argsort()]
    far = columns[one.edge_index.size(1) :, one.num_edge_features + one.num_features :]
    assert torch.equal(far[:, 1], random_graph().x[one.cut_out[1], 1])
    assert far[:, 0].isnan().all()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["partition.share=[nothing]"], "column of nodes in share 'nothing' is unknown"),
        (["partition.share=['0:eps=0']"], "E above 0"),
        (["partition.share=['0']", "partition=relations"], "no client has such edges"),
        (["partition.share=[n_in]", "task=edges", "split.kind=temporal"], "look ahead of a training edge"),
    ],
)
def test_a_share_that_cannot_be_is_refused(overrides, message):
    base = ["dataset=payments", "dataset.accounts=300", "dataset.background=900", "dataset.per_kind=2", "num_clients=2"]
    cfg = compose([*base, "dataset.recipe=payments", "split.min_train=1", *overrides])
    with pytest.raises(FedGraphError, match=message):
        kind_of(cfg)(cfg, make(load(cfg.dataset, seed=0, num_clients=2), cfg)[0])


def test_means_over_neighbours_are_those_of_a_loop():
    """Columns that a far end does not share are left out, and so are all of an account below the floor."""
    graph = random_graph()
    degree = records_besides(graph, 0)
    floor = int(degree.median())
    one = shared("1:exact", floor=floor)[0]
    whole = with_far_ends(one)
    means = neighbour_means(whole)
    source, target = whole.edge_index.tolist()
    for node in (0, 3, one.num_nodes - 1):
        for half, (near, other) in enumerate(((target, source), (source, target))):
            ends = [b for a, b in zip(near, other, strict=True) if a == node]
            read = [
                graph.x[whole.node_id[b], 1].item()
                for b in ends
                if b < one.num_nodes or degree[whole.node_id[b]] >= floor
            ]
            assert means[node, half * whole.num_features + 1].item() == pytest.approx(np.mean(read))
            local_values = [graph.x[whole.node_id[b], 0].item() for b in ends if b < one.num_nodes]
            assert means[node, half * whole.num_features].item() == pytest.approx(
                np.mean(local_values) if local_values else np.nan, nan_ok=True
            )


OF_PAYER = [f"flow_in_{what}" for what in ("count", "kept", "gap", "hours", "depth")]


@pytest.mark.parametrize("share", [[], ["partition.share=[edges.n_in_2d:exact]"]])
def test_largest_columns_of_edges_are_those_of_a_loop(share):
    """Of payments from another bank, the own book gives the amount and the receiver's columns, and a share the payer's."""
    base = ["dataset=payments", "dataset.accounts=60", "dataset.background=200", "dataset.per_kind=0", "num_clients=2"]
    cfg = compose([*base, *share, "dataset.recipe=payments", "dataset.windows=[2]", "split.min_train=1"])
    graph = load(cfg.dataset, seed=0, num_clients=2)
    width, shared = graph.num_edge_features, graph.num_shared_edge_features
    names = [column.name for column in recipe_of(graph).edge_columns]
    told, place = shared + names.index("n_in_source_2d"), {name: shared + at for at, name in enumerate(names)}
    payer = [
        at for name, at in place.items() if "source" in name or name.split("_2d")[0] in (*OF_PAYER, "hop2_in", "common")
    ]
    assert {place[name] for name in ("amount", "pair_before", "sum_out_target_2d", "hop2_out_2d")}.isdisjoint(payer)
    for client in make(graph, cfg):
        accounts = client.node_id.tolist()
        expected = np.full((len(accounts), 2 * width), np.nan)
        far = 0
        for ends, attr, sides in (
            (client.edge_index, client.edge_attr, (0, 1)),
            (client.cut_out, client.cut_out_edge_attr, (0,)),
            (client.cut_in, client.cut_in_edge_attr, (1,)),
        ):
            for edge, (a, b) in enumerate(ends.T.tolist()):
                for side in sides:
                    values = attr[edge].double().numpy().copy()
                    if sides == (1,):
                        assert values[place["amount"]] != 0
                        values[[at for at in payer if not share or at != told]] = np.nan
                        far += 1
                    node = a if sides != (0, 1) or side == 0 else b
                    part = expected[node, side * width : (side + 1) * width]
                    part[:] = np.fmax(part, values)
        assert far > 20
        for read in (client, with_far_ends(client)) if share else (client,):
            np.testing.assert_array_equal(edge_maxima(read)[: len(accounts)].numpy(), expected)


def test_payments_that_only_the_other_bank_booked_have_no_columns_of_own_records():
    """Their zeros, which a link writes, are no values."""
    base = ["dataset=payments", "dataset.accounts=60", "dataset.background=200", "dataset.per_kind=0", "num_clients=2"]
    cfg = compose([*base, "dataset.recipe=payments", "dataset.windows=[2]", "split.min_train=1"])
    client = make(load(cfg.dataset, seed=0, num_clients=2), cfg)[0]
    base, width = client.num_shared_edge_features, client.num_edge_features
    for cut_edges, half in (("cut_out", 0), ("cut_in", width)):
        name, near = f"{cut_edges}_edge_attr", getattr(client, cut_edges)[0]
        attr = getattr(client, name).clone()
        attr[near == near[0], base:] = 0
        alone = edge_maxima(replace(client, **{name: attr}))[near[0], half : half + width]
        rest = getattr(client, cut_edges)[:, near != near[0]], attr[near != near[0]]
        rows = {
            f"{cut_edges}_{key}": getattr(client, f"{cut_edges}_{key}")[near != near[0]]
            for key in ("edge_time", "owner")
        }
        fewer = replace(client, **{cut_edges: rest[0], name: rest[1]}, **rows)
        assert torch.equal(
            alone[base:].nan_to_num(7), edge_maxima(fewer)[near[0], half + base : half + width].nan_to_num(7)
        )


def test_edges_without_columns_have_no_largest_ones():
    with pytest.raises(FedGraphError, match="edges without columns"):
        edge_maxima(replace(shared("1:exact")[0], edge_attr=torch.zeros(0, 0)))


def test_a_partition_tells_what_each_bank_computes_from_its_own_book():
    """Columns of the far end of each edge between banks, from a book of only the records that the other bank sees."""
    share = ["partition.share=[edges.n_in_2d:exact]", "dataset.windows=[2]", "dataset.without=[flow_*,hop2_*,common_*]"]
    base = ["dataset=payments", "dataset.accounts=400", "dataset.background=900", "dataset.per_kind=1", "num_clients=2"]
    cfg = compose([*base, *share, "dataset.recipe=payments", "split.min_train=1"])
    graph = load(cfg.dataset, seed=0, num_clients=2)
    recipe, party = recipe_of(graph), graph.group
    source, target = party[graph.edge_index]
    shared, names = graph.num_shared_edge_features, [column.name for column in recipe.edge_columns]
    for client in make(graph, cfg):
        seen = ((source == 1 - client.client) | (target == 1 - client.client)).nonzero().view(-1)
        theirs = torch.zeros(graph.num_edges, len(names))
        theirs[seen] = torch.from_numpy(edge_columns(Book.of(graph.book[:, seen]), recipe).copy())
        for cut_edges, end, owner in (("cut_out", "target", source), ("cut_in", "source", target)):
            rows = ((source != target) & (owner == client.client)).nonzero().view(-1)
            place = names.index(f"n_in_{end}_2d")
            assert rows.numel() > 20
            assert torch.equal(getattr(client, f"{cut_edges}_edge_time"), graph.edge_time[rows])
            assert torch.equal(getattr(client, f"{cut_edges}_edge_attr")[:, shared + place], theirs[rows, place])


@pytest.mark.parametrize("recipe", [Recipe(windows=(2.0, 0.25)), Recipe(windows=(1.0, 3.0), day="whole")])
def test_columns_as_of_a_time_are_those_of_a_loop(recipe):
    rng = np.random.default_rng(0)
    source, target = rng.integers(6, size=(2, 150))
    time, cents = rng.integers(5 * DAY // 3600, size=150) * 3600, rng.integers(1, 9000, 150)
    book, accounts, times = Book(source, target, time, cents), rng.integers(8, size=90), rng.integers(6 * DAY, size=90)
    columns = columns_at(book, recipe, accounts, times)
    assert len(columns) == 2 + 2 * 3 * len(recipe.windows)
    for row, (account, at) in enumerate(zip(accounts, times, strict=True)):
        day, past = at // DAY, time // DAY if recipe.whole else time
        for way, (near, far) in {"in": (target, source), "out": (source, target)}.items():
            before = (near == account) & (past <= day if recipe.whole else past < at)
            passed = (day - past) * DAY if recipe.whole else at - past
            values = {f"since_{way}": passed[before].min(initial=NEVER)}
            for label, days in zip(recipe.labels, recipe.windows, strict=True):
                rows = before & (passed <= (days - 1 if recipe.whole else days) * DAY)
                values[f"n_{way}_{label}"] = rows.sum()
                values[f"sum_{way}_{label}"] = cents[rows].sum() / 100
                values[f"partners_{way}_{label}"] = np.unique(far[rows]).size
            for name, value in values.items():
                form = END_FORMS[name.partition("_")[0]]
                assert columns[name][row] == pytest.approx((np.log1p(value) - form.center) / form.scale, abs=1e-6), name


@pytest.mark.parametrize(("day", "floor"), [("before", 1), ("whole", 1), ("before", 4)])
def test_own_and_told_records_join_to_those_of_the_whole_account(day, floor):
    """With exact values, a bank reads of each far end what the far end's bank computes from its own book.

    Below the floor, it reads what its own records say.
    """
    words = [
        "dataset=payments",
        "dataset.accounts=300",
        "dataset.background=900",
        "dataset.per_kind=1",
        "num_clients=3",
    ]
    words += [f"dataset.day={day}", "dataset.windows=[2,14]", "dataset.without=[flow_*,hop2_*,common_*]"]
    cfg = compose([*words, "dataset.recipe=payments", "partition.share=['edges.*:exact']"])
    graph = load(cfg.dataset, seed=0, num_clients=3)
    recipe, party = recipe_of(graph), graph.group
    payers, receivers = views(Book.of(graph.book), recipe, party.numpy())
    told, arriving = with_told_records(graph, cfg.partition.share, floor)
    between = party[graph.edge_index[0]] != party[graph.edge_index[1]]
    base, names = graph.num_shared_edge_features, [column.name for column in recipe.edge_columns]
    columns = {end: [place for place, name in enumerate(names) if f"_{end}" in name] for end in ("source", "target")}
    assert len(columns["source"]) == len(columns["target"]) == 2 + 2 * 3 * 2
    met = torch.zeros(2, graph.num_edges, dtype=torch.int64)  # records of the far end with others than the reading bank
    for edge, ends in enumerate(graph.edge_index.t().tolist()):
        for far, (account, reader) in enumerate((ends, ends[::-1])):
            touching = graph.edge_index[:, (graph.edge_index == account).any(0)]
            met[far, edge] = int((party[touching] != party[reader]).all(0).sum())
    for far, (read, true, local_view) in enumerate(
        ((arriving, payers, receivers), (told.edge_attr, receivers, payers))
    ):
        some = between & ((met[far] >= floor) | torch.tensor(floor == 1))
        none = between & ~some
        assert none.any() == (floor > 1)
        assert some.sum() > 50
        for place in columns["source" if far == 0 else "target"]:
            values = read[:, base + place]
            assert torch.allclose(values[some], torch.from_numpy(true[:, place])[some], atol=1e-5), names[place]
            assert torch.equal(values[none], torch.from_numpy(local_view[:, place])[none]), names[place]
