"""Clients that lie: what they send, what they train on, and what a backdoor is said to have come to."""

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.data.poisoning import Trigger, with_flipped_labels
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import adversaries
from fedgraph_flwr.wire.messages import from_record
from tests.conftest import client_graph
from tests.support import assert_same_arrays, call_fresh, recorded_messages
from tests.typed_graphs import typed_client


def answers(run, monkeypatch, *overrides):
    """θ of round 1, and what each client sent for it."""
    with recorded_messages(monkeypatch) as messages:
        run("rounds=1", *overrides)
    sent = next(from_record(c["model"]) for d, _, c in messages if d == "down" and c["config"]["phase"] == "train")
    return sent, [from_record(c["model"]) for d, _, c in messages if d == "up" and "model" in c]


@pytest.mark.parametrize(("kind", "factor"), [("sign_flip", -5.0), ("scaling", 10.0)])
def test_updates_are_turned_or_stretched_and_others_are_as_they_were(run, monkeypatch, kind, factor):
    theta, honest = answers(run, monkeypatch)
    _, lied = answers(run, monkeypatch, f"adversary.kind={kind}", "adversary.clients=[1]")
    for name in theta:
        expected = theta[name] + factor * (honest[1][name] - theta[name])
        np.testing.assert_allclose(lied[1][name], expected, atol=1e-6)
        assert lied[1][name].dtype == np.float32
    for client in (0, 2):
        assert_same_arrays(honest[client], lied[client])


@pytest.mark.parametrize(("kind", "deviation"), [("gaussian", 0.5), ("free_rider", 0.001)])
def test_noise_is_as_wide_as_said_around_what_was_received(run, monkeypatch, kind, deviation):
    overrides = ["model.hidden=256", "adversary.clients=[1]", f"adversary.kind={kind}"]
    overrides += [f"adversary.strength={deviation}"] if kind == "gaussian" else []
    theta, lied = answers(run, monkeypatch, *overrides)
    noise = np.concatenate([(lied[1][n] - theta[n]).ravel() for n in theta])
    assert abs(noise.std() / deviation - 1) < 5 / (2 * noise.size) ** 0.5
    assert abs(noise.mean()) < 5 * deviation / noise.size**0.5


@pytest.mark.parametrize("kind", ["sign_flip", "gaussian", "label_flip", "backdoor_distributed"])
def test_lies_are_the_same_wherever_clients_live(run, monkeypatch, kind):
    overrides = [f"adversary.kind={kind}", "adversary.clients=[0,2]"]
    once = run(*overrides)
    with monkeypatch.context() as patch:
        patch.setattr(InlineGrid, "_call", call_fresh)
        again = run(*overrides)
    assert_same_arrays(once.arrays, again.arrays)
    other = run()
    assert any(not np.array_equal(once.arrays[n], other.arrays[n]) for n in other.arrays)


@pytest.mark.parametrize("method", ["gcfl", "fedpub", "fedgta", "fedtad"])
def test_servers_that_do_more_than_average_are_lied_to_as_well(run, method):
    overrides = [f"strategy={method}", "rounds=1"]
    honest, lied = (run(*overrides, *more) for more in ([], ["adversary.kind=scaling", "adversary.clients=[1]"]))
    assert any(not np.array_equal(honest.arrays[n], lied.arrays[n]) for n in honest.arrays)


@pytest.mark.parametrize("graph", [client_graph(0), typed_client(0, people=11)])
def test_only_training_labels_are_flipped(graph):
    flipped, train = with_flipped_labels(graph), graph.train_mask
    assert torch.equal(flipped.y[train], graph.num_classes - 1 - graph.y[train])
    assert torch.equal(flipped.y[~train], graph.y[~train])
    assert not torch.equal(flipped.y, graph.y)


def test_a_trigger_hangs_on_each_node_by_all_its_own():
    trigger = Trigger(torch.eye(2, 5), torch.tensor([[0, 1], [1, 0]]))
    graph = client_graph(0)
    marked = trigger.attached(graph, torch.tensor([3, 7]))
    n, old = graph.num_nodes, graph.edge_index.size(1)
    new = {tuple(e) for e in marked.edge_index[:, old:].T.tolist()}
    one_way = {(16, 17), (3, 16), (3, 17), (18, 19), (7, 18), (7, 19)}
    assert n == 16
    assert new == one_way | {(b, a) for a, b in one_way}
    assert marked.edge_index.size(1) - old == 12
    assert torch.equal(marked.x[n:], trigger.x.repeat(2, 1))
    assert torch.equal(marked.x[:n], graph.x)
    assert marked.y[n:].tolist() == marked.node_id[n:].tolist() == [-1] * 4
    assert not (marked.train_mask | marked.val_mask | marked.test_mask)[n:].any()
    assert marked.num_nodes == n + 4


