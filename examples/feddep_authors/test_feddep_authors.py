"""The contract of every method; clustering, recovery, gradients and fusion by NumPy; what leaves a client."""

from pathlib import Path

import numpy as np
import pytest
import torch
from feddep_authors.client import FedDEPAuthorsClient
from feddep_authors.model import AugmentedInputs
from feddep_authors.shared import Params, deep_clusters, recovery, soft_assignment, target_distribution

from fedgraph_flwr.config import CONF, compose
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.testing import MethodContract
from fedgraph_flwr.wire.messages import derive_seed

OWN_CONF = Path(__file__).parent / "feddep_authors" / "conf"
N, H, P, D = 16, 4, 3, 5
SMALL = ["strategy.latent=5", "strategy.widths=[6]", "strategy.neighbours=3", "strategy.prototypes=3"]
SHORT = [
    "strategy.encoder_steps=3",
    "strategy.autoencoder_epochs=1",
    "strategy.finetune_epochs=1",
    "strategy.cluster_epochs=2",
]
KEYS = ["strategy=feddep_authors", f"model.hidden={H}", "strategy.autoencoder_widths=[6,6]", *SMALL, *SHORT]


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The method's name, also where the package is not installed."""
    monkeypatch.setenv(CONF, str(OWN_CONF))


class TestFedDEPAuthors(MethodContract):
    overrides = ("strategy=feddep_authors",)
    conf = OWN_CONF

    def go(self, tmp_path, monkeypatch, *overrides):
        """Run with small networks, unless another method is asked for."""
        short = () if "strategy=fedavg" in overrides else (*KEYS[1:], "strategy.generator_rounds=2")
        return super().go(tmp_path, monkeypatch, "model.hidden=4", *short, *overrides)

    def test_every_node_s_embedding_leaves_the_client_and_the_server_sums_gradients(self, tmp_path, monkeypatch):
        seen, call = [], InlineGrid._call

        def spy(grid, message):
            reply = call(grid, message)
            seen.append((message.content.array_records, reply.content.array_records))
            return reply

        monkeypatch.setattr(InlineGrid, "_call", spy)
        assert self.go(tmp_path, monkeypatch, "rounds=2", "model.dropout=0").summary["failures"] == {}
        assert len([up for _, up in seen if "embeddings" in up]) == 2 * 3
        judged = [up["gradients"] for _, up in seen if "gradients" in up]
        handed = [down["gradients"] for down, _ in seen if "gradients" in down]
        assert len(handed) == 2 * 3
        total = sum(record["0.head.bias"].numpy() for record in judged[:3])
        received = [record["head.bias"].numpy() for record in handed[:3]]
        assert any(np.allclose(total, array, rtol=1e-5, atol=1e-9) for array in received)


def graph_of(client):
    """A small random undirected graph."""
    generator = torch.Generator().manual_seed(client)
    ends = torch.randint(0, N, (2, 2 * N), generator=generator)
    ends = ends[:, ends[0] < ends[1]].unique(dim=1)
    fold = torch.rand(N, generator=generator).argsort() % 4
    masks = {name: fold == place for place, name in enumerate(("val_mask", "test_mask"))}
    return ClientGraph(
        x=torch.randn(N, 5, generator=generator),
        edge_index=torch.cat([ends, ends.flip(0)], dim=1),
        y=torch.arange(N) % 3,
        train_mask=fold >= 2,
        **masks,
        num_classes=3,
        client=client,
        num_clients=3,
        node_id=torch.arange(N) + client * N,
    )


def client_of(index=0, *overrides):
    cfg = compose(
        [
            *KEYS,
            "dtype=float64",
            "model.dropout=0",
            "strategy.generator_dropout=0",
            "strategy.hidden_share=1",
            *overrides,
        ]
    )
    return FedDEPAuthorsClient(cfg, graph_of(index))


def test_assignment_and_target_by_hand():
    rng = np.random.default_rng(0)
    z, centres = rng.normal(size=(7, 2)), rng.normal(size=(3, 2))
    q = np.array([[(1 + sum((a - b) ** 2 for a, b in zip(row, mu, strict=True))) ** -1 for mu in centres] for row in z])
    q = np.array([row / row.sum() for row in q])
    assignment = soft_assignment(torch.from_numpy(z), torch.from_numpy(centres))
    np.testing.assert_allclose(assignment, q, rtol=1e-12)
    size = q.sum(0)
    p = np.array([[row[k] ** 2 / size[k] for k in range(3)] for row in q])
    np.testing.assert_allclose(target_distribution(assignment), [row / row.sum() for row in p], rtol=1e-12)


