"""Parts of methods combined with each other, against rounds computed by hand; parts at their limits; refusals."""

import itertools
import re

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import compose, group_names, to_json
from fedgraph_flwr.config.parts import KEYS, chosen
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from fedgraph_flwr.secure.policy import Policy
from tests.methods import gcn_by_hand as hand
from tests.methods import moon_by_hand as moon
from tests.methods.personal import made, scores_by_client
from tests.methods.regression import DECAY, LR, TRAIN, WORDS, data, gradient, mean_of, start, vector
from tests.nodes import looped
from tests.support import assert_same_arrays


def trained(x, client, steps=2):
    """SGD from x."""
    for _ in range(steps):
        x = x - LR * gradient(x, client)
    return x


def momentum(x, mean, state):
    state["v"] = 0.6 * state.get("v", 0) + (mean - x)
    return x + 0.5 * state["v"]


def adam(x, mean, state):
    m, v = state.get("m", 0), state.get("s", 0.01**2)
    state["m"], state["s"] = 0.8 * m + 0.2 * (mean - x), 0.7 * v + 0.3 * (mean - x) ** 2
    return x + 0.03 * state["m"] / (np.sqrt(state["s"]) + 0.01)


SERVERS = {
    "momentum": (momentum, ["strategy.momentum.beta=0.6", "strategy.momentum.server_lr=0.5"]),
    "adam": (
        adam,
        [f"strategy.adam.{key}" for key in ("beta1=0.8", "beta2=0.7", "tau=0.01", "server_lr=0.03")],
    ),
}


@pytest.mark.parametrize("optimizer", SERVERS)
def test_a_server_optimiser_steps_along_what_fednova_makes_of_unequal_clients(run, optimizer):
    """FedNova by hand, x + τ_eff Σ_i p_i (y_i − x)/K_i, is the mean that the optimiser takes."""
    rule, overrides = SERVERS[optimizer]
    steps = [1, 3, 2]
    overrides = [*overrides, f"strategy.server_optimizer={optimizer}", f"train.local_steps_by_client={steps}"]
    finished = run(*WORDS, "strategy=fednova", *overrides, "strategy.weighting=train")
    p, x, state = TRAIN / TRAIN.sum(), start(run), {}
    for _ in range(4):
        ways = [(trained(x, i, steps[i]) - x) / steps[i] for i in range(3)]
        x = rule(x, x + (p @ steps) * mean_of(ways, p), state)
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["strategy=gcfl", "strategy.server_optimizer=adam"],
            "strategy.server_optimizer=adam needs the mean of the clients' models, and strategy=gcfl has a server, GCFL",
        ),
        (
            ["strategy=local", "strategy.server_optimizer=yogi"],
            r"strategy=local shares no parameters \(strategy.shared=\[\]\)",
        ),
        (["strategy=fedgrad", "strategy.server_optimizer=adam"], "has a server, FedGrad, that computes none"),
        (
            ["strategy.adam.tau=0.5"],
            "strategy.adam.tau=0.5 has no effect: strategy=fedavg does not use 'adam'; it uses no",
        ),
        (["strategy=fedavgm", "strategy.adam.tau=0.5"], "does not use 'adam'; it uses momentum"),
        (
            ["strategy=local", "strategy.objective=[prox]"],
            "holds clients at the shared parameters, and strategy=local has",
        ),
        (
            ["strategy=local", "strategy.objective=[moon]"],
            "strategy.objective=moon contrasts each client's model with the shared parameters, and strategy=local has none",
        ),
        (["strategy=adafgl", "strategy.objective=[moon]"], "its client, AdaFGLClient, has its own `loss`"),
        (["strategy=fedpub", "strategy.personalization=ditto"], "its client, FedPUBClient, has its own `extra_param"),
        (["strategy=fgssl", "strategy.personalization=finetune"], "its client, FGSSLClient, has its own `train`"),
        (["strategy=fgssl", "strategy.personalization=ala"], "its client, FGSSLClient, has its own `train`"),
        (["strategy=fedproto", "strategy.personalization=apfl"], "trains a second model beside the shared parameters"),
        (
            ["strategy=local", "strategy.personalization=head"],
            "strategy.personalization=head has no effect: strategy=local shares no parameters",
        ),
        (
            ["strategy=fedtgp", "model=gcn_norm", "strategy.personalization=norm"],
            "and nothing of the norm travels: leave it out",
        ),
        (["strategy=fedstar", "strategy.personalization=head"], "strategy=fedstar shares structure"),
        (["strategy.personalization=norm"], "strategy.private: 'norms.' matches no parameter of model=gcn"),
        (["strategy=fedgrad", "strategy.objective=[prox]"], "its client, FedGradClient, has its own `train`; expected"),
        (["strategy.objective=[prox,prox]"], "strategy.objective lists 'prox' more than once"),
        (["strategy.objective=[porx]"], "strategy.objective 'porx' is unknown; did you mean 'prox'"),
        (["strategy.objective=[moon]", "model.layers=1"], "model.layers must be >= 2, got 1"),
        (
            ["strategy=fednova", "strategy.variates=scaffold"],
            "strategy.variates=scaffold sums over clients by the weights of their mean, and strategy=fednova",
        ),
        (
            ["strategy=gcfl", "strategy.variates=feddyn"],
            "strategy.variates=feddyn needs the mean of the clients' models",
        ),
        (
            ["strategy.variates=feddyn", "strategy.server_optimizer=adam"],
            "strategy.variates=feddyn sets the next model, which strategy.server_optimizer=adam would change: set",
        ),
        (
            ["strategy=fedhero", "strategy.client=fedgraph_flwr.clients.base:GraphClient"],
            "fedhero:FedHERO and strategy.client=fedgraph_flwr.clients.base:GraphClient are sides of different methods: expected"
            " strategy.client=fedgraph_flwr.clients.fedhero:FedHEROClient",
        ),
        (["strategy.server_optimizer=adm"], "strategy.server_optimizer 'adm' is unknown; did you mean 'adam'"),
        (["strategy.tau=0.5"], "key 'tau' is unknown"),
    ],
)
def test_impossible_combinations_are_refused_before_any_client_starts(overrides, message):
    with pytest.raises(FedGraphError, match=message):
        check_method(compose(overrides))


