"""FedGCN: what clients send and know against the whole graph, by hand; Central's logits; groups too small to send."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedgcn import FedGCNClient
from fedgraph_baselines.clients.fedsage_true import FedSageTrueClient
from fedgraph_baselines.methods.fedgcn import OWNED
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.wire.messages import MODEL, from_record
from tests.methods.worlds import WORDS, N, clients_of, edges_of, world
from tests.support import assert_same_arrays, dense_gcn_adjacency, recorded_messages

METHOD = ["strategy=fedgcn", "model=gcn", "model.hidden=4"]
SGD = ["train.optimizer=sgd", "train.lr=0.5", "train.local_steps=1", "strategy.weighting=train"]


def relay(clients: list[FedGCNClient], phase: str, inbox: Any) -> Any:
    """One exchange by hand: every client's reply, by receiver, under the sender."""
    values: Any = {client.graph.client: {} for client in clients}
    for client in clients:
        groups, numbers = getattr(client, phase)(inbox.get(client.graph.client, {}), {})
        assert numbers == {}
        for group, arrays in groups.items():
            for receiver, array in arrays.items() if group != OWNED else ():
                values[int(receiver)].setdefault(group, {})[str(client.graph.client)] = array
    return values


def clients_after(kind: str, *overrides: str, partition: str = "random") -> list[FedGCNClient]:
    """Clients of `world` that have completed setup."""
    cfg = compose([*METHOD, *WORDS, *overrides])
    clients = [FedGCNClient(cfg, graph) for graph in world(kind, partition)]
    inbox: Any = {}
    for phase in ("sums", "smooth", "extend")[: cfg.strategy.params.get("hops", 2) + 1]:
        inbox = relay(clients, phase, inbox)
    return clients