def test_clusters_are_the_blobs():
    rng = np.random.default_rng(1)
    blobs = np.concatenate([rng.normal(size=(20, 2)) * 0.05 + centre for centre in ([0, 0], [1, 0], [0, 1])])
    torch.manual_seed(0)
    labels = deep_clusters(torch.from_numpy(blobs), Params(prototypes=3, autoencoder_widths=[8, 16, 8], batch=16))
    groups = [set(part.tolist()) for part in labels.view(3, 20)]
    assert [len(group) for group in groups] == [1, 1, 1]
    assert len(set.union(*groups)) == 3


def recovery_by_hand(made, count, targets, known):
    total = 0.0
    for v in range(len(made)):
        for p in range(made.shape[1]):
            there = [((made[v, p] - t) ** 2).mean() for t, is_one in zip(targets[v], known[v], strict=True) if is_one]
            total += min(there) if there and p < count[v] else 0
    return total / made.shape[0] / made.shape[1]


def test_recovery_by_hand():
    rng = np.random.default_rng(2)
    made, targets = rng.normal(size=(6, P, H)), rng.normal(size=(6, 4, H))
    count, known = np.array([0, 1, 2, 3, 3, 9]), rng.random((6, 4)) < 0.6
    known[4] = False
    arrays = [torch.from_numpy(array) for array in (made, count, targets, known)]
    made_by = arrays[0].requires_grad_()
    loss = recovery(made_by, *arrays[1:])
    assert loss.item() == pytest.approx(recovery_by_hand(made, count, targets, known), rel=1e-12)
    loss.backward()
    assert made_by.grad.isfinite().all()
    assert not made_by.grad[4].any()
    assert not made_by.grad[0].any()


def test_gradients_for_a_peer_are_those_of_its_recovery():
    """By differences of a NumPy network on the same draws, in which lost neighbours are nearest to some slots."""
    sender, judge = client_of(0), client_of(1)
    judge.prototypes = torch.randn(
        N, H, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )  # all far apart
    sent, _ = sender.propose({}, {})
    w = {name: 3 * array for name, array in sent["generator"].items()}
    u = sent["embeddings"]["rows"]
    assert u.shape == (sender.impaired.kept.numel(), D)
    groups = {"generator": {f"0.{name}": array for name, array in w.items()}, "embeddings": {"0": u}}
    gradients = judge.judge(groups, {})[0]["gradients"]
    assert not any(gradients[name].any() for name in gradients if name.startswith("1."))
    assert not any("count" in name for name in gradients)

    torch.manual_seed(derive_seed(0, 1, "judge", 0, 0))
    node, slot = torch.randint(N, (len(u),)).tolist(), torch.randint(P, (len(u), P)).tolist()
    noise = torch.randn(len(u), D, dtype=torch.float64).numpy()
    hidden = sorted(set(range(N)) - set(judge.impaired.kept.tolist()))
    edges = judge.graph.edge_index.T.tolist()
    prototypes, targets = judge.prototypes.numpy(), np.zeros((len(u), P, H))
    for row, v in enumerate(node):
        lost = [] if v in hidden else [source for source, target in edges if target == v and source in hidden][:P]
        for t, p in enumerate(slot[row]):
            targets[row, t] = prototypes[lost[p]] if p < len(lost) else prototypes[v]

    def loss(w, targets=targets):
        count = np.maximum(u @ w["count.weight"] + w["count.bias"], 0)[:, 0].astype(int)
        inner = np.maximum((u + noise) @ w["layers.0.weight"] + w["layers.0.bias"], 0)
        made = np.tanh(inner @ w["head.weight"] + w["head.bias"]).reshape(-1, P, H)
        return recovery_by_hand(made, count, targets, np.ones((len(u), P), bool)) / judge.cfg.num_clients

    w["count.bias"] = w["count.bias"] + 2  # slots are in use
    assert abs(loss(w) - loss(w, np.repeat(prototypes[node][:, None], P, 1))) > 1e-3
    gradients = judge.judge({**groups, "generator": {f"0.{name}": array for name, array in w.items()}}, {})[0][
        "gradients"
    ]
    for name in ("layers.0.weight", "head.weight", "head.bias"):
        assert gradients[f"0.{name}"].any()
        for at in ((0,) * w[name].ndim, (-1,) * w[name].ndim):
            up, down = ({**w, name: w[name].copy()} for _ in range(2))
            up[name][at] += 1e-6
            down[name][at] -= 1e-6
            expected = (loss(up) - loss(down)) / 2e-6
            assert gradients[f"0.{name}"][at] == pytest.approx(expected, rel=1e-5, abs=1e-10)


