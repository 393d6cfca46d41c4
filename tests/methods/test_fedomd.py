"""FedOMD: the orthogonal layer, pooled moments and their discrepancy, the exchanges, and the limits."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.clients.base import phase
from fedgraph_flwr.clients.fedomd import FedOMDClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.moments import ORDERS, central_moments, discrepancy, moments_about
from fedgraph_flwr.models import build
from fedgraph_flwr.models.fedomd import OrthoGCN, orthogonal, orthogonality
from fedgraph_flwr.wire.messages import METRICS, MODEL
from tests.conftest import client_graph, uneven_clients
from tests.support import assert_same_arrays, dense_gcn_adjacency, recorded_messages

SIZES = (1, 7, 40)
H, D = 3, 8  # hidden layers and their width in the small runs: conf/model/fedomd.yaml with model.hidden=8


def features(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> list[torch.Tensor]:
    """Hidden features [n_i, H, D], float64, skewed and of another mean at each client."""
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.gamma(1 + i, 1.5, size=(n, H, D))) for i, n in enumerate(sizes)]


def union_moments(parts: list[np.ndarray]) -> np.ndarray:
    """Mean and central moments 2 to 5 of the concatenation, by their definition: [H, 5, D]."""
    union = np.concatenate(parts)
    mean = union.mean(0)
    return np.stack([mean, *(((union - mean) ** j).mean(0) for j in ORDERS)], axis=1)


# --- pooled moments ----------------------------------------------------------------------------------------------------


def test_moments_about_the_pooled_mean_are_those_of_the_union():
    parts = features()
    expected, counts = union_moments([z.numpy() for z in parts]), np.array(SIZES)
    mean = np.average([z.mean(0).numpy() for z in parts], axis=0, weights=counts)
    about = [moments_about(z, torch.from_numpy(mean)).numpy() for z in parts]
    for weights, same in ((counts, True), (None, False)):  # the clients are unequal enough to tell
        spread = np.average(about, axis=0, weights=weights)
        assert np.allclose(spread, expected[:, 1:], rtol=1e-11, atol=1e-11) == same


def test_second_moment_about_the_pooled_mean_by_hand():
    """S_{i,2} = Var_i + (M_i − M)², S_2 its weighted mean."""
    parts = [z.numpy() for z in features()]
    mean = np.concatenate(parts).mean(0)
    by_hand = [z.var(0) + (z.mean(0) - mean) ** 2 for z in parts]
    for z, expected in zip(parts, by_hand, strict=True):
        about = moments_about(torch.from_numpy(z), torch.from_numpy(mean))
        np.testing.assert_allclose(about[:, 0].numpy(), expected, rtol=1e-11)


# --- central moment discrepancy ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "size"),
    [
        ("norm", lambda d: np.sqrt((d**2).sum())),
        ("squared", lambda d: (d**2).sum()),
        ("mean", lambda d: np.sqrt((d**2).mean())),
        ("mean_squared", lambda d: (d**2).mean()),
    ],
)
def test_discrepancy_by_its_definition(norm, size):
    z, other = (part.numpy() for part in features((9, 30)))
    moments, target, span = union_moments([z]), union_moments([other]), np.array([1.0, 2.0, 0.5])
    gaps = (moments - target) / (span[:, None] ** np.arange(1, 6))[..., None]
    expected = sum(size(gap) for layer in gaps for gap in layer)
    value = discrepancy(central_moments(torch.from_numpy(z)), torch.from_numpy(target), torch.from_numpy(span), norm)
    assert float(value) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("norm", ["norm", "squared", "mean", "mean_squared"])
def test_gradient_of_the_discrepancy_by_finite_differences(norm):
    z, other = (0.3 * part for part in features((9, 30)))  # small, so that differences of the sum keep their digits
    target, span = central_moments(other), torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    z = z.requires_grad_()
    assert torch.autograd.gradcheck(central_moments, z)
    assert torch.autograd.gradcheck(lambda z: discrepancy(central_moments(z), target, span, norm), z)


def test_equal_distributions_have_no_discrepancy_and_a_finite_gradient():
    z = features((9,))[0].requires_grad_()
    twice = torch.cat([z, z]).detach()  # another client with the same distribution
    value = discrepancy(central_moments(z), central_moments(twice), torch.ones(H, dtype=torch.float64))
    value.backward()
    assert float(value.detach()) < 1e-4
    assert torch.isfinite(z.grad).all()
    assert z.grad.abs().max() < 1e-3


def test_a_shift_of_all_features_changes_only_the_mean_term():
    z = features((9,))[0]
    shift = torch.linspace(-1, 2, D, dtype=torch.float64)
    before, after, about = central_moments(z), central_moments(z + shift), z.mean(0)
    torch.testing.assert_close(after[:, 1:], before[:, 1:])
    torch.testing.assert_close(after[:, 0], before[:, 0] + shift)
    assert not torch.allclose(moments_about(z + shift, about), moments_about(z, about))


def test_a_shift_of_all_features_changes_the_discrepancy_by_its_mean_term():
    """With the pooled moments held fixed."""
    z, other = features((9, 30))
    shift, span = torch.linspace(-1, 2, D, dtype=torch.float64), torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    target, mean = central_moments(other), z.mean(0)
    before, after = (discrepancy(central_moments(features), target, span) for features in (z, z + shift))
    gap = [((m - target[:, 0]).norm(dim=1) / span).sum() for m in (mean, mean + shift)]
    assert float(after - before) == pytest.approx(float(gap[1] - gap[0]), rel=1e-9)
    assert abs(float(gap[1] - gap[0])) > 0.1


# --- orthogonal weight -------------------------------------------------------------------------------------------------


def random_weight(size: int = 64, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(seed)
    return (torch.rand(size, size, dtype=dtype) * 2 - 1) / size**0.5


def test_hybrid_weight_becomes_orthogonal():
    o = orthogonal(random_weight(), steps=8, mix=0.2)
    assert torch.linalg.matrix_norm(o @ o.T - torch.eye(64)) < 1e-3
    assert torch.linalg.matrix_norm(o.T @ o - torch.eye(64)) < 1e-3


def test_orthogonal_weight_is_the_polar_factor():
    w = random_weight(12, dtype=torch.float64) + torch.eye(12, dtype=torch.float64)
    u, _, vt = torch.linalg.svd(w)
    torch.testing.assert_close(orthogonal(w, steps=40, eps=0), u @ vt, rtol=0, atol=1e-9)
    hybrid = 0.3 * w + 0.7 * torch.eye(12, dtype=torch.float64)
    u, _, vt = torch.linalg.svd(hybrid)
    torch.testing.assert_close(orthogonal(w, steps=40, mix=0.3, eps=0), u @ vt, rtol=0, atol=1e-9)


def test_orthogonal_weight_ignores_scale_and_keeps_what_is_orthogonal():
    w = random_weight(12, dtype=torch.float64) + torch.eye(12, dtype=torch.float64)
    for scale in (0.01, 30.0):  # at any number of steps, not only in the limit
        torch.testing.assert_close(orthogonal(scale * w, steps=3, eps=0), orthogonal(w, steps=3, eps=0))
    rotation, _ = torch.linalg.qr(w)
    torch.testing.assert_close(orthogonal(rotation, steps=20, eps=0), rotation)


def test_coupled_iteration_equals_the_plain_one_early_and_outlives_it():
    w = random_weight(dtype=torch.float64)

    def plain(w: torch.Tensor, steps: int) -> torch.Tensor:
        gram = w @ w.T + 1e-5 * torch.eye(len(w), dtype=w.dtype)
        bound = gram.norm()
        b = torch.eye(len(w), dtype=w.dtype)
        for _ in range(steps):
            b = 1.5 * b - 0.5 * b @ b @ b @ (gram / bound)
        return b @ w / bound.sqrt()

    for steps in (1, 4, 8):
        torch.testing.assert_close(orthogonal(w, steps=steps), plain(w, steps), rtol=1e-8, atol=1e-8)
    assert not plain(w.float(), 30).isfinite().all()
    residual = [float(orthogonality([orthogonal(w.float(), steps=steps)])) for steps in (8, 30, 60)]
    assert residual[0] > residual[1]
    assert residual[2] < residual[1] + 1e-2


def test_centred_rows_leave_one_direction_out():
    o = orthogonal(random_weight(16, dtype=torch.float64), steps=60, center=True)
    values = torch.linalg.svdvals(o)
    assert values[-1] < 1e-6
    assert values[-2] > 0.9


def test_gradients_of_the_orthogonal_layer_by_finite_differences():
    w = random_weight(5, dtype=torch.float64).requires_grad_()
    for options in ({"mix": 1.0}, {"mix": 0.3}, {"mix": 0.3, "center": True}):
        assert torch.autograd.gradcheck(lambda w, o=options: orthogonal(w, steps=4, **o), w)
    assert torch.autograd.gradcheck(lambda w: orthogonality([w, 2 * w]), w)
    assert torch.autograd.gradcheck(lambda w: orthogonality([orthogonal(w, steps=2)]), w)


def test_orthogonality_by_hand_and_finite_at_zero():
    w = torch.tensor([[1.0, 1.0], [0.0, 2.0]])  # W Wᵀ − I = [[1, 2], [2, 3]]
    assert float(orthogonality([w, w])) == pytest.approx(2 * 18**0.5)
    eye = torch.eye(3, requires_grad=True)
    orthogonality([eye]).backward()
    assert torch.equal(eye.grad, torch.zeros(3, 3))


# --- network -----------------------------------------------------------------------------------------------------------


def network(*overrides: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(compose(["strategy=fedomd", f"model.hidden={D}", *overrides]).model, 5, 3)


def test_network_by_dense_products():
    graph, model = client_graph(0), network().double().eval()
    out = model.propagate(model.prepare(graph, dtype=torch.float64))
    a, w = dense_gcn_adjacency(graph.edge_index, graph.num_nodes), dict(model.named_parameters())
    z = [torch.relu(a @ graph.x.double() @ w["layers.0.weight"] + w["layers.0.bias"])]
    for k in (1, 2):
        z.append(torch.relu(a @ z[-1] @ orthogonal(w[f"layers.{k}.weight"], steps=8, mix=0.2)))
    logits = a @ z[-1] @ w["head.weight"] + w["head.bias"]
    torch.testing.assert_close(out.logits, logits)
    for got, expected in zip(out.hidden, z, strict=True):
        torch.testing.assert_close(got, expected)
    hidden = [f"layers.{k}" for k in ("0.bias", "0.weight", "1.weight", "2.weight")]
    assert sorted(w) == ["head.bias", "head.weight", *hidden]


def test_what_the_orthogonality_loss_judges():
    inputs = network().prepare(client_graph(0))
    transformed, raw = network().propagate(inputs), network("model.ortho_on=raw").propagate(inputs)
    assert torch.equal(transformed.logits, raw.logits)
    assert orthogonality(transformed.weights) < 0.1 < orthogonality(raw.weights)
    assert network("model.ortho=false").propagate(inputs).weights == []


def test_without_orthogonality_it_is_gcn_with_the_same_names():
    plain, gcn = network("model.ortho=false", "model.dropout=0.5"), network("model=gcn", "model.layers=4")
    assert_same_arrays(*({k: v.numpy() for k, v in m.state_dict().items()} for m in (plain, gcn)))
    inputs = gcn.prepare(client_graph(0))
    torch.manual_seed(1)
    dropped = gcn(inputs)
    torch.manual_seed(1)
    assert torch.equal(plain(inputs), dropped)


def hidden_features(client: FedOMDClient) -> torch.Tensor:
    """[N, H, D] of the client's current model, without dropout."""
    client.model.eval()
    return torch.stack(client.model.propagate(client.inputs).hidden, dim=1).detach()


