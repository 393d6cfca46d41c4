"""Clients that reply together: what is computed as one, in which groups, and what happens when one of them fails."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fedgraph_baselines.clients.gcfl import GCFLClient
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine import stacking
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.checks import at_once, startup_notes
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_ray
from fedgraph_flwr.models.gcn import GCN
from fedgraph_flwr.numerics.optim import SGD
from fedgraph_flwr.numerics.sparse import SparseMatrix
from fedgraph_flwr.numerics.stacked import StackedMatrix, padded
from tests.support import Finished

WORDS = ["dtype=float64", "rounds=2", "checkpoint_every=0"]
SIZES = (13, 12, 15, 14)


class Anchored(GraphClient):
    """Reads an attribute in its objective, and says so."""

    stacks = ("anchor",)

    def train(self):
        self.anchor = {name: tensor.detach().clone() for name, tensor in self.shared.items()}
        return super().train()

    def loss(self):
        return super().loss() + sum(((t - self.anchor[n]) ** 2).sum() for n, t in self.shared.items())


class Silent(Anchored):
    """Has the objective of its base."""


class Undeclared(Anchored):
    """Overrides the objective and says nothing."""

    def loss(self):
        return 2 * super().loss()


class Forgetful(Anchored):
    """Says less than its objective reads."""

    stacks = ()

    def loss(self):
        return super().loss()


class Scaling(GraphClient):
    """Trains a tensor of its own, which its logits read."""

    stacks = ("scale",)

    def __init__(self, *args, **overrides):
        super().__init__(*args, **overrides)
        self.scale = torch.nn.Parameter(torch.ones(self.graph.num_classes, dtype=self.dtype))

    def extra_parameters(self):
        return {"scale": self.scale}

    def logits(self, inputs):
        return super().logits(inputs) * self.scale


class Shifting(GraphClient):
    """Its logits read an attribute, and say so."""

    stacks = ("shift",)

    def train(self):
        self.shift = torch.arange(self.graph.num_classes, dtype=self.dtype) * 0.3 * self.graph.client
        return super().train()

    def logits(self, inputs):
        return super().logits(inputs) + self.shift


class Gregarious(GraphClient):
    """Falls where it is computed by itself."""

    stacks = ()

    def loss(self):
        if self.real is None:
            raise RunFailed("alone")
        return super().loss()


class Falling(GraphClient):
    """One of them falls after it has trained."""

    def send(self):
        if self.graph.client == 1:
            raise RunFailed("fell")
        return super().send()


@pytest.fixture
def sizes_of(monkeypatch):
    """How many clients each computation had."""
    init, seen = stacking.Stack.__init__, []
    monkeypatch.setattr(
        stacking.Stack, "__init__", lambda *args, **overrides: seen.append(len(args[1])) or init(*args, **overrides)
    )
    return seen


def assert_close(stacked: Finished, alone: Finished, within: float = 1e-9) -> None:
    for name, array in alone.arrays.items():
        np.testing.assert_allclose(
            stacked.arrays[name], array, rtol=within, atol=within * np.abs(array).max(), err_msg=name
        )
    for mine, its in zip(stacked.rounds, alone.rounds, strict=True):
        np.testing.assert_allclose(mine["train"]["train_loss"], its["train"]["train_loss"], rtol=within)
        np.testing.assert_allclose(mine["clients"]["val-loss"], its["clients"]["val-loss"], rtol=within)


def test_a_product_with_blocks_is_each_ones_product_and_so_is_its_gradient():
    rng = np.random.default_rng(0)
    matrices = [sp.random(rows, rows, 0.4, format="csr", random_state=rng) for rows in (3, 5, 4)]
    stack = StackedMatrix([SparseMatrix(m, torch.float64) for m in matrices], 6, 6)
    dense = [torch.from_numpy(rng.normal(size=(m.shape[1], 2))) for m in matrices]
    given = padded(dense, 6).requires_grad_()
    product = torch.func.vmap(lambda block: stack @ block)(given)
    weight = torch.from_numpy(rng.normal(size=product.shape))
    (grad,) = torch.autograd.grad((weight * product).sum(), given)
    for i, matrix in enumerate(matrices):
        rows = matrix.shape[0]
        np.testing.assert_allclose(product[i, :rows].detach(), matrix @ dense[i].numpy())
        assert not product[i, rows:].any()
        np.testing.assert_allclose(grad[i, :rows], matrix.T @ weight[i, :rows].numpy())
    assert torch.equal(stack @ given.detach(), product)  # without vmap, as where gradients are written out
    assert torch.equal(stack.mT @ weight, grad)


@pytest.mark.parametrize(
    "overrides",
    [
        ["model=sage", "model.norm=layer", "train.optimizer=sgd", "train.momentum=0.9"],
        ["model=acm", "model.layers=3", "train.optimizer=adamw", "train.loss=weighted"],
        ["model=mlp", "model.input_norm=true", "evaluation.trained=true"],
        ["model=projected_gcn", "train.local_steps_by_client=[1,3,2,3]"],
        ["strategy=fednova", "train.local_steps_by_client=[3,2,3,2]"],
        ["model=gcn", "model.layers=1"],
        ["model=gcn", "model.layers=3", "train.loss=weighted", "train.class_weights=federated"],
        ["strategy=fedomd", "strategy.cmd_nodes=train", "model.layers=4"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_networks_and_optimisers_stacked(run, sizes_of, overrides):
    alone = run(*WORDS, *overrides, sizes=SIZES)
    assert not sizes_of
    assert_close(run(*WORDS, *overrides, "stack=4", sizes=SIZES), alone)
    assert max(sizes_of) == 4


def test_optimisers_that_have_not_come_as_far_take_their_own_steps(run, sizes_of):
    """Of four clients three train in a round, so that counts of Adam's steps differ among those that train next."""
    overrides = ["strategy.fraction=0.75", "rounds=5", "train.optimizer_state=keep"]
    assert_close(run(*WORDS, *overrides, "stack=4", sizes=SIZES), run(*WORDS, *overrides, sizes=SIZES))
    assert {2, 3} <= set(sizes_of)


