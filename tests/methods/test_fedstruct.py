"""FedStruct's runs: exact gradients, variants that agree, and what the server sees."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph_flwr import models
from fedgraph_flwr.clients.fedstruct import FedStructClient
from fedgraph_flwr.data.graph import ClientGraph, read_tensors
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.methods import hops, structure_features
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import derive_seed, groups_of
from tests.methods.worlds import C, F, N, dense_step, edges_of, world
from tests.support import Finished, assert_same_arrays, call_fresh, recorded_messages


def parameters(finished: Finished) -> dict[str, np.ndarray]:
    """θ_f, θ_s and S after the last round, by FedStruct-B's names, wherever the variant keeps them."""
    arrays = {}
    for key, tensor in read_tensors(finished.out / "checkpoint.safetensors")[0].items():
        group, _, name = key.removeprefix("server/method/").partition("/")
        if group == "arrays":
            arrays[name] = tensor.numpy()
        elif group in ("s", "g", "held"):  # FedStruct-B's S, the privacy variant's θ_s, both of FedStruct-A's
            kept = {"s": "s", "g": f"g.{name}", "held": name.removeprefix("structure/").replace("/", ".")}[group]
            arrays[kept.removeprefix("structure.")] = tensor.numpy()
    if finished.cfg.strategy.name == "fedstruct_private":
        files = [sorted(folder.glob("round_*"))[-1] for folder in sorted(finished.out.glob("state/*/client_*"))]
        arrays["s"] = np.empty((N, read_tensors(files[0])[0]["method/own_s"].shape[1]))
        for graph, file in zip(world(), files, strict=True):
            arrays["s"][graph.node_id.numpy()] = read_tensors(file)[0]["method/own_s"].numpy()
    return arrays


class Central:
    """Eq. (20) and (7) on the whole graph with dense matrices; parameters start as in a run."""

    def __init__(self, finished: Finished, graphs: list[ClientGraph], kind: str = "undirected"):
        cfg = finished.cfg
        torch.manual_seed(derive_seed(cfg.seed, "model"))
        self.model = models.build(cfg.model, F, C).double()
        step = torch.from_numpy(dense_step(edges_of(kind)))
        self.rows = torch.linalg.matrix_power(step, cfg.model.params["structure_hops"])
        self.local, self.x = torch.zeros(N, N, dtype=torch.float64), torch.zeros(N, F, dtype=torch.float64)
        self.y, self.train = torch.zeros(N, dtype=torch.int64), torch.zeros(N, dtype=torch.bool)
        self.s = torch.zeros(N, self.model.structure_width, dtype=torch.float64)
        for graph in graphs:
            ids, walk = graph.node_id, torch.eye(graph.num_nodes, dtype=torch.float64)
            walk[graph.edge_index[0], graph.edge_index[1]] = 1
            walk = torch.linalg.matrix_power(walk / walk.sum(1, keepdim=True), cfg.model.params["hops"])
            self.local[ids[:, None], ids] = walk
            self.x[ids], self.y[ids], self.train[ids] = graph.x.double(), graph.y, graph.train_mask
            drawn = structure_features.hop2vec(graph.num_nodes, self.s.size(1), cfg.seed, graph.client)
            self.s[ids] = torch.from_numpy(drawn)
        self.s.requires_grad_()

    def logits(self) -> torch.Tensor:
        return self.rows @ self.model.g(self.s) + self.local @ self.model.f(self.x)

    def loss(self) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.logits()[self.train], self.y[self.train])

    def parameters(self) -> dict[str, torch.Tensor]:
        return {**dict(self.model.named_parameters()), "s": self.s}


@pytest.mark.parametrize("kind", ["undirected", "directed"])
@pytest.mark.parametrize("mlp", [True, False])
def test_summed_client_gradients_are_the_central_gradient(train, kind, mlp):
    """Theorems 4 and 6: one plain step of size 1 moves every parameter by the dense central gradient."""
    plain = ["train.optimizer=sgd", "train.lr=1", "train.weight_decay=0", "rounds=1", "checkpoint_every=1"]
    finished = train(*plain, f"model.structure_mlp={mlp}", kind=kind)
    central = Central(finished, world(kind), kind)
    central.loss().backward()
    arrays = parameters(finished)
    assert arrays.keys() == central.parameters().keys()
    for name, start in central.parameters().items():
        np.testing.assert_allclose(arrays[name], (start - start.grad).detach(), atol=1e-12, rtol=0, err_msg=name)


