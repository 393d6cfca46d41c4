"""FedFA: shaken features by loops in NumPy, the variances over clients, and what must not change."""

import numpy as np
import pytest
import torch

from fedgraph_baselines.clients.fedfa import FedFAClient, sharing
from fedgraph_baselines.methods.fedfa import EPS
from fedgraph_baselines.strategies.fedfa import FedFA
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.strategies.connection import ClientInfo
from fedgraph_flwr.wire.messages import MODEL, Reply, from_record
from tests.conftest import client_graph
from tests.support import recorded_messages, reduced

H, ALPHA = 6, 0.9


@pytest.fixture(autouse=True)
def other_constants(monkeypatch):
    monkeypatch.setattr("fedgraph_baselines.clients.fedfa.MOMENTUM", ALPHA)
    monkeypatch.setattr("fedgraph_baselines.clients.fedfa.GROUPS", 4)


def configured(*overrides):
    keys = [f"model.hidden={H}"]
    return compose(["strategy=fedfa", "dtype=float64", "strategy.p=1", "model.layers=3", *keys, *overrides])


def client_of(nodes, *overrides):
    """A client in training, with statistics that it was sent."""
    client = FedFAClient(configured(*overrides), client_graph(0, nodes))
    rng = np.random.default_rng(3)
    groups = {g: {key: rng.uniform(0.1, 2, (2, H)) for key in ("mean", "std")} for g in ("running", "spread")}
    client.receive({g: {key: value.copy() for key, value in group.items()} for g, group in groups.items()})
    client.model.train()
    return client, groups, torch.from_numpy(rng.normal(size=(nodes, H)))