def whole(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Â [N, N], X [N, F] and in-degrees with the loop [N] of the graph that `world` cuts."""
    graph = world(kind, "one")[0]
    a = dense_gcn_adjacency(graph.edge_index, graph.num_nodes).numpy()
    return a, graph.x.double().numpy(), 1 / a.diagonal()


@pytest.mark.parametrize("kind", ["undirected", "directed"])
def test_what_is_sent_and_known_is_of_the_whole_graph(kind):
    """The sums of all clients add up to Â X, and every external neighbour's row is its row of Â X."""
    a, x, degree = whole(kind)
    for client in clients_after(kind):
        ids = client.graph.node_id.numpy()
        known = np.concatenate([ids, client.incoming.nodes])
        np.testing.assert_allclose(client.memory["z"].numpy(), (a @ x)[known], atol=1e-13)
        np.testing.assert_allclose(client.degree, degree[ids], rtol=1e-13)
        np.testing.assert_allclose(client.memory["degree"].numpy(), degree[client.incoming.nodes], rtol=1e-13)
        np.testing.assert_allclose(client.inputs.adj.to_dense()[: ids.size].numpy(), a[ids][:, known], atol=1e-15)
        assert not np.delete(a[ids], known, axis=1).any()


@pytest.mark.parametrize("kind", ["undirected", "directed"])
@pytest.mark.parametrize("partition", ["random", "louvain"])
def test_two_hops_give_centrals_logits(kind, partition):
    central = world(kind, "one")[0]
    for client in clients_after(kind, partition=partition):
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in client.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        model = client.model
        logits = model(model.prepare(central, dtype=torch.float64)).detach().numpy()
        np.testing.assert_allclose(client.predict().numpy(), logits[client.graph.node_id], atol=1e-12, rtol=0)


def test_one_hop_by_hand():
    """The first layer is exact; the second misses the cut edges, and its degrees are the whole graph's."""
    a, x, _ = whole("undirected")
    for client in clients_after("undirected", "strategy.hops=1"):
        ids = client.graph.node_id.numpy()
        w = {name: p.detach().numpy() for name, p in client.model.named_parameters()}
        h = np.maximum(a[ids] @ x @ w["layers.0.weight"] + w["layers.0.bias"], 0)
        expected = a[np.ix_(ids, ids)] @ h @ w["head.weight"] + w["head.bias"]
        np.testing.assert_allclose(client.predict().numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("kind", ["undirected", "directed"])
def test_training_is_centrals(train, kind):
    """With one step a round and clients that weigh by their training nodes: every round's model, to rounding."""
    ours = train(*METHOD, *SGD, "rounds=5", kind=kind)
    central = train(*METHOD, "strategy=central", *SGD, "rounds=5", kind=kind)
    for name, array in central.arrays.items():
        np.testing.assert_allclose(ours.arrays[name], array, atol=1e-12, err_msg=name)
    plain = train(*METHOD, "strategy=fedavg", *SGD, "rounds=5", kind=kind)
    assert max(np.abs(plain.arrays[n] - a).max() for n, a in central.arrays.items()) > 1e-3


def test_a_round_by_hand(train):
    """The gradient of a two-layer GCN over the whole graph, in NumPy."""
    a, x, _ = whole("undirected")
    graph = world("undirected", "one")[0]
    finished = train(*METHOD, *SGD, "rounds=1", "train.weight_decay=0")
    torch.manual_seed(0)
    client = FedGCNClient(finished.cfg, graph)
    w = {name: p.detach().numpy() for name, p in client.model.named_parameters()}
    train_mask = graph.train_mask.numpy()
    s = a @ x
    h = np.maximum(s @ w["layers.0.weight"] + w["layers.0.bias"], 0)
    logits = a @ h @ w["head.weight"] + w["head.bias"]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    d = (p - np.eye(3)[graph.y.numpy()]) * train_mask[:, None] / train_mask.sum()
    back = (a.T @ d @ w["head.weight"].T) * (h > 0)
    slopes = {
        "head.weight": (a @ h).T @ d,
        "head.bias": d.sum(0),
        "layers.0.weight": s.T @ back,
        "layers.0.bias": back.sum(0),
    }
    for name, slope in slopes.items():
        np.testing.assert_allclose(finished.arrays[name], w[name] - 0.5 * slope, atol=1e-12, err_msg=name)


def test_setup_is_once_and_a_round_is_fedavgs(train, monkeypatch):
    overrides = ["rounds=2", "dtype=float32"]
    with recorded_messages(monkeypatch) as messages:
        finished = train(*METHOD, *overrides)
    plain = train(*METHOD, "strategy=fedavg", *overrides)
    spent, fedavg = finished.summary["bytes_by_phase"], plain.summary["bytes_by_phase"]
    assert {phase: spent[phase] for phase in fedavg} == fedavg
    assert spent.keys() - fedavg.keys() == {"sums", "smooth", "extend"}
    pairs = [(g, k) for g in world() for k in set(g.cut_out_owner.tolist())]
    boundary = sum(len(g.cut_out[1][g.cut_out_owner == k].unique()) for g, k in pairs)
    up = {
        phase: sum(
            array.size * array.itemsize
            for way, _, c in messages
            if way == "up"
            for group in ({"sums": ["sums"], "smooth": ["rows"]}[phase])
            if group in c.array_records
            for array in from_record(c[group]).values()
        )
        for phase in ("sums", "smooth")
    }
    assert up["sums"] == 4 * 5 * boundary
    assert up["smooth"] == 4 * 5 * sum(len(g.cut_out[0][g.cut_out_owner == k].unique()) for g, k in pairs)
    assert {name for way, _, c in messages[-6:] for name in c.array_records} <= {MODEL}


def test_no_hops_is_fedavg(train):
    overrides = [*METHOD, "model.dropout=0.5"]
    assert_same_arrays(train(*overrides, "strategy.hops=0").arrays, train(*overrides, "strategy=fedavg").arrays)


@pytest.mark.parametrize(("least", "by_policy"), [(2, False), (3, False), (3, True)])
def test_sums_over_small_groups_are_left_out(least, by_policy):
    """A second derivation with sets: the sources of each row that another client receives."""
    cfg = compose([*METHOD, *WORDS, f"strategy.min_nodes={1 if by_policy else least}"])
    clients = [FedGCNClient(cfg, graph) for graph in world()]
    if by_policy:
        for client in clients:
            client.policy = replace(client.policy, min_nodes=least)
    owner = {int(v): c.graph.client for c in clients for v in c.graph.node_id}
    edges, x = edges_of("undirected"), whole("undirected")[1]
    behind = {v: {v} | {u for u, t in edges.T.tolist() if t == v} for v in owner}
    degree = {v: len(group) for v, group in behind.items()}
    values = {i: {v: {u for u in group if owner[u] == i} for v, group in behind.items()} for i in range(len(clients))}
    sums = relay(clients, "sums", {})
    kept = 0
    for k, client in enumerate(clients):
        for sender, rows in sums[k]["sums"].items():
            i = int(sender)
            targets = [v for v in client.graph.node_id.tolist() if values[i][v]]
            for v, row in zip(targets, rows, strict=True):
                group = values[i][v] if len(values[i][v]) >= least else set()
                kept += bool(group)
                np.testing.assert_allclose(row, sum((x[u] / degree[u] ** 0.5 for u in group), np.zeros(5)), atol=1e-14)
    assert kept
    rows = relay(clients, "smooth", sums)
    answers = set()
    for k, client in enumerate(clients):
        for sender, array in rows[k]["degrees"].items():
            i = int(sender)
            sources = [v for v in clients[i].graph.node_id.tolist() if any(owner[t] == k for t in behind[v])]
            for v, d in zip(sources, array, strict=True):
                hidden = sum(
                    len(values[j][v]) for j in range(len(clients)) if j == i or (j != k and len(values[j][v]) >= least)
                )
                held = (
                    len(values[i][v]) >= least or not by_policy
                )  # the server, which relays rows, could invent the others
                assert d == (degree[v] if hidden >= least and held else 0)
                answers.add(bool(d))
        for sender, array in rows[k]["rows"].items():
            assert (array[rows[k]["degrees"][sender] == 0] == 0).all()
        client.extend(rows[k], {})
        external = client.inputs.adj.to_dense()[:, client.graph.num_nodes :]
        assert ((external[: client.graph.num_nodes] != 0).any(0).numpy() == (client.memory["degree"] > 0).numpy()).all()
    assert answers == {True, False}


def test_rows_that_do_not_fit_the_edges_name_the_sender(train, monkeypatch):
    sums = FedGCNClient.sums

    def short(self, groups, config):
        reply, numbers = sums(self, groups, config)
        if self.graph.client == 1:
            reply["sums"]["0"] = reply["sums"]["0"][1:]
        return reply, numbers

    short.is_phase = True  # type: ignore[attr-defined]
    monkeypatch.setattr(FedGCNClient, "sums", short)
    with pytest.raises(RunFailed, match=r"client 1 sent client 0 .* rows of sums, expected"):
        train(*METHOD)


def test_sums_of_a_client_without_edges_in_the_own_file_are_refused():
    """Whatever edges its sender claims: rows are added only at edges that the receiver's file has from that sender."""
    graphs = world()
    kept = graphs[0].cut_in_owner != 1
    graphs[0].cut_in, graphs[0].cut_in_owner = graphs[0].cut_in[:, kept], graphs[0].cut_in_owner[kept]
    clients = [FedGCNClient(compose([*METHOD, *WORDS]), graph) for graph in graphs]
    inbox = relay(clients, "sums", {})
    with pytest.raises(
        FedGraphError, match=r"client 1 sent client 0 \d+ rows of sums, expected 0: their graphs differ"
    ):
        clients[0].smooth(inbox[0], {})


def test_a_file_that_names_the_wrong_owner_is_refused(run, tmp_path):
    """Each owner sends as many rows as expected, and they would count as rows of the other's node."""
    graphs = clients_of(edges_of("undirected"), np.arange(N) // 15)
    for graph in graphs:
        graph.train_mask = graph.val_mask = torch.ones(15, dtype=torch.bool)
        graph.val_mask, graph.test_mask = ~graph.train_mask, ~graph.train_mask
    ends = graphs[3].cut_in[1]
    other, node = (int(ends[graphs[3].cut_in_owner == k][0]) for k in (0, 1))
    for name in ("honest", "swapped"):
        if name == "swapped":
            graphs[3].cut_in[1] = torch.where(ends == other, node, torch.where(ends == node, other, ends))
        for graph in graphs:
            graph.save(tmp_path / name / f"client_{graph.client:04d}.safetensors")
    small = [*METHOD, *WORDS, "rounds=1", "num_clients=4", "privacy.scores=none"]
    run(f"graph={tmp_path / 'honest'}", *small)
    message = rf"client 3: the file of client 3 says that node {node} belongs to client 0, which announced nodes 0 to 14: link"
    with pytest.raises(RunFailed, match=message):
        run(f"graph={tmp_path / 'swapped'}", *small)


@pytest.mark.parametrize(("method", "client"), [("fedgcn", FedGCNClient), ("fedsage_true", FedSageTrueClient)])
def test_a_file_that_names_two_owners_of_a_node_is_refused(method, client):
    graph = world()[0]
    node = int(graph.cut_in[1, 0])
    graph.cut_in = torch.cat([graph.cut_in, torch.tensor([[3], [node]])], dim=1)
    graph.cut_in_owner = torch.cat([graph.cut_in_owner, graph.cut_in_owner[:1] % 3 + 1])
    first, second = int(graph.cut_in_owner[0]), int(graph.cut_in_owner[-1])
    with pytest.raises(FedGraphError, match=f"names clients {first} and {second} as owners of node {node}: each node"):
        _ = getattr(client(compose([*METHOD, *WORDS, f"strategy={method}"]), graph), "incoming", None)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy.hops=3"], r"strategy\.hops must be in \[0, 2\], got 3"),
        (["strategy.min_nodes=0"], r"strategy\.min_nodes"),
        (["model=sage"], "set model=gcn"),
        (["partition=overlapping"], "one owner for each node"),
    ],
)
def test_wrong_keys_are_refused(overrides, message):
    with pytest.raises(FedGraphError, match=message):
        check_method(compose(["strategy=fedgcn", *overrides]))


def test_no_hops_serves_any_network():
    check_method(compose(["strategy=fedgcn", "strategy.hops=0", "model=sage"]))


def test_clients_that_share_no_edge_are_told_that_it_is_fedavg(run, caplog, tmp_path, monkeypatch):
    run("strategy=fedgcn", "rounds=1")
    assert "strategy=fedgcn equals FedAvg here" in caplog.text
    caplog.clear()
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    run(
        "strategy=fedgcn",
        "rounds=1",
        "dataset=csbm",
        "dataset.cut_degree=1",
        "dataset.nodes_per_client=[30,30]",
        "partition=planted",
    )
    assert "equals FedAvg" not in caplog.text