# --- runs --------------------------------------------------------------------------------------------------------------

FEDOMD = ["strategy=fedomd", "train.local_steps=2", "model.dropout=0.5"]
PLAIN = ["model.ortho=false", "strategy.alpha=0", "strategy.beta=0"]


@pytest.fixture
def targets(monkeypatch) -> list[tuple[int, int, dict]]:
    """(round, client, what it received) of every training or evaluation message of a run."""
    seen: list[tuple[int, int, dict]] = []
    receive = FedOMDClient.receive

    def spy(self, groups):
        receive(self, groups)
        seen.append((self.server_round, self.graph.client, groups.get("target", {})))

    monkeypatch.setattr(FedOMDClient, "receive", spy)
    return seen


def test_without_its_terms_it_is_fedavg_bit_for_bit(run):
    fedavg = run("strategy=fedavg", "strategy.weighting=nodes", "model=gcn", "model.layers=4", "train.local_steps=2")
    limit = run(*FEDOMD, *PLAIN)
    assert_same_arrays(limit.arrays, fedavg.arrays)
    assert limit.summary["bytes_up"] == fedavg.summary["bytes_up"]
    assert limit.summary["exchanges_per_round"] == 1
    assert (run(*FEDOMD).arrays["layers.0.weight"] != fedavg.arrays["layers.0.weight"]).any()