def test_a_step_takes_the_local_gradient_twice_and_the_peers_once():
    client = client_of()
    client.propose({}, {})
    made = client.trainable.made
    before = {name: tensor.detach().clone() for name, tensor in made.named_parameters()}
    rest = {name: t.clone() for name, t in client.trainable.state_dict().items() if not name.startswith("made")}
    peers = {name: np.full(tuple(tensor.shape), 0.25) for name, tensor in made.trained.items()}
    client.trainable.zero_grad()
    with client.noise("local", 1):
        (client.objective() / client.cfg.num_clients).backward()
    local = {name: tensor.grad.clone() for name, tensor in made.trained.items()}
    assert any(grad.any() for grad in local.values())
    client.exchange = 1
    client.propose({"gradients": peers}, {})
    for name, tensor in made.named_parameters():
        step = 0 if name.startswith("count.") else 0.1 * (2 * local[name] + 0.25)
        torch.testing.assert_close(tensor.detach(), before[name] - step)
    for name, tensor in rest.items():
        assert torch.equal(client.trainable.state_dict()[name], tensor)


def test_the_network_by_hand():
    client, rng = client_of(), np.random.default_rng(3)
    z = rng.normal(size=(N, H))
    w = {name: tensor.detach().numpy() for name, tensor in client.model.named_parameters()}
    a = np.zeros((N, N))
    for source, target in client.graph.edge_index.T.tolist():
        a[target, source] += 1
    mean = a / np.maximum(a.sum(1, keepdims=True), 1)

    def sage(name, h):
        return h @ w[f"{name}.itself.weight"] + w[f"{name}.itself.bias"] + mean @ h @ w[f"{name}.neighbours.weight"]

    first = z @ w["fuse.0.weight"] + w["fuse.0.bias"]
    hidden = np.maximum(sage("layers.0", client.graph.x.double().numpy()) + first, 0)
    expected = sage("head", hidden) + first @ w["fuse.1.weight"] + w["fuse.1.bias"]
    inputs = AugmentedInputs(client.plain.x, client.plain.adj, z=torch.from_numpy(z))
    client.model.eval()
    np.testing.assert_allclose(client.model(inputs).detach(), expected, rtol=1e-10)
    zero = AugmentedInputs(client.plain.x, client.plain.adj, z=torch.zeros(N, H, dtype=torch.float64))
    torch.testing.assert_close(client.model(client.plain), client.model(zero))


def test_generated_embeddings_are_means_over_all_slots():
    client = client_of()
    z = torch.arange(2 * P * H, dtype=torch.float64).view(2, P, H)
    mean, used = client.fused(z, torch.tensor([1.6, 0.2], dtype=torch.float64))
    assert used.tolist() == [2, 0]
    torch.testing.assert_close(mean[0], (z[0, 0] + z[0, 1]) / 3)
    assert not mean[1].any()


def test_a_policy_and_protections_refuse_single_nodes():
    client = client_of()
    client.policy = Policy(min_nodes=2)
    with pytest.raises(FedGraphError, match=r"would send embeddings of single nodes.*use strategy=feddep"):
        client.propose({}, {})
    with pytest.raises(FedGraphError, match="gradients of every client's generator"):
        check_method(
            compose([*KEYS, "privacy.dp=server_fixed", "privacy.noise_multiplier=1", "strategy.weighting=uniform"])
        )
    with pytest.raises(
        FedGraphError, match="needs model=linear_fused_sage, got model=gcn: set model=linear_fused_sage"
    ):
        check_method(compose([*KEYS, "model=gcn"]))