def test_sparse_features_stacked(run, sizes_of, monkeypatch):
    monkeypatch.setattr("fedgraph_flwr.models.base.SPARSE_BELOW", 2.0)  # all features count as sparse
    alone = run(*WORDS, sizes=SIZES)
    assert_close(run(*WORDS, "stack=4", sizes=SIZES), alone)
    assert set(sizes_of) == {4}


def test_clients_of_unlike_size_are_computed_apart_and_no_more_than_asked_together(run, sizes_of):
    overrides = [*WORDS, "train.local_steps=1"]
    sizes = (12, 40, 13, 14, 41, 15)
    assert_close(run(*overrides, "stack=3", sizes=sizes), run(*overrides, sizes=sizes))
    assert set(sizes_of) == {2, 3}  # 12, 13, 14; 15 by itself; 40, 41
    assert sizes_of.count(2) == sizes_of.count(3)


def test_who_overrides_the_objective_says_so_anew():
    assert GraphClient.capabilities.stacks == ()
    assert Anchored.capabilities.stacks == ("anchor",)
    assert Silent.capabilities.stacks == ("anchor",)
    assert Undeclared.capabilities.stacks is None


def test_what_cannot_be_stacked_is_told_and_gives_the_same_bits(run, sizes_of):
    overrides = [f"strategy.client={__name__}:Undeclared"]
    stacked, alone = run(*overrides, "stack=4"), run(*overrides)
    assert not sizes_of
    assert stacked.summary["stacked"] == 0
    assert "stacked" not in alone.summary
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(stacked.arrays[name], array)
    assert startup_notes(stacked.cfg) == ["stack=4 has no effect with strategy=Undeclared: clients train separately"]
    for overrides, why in (
        (["model=gat"], "model=gat"),
        (["model.norm=batch"], "model=gcn with model.norm=batch"),
        (["train.loss=focal"], "train.loss=focal"),
        (["engine=flower-simulation"], "engine=flower-simulation"),
    ):
        assert startup_notes(compose([*overrides, "stack=2"])) == [
            f"stack=2 has no effect with {why}: clients train separately"
        ]


@pytest.mark.parametrize(("kind", "together"), [(Scaling, 0), (Shifting, 4)])
def test_own_parameters_train_and_predictions_read_what_the_class_says(run, sizes_of, kind, together):
    overrides = [f"strategy.client={__name__}:{kind.__name__}"]
    stacked, alone = run(*overrides, "stack=4", sizes=SIZES), run(*overrides, sizes=SIZES)
    assert set(sizes_of) == ({together} if together else set())
    assert_close(stacked, alone, 1e-6)  # models travel in single precision


@pytest.mark.parametrize(
    ("overrides", "together_at_most"),
    [([], 32), (["model.hidden=20000"], 0), (["model=gat"], 0), (["model.norm=batch"], 0)],
    ids=["small", "many parameters", "a network that cannot", "a layer that cannot"],
)
def test_auto_stacks_where_it_pays(run, overrides, together_at_most):
    done = run(*WORDS, *overrides, "rounds=1", "train.local_steps=1", "stack=auto", sizes=SIZES)
    assert done.summary.get("stacked", 0) == together_at_most