@pytest.mark.parametrize("optimizer", SERVERS)
def test_a_server_optimiser_keeps_its_moments_beside_what_a_method_keeps(run, optimizer):
    """FedFA with almost no drawn features is FedAvg."""
    words = [*SERVERS[optimizer][1], f"strategy.server_optimizer={optimizer}", "rounds=3", "model.dropout=0"]
    expected = run(*words).arrays
    finished = run(*words, "strategy=fedfa", "strategy.p=1e-12")
    assert_same_arrays(finished.arrays, expected)
    assert not any(record["failed"] for record in finished.rounds)


def test_a_client_keeps_the_state_of_parts_beside_what_a_method_keeps():
    fedgl = made("fedgl", "strategy.objective=[moon]", "model.dropout=0")
    fedgl.memory["previous"] = torch.ones(2)
    fedgl.receive({"pseudo": looped(fedgl)})
    assert {"previous", "label"} <= fedgl.memory.keys()
    feddep = made("feddep", "strategy.generator_steps=1")
    feddep.memory["own"] = {"x": torch.ones(2)}
    feddep.mend({"encoder": {name: tensor.detach().numpy() for name, tensor in feddep.shared.items()}}, {})
    assert {"own", "z"} <= feddep.memory.keys()


def test_the_proximal_term_under_sams_gradient(run):
    """The gradient is ∇F_i + μ (y − x), taken at y + ρ g/‖g‖; weight decay is the optimiser's, at y."""
    mu, rho = 0.6, 0.2
    overrides = ["strategy.objective=[prox,sam]", f"strategy.prox.mu={mu}", f"strategy.sam.rho={rho}"]
    finished = run(*WORDS, *overrides, "train.local_steps=3")

    def ends(x, i):
        y = x
        for _ in range(3):
            g = gradient(y, i, 0) + mu * (y - x)
            up = y + rho * g / np.linalg.norm(g)
            y = y - LR * (gradient(up, i, 0) + mu * (up - x) + DECAY * y)
        return y

    x = start(run)
    for _ in range(4):
        x = mean_of([ends(x, i) for i in range(3)], np.ones(3))
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)


