"""Columns of a bank's own records on generated payments: what clients hold, and that nothing later changes them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph_flwr.api import run
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.features import Book, Recipe, edge_columns, node_columns
from fedgraph_flwr.data.own_columns import appended, with_node_columns
from fedgraph_flwr.data.payments import KINDS, PATTERN, PaymentsSpec, generate, passed_on, skeleton
from fedgraph_flwr.data.split import split_graph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.clients import make
from fedgraph_flwr.party.use.predict import load_predictor

SMALL = ["dataset=payments", "dataset.accounts=200", "dataset.background=1500", "dataset.per_kind=5", "num_clients=3"]


def clients(*words, change=None):
    cfg = compose([*SMALL, "dataset.recipe=payments", *words])
    graph = load(cfg.dataset, seed=0, num_clients=3)
    return make(change(graph) if change else graph, cfg), graph


@pytest.mark.parametrize("kind", KINDS)
def test_members_pass_on_what_arrived(kind):
    shape = skeleton(kind, 5)
    amount = passed_on(shape, 40, np.random.default_rng(0))
    assert amount.shape == (40, shape.source.size)
    for stage in range(1, shape.stages):
        for member in np.unique(shape.source[shape.stage == stage]):
            into = amount[:, (shape.target == member) & (shape.stage == stage - 1)].sum(1)
            out = amount[:, (shape.source == member) & (shape.stage == stage)].sum(1)
            assert ((out / into >= 0.9) & (out / into <= 0.99)).all()


def test_passed_amounts_change_nothing_else():
    spec = PaymentsSpec(accounts=200, background=1500, per_kind=5)
    first, second = (generate(replace(spec, amounts=how), seed=0, banks=3) for how in ("independent", "passed"))
    for key in ("bank", "source", "target", "time", "form", "label", "role", "pattern"):
        np.testing.assert_array_equal(getattr(first, key), getattr(second, key))
    same = first.amount == second.amount
    assert same[first.role == 0].all()
    assert not same[(first.role == PATTERN)].any()


def test_columns_of_clients_are_those_of_their_books():
    parts, graph = clients("task=edges", "dataset.windows=[2,0.25]")
    recipe, bank = Recipe(windows=(2.0, 0.25)), graph.group
    base = graph.num_shared_edge_features
    assert base == 5
    training = split_graph(graph, compose([*SMALL, "task=edges"]).split, 0).edge_split == 0
    until = int(graph.edge_time[training].max())
    for client in parts:
        source, target, time, cents = graph.book
        rows = ((bank[source] == client.client) | (bank[target] == client.client)).nonzero().view(-1)
        book = Book.of(graph.book[:, rows])
        columns = dict(zip(rows.tolist(), edge_columns(book, recipe), strict=True))
        outgoing = (bank[source[rows]] == client.client).numpy()
        both = torch.cat([client.edge_attr, client.cut_out_edge_attr])[:, base:]
        expected = np.stack([columns[row] for row in rows[outgoing].tolist()])
        np.testing.assert_array_equal(sorted(both.tolist()), sorted(expected.tolist()))
        entering = [columns[row] for row in rows[~outgoing].tolist()]
        np.testing.assert_array_equal(client.cut_in_edge_attr[:, base:].numpy(), entering)
        place = torch.full_like(bank, -1)
        place[client.node_id] = torch.arange(client.num_nodes)
        far = graph.book[:2, rows][place[graph.book[:2, rows]] < 0].unique()
        place[far] = client.num_nodes + torch.arange(far.numel())
        mine = Book(place[source[rows]].numpy(), place[target[rows]].numpy(), time[rows].numpy(), cents[rows].numpy())
        table = node_columns(mine, recipe, client.num_nodes, until=until)
        np.testing.assert_array_equal(client.x[:, 1:].numpy(), table)
        assert client.own_columns["nodes"] == table.shape[1]


def trained(parts, folder):
    """Bytes of the parameters after a round on clients' files."""
    folder.mkdir()
    for client in parts:
        client.save(folder / f"client_{client.client:04d}.safetensors")
    words = [f"graph={folder}", "task=edges", "split.kind=temporal", "rounds=1", "model.hidden=8", f"out={folder}/run"]
    run(*words, progress=False)
    tensors = load_predictor(folder / "run", 0).tensors
    return {name: tuple(values.reshape(-1).tolist()) for name, values in tensors.items()}