def test_a_run_with_auto_is_resumed_with_it(run, tmp_path):
    overrides = ["stack=auto", "checkpoint_every=1", f"out={tmp_path / 'run'}"]
    run(*overrides, "rounds=1", sizes=SIZES)
    assert (
        "stack: auto" in (tmp_path / "run" / "config.yaml").read_text()
    )  # as it was asked for, so that the same overrides resume it
    assert run(*overrides, f"resume={tmp_path / 'run'}", "rounds=2", sizes=SIZES).summary["rounds"] == 2


def test_auto_leaves_the_simulation_of_flower_and_fleets_as_they_are():
    for engine in ("flower-simulation", "somewhere"):
        cfg = compose(["stack=auto", f"engine={engine}"])
        assert at_once(cfg) == 0
        assert not startup_notes(cfg)


@pytest.mark.parametrize("value", ["-3", "many", "1.5", "1000001", "9" * 12])
def test_a_stack_that_is_none_is_one_sentence(value):
    with pytest.raises(FedGraphError, match=rf"^stack must be auto or an integer in \[0, 1000000\], got '{value}'$"):
        compose([f"stack={value}"])


def test_an_objective_that_reads_more_than_its_class_says_is_one_sentence(run):
    overrides = [f"strategy.client={__name__}:Forgetful", "stack=4"]
    with pytest.raises(
        RunFailed, match=r"`stacks` of a client's class must name all that its objective reads: .*anchor"
    ):
        run(*overrides, sizes=SIZES)


@pytest.fixture
def made(monkeypatch):
    """Of how many clients the inputs were stacked, whenever they were."""
    make, seen = stacking.stack_inputs, []
    monkeypatch.setattr(
        stacking, "stack_inputs", lambda members, *args: seen.append(len(members)) or make(members, *args)
    )
    return seen


def test_what_no_step_changes_is_stacked_once_a_run(run, made):
    run(*WORDS, "rounds=3", "stack=4", sizes=SIZES)
    assert made == [4]
    assert not stacking._cached.previous  # and dropped at its end
    assert not stacking._cached.current


def test_what_a_round_did_not_use_is_dropped(run, made, monkeypatch):
    """Of five clients two take part in a round: nobody else's inputs stay stacked."""
    held = []
    turn = stacking.StackCache.turn
    monkeypatch.setattr(stacking.StackCache, "turn", lambda cache: turn(cache) or held.append(len(cache.previous)))
    overrides = ["strategy.fraction=0.4", "evaluation.clients=cohort", "stack=4", "rounds=6"]
    run(*WORDS, *overrides, sizes=(13, 12, 15, 14, 13))
    assert max(held) <= 4  # of one bucket: inputs, batches, targets, scores
    assert len(made) > 2


class Drawing(GraphClient):
    """Trains on other nodes in each step."""

    def batches(self):
        for step in range(3):
            nodes = self.train_nodes[step % 2 :: 2]
            yield self.batch._replace(nodes=nodes, y=self.y[nodes])


class Fading(GraphClient):
    """Changes its features where they lie, step by step."""

    def batches(self):
        for batch in super().batches():
            self.inputs.x.mul_(0.5)
            yield batch


class Growing(GraphClient):
    """Reads other inputs in each step."""

    def batches(self):
        for step, batch in enumerate(super().batches()):
            yield batch._replace(inputs=replace(batch.inputs, x=batch.inputs.x * (1 + step)))


@pytest.mark.parametrize("kind", [Drawing, Fading, Growing])
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_what_a_client_changes_between_steps_is_stacked_anew(run, kind, model):
    overrides = [*WORDS, f"strategy.client={__name__}:{kind.__name__}", f"model={model}"]
    assert_close(run(*overrides, "stack=4", sizes=SIZES), run(*overrides, sizes=SIZES))


class Frozen(GraphClient):
    """A part of its network does not train."""

    stacks = ()

    def build_model(self):
        model = super().build_model()
        model.layers[0].weight.requires_grad_(False)
        return model


class Tied(GraphClient):
    """Two layers of its network have the same weights."""

    stacks = ()

    def build_model(self):
        model = super().build_model()
        model.layers[2].weight = model.layers[1].weight
        return model