def test_the_proximal_and_the_contrastive_term_with_momentum_on_the_server(run):
    """Every term by hand, on a model with a hidden layer; gradients by central differences."""
    mu = 0.8
    overrides = [f"strategy.moon.mu={moon.MU}", f"strategy.moon.temperature={moon.TAU}", f"strategy.prox.mu={mu}"]
    overrides += [
        "model.layers=2",
        "model.hidden=4",
        "train.local_steps=2",
        "rounds=3",
        "strategy.objective=[moon,prox]",
    ]
    overrides += ["strategy.server_optimizer=momentum", *SERVERS["momentum"][1]]
    finished = run(*WORDS, *overrides)
    theta = run(*WORDS, *overrides, "rounds=1", "train.local_steps=0").arrays
    velocity, previous = dict.fromkeys(theta, 0.0), [None] * 3
    for _ in range(3):
        ends = []
        for i in range(3):
            x, labels = data(i)
            p, to = theta, moon.hidden(theta, x)
            away = to if previous[i] is None else previous[i]
            for _ in range(2):
                moved = moon.step(p, x, labels, to, away)
                p = {name: moved[name] - LR * mu * (p[name] - theta[name]) for name in p}
            previous[i] = moon.hidden(p, x)
            ends.append(p)
        for name in theta:
            velocity[name] = 0.6 * velocity[name] + sum(p[name] for p in ends) / 3 - theta[name]
        theta = {name: theta[name] + 0.5 * velocity[name] for name in theta}
    for name, array in theta.items():
        np.testing.assert_allclose(finished.arrays[name], array, rtol=0, atol=1e-7, err_msg=name)


def test_the_contrastive_term_with_control_variates_and_adam_on_the_server(run):
    """Of two clients a round; z_prev is of a client's last round, and c − c_i is added to the whole gradient."""
    overrides = ["strategy.objective=[moon]", f"strategy.moon.mu={moon.MU}", f"strategy.moon.temperature={moon.TAU}"]
    overrides += [
        "model.layers=2",
        "model.hidden=4",
        "train.local_steps=2",
        "rounds=3",
        "strategy.fraction=0.67",
        "seed=4",
    ]
    overrides += ["strategy.variates=scaffold", "strategy.server_optimizer=adam", *SERVERS["adam"][1]]
    finished = run(*WORDS, *overrides)
    theta = run(*WORDS, *overrides, "rounds=1", "train.local_steps=0").arrays
    c, controls, states = dict.fromkeys(theta, 0.0), [dict.fromkeys(theta, 0.0)] * 3, {name: {} for name in theta}
    previous = [None] * 3
    for cohort in (record["cohort"] for record in finished.rounds):
        ends, change = [], dict.fromkeys(theta, 0.0)
        for i in cohort:
            x, labels = data(i)
            p, to = theta, moon.hidden(theta, x)
            for _ in range(2):
                moved = moon.step(p, x, labels, to, to if previous[i] is None else previous[i])
                p = {name: moved[name] - LR * (c[name] - controls[i][name]) for name in p}
            new = {name: controls[i][name] - c[name] + (theta[name] - p[name]) / (2 * LR) for name in p}
            change = {name: change[name] + (new[name] - controls[i][name]) / 3 for name in p}
            controls[i], previous[i] = new, moon.hidden(p, x)
            ends.append(p)
        means = {name: np.mean([p[name] for p in ends], axis=0) for name in theta}
        theta = {name: SERVERS["adam"][0](theta[name], means[name], states[name]) for name in theta}
        c = {name: c[name] + change[name] for name in c}
    for name, array in theta.items():
        np.testing.assert_allclose(finished.arrays[name], array, rtol=0, atol=1e-6, err_msg=name)