@pytest.mark.parametrize("switch", [["strategy.cmd=false"], ["strategy.beta=0"]])
def test_switched_off_moments_are_not_asked_for(run, switch):
    assert set(run(*FEDOMD, *switch).summary["bytes_by_phase"]) == {"describe", "train", "evaluate"}


def test_moments_are_exchanged_although_their_weight_changes_nothing(run, monkeypatch):
    """The statistics' forward pass leaves no trace in training: β → 0 through the exchange is FedAvg too."""
    monkeypatch.setattr("fedgraph_flwr.clients.fedomd.discrepancy", lambda moments, *rest: moments.new_zeros(()))
    with_exchange = run(*FEDOMD, "model.ortho=false", "strategy.alpha=0")
    assert "moments_sum" in with_exchange.summary["bytes_by_phase"]
    without = run(*FEDOMD, *PLAIN)
    assert_same_arrays(with_exchange.arrays, without.arrays)
    for one, other in zip(with_exchange.rounds, without.rounds, strict=True):
        assert one["clients"] == other["clients"], "scored from the pass that gave the statistics"


@pytest.mark.parametrize("exchange", ["one_phase", "two_phase"])
@pytest.mark.parametrize(("dropout", "passes"), [(0, 2), (0.5, 3)])  # with dropout the first step's is its own
def test_the_first_step_goes_on_from_the_pass_of_the_statistics(run, monkeypatch, exchange, dropout, passes):
    """Same bits as with a separate pass, whatever is requested in between."""
    overrides = [*FEDOMD, f"model.dropout={dropout}", f"strategy.exchange={exchange}", "rounds=3"]
    taken: list[str] = []
    propagate = OrthoGCN.propagate
    monkeypatch.setattr(OrthoGCN, "propagate", lambda model, inputs: taken.append("") or propagate(model, inputs))
    shared = run(*overrides)
    assert len(taken) == 3 * 3 * passes  # clients, rounds
    monkeypatch.setattr(FedOMDClient, "_valid_cache", lambda self: None)
    reference = run(*overrides)
    assert_same_arrays(shared.arrays, reference.arrays)
    assert [record["clients"] for record in shared.rounds] == [record["clients"] for record in reference.rounds]