def test_later_records_change_no_column_and_no_gradient_of_training(tmp_path):
    """All payments after the first cut are replaced by others."""
    words = ["task=edges"]
    _, graph = clients(*words)
    split = split_graph(graph, compose([*SMALL, *words]).split, 0)
    cut = int(graph.edge_time[split.edge_split == 0].max())
    cfg = compose([*SMALL, "dataset.recipe=payments", *words, f"split.until=[{cut},{cut + 10**5}]"])
    late = (graph.edge_time > cut).nonzero().view(-1)
    rng = np.random.default_rng(1)
    book = graph.book.clone()
    book[:2, late] = torch.from_numpy(rng.integers(graph.num_nodes, size=(2, late.numel())))
    book[3, late] = torch.from_numpy(rng.integers(1, 10**6, late.numel()))
    recipe = Recipe.from_dict(graph.own_columns["recipe"], "x")
    columns = torch.from_numpy(edge_columns(Book.of(book), recipe, graph.group.numpy()).copy())
    attr = torch.cat([graph.edge_attr[:, :5], columns], dim=1)
    noisy = make(replace(graph, edge_index=book[:2], book=book, edge_attr=attr), cfg)
    quiet = make(graph, cfg)
    assert trained(quiet, tmp_path / "quiet") == trained(noisy, tmp_path / "noisy")
    for first, second in zip(quiet, noisy, strict=True):
        a, b = first.until(0), second.until(0)
        assert not torch.equal(first.edge_index, second.edge_index)
        for key in ("x", "edge_index", "edge_attr", "cut_out", "cut_in", "cut_out_edge_attr", "cut_in_edge_attr"):
            assert torch.equal(getattr(a, key), getattr(b, key)), key


def test_appended_records_count_once():
    book = torch.tensor([[0, 0, 1, 0], [1, 1, 2, 1], [5, 5, 6, 5], [9, 9, 9, 8]])
    new = torch.tensor([[0, 1, 0, 0, 3], [1, 2, 1, 1, 4], [5, 7, 5, 5, 1], [9, 9, 9, 9, 1]])  # the third copy is new
    joined, at = appended(book, new)
    assert joined.T.tolist() == [*book.T.tolist(), [1, 2, 7, 9], [0, 1, 5, 9], [3, 4, 1, 1]]
    assert at.tolist() == [0, 4, 1, 5, 6]
    none = torch.zeros(4, 0, dtype=torch.int64)
    assert appended(none, new)[1].tolist() == [0, 1, 2, 3, 4]
    assert torch.equal(appended(book, none)[0], book)
    assert torch.equal(appended(book, book)[0], book)


def test_columns_of_nodes_follow_the_split():
    _, graph = clients("task=nodes")
    table = with_node_columns(graph)
    assert "until" not in table.own_columns
    assert with_node_columns(table) is table
    timed = with_node_columns(replace(graph, edge_split=(graph.edge_time > 10 * 86_400).to(torch.int8)))
    assert timed.own_columns["until"] <= 10 * 86_400
    assert not torch.equal(timed.x, table.x)


def test_windows_without_a_recipe_are_as_before():
    cfg = compose([*SMALL, "dataset.windows=[2,0.5]"])
    graph = load(cfg.dataset, seed=0, num_clients=3)
    assert (graph.num_edge_features, graph.own_columns, graph.book.numel()) == (13, {}, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dataset.recipe=payment"], "recipe of features 'payment'"),
        (["dataset.recipe=payments", "dataset.without=[flows]"], "column of the recipe 'flows'"),
        (["dataset.without=[flow_*]"], "set dataset.recipe=payments"),
        (["dataset.amounts=pased"], "dataset.amounts"),
    ],
)
def test_wrong_keys(words, message):
    cfg = compose([*SMALL, *words])
    with pytest.raises(FedGraphError, match=message):
        load(cfg.dataset, seed=0, num_clients=3)