def test_dittos_second_model_beside_a_proximal_term(run):
    """Each has its own μ: w_i is held by the proximal term alone, v_i by Ditto's alone; the server takes momentum."""
    mu, lam, rounds = 0.9, 0.4, 3
    overrides = ["strategy.personalization=ditto", f"strategy.ditto.lam={lam}", "strategy.objective=[prox]"]
    overrides += [f"strategy.prox.mu={mu}", "strategy.server_optimizer=momentum", *SERVERS["momentum"][1], *hand.EXACT]
    overrides += [f"train.local_steps={hand.STEPS}", f"rounds={rounds}"]
    finished = run(*overrides)
    w = {n: t.double().numpy().copy() for n, t in made("fedavg").model.state_dict().items()}
    parties = [hand.Party(client) for client in range(3)]
    thetas, velocity, expected = [w] * 3, dict.fromkeys(w, 0.0), []
    for _ in range(rounds):
        ends = []
        for i, party in enumerate(parties):
            y = w
            for _ in range(hand.STEPS):
                g, h = party.gradient(thetas[i]), party.gradient(y)
                thetas[i] = hand.step(thetas[i], {n: g[n] + lam * (thetas[i][n] - w[n]) for n in w})
                y = hand.step(y, {n: h[n] + mu * (y[n] - w[n]) for n in w})
            ends.append(y)
        mean = hand.mean(ends)
        velocity = {n: 0.6 * velocity[n] + mean[n] - w[n] for n in w}
        w = {n: w[n] + 0.5 * velocity[n] for n in w}
        expected.append([party.loss(v, party.val) for party, v in zip(parties, thetas, strict=True)])
    np.testing.assert_allclose(scores_by_client(finished), expected, rtol=1e-9)
    for name, array in w.items():
        np.testing.assert_allclose(finished.arrays[name], array, rtol=0, atol=1e-12)


MU, RHO = 0.9, 0.3
OBJECTIVES = {"prox": [f"strategy.prox.mu={MU}"], "sam": [f"strategy.sam.rho={RHO}"]}


def stepped(party, y, x, objective):
    """One step of y from x on F_i with the term of the objective."""
    at = y
    if objective == "sam":
        g = party.gradient(y)
        size = np.sqrt(sum((a**2).sum() for a in g.values()))
        at = {n: y[n] + RHO * g[n] / size for n in y}
    g = party.gradient(at)
    return hand.step(y, {n: g[n] + MU * (objective == "prox") * (y[n] - x[n]) for n in y})


def ended(party, x, objective):
    y = x
    for _ in range(hand.STEPS):
        y = stepped(party, y, x, objective)
    return y


def mixed_by_apfl(parties, w, objective):
    thetas, alpha = [w] * 3, [0.5] * 3
    while True:
        ends = []
        for i, party in enumerate(parties):
            y = w
            for k in range(hand.STEPS):
                slope, share = party.gradient(hand.mix(thetas[i], y, alpha[i])), alpha[i]
                if not k:
                    along = sum(((thetas[i][n] - y[n]) * slope[n]).sum() for n in w)
                    alpha[i] = min(max(share - hand.LR * along, 0.0), 1.0)
                thetas[i] = hand.step(thetas[i], {n: share * slope[n] for n in w})
                y = stepped(party, y, w, objective)
            ends.append(y)
        w = hand.mean(ends)
        yield [hand.mix(v, w, share) for v, share in zip(thetas, alpha, strict=True)]


def tuned_plainly(parties, w, objective):
    while True:
        w = hand.mean([ended(party, w, objective) for party in parties])
        yield [hand.trained(party, w, 3) for party in parties]


def mixed_by_ala(parties, w, objective):
    """One pass a round at first too; W is learned without the terms, and training with them starts from the mixture."""
    head, weights = ("head.weight", "head.bias"), [dict.fromkeys(w, 1.0)] * 3
    local = [ended(party, w, objective) for party in parties]
    while True:
        w, start = hand.mean(local), []
        for i, party in enumerate(parties):
            apart = {n: w[n] - local[i][n] for n in head}
            slope = party.gradient(w | {n: local[i][n] + weights[i][n] * apart[n] for n in head})
            weights[i] = {n: np.clip(weights[i][n] - 40 * slope[n] * apart[n], 0, 1) for n in head}
            start.append(w | {n: local[i][n] + weights[i][n] * apart[n] for n in head})
        yield start
        local = [ended(party, theta, objective) for party, theta in zip(parties, start, strict=True)]