def test_gradient_of_s_is_equation_24(train):
    """G_S = Ā^T (ŷ − y) over training nodes, divided by their number, in closed form (identity g)."""
    plain = ["train.optimizer=sgd", "train.lr=1", "train.weight_decay=0", "rounds=1", "checkpoint_every=1"]
    finished = train(*plain, "model.structure_mlp=false")
    central = Central(finished, world())
    with torch.no_grad():
        residual = central.logits().softmax(1) - torch.nn.functional.one_hot(central.y, C)
        gradient = central.rows[central.train].T @ residual[central.train] / central.train.sum()
    np.testing.assert_allclose(parameters(finished)["s"], (central.s - gradient).detach(), atol=1e-12)


@pytest.mark.parametrize("name", ["fedstruct", "fedstruct_a", "fedstruct_private"])
def test_one_client_is_the_central_decoupled_network(train, name):
    """Three steps of torch's Adam on the dense network; with one client its own edges are all edges."""
    finished = train(f"strategy={name}", "checkpoint_every=3", partition="one")
    central = Central(finished, world(partition="one"))
    optimizer = torch.optim.Adam(central.parameters().values(), lr=0.05, weight_decay=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        central.loss().backward()
        optimizer.step()
    expected = {n: p.detach() for n, p in central.parameters().items()}
    arrays = parameters(finished) if name != "fedstruct_private" else dict(finished.arrays)
    assert set(arrays) <= set(expected)
    for key, array in arrays.items():
        np.testing.assert_allclose(array, expected[key], atol=1e-10, err_msg=key)
    central.model.eval()
    right = (central.logits().argmax(1) == central.y)[world(partition="one")[0].test_mask].double().mean()
    assert finished.rounds[-1]["metrics"]["test_accuracy"] == pytest.approx(float(right))


VARIANTS = [
    pytest.param((), marks=pytest.mark.slow),
    pytest.param(("model.beta=uniform",), marks=pytest.mark.slow),
    ("model.beta=learned",),
    ("model.structure_mlp=false",),
    pytest.param(("strategy.double_softmax=true",), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("overrides", VARIANTS)
def test_a_and_b_and_the_privacy_variant_agree(train, overrides):
    """Theorems 1 to 6: the same θ and S after three rounds of Adam, whoever computes what."""
    names = ("fedstruct", "fedstruct_a", "fedstruct_private")
    runs = [train(f"strategy={name}", "checkpoint_every=3", *overrides) for name in names]
    b, *others = map(parameters, runs)
    assert {"s", "f.first.weight"} <= b.keys()
    for name, arrays in zip(names[1:], others, strict=True):
        assert arrays.keys() == b.keys(), name
        for key, array in arrays.items():
            np.testing.assert_allclose(array, b[key], atol=1e-12, rtol=0, err_msg=f"{name} {key}")
    for finished in runs[1:]:
        for ours, b_round in zip(finished.rounds, runs[0].rounds, strict=True):
            assert ours["metrics"] == pytest.approx(b_round["metrics"], abs=1e-10)


def test_fixed_features_agree_in_a_and_b_and_stay_fixed(train):
    overrides = ["strategy.features=degree", "checkpoint_every=3"]
    b, a = (parameters(train(f"strategy={name}", *overrides)) for name in ("fedstruct", "fedstruct_a"))
    degree = np.bincount(edges_of("undirected")[0], minlength=N)
    np.testing.assert_array_equal(b.pop("s"), structure_features.degree_one_hot(degree, degree, 6))
    assert a.keys() == b.keys()
    for key, array in a.items():
        np.testing.assert_allclose(array, b[key], atol=1e-12, err_msg=key)


@pytest.mark.parametrize(
    ("name", "beta"),
    [
        ("fedstruct", "last"),
        ("fedstruct_private", "learned"),
        ("fedstruct", "learned"),
        ("fedstruct_private", "last"),
    ],
)
@pytest.mark.slow
def test_blocks_of_columns_and_the_form_of_the_rows_change_nothing(train, monkeypatch, name, beta):
    """Several blocks, rows dense or never, clients that live for one message: as one block does."""
    overrides = [f"strategy={name}", f"model.beta={beta}", "checkpoint_every=3"]
    one = parameters(train(*overrides))
    monkeypatch.setattr(hops, "HELD", 25 * N)
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    for bound in (2.0, 0.0):
        monkeypatch.setattr(hops, "DENSE_ABOVE", bound)
        finished = train(*overrides)
        assert finished.summary["bytes_by_phase"]["acquire"]["exchanges"] == 3 * 2 + 1
        for key, array in parameters(finished).items():
            np.testing.assert_allclose(array, one[key], atol=1e-12, rtol=0, err_msg=f"{bound} {key}")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["per_row", "per_block", "global"])
def test_pruning_travels_and_p_of_n_prunes_nothing(train, mode):
    whole, kept, cut = (train(f"strategy.prune={p}", f"strategy.prune_mode={mode}") for p in (0, N, 2))
    for key, array in whole.arrays.items():
        np.testing.assert_allclose(kept.arrays[key], array, atol=1e-12, err_msg=key)
    assert any(np.abs(cut.arrays[key] - array).max() > 1e-6 for key, array in whole.arrays.items())


# --- what travels ----------------------------------------------------------------------------------------------------

SEEN = {
    "identity": {"key", "nodes"},
    "keys": {"keys", "owner"},
    "rows": {"support", "reached"},
    "structure": {"s"},
    "g": None,
    "model": None,
    "envelopes": None,
}


@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=fedstruct",),
        ("strategy=fedstruct", "strategy.prune=2", "strategy.prune_mode=global"),
        ("strategy=fedstruct_private",),
    ],
)
def test_the_server_sees_no_adjacency_entry(train, monkeypatch, overrides):
    """Sealed content of clients is in no message, and outside envelopes only declared arrays travel."""
    secrets: list[np.ndarray] = []
    seal = Sealer.seal

    def spy(self, receiver, step, arrays):
        secrets.extend(arrays.values())
        return seal(self, receiver, step, arrays)

    monkeypatch.setattr(Sealer, "seal", spy)
    with recorded_messages(monkeypatch) as seen:
        train(*overrides)
    assert len(secrets) > 20
    hidden = {secret.tobytes() for secret in secrets if secret.nbytes >= 32}
    values = {secret.tobytes() for secret in secrets if secret.dtype.kind == "f" and secret.nbytes >= 32}
    sent = [group for _, _, content in seen for group in groups_of(content).items()]
    assert any(name == "envelopes" and arrays for name, arrays in sent)
    for name, arrays in sent:
        declared = SEEN[name]
        assert declared is None or arrays.keys() <= declared, name
        for array in arrays.values():
            raw = array.tobytes()
            assert not any(needle in raw for needle in (hidden if name == "envelopes" else values)), name
            assert name != "envelopes" or array.dtype == np.uint8


