"""Attacks of a server that opens several secure sums of the same values, and the ledger that refuses them.

Each attack is run without the ledger first: it then recovers single clients' values.
"""

import itertools
import json
from fractions import Fraction

import numpy as np
import pytest

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet.keys import make_node
from fedgraph_flwr.methods.uplink import Mean, Sum
from fedgraph_flwr.methods.weighting import batch_of, batches, in_sum
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node import records
from fedgraph_flwr.secure.opened import MODELS, NEAR, OpenedSums, nearly_revealed, primitive, revealed
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.secure.secagg import Member
from fedgraph_flwr.strategies.summation.masked import Masked
from fedgraph_flwr.wire.messages import MODEL
from tests.methods.small_runs import METHODS, sampled
from tests.nodes import nodes_with
from tests.secure.rounds import SECURE, Round, accepted
from tests.support import assert_same_arrays

FOUR = (12, 16, 20, 14)


# --- the rule ---------------------------------------------------------------------------------------------------------


def exact(vectors):
    """Second derivation: reduced row echelon form in rational numbers; the lowest name whose unit vector is in the span."""
    names = sorted({name for vector in vectors for name in vector})
    rows = [[Fraction(vector.get(name, 0)) for name in names] for vector in vectors]
    rank = 0
    for column in range(len(names)):
        pivot = next((i for i in range(rank, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[rank], rows[pivot] = rows[pivot], rows[rank]
        rows[rank] = [value / rows[rank][column] for value in rows[rank]]
        for i, row in enumerate(rows):
            if i != rank:
                rows[i] = [a - row[column] * b for a, b in zip(row, rows[rank], strict=True)]
        rank += 1
    alone = [names[next(i for i, v in enumerate(row) if v)] for row in rows if sum(map(bool, row)) == 1]
    return min(alone, default="")


def test_a_unit_vector_in_a_span_is_found_whenever_there_is_one():
    rng, both = np.random.default_rng(0), set()
    for _ in range(300):
        count, names = rng.integers(1, 6), rng.integers(2, 7)
        vectors = [
            {str(i): int(v) for i, v in enumerate(rng.integers(0, 4, names)) if v} or {"0": 1} for _ in range(count)
        ]
        vectors.append({str(i): int(v) for i, v in enumerate(rng.integers(1, 4, names))})
        for end in range(1, len(vectors) + 1):  # as a ledger grows, up to the vector that it refuses
            found, expected = revealed(vectors[:end]), exact(vectors[:end])
            both.add(bool(expected))
            if expected and not any(exact(vectors[:e]) for e in range(1, end)):
                assert found, vectors[:end]
            if not expected:
                assert not found, vectors[:end]
    assert both == {True, False}


def test_the_rule_holds_for_hundreds_of_sums():
    rng, clients = np.random.default_rng(1), 160
    vectors = [{str(i): int(v) for i, v in enumerate(rng.integers(1, 10**6, clients))} for _ in range(clients)]
    assert revealed(vectors[:-1]) == ""
    assert revealed(vectors) == "0", "as many independent sums as clients are solved for all of them"


def test_weights_in_equal_proportions_are_one_vector():
    assert primitive({"0": 0.1, "1": 0.3}) == primitive({"0": 0.1 * 4, "1": 0.3 * 4, "2": 0.0})
    assert primitive({"0": 30.0, "1": 60.0}) == {"0": 1, "1": 2}
    assert primitive({"0": 0.0}) == {}


# --- the attacks ------------------------------------------------------------------------------------------------------

ATTACKS = {
    "two weightings": [[0.75, 0.25, 0, 0], [0.25, 0.75, 0, 0]],
    "no share above 0.4": [[0.4, 0.2, 0.2, 0.2], [0.2, 0.4, 0.2, 0.2], [0.2, 0.2, 0.4, 0.2], [0.2, 0.2, 0.2, 0.4]],
    "three of four": [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1]],
}


def attack(weightings, ledgers=None, step=0.0, values=None):
    """Open sums of the same four clients with these weights, and solve for single values.

    Args:
        weightings: weights of the four clients, per sum.
        ledgers: of the members; None: none is kept.
        step: how far the model moves, and with it each client's values, from sum to sum.
        values: of client 0 to 3 [4, 6]; default: random.

    Returns:
        The largest error of client 0's values.
    """
    true = np.random.default_rng(5).normal(size=(4, 6)) if values is None else values
    members, sums = [Member(client, 2 / 3, 40) for client in range(4)], []
    for member, ledger in zip(members, ledgers or [None] * 4, strict=True):
        member.max_share, member.opened = 0.75, ledger
    for place, weights in enumerate(weightings):
        made, ratios = Round(members=members, share=2 / 3).deal(), np.array(weights) / sum(weights)
        model = np.ones(30) + step * place * np.sin(np.arange(30))
        for client in range(4):
            own = true[client] + step * place * np.cos(np.arange(6) + client)
            made.values[client] = {MODEL: {"w": own}}
        answers = {client: made.mask(client, ratios, received=model.tobytes(), model=model) for client in range(4)}
        sums.append(made.sum(answers, made.shares(range(4), list(range(4))))[MODEL]["w"])
    matrix = np.array([np.array(weights) / sum(weights) for weights in weightings])
    solved = np.linalg.lstsq(matrix.T, np.eye(4)[0], rcond=None)[0] @ np.stack(sums)
    return np.abs(solved - true[0]).max()


@pytest.mark.parametrize("weightings", ATTACKS.values(), ids=ATTACKS)
def test_sums_that_could_be_solved_are_refused(weightings):
    assert attack(weightings) < 1e-9, "without a ledger, exactly client 0's values"
    ledgers = [OpenedSums() for _ in range(4)]
    with pytest.raises(RunFailed, match=r"would reveal the values of client 0 together with . sums of 'models'"):
        attack(weightings, ledgers)
    opened = [len(ledger._memory["sums"][MODELS]) for ledger in ledgers]
    assert opened[0] < len(weightings), "the last one is refused, or an earlier one that comes close"


def test_a_client_learns_of_sums_that_it_was_not_in():
    """Each of three sums is known to three clients; the fourth would be the first that each of its clients cannot open."""
    values = np.random.default_rng(5).normal(size=(4, 6))
    ledgers = [OpenedSums() for _ in range(4)]

    def opened(alive):
        made = Round(members=[Member(client, 2 / 3, 40) for client in range(4)], share=2 / 3)
        made.values = {client: {MODEL: {"w": values[client]}} for client in range(4)}
        for member, ledger in zip(made.members, ledgers, strict=True):
            member.opened = ledger
        made.deal()
        answers = {client: made.mask(client, 0.25) for client in range(4)}
        shares = made.shares(alive, alive)
        return made.sum({client: answers[client] for client in alive}, shares)[MODEL]["w"]

    sums = [opened(alive) for alive in ([1, 2, 3], [0, 2, 3], [0, 1, 3])]
    np.testing.assert_allclose(4 * sums[0], values[1:].sum(0))
    with pytest.raises(RunFailed, match="would reveal the values of client 0 together with 3 sums"):
        opened([0, 1, 2])
    assert all(len(ledger._memory["sums"][MODELS]) <= 3 for ledger in ledgers), "no client was in all of them"


@pytest.mark.parametrize("rule", ["strict", "per_model"])
def test_a_model_that_moves_a_little_is_the_same_model(rule):
    """With steps of 1e-6 the solution had an error of 1e-4."""
    weightings = ATTACKS["no share above 0.4"]
    assert attack(weightings, step=1e-6) < 1e-4
    with pytest.raises(RunFailed, match=rf"\({rule}, opened_sums of this node's policy\)"):
        attack(weightings, [OpenedSums(None, rule, 0.1) for _ in range(4)], step=1e-6)


def test_per_model_opens_sums_of_models_that_are_far_apart():
    """What remains then: the error of the solution is about as large as the change of a client's values."""
    weightings = ATTACKS["no share above 0.4"]
    error = attack(weightings, [OpenedSums(None, "per_model", 0.1) for _ in range(4)], step=1.0)
    assert error > 0.5
    with pytest.raises(RunFailed, match="would reveal"):
        attack(weightings, [OpenedSums() for _ in range(4)], step=1.0)


def test_a_sum_of_other_values_is_another_equation():
    ledger = OpenedSums()
    ledger.admit([(MODELS, {"0": 3, "1": 1}), ("moments", {"0": 1, "1": 3})], None, "client 0")
    ledger.admit([(MODELS, {"0": 6, "1": 2})], None, "client 0")
    with pytest.raises(RunFailed, match=r"with weights \{0: 1, 1: 3\} would reveal"):
        ledger.admit([("counts", {"0": 1, "1": 1}), (MODELS, {"0": 1, "1": 3})], None, "client 0")
    assert "counts" not in ledger._memory["sums"], "nothing of a refused exchange is stored"


def test_a_ledger_outlives_its_process_and_a_damaged_one_opens_nothing(tmp_path):
    path = tmp_path / "opened.json"
    OpenedSums(path).admit([(MODELS, {"0": 3, "1": 1})], None, "client 0")
    with pytest.raises(RunFailed, match="would reveal the values of client 0"):
        OpenedSums(path).admit([(MODELS, {"0": 1, "1": 3})], None, "client 0")
    for report in (b"[]", b"{", b'{"models": [1]}', b'{"models": [{"0": 0.5}]}', b"[" * 9999):
        with pytest.raises(RunFailed, match="client 0: client 3 sent no valid report"):
            OpenedSums().confirm([(MODELS, {"0": 1})], None, {3: report}, "client 0")
    for damage in (
        b"",
        b"[]",
        b"{}",
        b'{"seed": 1, "sums": {"a": [{"weights": {"0": 1.5}}]}}',
        b'{"seed": 1, "sums": []',
    ):
        path.write_bytes(damage or b"\x00")
        with pytest.raises(FedGraphError, match=r"opened.json is not the ledger of this node's opened secure sums"):
            OpenedSums(path).admit([(MODELS, {"0": 1, "1": 3})], None, "client 0")


def test_distances_of_sketches_are_those_of_models():
    ledger, rng = OpenedSums(), np.random.default_rng(3)
    base = rng.normal(size=20_000)
    for scale in (1e-6, 1e-2, 1.0):
        step = scale * rng.normal(size=base.size)
        found = np.linalg.norm(ledger.sketch(base + step).astype(float) - ledger.sketch(base))
        assert 0.75 < found / np.linalg.norm(step) < 1.25 or scale < 1e-5  # float32 sketches resolve 1e-7 of the model


# --- months -----------------------------------------------------------------------------------------------------------


def nearest(vectors):
    """Second derivation: the least distance of a unit vector from what least squares makes of these vectors."""
    names = sorted({name for vector in vectors for name in vector})
    matrix = np.array([[float(vector.get(name, 0)) for name in names] for vector in vectors]).T
    matrix /= np.linalg.norm(matrix, axis=0)
    solved = [np.linalg.lstsq(matrix, unit, rcond=1e-13)[0] for unit in np.eye(len(names))]
    return [float(np.linalg.norm(matrix @ x - unit)) for x, unit in zip(solved, np.eye(len(names)), strict=True)]


def opens(ledgers, sizes, weighting="train"):
    """One run of a server: whether every bank's ledger admits the sum with the sizes that the banks announce."""
    announced = [
        ledger.fixed_sizes(str(bank), {"num_train": size})["num_train"]
        for bank, (ledger, size) in enumerate(zip(ledgers, sizes, strict=True))
    ]
    weights = {str(bank): size if weighting == "train" else 1 for bank, size in enumerate(announced)}
    try:
        for ledger in ledgers:
            ledger.admit([(MODELS, weights)], None, "bank")
    except RunFailed:
        return False
    return True


def test_six_months_of_honest_banks_are_never_refused(tmp_path):
    """Books grow by about 2 % a month; each month has its own process and file of the party."""
    rng = np.random.default_rng(0)
    for trial in range(20):
        sizes = rng.integers(200, 2000, 3).astype(float)
        for _ in range(6):
            ledgers = [OpenedSums(tmp_path / str(trial) / f"{bank}.json") for bank in range(3)]
            assert opens(ledgers, [int(size) for size in sizes])
            sizes *= 1.02 + rng.normal(size=3) / 100


def test_two_weightings_that_nearly_single_out_a_client_are_refused():
    sizes = [150, 152, 150, 60]
    assert min(nearest([dict.fromkeys("0123", 1), dict(zip("0123", sizes, strict=True))])) < 0.02
    for order in (("uniform", "train"), ("train", "uniform")):
        ledgers = [OpenedSums() for _ in range(4)]
        assert [opens(ledgers, sizes, weighting) for weighting in order] == [True, False]


@pytest.mark.parametrize(
    "sums",
    [
        [(740, 125, 135), (1, 1, 1)],
        [(700, 100, 90, 110), (1, 1, 1, 1)],
        [(72, 13, 15), (60, 19, 21)],
        [(1, 1, 1, 1), (680, 100, 110, 130), (700, 90, 110, 100)],
    ],
)
def test_a_large_client_is_no_closer_to_two_sums_than_to_one(sums):
    """A bank with a share of 0.7 is near each sum, and two of them once gave its update at a cosine of 0.9997."""
    named = [(MODELS, {str(bank): weight for bank, weight in enumerate(weights)}) for weights in sums]
    for order in itertools.permutations(named):
        ledger = OpenedSums()
        ledger.admit([order[0]], None, "bank")
        for vector in order[1:]:
            with pytest.raises(RunFailed, match="would reveal the values of client"):
                ledger.admit([vector], None, "bank")
        held = [entry["weights"] for entry in _content(ledger)["sums"][MODELS]]
        alone = np.min([nearest([vector]) for vector in held], axis=0)
        assert min(nearest(held)) > min(NEAR, *alone) - 1e-6


def test_monthly_files_open_no_further_vector(tmp_path):
    """Four imports, each with a ledger of its own, gave the updates of four banks."""
    ledgers = [OpenedSums(tmp_path / f"{bank}.json") for bank in range(4)]
    for month in range(4):
        assert opens(ledgers, [100 + 50 * (bank == month) for bank in range(4)])
    for ledger in ledgers:
        vectors = [entry["weights"] for entry in _content(ledger)["sums"][MODELS]]
        assert len({tuple(vector.items()) for vector in vectors}) == 1


def _content(ledger):
    with ledger._locked() as content:
        return content


def test_what_a_ledger_lets_through_is_far_from_every_client():
    """Servers that ask for random weights and cohorts until the ledger admits no more."""
    rng, refused = np.random.default_rng(2), 0
    for _ in range(60):
        ledger, clients = OpenedSums(), int(rng.integers(3, 9))
        for _ in range(8):
            cohort = rng.permutation(clients)[: rng.integers(3, clients + 1)]
            weights = {str(client): int(rng.integers(40, 200)) for client in cohort}
            try:
                ledger.admit([(MODELS, weights)], None, "client")
            except RunFailed:
                refused += 1
        vectors = [entry["weights"] for entry in ledger._memory["sums"][MODELS]]
        assert min(nearest(vectors)) >= NEAR - 1e-6
    assert refused > 100


def test_the_distance_is_that_of_least_squares():
    rng = np.random.default_rng(4)
    for _ in range(100):
        vectors = [
            {str(i): int(v) for i, v in enumerate(rng.integers(1, 50, 5))} for _ in range(int(rng.integers(2, 5)))
        ]
        alone = np.min([nearest([vector]) for vector in vectors], axis=0)
        close = [str(i) for i, d in enumerate(nearest(vectors)) if d < min(NEAR, alone[i]) - 1e-6]
        assert nearly_revealed(vectors) == min(close, default="")


def test_ledgers_of_single_files_are_joined(tmp_path):
    """An update forgets no opened sum; sketches of another seed count as near."""
    for name, weights in (("a" * 32, {"0": 3, "1": 1}), ("b" * 32, {"2": 3, "3": 1, "4": 5})):
        content = {"seed": 1, "sums": {MODELS: [{"weights": weights}]}}
        (tmp_path / f"opened_sums_{name}.json").write_text(json.dumps(content))
    with pytest.raises(RunFailed, match="would reveal"):
        OpenedSums(tmp_path / "opened_sums_training.json").admit([(MODELS, {"0": 1, "1": 3})], None, "client 0")
    joined = OpenedSums(tmp_path / "opened_sums_training.json")
    joined.admit([(MODELS, {"0": 3, "1": 1})], None, "client 0")
    vectors = [entry["weights"] for entry in _content(joined)["sums"][MODELS]]
    assert vectors == [{"0": 3, "1": 1}, {"2": 3, "3": 1, "4": 5}]


def test_a_node_announces_the_sizes_of_its_first_run(node, tmp_path):
    (tmp_path / "peers").mkdir()
    make_node(tmp_path / "node_0")
    (tmp_path / "peers" / "node_0.pub").write_bytes((tmp_path / "node_0.pub").read_bytes())
    files = {"key": str(tmp_path / "node_0"), "peers": str(tmp_path / "peers")}
    announced = []
    for size in (40, 44):
        asked = node("privacy.secagg=true", policy={"min_nodes": 0}, size=size, state=True, **files)
        announced.append(asked.request("describe", 0)["metrics"]["num_train"])
    assert announced[0] == announced[1] > 0
    assert [path.name for path in (tmp_path / "state").glob("opened_sums_*.json")] == ["opened_sums_training.json"]


# --- batches and weights ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "size"), [(3, 3), (10, 3), (11, 4), (100, 7), (7, 4)])
def test_batches_are_a_partition_that_does_not_depend_on_the_round(clients, size):
    parts = batches(clients, size, 5)
    assert sorted(itertools.chain(*parts)) == list(range(clients))
    assert {len(part) for part in parts} <= {size + extra for extra in range(size)}
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if len(parts) > 1:
        assert parts != batches(clients, size, 6)
    cfg = compose([f"num_clients={clients}", f"strategy.fraction={size / clients}", "seed=5", SECURE])
    seen = {tuple(batch_of(cfg, server_round)) for server_round in range(1, 200)}
    assert seen == set(parts)


def test_members_compute_the_weights_that_the_server_used_to_send():
    sizes = {client: np.array([train, nodes]) for client, (train, nodes) in enumerate([(10, 40), (30, 40), (0, 20)])}
    cases = [
        ([], Mean(), [0.25, 0.75, 0]),
        (["strategy.weighting=nodes"], Mean(), [0.4, 0.4, 0.2]),
        (["strategy.weighting=uniform"], Mean(), [0.5, 0.5, 0]),
        (["strategy.max_share=0.6"], Mean(), [0.4, 0.6, 0]),
        ([], Mean(weight="uniform"), [1 / 3] * 3),
        ([], Mean(scale=lambda client: 1 / (client + 1)), [0.4, 0.6, 0]),
        ([], Sum(), [1 / 3] * 3),
    ]
    for overrides, reducer, expected in cases:
        cfg = compose(["num_clients=3", SECURE, *overrides])
        np.testing.assert_allclose(in_sum(reducer, cfg, sizes, [0, 1, 2])[1], expected, atol=1e-12)


# --- in runs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def parties(monkeypatch, tmp_path):
    """``parties(rule=, distance=)``: clients reply like nodes of a fleet, whose ledgers outlive their runs."""

    def be(rule="strict", distance=0.0):
        policy = Policy(opened_sums=rule, model_distance=distance)
        nodes_with(monkeypatch, lambda: policy)

        def ledger(node, client):
            return OpenedSums(tmp_path / f"ledger_{client.graph.client}.json", rule, distance)

        monkeypatch.setattr(records, "opened_sums", ledger)

    return be


@pytest.mark.parametrize("method", sampled([name for name in METHODS if accepted(name)]))
def test_every_method_repeats_its_sums(method, go, parties):
    """Rounds, two sums in a round, and a sweep with one seed."""
    parties()
    for _ in range(2):
        assert go(method, "rounds=2", "model.dropout=0", SECURE).summary["failures"] == {}


def test_two_sums_in_a_round(go, parties):
    parties()
    found = go("fedomd", "rounds=3", "model.dropout=0", SECURE, "strategy.cmd_range=unit")
    assert found.summary["failures"] == {}


def dropping(monkeypatch, drops):
    """Clients that fail in the exchange ``train`` of a round, by client: rounds."""
    fit = GraphClient.fit

    def spy(self, *args):
        if self.server_round in drops.get(self.graph.client, ()):
            raise RunFailed("the power is out")
        return fit(self, *args)

    monkeypatch.setattr(GraphClient, "fit", spy)


EXACT = ["dtype=float64", "model.dropout=0", "train.optimizer=sgd"]


def test_a_client_that_drops_out_once_ends_a_strict_sum(run, parties, monkeypatch):
    parties()
    dropping(monkeypatch, {3: [2]})
    with pytest.raises(RunFailed, match=r"round 2, secagg_agree: 0 of 3 .*would reveal the values of client 3"):
        run("rounds=3", SECURE, *EXACT, sizes=FOUR)


def test_selective_dropouts_open_nothing_of_one_model(run, parties, monkeypatch, caplog):
    """A server that declares another client lost in each round; per model, rounds whose models differ are opened."""
    drops = {client: [client + 2] for client in range(4)}  # a first training that fails would be no start
    parties("per_model", 1e-9)
    with monkeypatch.context() as patch:
        dropping(patch, drops)
        assert len(run("rounds=5", SECURE, *EXACT, sizes=FOUR).rounds) == 5
    parties("per_model", 1e3)
    dropping(monkeypatch, drops)
    with pytest.raises(RunFailed, match=r"for a secure sum|would reveal"):
        run("rounds=5", SECURE, *EXACT, sizes=FOUR)
    assert "would reveal the values of client" in caplog.text


class Killed(BaseException):
    """The server's process ends."""


def test_a_resumed_run_reads_sums_that_were_opened_after_its_checkpoint(run, parties, monkeypatch):
    """Rounds 6 and 7 were opened without client 3, then the server died; in the resumed run, client 3 takes part in both."""
    overrides = [SECURE, *EXACT, "rounds=9", "checkpoint_every=5"]
    whole = {"sizes": FOUR}
    parties("per_model", 0.0)
    with monkeypatch.context() as patch:
        dropping(patch, {3: [6, 7]})
        expected = run(*overrides, **whole)
    for ledger in expected.out.parent.glob("ledger_*.json"):
        ledger.unlink()
    reveal = Masked.reveal

    def die(self, phase, replies):
        if self.server.server_round == 9:
            raise Killed
        return reveal(self, phase, replies)

    with monkeypatch.context() as patch:
        dropping(patch, {3: [6, 7]})
        patch.setattr(Masked, "reveal", die)
        with pytest.raises(Killed):
            run(*overrides, **whole)
    out = max(expected.out.parent.glob("run*"), key=lambda path: int(path.name[3:]))
    assert len(list((out / "opened_sums").glob("*.safetensors"))) == 3, "rounds 6 to 8, after the checkpoint"
    node_clients.forget(0)
    resumed = run(*overrides, f"resume={out}", f"out={out}", **whole)
    assert_same_arrays(resumed.arrays, expected.arrays)
    assert not list((out / "opened_sums").glob("*.safetensors"))
    node_clients.forget(0)
    with pytest.raises(RunFailed, match=r"round 6, secagg_agree.*would reveal the values of client 3"):
        run(*overrides, **whole)  # a new run has no stored sums