PERSONAL = {
    "apfl": (mixed_by_apfl, []),
    "finetune": (tuned_plainly, ["strategy.finetune.steps=3"]),
    "ala": (mixed_by_ala, [f"strategy.ala.{key}" for key in ("sample=1", "eta=40", "threshold=0", "passes=1")]),
}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("personal", PERSONAL)
def test_what_is_personal_trains_without_the_terms_that_the_shared_model_has(run, personal, objective):
    by_hand, keys = PERSONAL[personal]
    overrides = [f"strategy.personalization={personal}", f"strategy.objective=[{objective}]", *keys]
    finished = run(*overrides, *OBJECTIVES[objective], *hand.EXACT, f"train.local_steps={hand.STEPS}", "rounds=3")
    w = {n: t.double().numpy().copy() for n, t in made("fedavg").model.state_dict().items()}
    parties = [hand.Party(client) for client in range(3)]
    models = itertools.islice(by_hand(parties, w, objective), 3)
    expected = [[party.loss(v, party.val) for party, v in zip(parties, thetas, strict=True)] for thetas in models]
    np.testing.assert_allclose(scores_by_client(finished), expected, rtol=1e-9)


@pytest.mark.parametrize("personal", ["ditto", "apfl", "finetune"])
def test_a_second_model_leaves_the_shared_one_as_the_objective_has_it_bit_for_bit(run, personal):
    overrides = ["strategy.objective=[prox,sam]", "strategy.prox.mu=0.5", "rounds=3"]
    both, alone = run(*overrides, f"strategy.personalization={personal}"), run(*overrides)
    assert_same_arrays(both.arrays, alone.arrays)
    losses = [[r["metrics"][key] for r in f.rounds] for f, key in ((both, "global_val_loss"), (alone, "val_loss"))]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(("part", "prefix"), [("head", "head"), ("norm", "norms.")])
def test_the_head_and_normalisation_stay_personal_by_name(run, part, prefix):
    overrides = ["model=gcn_norm", "rounds=2"]
    named, by_prefix = (
        run(*overrides, word) for word in (f"strategy.personalization={part}", f"strategy.private=[{prefix}]")
    )
    assert_same_arrays(named.arrays, by_prefix.arrays)
    assert not any(name.startswith(prefix) for name in named.arrays)
    assert named.summary["test_accuracy"] == by_prefix.summary["test_accuracy"]


@pytest.mark.parametrize("cohorts", [1, 0.67])
def test_control_variates_of_a_proximal_objective_with_adam_on_the_server(run, cohorts):
    """SCAFFOLD's Eq. (3)-(5) on the gradient of h_i, and FedAdam's step along ȳ − x."""
    mu, rule = 0.5, SERVERS["adam"]
    overrides = ["strategy.variates=scaffold", "strategy.objective=[prox]", f"strategy.prox.mu={mu}", *rule[1]]
    overrides += ["strategy.server_optimizer=adam", "train.local_steps=2", f"strategy.fraction={cohorts}"]
    finished = run(*WORDS, *overrides)
    x, c, controls, state = start(run), 0.0, [0.0] * 3, {}
    for cohort in (record["cohort"] for record in finished.rounds):
        ends, change = [], 0.0
        for i in cohort:
            y = x
            for _ in range(2):
                y = y - LR * (gradient(y, i) + mu * (y - x) + c - controls[i])
            new = controls[i] - c + (x - y) / (2 * LR)
            change, controls[i] = change + (new - controls[i]) / 3, new
            ends.append(y)
        x, c = rule[0](x, np.mean(ends, axis=0), state), c + change
    np.testing.assert_allclose(vector(finished.arrays), x, rtol=0, atol=1e-12)