@pytest.mark.parametrize("changed", ["shared", "in place"])
def test_a_pass_serves_no_other_model(changed):
    """Another model comes to train, or something writes into the network: the step makes its own pass."""
    client = make_client()
    model = dict(zip(client.shared, client.get_parameters({}), strict=True))
    client._features_of(model)
    stale = client.predict()
    if changed == "shared":
        client.set_parameters([array + 0.1 for array in model.values()])
    else:
        with torch.no_grad():
            client.model.layers[0].weight += 0.1
    fresh = FedOMDClient(client.cfg, client_graph(0))
    fresh.set_parameters(client.get_parameters({}))
    assert torch.equal(client.predict(), fresh.predict())
    assert not torch.equal(client.predict(), stale)
    client.train()
    fresh.train()
    assert all(map(torch.equal, client.shared.values(), fresh.shared.values()))


@pytest.mark.parametrize("exchange", ["one_phase", "two_phase"])
@pytest.mark.parametrize("nodes", ["all", "train"])
def test_targets_are_the_moments_of_all_features_without_dropout(run, targets, exchange, nodes):
    overrides = [*FEDOMD, "dtype=float64", "rounds=1", "strategy.cmd_act=sigmoid", f"strategy.cmd_nodes={nodes}"]
    finished = run(*overrides, f"strategy.exchange={exchange}", "strategy.cmd_range=pooled")
    parts = []
    for index, size in enumerate((12, 16, 20)):
        client = FedOMDClient(finished.cfg, client_graph(index, size))  # built from the run's seed: round 1's model
        z = torch.sigmoid(hidden_features(client))
        parts.append((z[client.train_nodes] if nodes == "train" else z).numpy())
    union = np.concatenate(parts)
    received = [target for server_round, _, target in targets if target]
    assert len(received) == 3
    for target in received:
        np.testing.assert_allclose(target["moments"], union_moments(parts), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(target["span"], union.max((0, 2)) - union.min((0, 2)), rtol=1e-12)


@pytest.mark.parametrize("exchange", ["one_phase", "two_phase"])
def test_moments_of_training_nodes_are_weighted_by_their_number(run, targets, tmp_path, exchange):
    folder = uneven_clients(tmp_path / "uneven")
    overrides = [*FEDOMD, "dtype=float64", "rounds=1", "strategy.cmd_nodes=train", f"strategy.exchange={exchange}"]
    finished = run(*overrides, f"graph={folder}")
    parts = []
    for file in sorted(folder.iterdir()):
        client = FedOMDClient(finished.cfg, ClientGraph.load(file))
        parts.append(hidden_features(client)[client.train_nodes].numpy())
    received = [target for _, _, target in targets if target]
    assert len(received) == 3
    for target in received:
        np.testing.assert_allclose(target["moments"], union_moments(parts), rtol=1e-9, atol=1e-12)


def test_a_sampler_with_all_neighbours_trains_as_the_whole_graph(run):
    """With moments of training nodes; those of all nodes are not in a batch, so they are refused."""
    overrides = [*FEDOMD, "dtype=float64", "model.dropout=0", "strategy.cmd_nodes=train"]
    fanout = f"train.fanout={[-1] * compose(overrides).model.layers}"
    whole, sampled = run(*overrides), run(*overrides, "train.sampler=neighbors", fanout)
    for name, value in whole.arrays.items():
        np.testing.assert_allclose(sampled.arrays[name], value, rtol=0, atol=1e-10, err_msg=name)
    with pytest.raises(FedGraphError, match=r"set strategy\.cmd_nodes=train or train\.sampler=none"):
        run(*FEDOMD, "train.sampler=neighbors", fanout)
    run(*FEDOMD, "train.sampler=neighbors", fanout, "strategy.beta=0")


def test_dead_layers_leave_the_loss_finite(run, targets, tmp_path):
    """Features of zeros make every hidden feature 0: a layer without a range."""
    finished = run(*FEDOMD, f"graph={uneven_clients(tmp_path / 'zeros', zero=True)}")
    assert finished.summary["failures"] == {}
    assert not any(target["moments"].any() for r, _, target in targets if r == 1 and target), "dead indeed"
    assert all(np.isfinite(r["train"]["train_loss"]) for r in finished.rounds)


def test_both_exchanges_train_alike(run):
    one, two = (run(*FEDOMD, "dtype=float64", f"strategy.exchange={e}").arrays for e in ("one_phase", "two_phase"))
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("exchange", ["one_phase", "two_phase"])
@pytest.mark.parametrize("width", ["unit", "pooled"])
def test_messages_hold_what_is_documented_and_no_more(run, monkeypatch, exchange, width):
    with recorded_messages(monkeypatch) as messages:
        run(*FEDOMD, f"strategy.exchange={exchange}", f"strategy.cmd_range={width}", "rounds=1")
    pooled = width == "pooled"
    point = {name: {"point": {"mean"}} for name in ("moments_about", "moments_sum")}
    down = {"train": {"target": {"moments", "span"} if pooled else {"moments"}}, **point}
    ranges = {"range": {"range"}} if pooled else {}
    up = {
        "moments_sum": {"moments": {"powers"}, **ranges},
        "means": {"moments": {"mean"}, **ranges},
        "moments_about": {"moments": {"spread"}},
    }
    phases = {"one_phase": ("moments_sum",), "two_phase": ("means", "moments_about")}[exchange]
    name, events = "", set()
    for direction, _, content in messages:
        name = content["config"]["phase"] if direction == "down" else name
        groups = {group: set(arrays) for group, arrays in content.array_records.items() if group != MODEL}
        events.add((direction, name))
        if direction == "down":
            assert groups == down.get(name, {})
        elif name in phases:
            assert groups == up[name]
            assert set(content[METRICS]) == {"client"}
            assert MODEL not in content
        elif name == "train":
            assert groups == {}
            assert set(content[METRICS]) == {"client", "train-loss", "num_train"}
    assert events == {(d, n) for d in ("down", "up") for n in ("describe", *phases, "train", "evaluate")}


@pytest.mark.parametrize("exchange", ["one_phase", "two_phase"])
@pytest.mark.parametrize("width", ["unit", "pooled"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_phase_costs_the_documented_bytes(run, exchange, width, dtype):
    """The table of `fedgraph_flwr.strategies.fedomd` against the ledger, for 3 clients and 2 rounds."""
    overrides = [*FEDOMD, f"dtype={dtype}", "rounds=2", f"strategy.exchange={exchange}", f"strategy.cmd_range={width}"]
    overrides += ["checkpoint_every=0"]
    finished = run(*overrides)
    p = (5 * D + D) + 2 * D * D + (D * 3 + 3)
    assert p == sum(array.size for array in finished.arrays.values())
    ranges, item = (H if width == "pooled" else 0), {"float32": 4, "float64": 8}[dtype]
    phases = {"one_phase": ("moments_sum",), "two_phase": ("means", "moments_about")}[exchange]
    double = 8 // item  # powers and their point are float64
    arrays = {  # down, up
        "describe": (0, 0),
        "moments_sum": (p + double * H * D, double * 5 * H * D + 2 * ranges),
        "means": (p, H * D + 2 * ranges),
        "moments_about": (p + H * D, 4 * H * D),
        "train": (p + 5 * H * D + ranges, p),
        "evaluate": (p, 0),
    }
    scalars = {"describe": (1, 5), "train": (2, 2), "evaluate": (0, 12)} | dict.fromkeys(phases, (0, 0))
    assert finished.summary["bytes_by_phase"].keys() == {"describe", *phases, "train", "evaluate"}
    kept = (
        3 * (len("describe") + 8 + 3 * 8 + 16),
        3 * (8 * 5 + 8),
    )  # asked again, to keep the models of a run with a name
    for name, booked in finished.summary["bytes_by_phase"].items():
        times = 3 * (1 if name in ("describe", "evaluate") else 2)
        (down, up), (scalars_down, answered) = arrays[name], scalars[name]
        scores = 3 * 12 * 8 if name == "train" else 0  # of round 1's model, with the replies of round 2
        again = kept if name == "describe" else (0, 0)
        scored = 3 * 2 * 8 if name in ("train", "evaluate") else 0  # which round's model is scored, and which was best
        asked = times * (item * down + 8 * scalars_down + 8 + len(name)) + scored + again[0]
        assert booked["bytes_down"] == asked, name  # and round and phase
        assert booked["bytes_up"] == times * (item * up + 8 * answered + 8) + scores + again[1], name  # and the client
    assert finished.summary["exchanges_per_round"] == len(phases) + 1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("moments_sum", "moments/powers"),
        ("moments_sum", "range/range"),
        ("means", "moments/mean"),
        ("means", "range/range"),
        ("moments_about", "moments/spread"),
    ],
)
def test_statistics_of_another_shape_are_refused(run, monkeypatch, name, key):
    answer = getattr(FedOMDClient, name)

    @phase
    def cut(self, groups, config):
        reply, metrics = answer(self, groups, config)
        group, _, array = key.partition("/")
        return reply | {group: {array: reply[group][array][:, :-1]}}, metrics

    monkeypatch.setattr(FedOMDClient, name, cut)
    with pytest.raises(FedGraphError, match=f"clients 0, 1, 2: replied to phase .* with '{key}' of shape"):
        run(*FEDOMD, f"strategy.exchange={'one_phase' if name == 'moments_sum' else 'two_phase'}")


def fail(monkeypatch, name: str, client: int, server_round: int) -> None:
    """Let one client fail in one phase of one round."""
    answer = getattr(FedOMDClient, name)

    @phase
    def failing(self, groups, config):
        if (self.graph.client, self.server_round) == (client, server_round):
            raise FedGraphError("gone")
        return answer(self, groups, config)

    monkeypatch.setattr(FedOMDClient, name, failing)


@pytest.mark.parametrize(
    ("exchange", "fails"), [("one_phase", "moments_sum"), ("two_phase", "means"), ("two_phase", "moments_about")]
)
def test_a_client_that_drops_out_between_exchanges_leaves_no_trace(run, targets, monkeypatch, exchange, fails):
    """Round 1 without client 1 gives the others the targets they would have without it from the start."""
    fail(monkeypatch, fails, client=1, server_round=1)
    overrides = [*FEDOMD, "dtype=float64", "rounds=2", f"strategy.exchange={exchange}"]
    finished = run(*overrides)
    first = {client: target["moments"] for r, client, target in targets if r == 1 and target}
    second = {client for r, client, target in targets if r == 2 and target}
    assert set(first) == {0, 2}, "it does not train in that round"
    assert second == {0, 1, 2}
    parts = []
    for index, size in ((0, 12), (2, 20)):
        parts.append(hidden_features(FedOMDClient(finished.cfg, client_graph(index, size))).numpy())
    for moments in first.values():
        np.testing.assert_allclose(moments, union_moments(parts), rtol=1e-9, atol=1e-12)
    assert finished.rounds[0]["failed"] == {f"1 ({fails})": "gone"}
    phases = finished.rounds[0]["phases"]
    assert phases[fails]["exchanges"] == 1
    assert ("moments_sum" in phases) == (fails != "means"), "those left are asked about the pooled mean"


@pytest.mark.parametrize(
    ("exchange", "fails"), [("one_phase", "moments_sum"), ("two_phase", "means"), ("two_phase", "moments_about")]
)
def test_who_falls_out_before_training_still_scores_the_last_round(run, monkeypatch, exchange, fails):
    """Scores are due with the training replies, which then do not come from all."""
    overrides = [*FEDOMD, "rounds=2", f"strategy.exchange={exchange}"]
    whole = run(*overrides).rounds[0]
    fail(monkeypatch, fails, client=1, server_round=2)
    first, second = run(*overrides).rounds
    assert second["failed"] == {f"1 ({fails})": "gone"}
    assert first["clients"] == whole["clients"]
    assert first["metrics"] == whole["metrics"]
    assert second["phases"]["evaluate"]["exchanges"] == 2, "for round 1, and the last model's"
    assert second["phases"]["train"]["bytes_up"] == whole["phases"]["train"]["bytes_up"] * 2 / 3, "without scores again"


def test_who_falls_out_before_training_keeps_its_state_for_a_checkpoint(run, monkeypatch):
    overrides = [*FEDOMD, "rounds=3", "checkpoint_every=2"]
    fail(monkeypatch, "moments_sum", client=1, server_round=2)
    whole = run(*overrides)
    final = whole.arrays
    resumed = run(*overrides, f"graph={whole.cfg.graph}", f"out={whole.out}", f"resume={whole.out}")
    assert_same_arrays(resumed.arrays, final)


def make_client(*overrides: str) -> FedOMDClient:
    """A client in float64 without dropout."""
    defaults = ["strategy=fedomd", "dtype=float64", "model.dropout=0", f"model.hidden={D}"]
    return FedOMDClient(compose([*defaults, *overrides]), client_graph(0))


def test_moment_term_by_hand_with_bounded_features_and_a_range():
    client = make_client("strategy.alpha=0", "strategy.beta=7", "strategy.cmd_act=sigmoid")
    target = torch.rand(H, 5, D, dtype=torch.float64)
    span = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    client.receive({"target": {"moments": target.numpy(), "span": span.numpy()}})
    out = client.model.propagate(client.inputs)
    nodes = client.train_nodes
    entropy = -torch.log_softmax(out.logits, 1)[nodes, client.y[nodes]].mean()
    gap = torch.from_numpy(union_moments([torch.stack(out.hidden, 1).sigmoid().detach().numpy()])) - target
    terms = [gap[k, j - 1].norm() / span[k] ** j for k in range(H) for j in range(1, 6)]
    assert float(client.loss().detach()) == pytest.approx(float((entropy + 7 * sum(terms)).detach()), rel=1e-6)


def test_objective_by_hand():
    """Eq. (12) with both factors, from the definitions."""
    client = make_client("strategy.alpha=0.3", "strategy.beta=7", "model.ortho_on=raw")
    target = torch.rand(H, 5, D, dtype=torch.float64)
    client.receive({"target": {"moments": target.numpy()}})
    out = client.model.propagate(client.inputs)
    nodes, w = client.train_nodes, [client.model.layers[k].weight for k in (1, 2)]
    entropy = -torch.log_softmax(out.logits, 1)[nodes, client.y[nodes]].mean()
    gap = torch.from_numpy(union_moments([torch.stack(out.hidden, 1).detach().numpy()])) - target
    ortho = sum(torch.linalg.matrix_norm(m @ m.T - torch.eye(D)) for m in w)
    assert float(client.loss()) == pytest.approx(float(entropy + 0.3 * ortho + 7 * gap.norm(dim=2).sum()), rel=1e-6)


def test_gradient_of_the_whole_objective_by_finite_differences():
    """Every parameter of Eq. (12), float64, no dropout, with targets that differ from the client's own moments."""
    client = make_client("strategy.alpha=0.3", "model.mix=0.5")
    model = dict(zip(client.shared, client.get_parameters({}), strict=True))
    target = 1.3 * client._features_of(model)[1] + 0.1
    client.receive({"target": {"moments": target.numpy()}})
    client.model.train()
    client.loss().backward()
    rng = np.random.default_rng(0)
    for name, parameter in client.model.named_parameters():
        direction = torch.from_numpy(rng.normal(size=parameter.shape))
        values, step = [], 1e-6
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * step * direction
                values.append(float(client.loss()))
                parameter -= sign * step * direction
        numeric = (values[0] - values[1]) / (2 * step)
        assert float((parameter.grad * direction).sum()) == pytest.approx(numeric, rel=1e-5, abs=1e-7), name


def test_a_lone_client_has_no_discrepancy(run):
    """M = 1 without dropout: the pooled moments are its own, so the first step is that of β = 0."""
    overrides = ["strategy=fedomd", "train.local_steps=1", "train.optimizer=sgd", "model.dropout=0", "rounds=1"]
    with_cmd = run(*overrides, "dtype=float64", sizes=(16,)).arrays
    without = run(*overrides, "dtype=float64", "strategy.beta=0", sizes=(16,)).arrays
    for name in with_cmd:
        np.testing.assert_allclose(with_cmd[name], without[name], rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("strategy.exchange=three_phase", "one_phase"),
        ("strategy.cmd_range=wide", "pooled"),
        ("strategy.cmd_nodes=val", "train"),
        ("strategy.beta=-1", "strategy.beta must be >= 0"),
        ("model.ortho_on=both", "raw"),
        ("model.mix=0", "model.mix"),
        ("model.layers=1", "model.layers"),
        ("model=gcn", "needs model=fedomd"),
    ],
)
def test_wrong_input_is_named(run, override, message):
    with pytest.raises(FedGraphError, match=message):
        run(*FEDOMD, override)


def test_protocol_is_the_papers():
    cfg = compose(["protocol=fedomd", "strategy=fedomd", "dataset=computers"])
    assert (cfg.split.train, cfg.split.val, cfg.split.test, cfg.split.scope) == (0.01, 0.2, 0.2, "global")
    assert (cfg.rounds, cfg.evaluation.patience, cfg.train.weight_decay, cfg.train.local_steps) == (1000, 200, 1e-4, 1)
    assert cfg.dataset.largest_component
    assert cfg.partition.resolution == 20
    assert (cfg.model.name, cfg.model.layers) == ("fedomd", 4)
    baseline = compose(["protocol=fedomd", "strategy=fedavg"])
    assert (baseline.model.name, baseline.model.layers, baseline.strategy.weighting) == ("gcn", 2, "nodes")