def shaken(h, groups, layer, seed):
    """The result for h [N, H], and the running statistics after it: one node and one channel at a time."""
    torch.manual_seed(seed)
    torch.rand(())
    n = len(h)
    count = max(min(4, n // 2), 1)
    member = torch.randperm(n).numpy() % count
    noise = torch.randn(2, count, H, dtype=torch.float64).numpy()
    out, running = np.empty_like(h), {key: value[layer].copy() for key, value in groups["running"].items()}
    for j in range(H):
        parts = [h[member == k, j] for k in range(count)]
        mean = np.array([sum(part) / len(part) for part in parts])
        std = np.array([(sum((part - part.mean()) ** 2) / (len(part) - 1) + EPS) ** 0.5 for part in parts])
        new = {}
        for row, (key, value) in enumerate((("mean", mean), ("std", std))):
            w = [1 / (1 + 1 / (s + EPS)) for s in groups["spread"][key][layer]]
            gamma = H * w[j] / sum(w)
            variance = np.var(value, ddof=1) if count > 1 else (value[0] - running[key][j]) ** 2
            new[key] = value + noise[row, :, j] * np.sqrt((1 + gamma) * (variance + EPS))
            running[key][j] = ALPHA * running[key][j] + (1 - ALPHA) * value.mean()
        for v in range(n):
            k = member[v]
            out[v, j] = new["std"][k] * (h[v, j] - mean[k]) / std[k] + new["mean"][k]
    return out, running


@pytest.mark.parametrize("nodes", [17, 3])  # 3: one group, which is held against the running statistics
@pytest.mark.parametrize("layer", [0, 1])
def test_features_are_drawn_anew_by_groups(nodes, layer):
    client, groups, h = client_of(nodes)
    torch.manual_seed(5)
    features = client.model.after_hidden(h, layer)
    expected, running = shaken(h.numpy(), groups, layer, 5)
    np.testing.assert_allclose(features.numpy(), expected, rtol=1e-10)
    for key in running:
        np.testing.assert_allclose(client.running[key][layer].numpy(), running[key], rtol=1e-12)
        np.testing.assert_array_equal(client.running[key][1 - layer].numpy(), groups["running"][key][1 - layer])


def test_without_noise_a_layer_is_the_identity(monkeypatch):
    client, groups, h = client_of(17)
    monkeypatch.setattr(torch, "randn", lambda *size, **kwargs: torch.zeros(*size, **kwargs))
    torch.testing.assert_close(client.augment(h, 0), h, rtol=1e-12, atol=1e-12)
    assert not np.array_equal(client.running["mean"].numpy(), groups["running"]["mean"])


def test_scoring_and_lone_nodes_change_nothing():
    client, groups, h = client_of(17)
    client.predict()
    assert client.augment(h, 0) is h
    client.model.train()
    assert torch.equal(client.augment(h[:1], 0), h[:1])
    for key, value in groups["running"].items():
        np.testing.assert_array_equal(client.running[key].numpy(), value)


def test_a_layer_is_shaken_as_often_as_asked():
    client, _, h = client_of(17, "strategy.p=0.3")
    torch.manual_seed(0)
    often = np.mean([client.augment(h, 0) is not h for _ in range(1000)])
    assert abs(often - 0.3) < 0.05


def test_shares_of_channels_sum_to_their_number():
    spread = torch.tensor([0.0, 1e-4, 0.3, 2.0, 50.0], dtype=torch.float64)
    gamma = sharing(spread, 1e-6)
    assert float(gamma.sum()) == pytest.approx(5)
    assert (gamma.diff() > 0).all()
    torch.testing.assert_close(sharing(torch.zeros(5), 1e-6), torch.ones(5))


def aggregated(values, *overrides, counts=(6, 3, 8)):
    """The memory of a server whose clients replied with ``values`` [M, L-1, H] as either statistic."""
    server = FedFA(configured(*overrides))
    server.setup()
    server.clients = {i: ClientInfo(i, i, {"num_train": n}) for i, n in enumerate(counts)}
    before = server.memory["running"]
    replies = []
    for i, a in enumerate(values):
        gaps = {"mean": a - before["mean"], "std": 2 * a - before["std"]}
        group = {f"gap {key}": gap for key, gap in gaps.items()} | {
            f"square {key}": gap**2 for key, gap in gaps.items()
        }
        groups = {"running": {"mean": a, "std": 2 * a}, "gaps": group, MODEL: {"w": a[0]}}
        replies.append(Reply(i, groups, {"num_train": counts[i]}))
    server.step({"w": values[0][0]}, reduced(server, "train", replies))
    return server.memory


def test_variances_over_clients():
    statistics = np.random.default_rng(0).uniform(size=(3, 2, H))
    memory = aggregated(statistics)
    mean = (6 * statistics[0] + 3 * statistics[1] + 8 * statistics[2]) / 17
    middle = statistics.sum(0) / 3
    variance = sum((a - middle) ** 2 for a in statistics) / 2
    for key, factor in (("mean", 1), ("std", 2)):
        np.testing.assert_allclose(memory["running"][key], factor * mean, rtol=1e-12)
        np.testing.assert_allclose(memory["spread"][key], factor**2 * variance, rtol=1e-12)
    one = aggregated(statistics, "strategy.variance=scalar")["spread"]["mean"]
    for layer in range(2):
        values = statistics[:, layer].ravel()
        np.testing.assert_allclose(one[layer], sum((values - values.mean()) ** 2) / (3 * H - 1), rtol=1e-12)


def test_variances_over_one_client_and_over_equal_ones_are_zero():
    values = np.random.default_rng(0).uniform(size=(1, 2, H))
    assert not aggregated(values, counts=(6,))["spread"]["mean"].any()
    spread = aggregated(values.repeat(3, 0))["spread"]["std"]
    np.testing.assert_allclose(spread, 0, atol=1e-14)
    np.testing.assert_allclose(sharing(torch.from_numpy(spread[0]), 1e-6), 1)


def test_a_client_that_did_not_train_has_no_say():
    values = np.random.default_rng(0).uniform(size=(3, 2, H))
    some, two = aggregated(values, counts=(6, 0, 8)), aggregated(values[[0, 2]], counts=(6, 8))
    for group in two:
        np.testing.assert_array_equal(some[group]["mean"], two[group]["mean"])


def test_statistics_travel_with_absent_clients(run, monkeypatch):
    """Two of three clients a round; their statistics go down in the next."""
    with recorded_messages(monkeypatch) as messages:
        finished = run("strategy=fedfa", "strategy.p=1", "strategy.fraction=0.67", "rounds=3", "dtype=float64")
    down, up = {}, {}
    for way, _, content in messages:
        if way == "down" and "running" in content:
            now = int(content.config_records["config"]["round"])
            down[now] = {g: from_record(content[g]) for g in ("running", "spread")}
        elif "running" in content:
            assert "spread" not in content
            up.setdefault(now, []).append((content["metrics"]["num_train"], from_record(content["running"])))
    assert sorted(down) == sorted(up) == [1, 2, 3] == [r["round"] for r in finished.rounds]
    assert all(len(replies) == 2 for replies in up.values())
    for now in (1, 2):
        (a, first), (b, second) = up[now]
        for key in ("mean", "std"):
            mean, variance = (a * first[key] + b * second[key]) / (a + b), (first[key] - second[key]) ** 2 / 2
            np.testing.assert_allclose(down[now + 1]["running"][key], mean, rtol=1e-12)
            np.testing.assert_allclose(down[now + 1]["spread"][key], variance, rtol=1e-6)
            assert (first[key] != down[now]["running"][key]).any()


def test_networks_without_hidden_layers_and_wrong_keys_are_refused():
    for overrides in (["model.layers=1"], ["model=fedhero"], ["strategy.p=1.5"], ["strategy.variance=client"]):
        with pytest.raises(FedGraphError, match=overrides[0].split("=")[0]):
            check_method(compose(["strategy=fedfa", *overrides]))