def test_dual_variables_beside_dittos_second_model(run):
    """FedDyn's w_i and Ditto's v_i: neither correction reaches the other model."""
    alpha, lam, rounds = 0.5, 0.4, 3
    overrides = ["strategy.variates=feddyn", f"strategy.feddyn.alpha={alpha}", "strategy.personalization=ditto"]
    overrides += [f"strategy.ditto.lam={lam}", *hand.EXACT, f"train.local_steps={hand.STEPS}", f"rounds={rounds}"]
    finished = run(*overrides, "strategy.weighting=uniform")
    w = {n: t.double().numpy().copy() for n, t in made("fedavg").model.state_dict().items()}
    parties = [hand.Party(client) for client in range(3)]
    thetas, drifts, expected = [w] * 3, [dict.fromkeys(w, 0.0)] * 3, []
    for _ in range(rounds):
        ends = []
        for i, party in enumerate(parties):
            y = w
            for _ in range(hand.STEPS):
                g, f = party.gradient(thetas[i]), party.gradient(y)
                thetas[i] = hand.step(thetas[i], {n: g[n] + lam * (thetas[i][n] - w[n]) for n in w})
                y = hand.step(y, {n: f[n] + alpha * (y[n] - w[n] + drifts[i][n]) for n in w})
            drifts[i] = {n: drifts[i][n] + y[n] - w[n] for n in w}
            ends.append(y)
        w = {n: sum(e[n] + d[n] for e, d in zip(ends, drifts, strict=True)) / 3 for n in w}
        expected.append([party.loss(v, party.val) for party, v in zip(parties, thetas, strict=True)])
    np.testing.assert_allclose(scores_by_client(finished), expected, rtol=1e-9)
    for name, array in w.items():
        np.testing.assert_allclose(finished.arrays[name], array, rtol=0, atol=1e-12)


def test_control_variates_on_a_graph_specific_method_reach_its_server(run):
    """FedGCN's clients with SCAFFOLD's variates: the run differs from FedGCN's and its variates reach the server."""
    overrides = ["strategy=fedgcn", "rounds=3", "train.optimizer=sgd", "train.lr=0.1"]
    plain, corrected = run(*overrides), run(*overrides, "strategy.variates=scaffold", "strategy.weighting=uniform")
    assert any((plain.arrays[n] != a).any() for n, a in corrected.arrays.items())
    assert corrected.summary["bytes_up"] > 1.5 * plain.summary["bytes_up"]


LIMITS = {
    "feddyn": ["strategy.variates=feddyn", "strategy.feddyn.alpha=0"],
    "feddc": ["strategy.variates=feddc", "strategy.feddc.alpha=0", "strategy.feddc.gradient_term=false"],
    "ditto": ["strategy.personalization=ditto", "strategy.ditto.lam=0"],
    "apfl": ["strategy.personalization=apfl", "strategy.apfl.alpha=0", "strategy.apfl.adaptive=false"],
    "finetune": ["strategy.personalization=finetune", "strategy.finetune.steps=0"],
    "ala": ["strategy.personalization=ala", "strategy.ala.eta=0"],
    "prox": ["strategy.objective=[prox]", "strategy.prox.mu=0"],
    "moon": ["strategy.objective=[moon]", "strategy.moon.mu=0"],
    "sam": ["strategy.objective=[sam]", "strategy.sam.rho=0"],
}
"""Parts whose keys make them do nothing."""


@pytest.mark.parametrize(
    ("part", "other"),
    [
        *((part, []) for part in LIMITS),
        *((part, ["strategy=fedavgm"]) for part in LIMITS if part not in ("feddyn", "feddc")),
        *((part, ["strategy=fedomd", "model.layers=3"]) for part in ("prox", "sam")),
    ],
)
def test_a_part_at_its_limit_is_the_run_without_it_bit_for_bit(run, baseline, part, other):
    """With dropout and Adam."""
    assert_same_arrays(run(*other, *LIMITS[part]).arrays, baseline(*other).arrays)


def test_fedomd_with_a_proximal_term_is_held_the_nearer_the_larger_mu(run):
    overrides = [
        "strategy=fedomd",
        "strategy.objective=[prox]",
        "rounds=1",
        "train.local_steps=10",
        "train.optimizer=sgd",
    ]
    first = run(*overrides, "train.local_steps=0").arrays
    moved = []
    for mu in (0, 1, 5):
        arrays = run(*overrides, f"strategy.prox.mu={mu}").arrays
        moved.append(sum(float(((arrays[n] - a) ** 2).sum()) for n, a in first.items()))
    assert moved[0] > moved[1] > moved[2] > 0