class Dimmed(GraphClient):
    """Trains on inputs that it replaces, which it does not say of its batch."""

    stacks = ()

    def train(self):
        self.inputs = replace(self.inputs, x=self.inputs.x * 0.5)
        return super().train()


class Paced(GraphClient):
    """Steps at a rate of its own, and with its head alone."""

    stacks = ()

    def begin_training(self):
        self.model.train()
        return SGD(self.model.head.parameters(), 0.1 * (1 + self.graph.client))


class Lengthening(GraphClient):
    """Predicts more rows than it has nodes, each time by one."""

    stacks = ()
    more = 0

    def predict(self):
        self.more += 1 + self.graph.client
        logits = super().predict()
        return torch.cat([logits, logits.new_zeros(self.more, logits.size(1))])


@pytest.mark.parametrize("kind", [Frozen, Dimmed, Paced, Lengthening])
def test_what_a_client_does_another_way_counts_together_too(run, kind):
    overrides = [*WORDS, "rounds=3", f"strategy.client={__name__}:{kind.__name__}"]
    alone = run(*overrides, sizes=SIZES)
    assert not alone.summary["failures"]
    assert_close(run(*overrides, "stack=4", sizes=SIZES), alone)


def test_parameters_that_are_one_tensor_step_along_the_sum_of_their_grads(run, sizes_of, monkeypatch):
    overrides = [*WORDS, "model.layers=4", f"strategy.client={__name__}:Tied"]
    together_asked, alone = run(*overrides, "stack=4", sizes=SIZES), run(*overrides, sizes=SIZES)
    assert not sizes_of
    monkeypatch.setattr(GCN, "grads", lambda *_: None)  # autograd's
    for result in (together_asked, alone):
        assert_close(result, run(*overrides, sizes=SIZES))
        np.testing.assert_array_equal(result.arrays["layers.1.weight"], result.arrays["layers.2.weight"])


@pytest.mark.parametrize("overrides", [[], ["model=sage"]])
def test_the_last_gradient_stays_with_each_client(run, sizes_of, overrides, monkeypatch):
    """GCFL reports its norm; gradients written out, and by autograd."""
    norms: list[float] = []
    send = GCFLClient.send

    def spy(self):
        answer = send(self)
        norms.append(answer[1]["gradient-norm"])
        return answer

    monkeypatch.setattr(GCFLClient, "send", spy)
    overrides = [*WORDS, "strategy=gcfl", "strategy.plus=true", "strategy.series=gradient", *overrides]
    run(*overrides, sizes=SIZES)
    alone = norms.copy()
    norms.clear()
    run(*overrides, "stack=4", sizes=SIZES)
    assert min(alone) > 0
    assert max(sizes_of) == 4
    np.testing.assert_allclose(norms, alone, rtol=1e-9)


def test_who_cannot_be_compared_with_others_fails_alone(run, monkeypatch):
    """Not the run."""
    joint = stacking.JOINTS["infer"]

    def odd(call):
        if call.client.graph.client == 2:
            raise RunFailed("unlike all")
        return joint.group_key(call)

    monkeypatch.setitem(stacking.JOINTS, "infer", joint._replace(group_key=odd))
    done = run(*WORDS, "stack=4", sizes=SIZES)
    assert done.summary["failures"] == {"2 (train)": "unlike all", "2 (evaluate)": "unlike all"}


def test_a_client_that_falls_fails_alone(run):
    overrides = [*WORDS, f"strategy.client={__name__}:Falling"]
    alone, stacked = run(*overrides, sizes=SIZES), run(*overrides, "stack=4", sizes=SIZES)
    assert_close(stacked, alone)
    assert stacked.summary["failures"] == alone.summary["failures"] == {"1 (train)": "fell"}


def test_streams_of_the_process_are_left_alone(run):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run("stack=4", sizes=SIZES)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


@pytest.mark.slow
@pytest.mark.xdist_group("one ray")
@pytest.mark.usefixtures("one_ray")
def test_actors_stack_their_clients(run, tmp_path):
    alone = run(*WORDS, sizes=SIZES)
    overrides = [*WORDS, f"strategy.client={__name__}:Gregarious", "stack=2", "num_clients=4", "model.hidden=8"]
    overrides += [
        f"graph={alone.cfg.graph}",
        "engine=ray",
        "ray.live_clients=2",
        "ray.actors=1",
        f"out={tmp_path / 'ray'}",
    ]
    cfg = with_folder(compose(overrides))
    stacked = Finished(cfg, run_ray(cfg))
    assert stacked.summary["failures"] == {}
    assert_close(stacked, alone)