def test_the_privacy_variant_sends_no_structure_feature(train, monkeypatch):
    with recorded_messages(monkeypatch) as seen:
        finished = train("strategy=fedstruct_private", "checkpoint_every=1", "rounds=1")
    first = [structure_features.hop2vec(g.num_nodes, 6, 0, g.client) for g in world()]
    rows = {row.tobytes() for s in [*first, parameters(finished)["s"]] for row in s}
    for _, _, content in seen:
        for arrays in groups_of(content).values():
            for array in arrays.values():
                raw = array.tobytes()
                assert not any(row in raw for row in rows)


def test_only_support_rows_of_s_travel(train, monkeypatch):
    """L_s = 1: a client is sent s_u of its nodes and their out-neighbours, and answers for those of training nodes."""
    with recorded_messages(monkeypatch) as seen:
        train("model.structure_hops=1", "rounds=1")
    graphs = world()
    for direction, node, content in seen:
        groups = groups_of(content)
        if "structure" not in groups or "model" not in groups:
            continue
        graph = graphs[node - 1]
        ids, train_ids = graph.node_id, graph.node_id[graph.train_mask]
        ends = torch.cat([ids[graph.edge_index[1]], graph.cut_out[1]])
        starts = torch.cat([ids[graph.edge_index[0]], ids[graph.cut_out[0]]])
        reached = set(train_ids.tolist()) | set(ends[torch.isin(starts, train_ids)].tolist())
        everyone = set(ids.tolist()) | set(ends.tolist())
        assert len(groups["structure"]["s"]) == len(everyone if direction == "down" else reached)


# --- failures, options, state ------------------------------------------------------------------------------------------


def test_b_refuses_features_that_need_the_global_graph(train):
    pytest.importorskip("orbit_count")
    pytest.importorskip("gensim")
    for features in ("graphlets", "node2vec"):
        with pytest.raises(FedGraphError, match=r"no one has in FedStruct-B.*fedstruct_a"):
            train(f"strategy.features={features}")
        assert train("strategy=fedstruct_a", f"strategy.features={features}", "rounds=1").summary["rounds"] == 1