@pytest.mark.parametrize(
    "name", [name for name in group_names("strategy") if chosen(vars(compose([f"strategy={name}"]).strategy))]
)
def test_a_short_key_is_that_of_the_part(name):
    """On the command line, and on top of a stored configuration."""
    new = compose([f"strategy={name}"]).strategy
    part = chosen(vars(new))[0]
    key, value = next(
        (k, v) for k, v in vars(getattr(new, part)).items() if isinstance(v, int | float) and not isinstance(v, bool)
    )
    changed = value + 1 if isinstance(value, int) else value / 2 or 0.25
    for cfg in (
        compose([f"strategy={name}", f"strategy.{key}={changed}"]),
        compose([f"strategy.{key}={changed}"], to_json(compose([f"strategy={name}"]))),
    ):
        assert getattr(getattr(cfg.strategy, part), key) == changed
        assert cfg.strategy.params == new.params


def test_a_method_and_its_part_may_have_keys_of_the_same_name(run):
    """In the configuration that clients and later commands read, and in the keys of a checkpoint; as in the overrides."""
    words = ["strategy=adafgl", "strategy.variates=feddyn", "strategy.alpha=0.3", "strategy.feddyn.alpha=0.7"]
    words += ["strategy.extractor_rounds=1"]
    stored = to_json(compose(words))
    for overrides, alpha in ([], 0.3), (["strategy.alpha=0.4"], 0.4), (["strategy.extractor_rounds=2"], 0.3):
        read = compose(overrides, stored).strategy
        assert (read.params["alpha"], read.feddyn.alpha) == (alpha, 0.7)
    half = run(*words, "rounds=2", "checkpoint_every=1")
    resumed = run(*words, "rounds=3", f"resume={half.out}", f"out={half.out}")
    assert_same_arrays(resumed.arrays, half.arrays)  # stage 2 leaves them


@pytest.mark.parametrize(
    ("overrides", "accepted"),
    [
        (["strategy=fedprox"], True),
        (["strategy=fedprox", "strategy.server_optimizer=adam"], True),
        (["strategy=fedprox", "strategy.objective=[prox,moon]"], False),
        (["strategy=fedprox", "strategy.variates=scaffold"], False),
        (["strategy=fedavg"], False),
    ],
)
def test_a_node_that_lists_a_method_answers_with_no_other_parts(overrides, accepted):
    policy = Policy(strategies=["fedprox"])
    if accepted:
        policy.check_run(compose(overrides))
    else:
        with pytest.raises(FedGraphError, match="strategies fedprox"):
            policy.check_run(compose(overrides))


def test_another_method_starts_without_the_parts_of_the_last():
    stored = to_json(compose(["strategy=fedadam", "strategy.adam.tau=0.5", "strategy.fraction=0.5"]))
    other = compose(["strategy=fedavg"], stored).strategy
    assert (other.server_optimizer, other.adam.tau, other.fraction) == ("average", 1e-3, 0.5)


def test_every_part_is_chosen_by_its_name_and_its_keys_have_meanings():
    from fedgraph_flwr.config.key_docs import part_keys

    keys = part_keys()
    assert [key.name for key in keys if not key.meaning] == []
    named = {word for key in keys for word in re.findall(r"\w+", key.accepted)}
    assert KEYS.keys() <= named


def test_a_server_optimiser_on_a_graph_specific_method(run):
    """FedGCN's clients, FedAvgM's server: at β = 0 and η = 1 it is FedGCN."""
    overrides = ["strategy=fedgcn", "rounds=2", "dtype=float64"]
    at_limit = ["strategy.server_optimizer=momentum", "strategy.momentum.beta=0", "strategy.momentum.server_lr=1"]
    plain, limit = run(*overrides), run(*overrides, *at_limit)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(limit.arrays[name], array, rtol=1e-12, atol=1e-14)
    moved = run(*overrides, "strategy.server_optimizer=adam")
    with pytest.raises(AssertionError):
        assert_same_arrays(moved.arrays, plain.arrays)