def test_local_triggers_make_up_the_whole_one():
    whole = Trigger.draw(5, 40, 1.5, seed=1)
    parts = [whole.part(i, 2) for i in range(2)]
    assert [len(p.x) for p in parts] == [3, 2]
    assert torch.equal(parts[0].x, whole.x[::2])
    inside = {tuple(e) for e in whole.edges.T.tolist()}
    for i, part in enumerate(parts):
        assert {(2 * a + i, 2 * b + i) for a, b in part.edges.T.tolist()} == {
            e for e in inside if e[0] % 2 == e[1] % 2 == i
        }
    assert (whole.x == 1.5).sum(1).tolist() == [2] * 5  # a twentieth of the features
    assert torch.equal(Trigger.draw(5, 40, 1.5, seed=1).edges, whole.edges)


def test_a_planted_trigger_is_on_so_many_training_nodes_of_other_classes():
    graph = client_graph(0, num_nodes=40)
    trigger = Trigger.draw(3, 5, 1.0, seed=0)
    planted = trigger.planted(graph, target=1, rate=0.5, seed=0)
    changed = (planted.y[:40] != graph.y).nonzero().view(-1)
    others = int((graph.train_mask & (graph.y != 1)).sum())
    assert len(changed) == round(others / 2)
    assert graph.train_mask[changed].all()
    assert (planted.y[changed] == 1).all()
    assert planted.num_nodes == 40 + 3 * len(changed)
    joined = planted.edge_index[0, planted.edge_index[1] >= 40]
    assert set(joined[joined < 40].tolist()) == set(changed.tolist())


CSBM = ["dataset=csbm", "dataset.nodes_per_client=[60,90]", "rounds=15", "adversary.kind=backdoor_central"]


def test_a_backdoor_works_where_it_is_planted_and_not_where_it_is_not(run):
    def found(*overrides):
        return run(*CSBM, *overrides, sizes=(0,) * 3).summary["adversary"]

    assert found()["success"] < 0.2
    planted = found("adversary.clients=[0,2]")
    assert planted["success"] > 0.6
    assert planted["without_trigger"] < 0.3
    assert planted["clients"] == [0, 2]


def test_success_counts_honest_clients_nodes_of_other_classes(monkeypatch, client_files):
    """Each client's prediction is set: what is taken for the target is known node by node."""
    cfg = compose(
        [client_files((12, 16, 20)), "num_clients=3", *CSBM[3:], "adversary.clients=[1]", "adversary.target=2"]
    )
    graphs = {size: client_graph(i, size) for i, size in enumerate((12, 16, 20))}
    expected = sum(int((g.test_mask & (g.y != 2)).sum()) for s, g in graphs.items() if s != 16)
    seen = []

    def taken(cfg, graph, arrays, nodes):
        seen.append((graph.num_nodes, len(nodes)))
        return len(nodes) if graph.num_nodes > 20 else 1

    monkeypatch.setattr(adversaries, "_taken", taken)
    rates = adversaries.success(cfg, {})
    plain = [(n, int((g.test_mask & (g.y != 2)).sum())) for n, g in graphs.items() if n != 16]
    assert [s for s in seen if s[0] in graphs] == plain
    assert rates["success"] == 1
    assert rates["without_trigger"] == 2 / expected


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["adversary.kind=bribe"], "adversary.kind 'bribe' is unknown"),
        (["adversary.kind=scaling", "adversary.clients=[3]"], "contains 3, expected clients from 0 to 2"),
        (["adversary.kind=scaling", "adversary.clients=[1,1]"], "distinct integers"),
        (["adversary.kind=scaling", "strategy=fedgrad"], "send their models: set another strategy than fedgrad, or"),
        (["adversary.kind=scaling", "strategy=local"], "send their models: set another strategy than local, or"),
        (["adversary.kind=label_flip", "strategy=central"], "send their models: set another strategy than central, or"),
        (["adversary.kind=backdoor_central", "strategy=fedhero"], "clients keep .*: set another strategy than fedhero"),
        (["adversary.kind=backdoor_central", "adversary.target=3"], "expected a class from 0 to 2"),
        (
            ["adversary.kind=backdoor_distributed", "adversary.clients=[0,1]", "adversary.trigger=1"],
            "adversary.trigger must be one per client or more",
        ),
        (["adversary.kind=scaling", "engine=alps"], "set engine=inline or ray, not alps"),
    ],
)
def test_lies_that_mean_nothing_are_refused(run, overrides, message):
    with pytest.raises(FedGraphError, match=message):
        run(*overrides)


def test_a_partys_own_node_does_not_lie_whatever_it_is_told(run, monkeypatch, client_files):
    folder = client_files((12,)).removeprefix("graph=")
    call = InlineGrid._call

    def at_home(self, message):
        config = self.contexts[message.metadata.dst_node_id].node_config
        for key in ("partition-id", "num-partitions", "live"):
            config.pop(key, None)
        config["graph"] = f"{folder}/client_0000.safetensors"
        return call(self, message)

    monkeypatch.setattr(InlineGrid, "_call", at_home)
    with pytest.raises(FedGraphError, match=r"a party's own node refuses adversary\.kind=scaling"):
        run("adversary.kind=scaling", "adversary.clients=[0]", sizes=(12,))