def test_options_that_do_not_go_together_are_named(train, monkeypatch):
    with pytest.raises(FedGraphError, match="needs model=fedstruct, got model=gcn"):
        train("model=gcn")
    with pytest.raises(
        FedGraphError, match=r"needs strategy\.features=hop2vec with model\.structure_mlp=false, got degree"
    ):
        train("model.structure_mlp=false", "strategy.features=degree")
    monkeypatch.setattr("fedgraph_flwr.clients.fedstruct.MAX_ENTRIES", 10)
    with pytest.raises(RunFailed, match=r"set strategy\.prune"):
        train()


def test_acquisition_needs_all_clients(train, monkeypatch):
    acquire = FedStructClient.acquire

    def fail(self, groups, config):
        if self.graph.client == 2 and config["step"] == 2:
            raise RuntimeError("gone")
        return acquire(self, groups, config)

    fail.is_phase = True  # type: ignore[attr-defined]
    monkeypatch.setattr(FedStructClient, "acquire", fail)
    with pytest.raises(RunFailed, match=r"'acquire' needs a valid reply from every client, missing: \[2\]"):
        train()


def test_a_part_of_the_clients_trains_by_its_own_mean(train):
    """Half the clients a round: their summed gradients over their own training nodes; the variants still agree."""
    overrides = ["strategy.fraction=0.5", "checkpoint_every=3"]
    b, a, private = (
        parameters(train(f"strategy={name}", *overrides)) for name in ("fedstruct", "fedstruct_a", "fedstruct_private")
    )
    for arrays in (a, private):
        for key, array in b.items():
            np.testing.assert_allclose(arrays[key], array, atol=1e-12, err_msg=key)


@pytest.mark.parametrize(
    "name", ["fedstruct_private", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedstruct", "fedstruct_a"))]
)
def test_resuming_goes_on_as_if_nothing_had_happened(train, name):
    overrides = [f"strategy={name}", "checkpoint_every=2", "model.dropout=0.5", "model.beta=learned"]
    whole = train(*overrides, "rounds=4")
    half = train(*overrides, "rounds=2")
    resumed = train(*overrides, "rounds=4", f"resume={half.out}", f"out={half.out}")
    a, b = parameters(whole), parameters(resumed)
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ("strategy=fedstruct", "strategy.prune=3", "strategy.prune_mode=global"),
        ("strategy=fedstruct", "strategy.features=degree"),
        ("strategy=fedstruct_private",),
        ("strategy=fedstruct_a",),
    ],
)
def test_clients_that_live_for_one_message_do_the_same(train, monkeypatch, overrides):
    """As on a fleet: every message meets a fresh client, restored from what the node kept."""
    alive = train(*overrides, "model.dropout=0.5")
    monkeypatch.setattr("fedgraph_flwr.engine.inline.InlineGrid._call", call_fresh)
    mortal = train(*overrides, "model.dropout=0.5")
    assert_same_arrays(alive.arrays, mortal.arrays)


def test_graphsage_backbone_of_figure_3(train):
    """FedStruct-A with another network on both sides: one plain step is the gradient of softmax(sGNN + fGNN)."""
    overrides = [
        "strategy=fedstruct_a",
        "model=sage",
        "model.hidden=4",
        "strategy.width=6",
        "rounds=1",
        "checkpoint_every=1",
    ]
    plain = ["train.optimizer=sgd", "train.lr=1", "train.weight_decay=0"]
    finished = train(*overrides, *plain)
    arrays, graphs, cfg = parameters(finished), world(), finished.cfg
    torch.manual_seed(derive_seed(cfg.seed, "model"))
    network = models.build(cfg.model, F, C).double()
    torch.manual_seed(derive_seed(cfg.seed, "structure model"))
    wide = models.build(cfg.model, 6, C).double()
    s = torch.zeros(N, 6, dtype=torch.float64)
    for graph in graphs:
        s[graph.node_id] = torch.from_numpy(structure_features.hop2vec(graph.num_nodes, 6, cfg.seed, graph.client))
    s.requires_grad_()
    whole = world(partition="one")[0]
    inputs = wide.prepare(whole, dtype=torch.float64)
    z = wide(replace(inputs, x=s))
    losses = []
    for graph in graphs:
        logits = network(network.prepare(graph, dtype=torch.float64)) + z[graph.node_id]
        rows = graph.train_mask
        losses.append(torch.nn.functional.cross_entropy(logits[rows], graph.y[rows], reduction="sum"))
    (sum(losses) / whole.train_mask.sum()).backward()
    np.testing.assert_allclose(arrays["s"], (s - s.grad).detach(), atol=1e-12)
    for name, parameter in network.named_parameters():
        np.testing.assert_allclose(finished.arrays[name], (parameter - parameter.grad).detach(), atol=1e-12)
