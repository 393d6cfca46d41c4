"""Rounds that every node computes: the bits of a server that follows the protocol, and attacks by one that does not."""

import contextlib
import copy
import dataclasses
import itertools
import json
import os
import re
import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from flwr.app import ConfigRecord

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.agree import described
from fedgraph_flwr.clients import replies
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.boosting import BoostingClient
from fedgraph_flwr.clients.fedgrad import FedGradClient
from fedgraph_flwr.clients.scaffold import Scaffold
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config import compose, to_json
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError, Refusal, RunFailed
from fedgraph_flwr.fleet.agreements import read
from fedgraph_flwr.fleet.keys import make_node
from fedgraph_flwr.launch.checks import refusal
from fedgraph_flwr.methods.boosting import BINS, GROW, HISTOGRAM
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS, LABELS
from fedgraph_flwr.methods.variates import VARIATES
from fedgraph_flwr.node import beginning as node_beginning
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node import respond
from fedgraph_flwr.node import verified as node_verified
from fedgraph_flwr.partition import resolved
from fedgraph_flwr.party.use.predict import load_node
from fedgraph_flwr.secure import beginning as secure_beginning
from fedgraph_flwr.secure import noise, policy, secagg, verified
from fedgraph_flwr.secure.keyring import SIGNATURE, Keyring, read_key
from fedgraph_flwr.secure.masked import digest, joined_groups
from fedgraph_flwr.secure.verified import CERTIFY, CLOSE, OPEN, PROPOSAL, PROPOSE
from fedgraph_flwr.strategies import beginning
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.replica import Replica
from fedgraph_flwr.wire.messages import EVALUATE, MODEL, TRAIN, from_record, to_record
from tests.conftest import client_graph
from tests.nodes import Killed, agreed, later, over_the_wire, party_nodes
from tests.party import bank_books
from tests.safety import schedules
from tests.safety.coordinator import Coordinator, Refused, keys_of
from tests.safety.meddler import Meddler
from tests.safety.schedules import KINDS, Broken, Player, watched
from tests.safety.verified_schedules import VerifiedPlayer, flat_names, record_of, rounded
from tests.support import assert_same_arrays

WORDS = [
    *("num_clients=3", "rounds=2", "model.hidden=8", "model.dropout=0", "privacy.secagg=true", "privacy.scores=none"),
    *("strategy.weighting=uniform", "evaluation.select=last", "train.local_steps=2"),
]
VERIFIED = ["privacy.coordinator=verified", "privacy.max_update=1e6"]
NOISED = ["privacy.dp=distributed", "privacy.noise_multiplier=1", "privacy.secagg_bits=20"]


# --- the same bits ----------------------------------------------------------------------------------------------------


@pytest.fixture
def members(tmp_path, monkeypatch, run):
    """Runs of agreements of three members, each a node with its own key, graph and state, whose seeds do not differ by run."""
    (tmp_path / "keys").mkdir()
    for client in range(3):
        make_node(tmp_path / "keys" / f"node_{client}")
        client_graph(client, 40).save(tmp_path / "graphs" / f"client_{client:04d}.safetensors")
    (tmp_path / "policy.yaml").write_text("min_nodes: 0\n")
    monkeypatch.setattr(node_beginning, "seed_of", lambda run, nonces: 7)
    monkeypatch.setattr(beginning, "seed_of", lambda run, nonces: 7)
    monkeypatch.setattr(node_beginning, "own_seed", lambda run, secret: 8)

    def go(name, *words, number=1, **values):
        given = [*WORDS, *words, f"graph={tmp_path / 'graphs'}"]
        file = tmp_path / f"{name}.yaml"
        digest = agreed(file, compose(given), tmp_path / "keys", name=name, **values)
        graphs = sorted((tmp_path / "graphs").glob("*.safetensors"))
        party_nodes(monkeypatch, graphs, tmp_path / "policy.yaml", tmp_path / "state", tmp_path / "keys", file)
        return run(*given, f"agreement={digest}/{number}")

    return go


METHODS = {
    "fedavg": [],
    "weights": ["strategy.weighting=train"],
    "fedprox": ["strategy=fedprox"],
    "fedadam": ["strategy=fedadam"],
    "fedavgm": ["strategy=fedavgm"],
    "fednova": ["strategy=fednova", "train.optimizer=sgd"],
    "feddyn": ["strategy=feddyn"],
    "scaffold": ["strategy=scaffold", "train.optimizer=sgd"],
    "feddc": ["strategy=feddc", "train.optimizer=sgd"],
    "ditto": ["strategy=ditto"],
    "fedper": ["strategy=fedper"],
    "boosting": [
        *(
            "strategy=boosting",
            "strategy.mode=histogram",
            "strategy.depth=3",
            "strategy.bins=16",
            "strategy.learning_rate=0.5",
        ),
        "strategy.min_data_in_leaf=4",
    ],
    "fedomd": ["strategy=fedomd", "strategy.cmd_range=unit"],
    "fedgrad": ["strategy=fedgrad", "train.optimizer=sgd"],
    "class weights": ["train.loss=weighted", "train.class_weights=federated"],
}
MORE = (
    "fedadagrad",
    "fedyogi",
    "fedsam",
    "moon",
    "apfl",
    "fedala",
    "fedavg_ft",
    "fedbn",
    "fedhero",
    "fedstar",
    "fgssl",
    "feddep",
)
METHODS |= {name: [f"strategy={name}"] for name in MORE}


def marks(method):
    """FedAdam stands for all; twenty runs more would cost every build a minute."""
    return () if method == "fedadam" else pytest.mark.faults if method in MORE else pytest.mark.slow


@pytest.mark.parametrize("method", [pytest.param(m, marks=marks(m)) for m in METHODS])
def test_nodes_compute_the_bits_of_a_server_that_follows_the_protocol(members, monkeypatch, caplog, tmp_path, method):
    words = METHODS[method]
    if method == "boosting":
        (tmp_path / "policy.yaml").write_text("min_nodes: 5\n")  # values count in cells
    values = {"weights": {f"bank_{i}": i + 1 for i in range(3)}} if method == "weights" else {}
    usual, received, original = members("curious", *words, **values), [], respond.respond

    def counted(message, context):
        terms = message.content.array_records.get(secagg.SECAGG, {}).get(verified.TERMS)
        if terms and terms.dtype == "uint64" and message.metadata.dst_node_id == 1:
            received.append(8 * np.prod(terms.shape))
        return original(message, context)

    monkeypatch.setattr(respond, "respond", counted)
    done = members("verified", *words, *VERIFIED, **values)
    assert done.summary["failures"] == {}
    assert len(done.rounds) == 2
    assert_same_arrays(done.arrays, usual.arrays)
    more = done.summary["exchanges_per_round"] - usual.summary["exchanges_per_round"]
    assert more == 1.5, "verified_open, and one verified_close: the certificate travels with the next request for keys"
    printed = 1e9 * float(re.search(r"each of 3 nodes receives (\S+) GB", caplog.text)[1])
    assert (0.85 if method == "boosting" else 0.99) < sum(received) / printed < 1.01, (
        "of trees with full levels at most"
    )


TASKS = {
    "nodes-regression": ["dataset=planted-regression", "dataset.nodes=120"],
    "nodes-multilabel": ["dataset=planted-multilabel", "dataset.nodes=120"],
    "edges": ["dataset=payments", "dataset.accounts=90", "dataset.background=400", "dataset.per_kind=3"],
    "links": ["dataset=csbm", "dataset.nodes_per_client=[40,60]"],
    "graphs": ["dataset=cycles", "dataset.graphs=60"],
    "triples": ["dataset=planted-triples", "partition=relations"],
}


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(t, marks=[pytest.mark.slow] if t == "edges" else [pytest.mark.slow, pytest.mark.faults])
        for t in TASKS
    ],
)
def test_nodes_compute_the_bits_of_other_tasks(members, tmp_path, task):
    shutil.rmtree(tmp_path / "graphs")
    assert main(["partition", "num_clients=3", f"task={task}", *TASKS[task], "--out", str(tmp_path / "graphs")]) == 0
    (tmp_path / "policy.yaml").write_text(f"min_nodes: 0\ntasks: [{task}]\n")
    usual, done = members("curious", f"task={task}"), members("verified", f"task={task}", *VERIFIED)
    assert done.summary["failures"] == {}
    assert_same_arrays(done.arrays, usual.arrays)


@pytest.mark.slow
def test_linked_files_run_and_books_score_with_the_certified_model(members, tmp_path):
    """The bits of a curious run, and the scores of its model; the files of two links do not fit."""
    names = "abc"
    rows = bank_books.payments(names=names)
    shutil.rmtree(tmp_path / "graphs")
    (tmp_path / "policy.yaml").write_text("min_nodes: 0\ntasks: [edges]\n")
    bank_books.banks(tmp_path / "of", rows[rows.day < bank_books.HISTORY], names).rename(tmp_path / "graphs")
    files = sorted((tmp_path / "graphs").glob("*.safetensors"))
    days = bank_books.days(tmp_path / "days", rows[rows.day >= bank_books.HISTORY])
    tables = (tmp_path / "of" / f"a_{what}.csv" for what in ("accounts", "history"))
    book = bank_books.book(tmp_path / "book", tmp_path / "of" / "a.yaml", *tables, *days)
    done, scores = [], []
    for name, more in (("curious", []), ("verified", VERIFIED)):
        done.append(members(name, "task=edges", *more))
        assert done[-1].summary["failures"] == {}
        state = tmp_path / "state"
        assert main(["book", "use", str(book), str(state / "state_0")]) == 0
        scores.append(bank_books.scores(tmp_path, book, "", *bank_books.SPAN))
        for client in range(3):
            predictor = load_node(state / f"state_{client}")
            assert_same_arrays({key: predictor.tensors[key].numpy() for key in done[-1].arrays}, done[-1].arrays)
        state.rename(tmp_path / f"state_{name}")
    assert_same_arrays(done[0].arrays, done[1].arrays)
    pd.testing.assert_frame_equal(scores[0], scores[1])
    assert len(scores[0]) == 100
    graph = ClientGraph.load(files[-1])
    graph.linking = {**graph.linking, "link": "000000000001"}
    graph.save(files[-1])
    with pytest.raises(FedGraphError, match="one has the file of another link run"):
        members("another", "task=edges", *VERIFIED)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "sums"), [("fedavg", 2), ("boosting", 3 + 2 * 3)])
def test_nodes_compute_the_bits_of_sums_with_noise_and_book_their_epsilon(members, monkeypatch, tmp_path, method, sums):
    """The draws are alike in both runs; a node books each sum once, and refuses one above its bound."""
    monkeypatch.setattr(noise, "source", lambda: noise.SecureNoise(b"k" * 32))
    words = [*METHODS[method], *NOISED]
    runs = []
    for name, more in (("curious", []), ("verified", VERIFIED)):
        runs.append(done := members(name, *words, *more, epsilon=50.0))
        assert done.summary["failures"] == {}
        ledger = json.loads((tmp_path / "state" / "state_0" / f"privacy_{name}.json").read_text())
        assert [entry["releases"] for entry in ledger.values()] == [sums]
        shutil.rmtree(tmp_path / "state")
    assert_same_arrays(runs[0].arrays, runs[1].arrays)
    spent = runs[1].summary["privacy"]["epsilon"]
    assert spent == runs[0].summary["privacy"]["epsilon"] > 0
    with pytest.raises(RunFailed, match="max_epsilon"):
        members("bounded", *words, *VERIFIED, epsilon=0.9 * spent)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "boosting"])
def test_a_run_continues_with_the_last_certified_model(members, method):
    """The bits of a curious run; whatever folder the operator names, nodes begin with the model that they certified."""
    done, words = [], METHODS[method]
    for name, more in (("curious", words), ("verified", [*words, *VERIFIED])):
        first = members(name, *more, start="continues")
        done.append(members(name, *more, f"init={first.out}", number=2, start="continues"))
    assert_same_arrays(done[0].arrays, done[1].arrays)
    other = members("other", *words, "seed=5")
    third = members("verified", *words, *VERIFIED, f"init={other.out}", number=3, start="continues")
    usual = members("curious", *words, f"init={done[0].out}", number=3, start="continues")
    assert_same_arrays(third.arrays, usual.arrays)


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], VERIFIED], ids=["curious", "verified"])
def test_a_run_that_dies_before_its_first_model_leaves_the_start_of_the_next(members, monkeypatch, more):
    """Some members computed a round that none certified: the next run begins from the seed, and later ones from its model."""
    base, last = respond.respond, OPEN if more else secagg.UNMASK

    def dying(message, context):
        reply, config = base(message, context), message.content["config"]
        if (config["phase"], config["round"], message.metadata.dst_node_id) == (last, 1, 2):
            raise Killed
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(respond, "respond", dying)
        with pytest.raises(Killed):
            members("cut", *more, start="continues")
    second = members("cut", *more, number=2, start="continues")
    whole = members("whole", *more, start="continues")
    assert_same_arrays(second.arrays, whole.arrays)
    with pytest.raises(FedGraphError, match=r"starts run 3 with a model \(start: continues\)"):
        members("cut", *more, number=3, start="continues")
    third = members("cut", *more, f"init={second.out}", number=3, start="continues")
    assert_same_arrays(third.arrays, members("whole", *more, f"init={whole.out}", number=2, start="continues").arrays)


WRITTEN = ("write_reply", "write_last", "reply")


def kills(later):
    """Where member 1 and the server die: in a phase and a round, after what the node writes last.

    ``later``: a round has more sums than that of its training.
    """
    after = [(secagg.PUBLISH, "write_reply"), (secagg.PUBLISH, "write_last"), *((GROW, place) for place in WRITTEN)]
    first = [(phase, place) for phase in (*secagg.STEPS[:2], TRAIN, *secagg.STEPS[2:]) for place in WRITTEN]
    last = [(OPEN, place) for place in ("write_reply", "write_state", "write_record", "reply")]
    of_a_round = [(secagg.PUBLISH, "write_record"), *first, *(after if later else ()), *last]
    ends = [(phase, 3, "reply") for phase in (secagg.PUBLISH, TRAIN, OPEN, CLOSE)]
    return [(phase, n, place) for n in (1, 2) for phase, place in of_a_round[::n]] + ends


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "noise", "boosting"])
def test_a_run_that_is_killed_anywhere_resumes_with_the_same_bits(members, monkeypatch, tmp_path, method):
    """Members repeat each reply of the round, so that all terms and shares are those of one sum."""
    monkeypatch.setattr(noise, "source", lambda: noise.SecureNoise(b"k" * 32))
    words, values = (NOISED, {"epsilon": 50.0}) if method == "noise" else (METHODS[method], {})
    whole = members("whole", "rounds=3", *words, *VERIFIED, **values)
    base, now = respond.respond, {}

    def killed(place):
        if now.get("at") == (*now["kill"][:2], 1) and place == now["kill"][2]:
            del now["at"]
            raise Killed

    def responding(message, context):
        config = message.content["config"]
        now["at"] = config["phase"], config["round"], message.metadata.dst_node_id - 1
        reply = base(message, context)
        killed("reply")
        return reply

    def writing(name):
        original = getattr(StateFolder, name)

        def write(self, *given):
            written = original(self, *given)
            if name != "write_record" or given[0] == "verified":
                killed(name)
            return written

        return write

    monkeypatch.setattr(respond, "respond", responding)
    for name in ("write_reply", "write_last", "write_state", "write_record"):
        monkeypatch.setattr(StateFolder, name, writing(name))
    first, *more = kills(method == "boosting")
    now["kill"] = first
    with pytest.raises(Killed):
        members("cut", "rounds=3", f"out={tmp_path / 'cut'}", *words, *VERIFIED, **values)
    for now["kill"] in more:
        with pytest.raises(Killed):
            later("resume", tmp_path / "cut")
    now["kill"] = ("", 0, "")
    done = later("resume", tmp_path / "cut")
    assert done.summary["failures"] == {}
    assert_same_arrays(done.arrays, whole.arrays)
    for client in range(3):
        assert not list((tmp_path / "state" / f"state_{client}").rglob("replies_*"))
        if values:
            ledger = json.loads((tmp_path / "state" / f"state_{client}" / "privacy_cut.json").read_text())
            assert sum(entry["releases"] for entry in ledger.values()) == 3


def test_stored_replies_are_read_with_the_same_bits_or_refused(tmp_path):
    """What a killed process began is not read; a file that is damaged, cut, missing or another run's is named."""
    folder, numbers = StateFolder(tmp_path, "a", "fedavg", 0), {"loss": 0.1, "count": 3}
    floats = np.array([[-0.0, np.nan], [np.inf, 5e-324]])
    given = {MODEL: {"w": floats, "b": floats.T.astype("float32")}, "none": {}, "more": {"on": np.array(True)}}
    places = [folder.write_reply(3, given, numbers)]
    file = tmp_path / "fedavg-a" / "client_0000" / "replies_000003.bin"
    with file.open("ab") as torn:
        torn.write(b"begun")
    places.append(folder.write_reply(3, {"terms": {"t": np.arange(7, dtype=np.uint64)[::-1]}}, {}))
    found, scalars = folder.read_reply(3, places[0])
    assert scalars == numbers
    assert list(found) == list(given)
    for group, arrays in given.items():
        assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()} == {
            n: (a.dtype, a.shape, a.tobytes()) for n, a in found[group].items()
        }
    assert folder.read_reply(3, places[1])[0]["terms"]["t"].tolist() == [6, 5, 4, 3, 2, 1, 0]
    shutil.copytree(file.parent.parent, tmp_path / "fedavg-b")
    with pytest.raises(FedGraphError, match=r"replies_000003.bin has run=a, expected b: give each node its own folder"):
        StateFolder(tmp_path, "b", "fedavg", 0).read_reply(3, places[0])
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"x")
    assert folder.read_reply(3, places[0])[1] == numbers
    for changed_bytes in (content[:-1] + b"x", content[:-1], content[: places[1][0]], None):
        file.unlink() if changed_bytes is None else file.write_bytes(changed_bytes)
        with pytest.raises(FedGraphError, match=r"cannot read .*replies_000003.bin, which this node wrote"):
            folder.read_reply(3, places[1])


@pytest.mark.slow
def test_a_run_continues_although_some_members_miss_the_last_certificate(members, monkeypatch):
    """They computed the model, so they begin with it as those do who have the certificate, whatever folder is named."""
    original, without = node_verified.Verified.answer, (0, 1)

    def answer(self, request):
        if request.phase == CLOSE and self.own in without:
            raise Refusal("withheld")
        return original(self, request)

    done = {}
    for name, folder in (("verified", "same"), ("another", "other"), ("whole", "same")):
        with monkeypatch.context() as patch:
            if name != "whole":
                patch.setattr(node_verified.Verified, "answer", answer)
            first = members(name, *VERIFIED, start="continues")
            assert len(first.summary["failures"]) == (0 if name == "whole" else len(without))
        init = first.out if folder == "same" else members("other", "seed=5", "rounds=1").out
        done[name] = members(name, *VERIFIED, f"init={init}", number=2, start="continues")
    assert_same_arrays(done["verified"].arrays, done["whole"].arrays)
    assert_same_arrays(done["another"].arrays, done["whole"].arrays)


@pytest.mark.slow
def test_a_member_whose_processor_rounds_otherwise_adopts_the_proposal(members, monkeypatch):
    """One rounding of each number; a larger difference ends the run, since all of three members have to certify."""
    usual, original, step = members("verified", *VERIFIED), Replica.follow, np.float32(1e-3)

    def of(change, who):
        """A replica that changes states: of member 2 by a rounding after the set-up, of some members after a round."""

        def follow(self, server_round, before, sums, client):
            states = original(self, server_round, before, sums, client)
            if not isinstance(states, list):
                return states
            if server_round:
                return list(map(change, states)) if client in who else states
            return list(map(rounded, states)) if client == 2 else states

        return follow

    for who in ((1,), (0, 1, 2)):  # a member, and all but the server
        monkeypatch.setattr(Replica, "follow", of(rounded, who))
        done = members(f"rounding{len(who)}", *VERIFIED)
        assert done.summary["failures"] == {}
        if who == (1,):
            assert_same_arrays(done.arrays, usual.arrays)
    differs = of(lambda tensors: {name: a + step for name, a in tensors.items()}, (1,))
    monkeypatch.setattr(Replica, "follow", differs)
    with pytest.raises(
        RunFailed, match="client 1: the proposed model of round 1 is not the one that this node computed"
    ):
        members("another", *VERIFIED)


@pytest.mark.slow
def test_a_colluding_member_moves_the_model_by_max_update_a_round(members, monkeypatch, caplog):
    """It adds n (θ* − θ) and pushes one way: in a curious run the first round has that model."""
    original = GraphClient.get_parameters
    chosen = np.float32(3.0)

    def replaces(self, config):
        arrays = original(self, config)
        return [3 * (chosen - array) + array for array in arrays] if self.graph.client == 0 else arrays

    monkeypatch.setattr(GraphClient, "get_parameters", replaces)
    free = members("curious", "rounds=1")
    bound = [members(f"of_{n}", f"rounds={n}", *VERIFIED[:1], "privacy.max_update=0.25") for n in (1, 3)]
    reached = np.median([np.median(array) for array in free.arrays.values()])
    assert reached > 2.5, "nearly the chosen 3"
    monkeypatch.setattr(GraphClient, "get_parameters", original)
    start = members("start", "rounds=1", "train.lr=1e-9", *VERIFIED)
    moved = [
        np.sqrt(sum(((done.arrays[n] - a).astype(float) ** 2).sum() for n, a in start.arrays.items())) for done in bound
    ]
    assert 0.24 < moved[0] <= 0.25
    assert 0.74 < moved[1] <= 0.75
    assert list(bound[1].summary["scaled"]) == ["1", "2", "3"]
    assert all(norm > 1 for norm in bound[1].summary["scaled"].values())
    assert "scaled" not in start.summary
    lines = re.findall(
        r"round (\d): the mean update has norm \S+, and is scaled to privacy.max_update=0.25", caplog.text
    )
    assert len(lines) == 4 * 4, "of each node and of the server, once in each round"


@pytest.mark.slow
def test_one_term_of_a_colluding_member_moves_no_later_rounds(members, monkeypatch):
    """With Adam, a huge gradient in round 1 chose the whole way of eight rounds: all numbers moved alike."""
    own = FedGradClient.fit

    def fit(self, parameters, config):
        trained, count, numbers = own(self, parameters, config)
        huge = self.graph.client == 0 and self.server_round == 1
        return [np.full_like(a, 3e4) if huge else a for a in trained], count, numbers

    monkeypatch.setattr(FedGradClient, "fit", fit)
    words = [*METHODS["fedgrad"], *VERIFIED[:1], "privacy.max_update=0.1"]
    first, last = (members(f"of_{rounds}", *words, f"rounds={rounds}").arrays for rounds in (1, 4))
    later = np.concatenate([(last[name] - array).ravel() for name, array in first.items()])
    assert later.std() > 10 * abs(later.mean())


@pytest.mark.slow
def test_a_colluding_member_moves_local_steps_by_max_update_through_variates(members, monkeypatch, tmp_path):
    """It sends a change of 1000 for each number; steps * lr * |c| is the way that the local steps go because of c."""
    original = Scaffold.send

    def send(self, client):
        groups = original(self, client)
        if client.graph.client == 0:
            groups[VARIATES] = {name: np.full_like(array, 1e3) for name, array in groups[VARIATES].items()}
        return groups

    monkeypatch.setattr(Scaffold, "send", send)
    done = members("verified", *METHODS["scaffold"], *VERIFIED[:1], "privacy.max_update=0.25", "train.lr=0.05")
    assert done.summary["failures"] == {}
    assert list(done.summary["scaled"]) == ["1", "2"]
    files = list((tmp_path / "state").rglob("verified_00000[12].bin"))
    assert len(files) == 6
    for file in files:
        run, client = file.parents[1].name.partition("-")[2], int(file.parent.name[-4:])
        state = StateFolder(file.parents[2], run, "scaffold", client).read_state("verified", int(file.stem[-6:]))
        variates = [array.astype(float) for path, array in state.items() if VARIATES in path]
        assert variates
        assert 0.249 < 2 * 0.05 * np.sqrt(sum((array**2).sum() for array in variates)) <= 0.25


@pytest.mark.slow
def test_a_colluding_member_chooses_classes_that_count_in_training(members, monkeypatch):
    """Its share hides a class from the others' training; `test_few_nodes` has the bound of items that are left."""
    original, take, seen = replies.SERVED[LABELS], replies.take_class_weights, []

    def invented(client, groups, config):
        reply = original(client, groups, config)
        return ({LABELS: {"share": np.array([1000.0, 0, 0])}}, {}) if client.graph.client == 0 else reply

    def spied(client, group):
        take(client, group)
        seen.append(client.class_weights)

    monkeypatch.setitem(replies.SERVED, LABELS, invented)
    monkeypatch.setattr(replies, "take_class_weights", spied)
    words = [*METHODS["class weights"], *VERIFIED[:1], "privacy.max_update=0.1", "rounds=1"]
    done, start = members("chosen", *words), members("start", *words, "train.lr=1e-9")
    moved = sum(((done.arrays[n] - a).astype(float) ** 2).sum() for n, a in start.arrays.items())
    assert 0.09 < np.sqrt(moved) <= 0.1
    assert seen
    assert all(weights[0] < 1e-2 * weights[1:].min() for weights in seen)


@pytest.mark.slow
def test_a_colluding_member_moves_raw_scores_by_max_update_a_round(members, monkeypatch):
    """It adds a large sum of gradients to every bin: the leaves of a curious run have any value."""
    original = BoostingClient.sent_sums

    def sent_sums(self, forest, tree, node):
        groups = original(self, forest, tree, node)
        groups[HISTOGRAM]["sums"][..., 0] += 0.1 * (self.graph.client == 0)
        return groups

    monkeypatch.setattr(BoostingClient, "sent_sums", sent_sums)
    words = [*METHODS["boosting"], "rounds=3"]
    free = members("curious", *words).arrays
    bound = members("verified", *words, *VERIFIED[:1], "privacy.max_update=0.25").arrays

    def longest(forest):
        start = forest["start"][forest["output"].max() + 1]  # after the base rates
        return np.abs(forest["value"][start:][forest["feature"][start:] < 0]).max()

    assert longest(free) > 1
    assert longest(bound) == 0.25
    assert_same_arrays({"value": bound["value"][:3]}, {"value": free["value"][:3]})


add = policy.Ledger.add


def uncounted(*request):
    """Count a request, however often it comes."""
    with contextlib.suppress(Refusal):
        add(*request)


def changed(message, phase, group="", name="", change=None, **scalars):
    """A coordinator's copy of a message, with another array, without a group, or with other scalars."""
    copied = over_the_wire(message)
    values = {**copied.content["config"], "phase": phase, **scalars}
    copied.content["config"] = ConfigRecord(values)
    if name:
        arrays = from_record(copied.content[group])
        copied.content[group] = to_record({**arrays, name: change(arrays[name])})
    elif group:
        del copied.content[group]
    return copied


ATTACKS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    BINS: [("another 'bins'", {"group": "bins", "name": "edge", "change": lambda a: np.nextafter(a, np.inf)})],
    TRAIN: [
        ("another 'base'", {"group": "base", "name": "score", "change": lambda a: a + 1e-9}),
        ("another 'model'", {"group": MODEL, "name": "threshold", "change": lambda a: a + 1e-9}),
        ("another 'bins'", {"group": "bins", "name": "edge", "change": lambda a: np.nextafter(a, np.inf)}),
    ],
    GROW: [
        ("another 'forest'", {"group": "forest", "name": "threshold", "change": lambda a: np.roll(a, 1)}),
        ("another 'nodes'", {"group": "nodes", "name": "node", "change": lambda a: a[::-1].copy()}),
        ("another 'exchange'", {"exchange": 7}),
    ],
    secagg.PUBLISH: [
        (
            "not those of the list",
            {"group": secagg.SECAGG, "name": verified.TERMS, "change": lambda a: a + np.uint64(1)},
        ),
        ("of its sums were opened here", {"group": secagg.SECAGG}),
    ],
}
"""What a coordinator sends instead of a message of a phase, and the reason of the refusal."""


@pytest.mark.slow
def test_a_coordinator_grows_no_other_trees(members, monkeypatch, uncounted):
    """Each of its messages is refused, opens no sum, and changes nothing: the run has the same bits."""
    (usual, original), refused = (members("usual", *METHODS["boosting"]), respond.respond), set()

    def attacked(message, context):
        config = message.content["config"]
        phase, first = config["phase"], config["round"] == (0 if config["phase"] == BINS else 2)
        later = phase != secagg.PUBLISH or config.get("exchange", 0)
        for reason, values in ATTACKS.get(phase, ()) if first and later else ():
            reply = original(changed(message, **{"phase": phase, **values}), context)
            assert reply.has_error(), (phase, reason)
            assert reason in reply.error.reason
            refused.add((phase, reason))
        if phase == secagg.PUBLISH and first and later:  # the end of the round, before its other sums
            state = np.zeros(32, np.uint8)
            part = from_record(message.content[secagg.SECAGG]) | {verified.STATE: state}
            early = changed(message, OPEN)
            early.content[secagg.SECAGG] = to_record(part)
            assert "were opened here, and others follow" in original(early, context).error.reason
        return original(message, context)

    monkeypatch.setattr(respond, "respond", attacked)
    done = members("verified", *METHODS["boosting"], *VERIFIED)
    assert done.summary["failures"] == {}
    assert refused == {(phase, reason) for phase, attacks in ATTACKS.items() for reason, _ in attacks}
    assert_same_arrays(done.arrays, usual.arrays)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "boosting"])
def test_class_weights_are_part_of_what_members_certify(members, monkeypatch, tmp_path, method):
    """A coordinator's own weights, or none, are refused; a run that resumes takes the certified ones."""
    words, original, left = [*METHODS[method], *METHODS["class weights"], "rounds=3", *VERIFIED], respond.respond, []
    whole, plain = members("whole", *words), members("plain", *METHODS[method], "rounds=3", *VERIFIED)
    assert whole.summary["failures"] == {}

    def attacked(message, context):
        config = message.content["config"]
        if config["phase"] == TRAIN:
            for group in ({"name": "w", "change": lambda w: w[::-1].copy()}, {}):
                reply = original(changed(message, TRAIN, CLASS_WEIGHTS, **group), context)
                signed = config["round"] == 3 and 0 in left and message.metadata.dst_node_id < 3
                reason = "signed its term of another request" if signed else "sent another 'class_weights'"
                assert reason in reply.error.reason
                left.append(config["round"])
        if (config["phase"], config["round"], message.metadata.dst_node_id) == (TRAIN, 3, 3) and 0 not in left:
            left.append(0)
            raise Killed
        return original(message, context)

    monkeypatch.setattr(policy.Ledger, "add", uncounted)
    monkeypatch.setattr(respond, "respond", attacked)
    with pytest.raises(Killed):
        members("cut", *words, f"out={tmp_path / 'cut'}")
    done = later("resume", tmp_path / "cut")
    assert set(left) == {0, 1, 2, 3}
    assert_same_arrays(done.arrays, whole.arrays)
    assert not all(np.array_equal(whole.arrays[name], array) for name, array in plain.arrays.items())


@pytest.mark.slow
@pytest.mark.parametrize("failing", [(TRAIN, "plain_reply"), (OPEN, "client_at"), (secagg.AGREE, "client_at")], ids=str)
def test_a_run_resumes_after_a_message_that_failed_at_a_node(members, monkeypatch, tmp_path, failing):
    """Also after training that failed half-way: it trains again from the state before, and later rounds follow."""
    words = [*METHODS["ditto"], "rounds=3", *VERIFIED]
    whole, (phase, place) = members("whole", *words), failing
    base, left, now = respond.respond, [phase], {}

    def responding(message, context):
        now["at"] = message.content["config"]["phase"], message.content["config"]["round"], message.metadata.dst_node_id
        return base(message, context)

    def fails(*given):
        outcome = original(*given)
        if now["at"] == (phase, 2, 2) and left:
            raise RuntimeError(left.pop())
        return outcome

    module = respond if place == "client_at" else node_clients
    original = getattr(module, place)
    monkeypatch.setattr(respond, "respond", responding)
    monkeypatch.setattr(module, place, fails)
    with pytest.raises(RunFailed, match=r"round 2, .*client 1: "):
        members("cut", *words, f"out={tmp_path / 'cut'}")
    done = later("resume", tmp_path / "cut")
    assert not left
    assert done.summary["failures"] == {}
    assert_same_arrays(done.arrays, whole.arrays)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(max(int(os.environ.get("FEDGRAPH_SCHEDULES", "0")) // 100, 1)))
def test_random_troubles_between_a_server_and_members(members, monkeypatch, tmp_path, seed):
    """Whatever a coordinator sends besides, and loses: members sign once at each place, and trees have the same bits."""
    words = [*METHODS["boosting"], "strategy.depth=2"]
    usual, meddler = members("usual", *words), Meddler(tmp_path / "state", respond.respond, seed)

    monkeypatch.setattr(policy.Ledger, "add", uncounted)
    monkeypatch.setattr(respond, "respond", meddler)
    for number, meddler.rate in enumerate((0.03, 0.12, 0.0), 1):
        out, done = tmp_path / f"run{number}", None
        with contextlib.suppress(FedGraphError):
            done = members("verified", *words, *VERIFIED, f"out={out}", number=number)
        if done is None and (out / "checkpoint.safetensors").is_file():
            with contextlib.suppress(FedGraphError):
                done = later("resume", out)
        if done is not None:
            assert_same_arrays(done.arrays, usual.arrays)
    assert not meddler.broken
    assert meddler.refused
    assert len({what for what, *_ in meddler.facts.once}) == 6, "of each kind of fact, some were checked"
    assert done is not None, "the last run, without troubles"


# --- refused by name --------------------------------------------------------------------------------------------------

REFUSED = {
    "scaffold with Adam": (["strategy=scaffold"], "scaffold needs plain SGD .* bounds variates"),
    "rows of single nodes": (
        ["strategy=fedstruct"],
        "fedstruct needs each client's values of 'structure' in phase 'train'",
    ),
    "the whole graph": (
        ["strategy=fedstruct_a"],
        "fedstruct_a needs each client's values of 'graph' in phase 'reveal'",
    ),
    "prototypes": (["strategy=fedproto"], "fedproto needs the sum of 'prototypes' in phase 'train', by which"),
    "boosting": (["strategy=boosting"], "boosting needs each client's values of 'forest' in phase 'train'"),
    "ranges": (["strategy=fedomd"], "fedomd needs each client's values of 'range' in phase 'moments_sum'"),
    "squares": (
        ["strategy=fedomd", "strategy.cmd_range=unit", "strategy.cmd_norm=squared"],
        "fedomd needs the sum of 'moments' in phase 'moments_sum', by which a member reaches more",
    ),
    "momentum": (
        ["strategy=fedgrad", "train.optimizer=sgd", "train.momentum=0.9"],
        "fedgrad needs the sum of 'model' in phase 'train', by which a member reaches more",
    ),
    "moments": (
        ["strategy=fedgrad"],
        "fedgrad needs the sum of 'model' in phase 'train', by which a member reaches more",
    ),
    "without sums": (["privacy.secagg=false"], "opens secure sums at the nodes, but privacy.secagg=false"),
    "scores": (["privacy.scores=exact"], "lets sums alone leave a node, but privacy.scores=exact sends its scores"),
    "adaptive norms": (
        ["privacy.dp=distributed_adaptive", "privacy.noise_multiplier=1", "privacy.secagg_bits=20"],
        "needs norms of the configuration",
    ),
    "no bound": (["privacy.max_update=0"], "needs a bound of a round's mean update"),
    "some members": (["strategy.fraction=0.5", "num_clients=8"], "needs all members in each round"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_nodes_do_not_compute_is_refused_by_name(what):
    words, reason = REFUSED[what]
    assert re.search(reason, text := refusal([*WORDS, *VERIFIED, *words])), text


def test_a_member_that_opens_another_nonce_is_named(members, monkeypatch):
    original = node_beginning.Beginning.reply

    def reply(self, phase, groups):
        answer = original(self, phase, groups)
        if phase == secure_beginning.OPEN and self.client == 2:
            answer[secure_beginning.START][secure_beginning.NONCE] = np.zeros(32, np.uint8)
        return answer

    monkeypatch.setattr(node_beginning.Beginning, "reply", reply)
    with pytest.raises(RunFailed, match="client 2 opened another nonce than it committed to"):
        members("curious")


def test_a_run_without_an_agreement_is_refused(run):
    with pytest.raises(
        FedGraphError, match=r"coordinator=verified needs an agreement of members.*; or set privacy.coordinator=curious"
    ):
        run(*WORDS, *VERIFIED)


def test_an_agreement_says_what_its_configuration_says(tmp_path):
    for client in range(3):
        (tmp_path / "keys").mkdir(exist_ok=True)
        make_node(tmp_path / "keys" / f"node_{client}")
    cfg = compose([*WORDS, *VERIFIED])
    for values, reason in (
        ({"coordinator": "curious"}, "and privacy.coordinator=verified of the configuration"),
        ({"start": 64 * "a"}, "coordinator=verified needs three members or more, absent=forbidden, and start=seed or"),
    ):
        with pytest.raises(Exception, match=reason):
            agreed(tmp_path / "agreement.yaml", cfg, tmp_path / "keys", **values)


def test_agree_show_says_what_the_coordinator_and_a_member_can_do(tmp_path):
    (tmp_path / "keys").mkdir()
    for client in range(3):
        make_node(tmp_path / "keys" / f"node_{client}")
    agreed(tmp_path / "agreement.yaml", compose([*WORDS, *VERIFIED]), tmp_path / "keys")
    text = "\n".join(described(read(tmp_path / "agreement.yaml"), {}, {}, None))
    assert "the coordinator can only deliver messages, or stop a run" in text
    assert "moves the model by at most 1e+06 a round" in text


# --- what is signed ---------------------------------------------------------------------------------------------------


def test_every_part_of_a_text_changes_what_is_signed():
    place = verified.Position("ab/1", 2, TRAIN, 0, b"\1" * 32)
    places = [
        place,
        verified.Position("ab/2", 2, TRAIN, 0, b"\1" * 32),
        verified.Position("ab/1", 3, TRAIN, 0, b"\1" * 32),
        verified.Position("ab/1", 2, "other", 0, b"\1" * 32),
        verified.Position("ab/1", 2, TRAIN, 1, b"\1" * 32),
        verified.Position("ab/1", 2, TRAIN, 0, b"\2" * 32),
    ]
    texts = [verified.Statement(p, b"h", b"t") for p in places]
    texts += [verified.Statement(place, b"g", b"t"), verified.Statement(place, b"h", b"s")]
    texts += [verified.Listing(place, b"h", {0: b"t"}), verified.Listing(place, b"h", {1: b"t"})]
    texts += [verified.Listing(place, b"g", {0: b"t"}), verified.Listing(place, b"h", {0: b"s"})]
    texts += [verified.Certificate(place, b"h"), verified.Certificate(place, b"t")]
    assert len({text.content for text in texts}) == len(texts)
    assert (
        verified.Listing(place, b"h", {1: b"s", 0: b"t"}).content
        == verified.Listing(place, b"h", {0: b"t", 1: b"s"}).content
    )


def test_a_member_moves_the_model_by_max_update_and_no_more():
    """It adds n (θ* − θ) to choose the next model."""
    start = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}
    chosen = {"w": np.full((3, 2), 50, np.float32), "b": np.full(2, -50, np.float32)}
    arrays = verified.bounded(chosen, start, 0.5)
    length = np.sqrt(sum((array.astype(float) ** 2).sum() for array in arrays.values()))
    assert 0.49 < length <= 0.5
    small = {name: array + np.float32(1e-3) for name, array in start.items()}
    assert verified.bounded(small, start, 0.5) is small


def test_a_servers_step_beyond_the_bound_is_named():
    """A server's optimiser goes further than the mean, which alone was named."""
    named = []
    half = SimpleNamespace(note_scaled=lambda *what: named.append(what))
    start = {"w": np.zeros(4, np.float32)}
    for length in (0.5, 0.5001, 2.0):
        limited = GraphStrategy.limited(half, {"w": np.full(4, length / 2, np.float32)}, start, 0.5)
        assert np.linalg.norm(limited["w"]) == pytest.approx(min(length, 0.5), rel=1e-5)
    assert named == [("server's step", 2.0, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedadam", "fedavgm"])
def test_a_servers_optimiser_moves_the_model_by_max_update_and_no_more(members, method):
    """FedAdam's step has the length of its rate for each number, however short the mean update is; momentum adds up."""
    bound = ["privacy.coordinator=verified", "privacy.max_update=0.01"]
    part = "momentum" if method == "fedavgm" else "adam"
    words = [f"strategy={method}", "rounds=1", f"strategy.{part}.server_lr=10"]
    done, still = members("verified", *words, *bound), members("start", "rounds=1", "train.lr=1e-9", *VERIFIED)
    moved = np.sqrt(sum(((done.arrays[n] - a).astype(float) ** 2).sum() for n, a in still.arrays.items()))
    assert 0.005 < moved <= 0.01 + 1e-6


def test_no_round_follows_the_last_tree():
    """A coordinator that continues after strategy.trees opens no further sums: the replica has no request."""
    text = {"num_classes": 2, "num_features": 2, "num_train": 1}
    replica = Replica(compose([*WORDS, *METHODS["boosting"], "strategy.trees=1"]), dict.fromkeys(range(3), text))
    wanted, sums = replica.follow(0, None, [], 0), []
    while not isinstance(wanted, list):
        cells = wanted.groups[BINS]["size"] + 1 if wanted.phase == BINS else np.ones(2, int)
        names = {"base": ("total", "count"), BINS: ("count",)}[wanted.phase]
        group = {"base": "base", BINS: "counts"}[wanted.phase]
        sums.append((wanted.phase, {group: {name: np.full(cells.sum(), 0.5) for name in names}}))
        wanted = replica.follow(0, None, sums, 0)
    assert replica.follow(1, wanted[0], [], 0).phase == TRAIN
    with pytest.raises(Refusal, match=r"round 2, and strategy=boosting has nothing more to train"):
        replica.follow(2, wanted[0], [], 0)


def test_a_proposal_may_differ_by_a_rounding_and_no_more():
    state = {"arrays/w": np.array([1.0, -3.0, 0.0], np.float32), "method/n": np.array([2])}
    assert verified.alike(state, rounded({"arrays/w": state["arrays/w"]}) | {"method/n": state["method/n"]})
    for path, array in (
        ("arrays/w", state["arrays/w"] * np.float32(1 + 1e-6)),
        ("arrays/w", state["arrays/w"].astype(np.float64)),
        ("method/n", state["method/n"] + 1),
    ):
        assert not verified.alike(state, {**state, path: array})
    exact = {"arrays/w": np.array([1.0])}
    assert verified.alike(exact, {"arrays/w": np.array([1.0 + 9e-10])})
    assert not verified.alike(exact, {"arrays/w": np.array([1.0 + 2e-9])})


# --- named attacks ----------------------------------------------------------------------------------------------------


@pytest.fixture
def player(tmp_path):
    """A coordinator of four members, in the middle of a run, that has made no trouble yet."""
    with watched():
        coordinator = VerifiedPlayer(tmp_path, "verified", seed=3, rate=0)
        coordinator.number = 1
        run = coordinator._run(1)
        coordinator._begin(run)
        coordinator._round(run, 1, {})
        yield coordinator, run


@pytest.fixture(name="uncounted")
def nodes_without_counts(monkeypatch):
    """Nodes that do not count requests, so that nothing but the state machine refuses a repeated one."""
    monkeypatch.setattr(policy.Ledger, "add", lambda *request: None)


@pytest.fixture
def run_models():
    """Files of models that client 0's node would predict with."""
    return lambda run: list((run.owner.folder / "state_0").rglob("model_*"))


def refused(asked, client, phase, server_round, groups, reason, **scalars):
    """Require that a member refuses a message for this reason."""
    answer = asked.ask(client, phase, server_round, groups, **scalars)
    assert isinstance(answer, str), "it replied"
    assert reason in answer


def test_a_model_before_the_members_opened_their_nonces(player, run_models):
    """The node of a run that has not begun would store it, and predict with it."""
    player, run = player
    early = player._run(2)
    planted = {name: array + np.float32(1) for name, array in player._model(run).items()}
    keep = {"keep": True, "run": "a", "best": 0, "scored": 4}
    refused(early, 0, "describe", 0, {MODEL: planted}, "has not begun here", **keep)
    assert not run_models(early)


def test_a_model_is_stored_under_its_own_round(player, run_models):
    """The model of round 1 would pass for that of a run that ended."""
    player, run = player
    keep = {"keep": True, "run": "a", "best": 1}
    refused(run, 0, "describe", 1, {MODEL: player._model(run)}, "sent another 'scored'", scored=4, **keep)
    assert not run_models(run)
    assert not isinstance(run.ask(0, "describe", 1, {MODEL: player._model(run)}, scored=1, **keep), str)
    assert run_models(run)


def test_an_earlier_checkpoint_of_private_state(player):
    """A resumption restores nothing: private parameters would go back to a round of the coordinator's choice."""
    player, run = player
    assert not isinstance(run.ask(0, "describe", 1, checkpoint=True, run="a"), str)
    (state,) = (run.owner.folder / "state_0").rglob("last.safetensors")
    before = state.read_bytes()
    for after, reason in ((0, "the last round that members certified here is 1"), (3, "certified here is 1")):
        assert reason in player._run(1).ask(0, "describe", 0, resume=after, run="a")
    assert not isinstance(player._run(1).ask(0, "describe", 1, resume=1, run="a"), str)
    assert state.read_bytes() == before
    assert not list(state.parent.glob("round_*"))


def test_a_resumed_run_gets_the_same_replies_and_no_others(player):
    """Terms are masked once: another run of Flower gets the same bytes, for the same model only."""
    player, run = player
    model = player._model(run)
    sent = player.agree(run, player.terms(run, 2, model), 2)
    again = player._run(1)
    for client in player.members:
        assert not isinstance(again.ask(client, "describe", 1, resume=1, run="a"), str)
    other = {name: array + np.float32(1e-3) for name, array in model.items()}
    for _, (client, phase, *_, groups, _) in [one for one in player.sent if one[0] is run]:
        if phase == TRAIN and digest(groups[MODEL]) == digest(model):
            refused(again, client, TRAIN, 2, {**groups, MODEL: other}, "signed its term of another request")
    third = player._run(1)
    for client in player.members:
        assert not isinstance(third.ask(client, "describe", 1, resume=1, run="a"), str)
    refused(run, 0, secagg.PUBLISH, 2, None, "this one is over")
    replies = player.agree(third, player.terms(third, 2, model), 2)
    for before, after in zip(sent, replies, strict=True):
        for client in player.members:
            assert digest(flat_names(before[client])) == digest(flat_names(after[client]))
    player.open(third, replies, 2)
    player.certify(third, 2)
    assert [record_of(third, c)["round"] for c in range(4)] == [2] * 4


def test_a_node_whose_record_is_gone_signs_nothing(player):
    """It would adopt an old certificate, and sign a second statement, also in a run that resumes before its first round."""
    player, run = player
    player.terms(run, 2, player._model(run))
    gone = "its record of what it signed is gone"
    for name in ("verified.json", "last.safetensors"):
        (record,) = (run.owner.folder / "state_0").rglob(name)
        record.unlink()
        if name == "verified.json":
            refused(run, 0, PROPOSE, 2, None, gone)
        refused(player._run(1), 0, "describe", 0, None, gone, resume=0, run="a")


def test_a_number_of_an_exchange_chooses_no_batches(player):
    """Draws follow from the exchange, too."""
    player, run = player
    run.nodes[0].exchanges[TRAIN, 2] = itertools.count(17)
    assert sorted(player.terms(run, 2, player._model(run))) == [1, 2, 3]
    assert "sent another 'exchange' in phase 'train'" in player.refusals[-1]


def test_models_of_the_coordinators_choice(player):
    """From round 2 on a curious server may send any; here a member trains on none, and scores or keeps none."""
    player, run = player
    model = player._model(run)
    chosen = {name: array + np.float32(1e-3) for name, array in model.items()}
    keys = {c: run.ask(c, secagg.PUBLISH, 2)[secagg.SECAGG] for c in range(4)}
    dealt = {c: run.ask(c, secagg.DEAL, 2, keys_of(keys))[secagg.SECAGG] for c in range(4)}
    envelopes = np.stack([dealt[p][secagg.ENVELOPES][1] for p in range(4)])
    part = {secagg.SECAGG: {secagg.MEMBERS: np.arange(4), secagg.ENVELOPES: envelopes}}
    refused(run, 1, TRAIN, 2, {MODEL: chosen, **part}, "sent another 'model'")
    refused(run, 0, EVALUATE, 2, {MODEL: chosen}, "scores no model")
    refused(run, 0, "describe", 2, {MODEL: chosen}, "sent another 'model'", keep=True, run="a", best=1)
    refused(run, 2, TRAIN, 3, {MODEL: model, **part}, "the last round that members certified here is 1")


def test_a_bank_declared_absent_and_three_and_three(player):
    player, run = player
    terms = player.terms(run, 2, player._model(run))
    half = player.listing({c: terms[c] for c in (0, 1, 2)})
    refused(run, 0, secagg.AGREE, 2, half, "a list of terms of clients [0, 1, 2]")


def test_six_members_in_two_views(tmp_path, monkeypatch, uncounted):
    """Three and three see other lists, sums and models, for which member 5 signs both: five of six have to sign each."""
    monkeypatch.setitem(schedules.MEMBERS, "verified", 6)
    coordinator, halves = VerifiedPlayer(tmp_path / "of", "verified", seed=3, rate=0), ((0, 1, 2), (3, 4, 5))
    with watched():
        run = coordinator._run(1)
        coordinator._begin(run)
        coordinator._round(run, 1, {})
        key = read_key(str(coordinator.owner.folder / "keys" / "node_5"))
        ring = Keyring(5, run.cfg.agreement, key)
        terms = coordinator.terms(run, 2, coordinator._model(run))
        for half in halves:
            short = coordinator.listing({c: terms[c] for c in half})
            refused(run, half[0], secagg.AGREE, 2, short, f"a list of terms of clients {list(half)}")
        other = copy.deepcopy(terms)
        for array in other[5][MODEL].values():
            array += np.uint64(1)
        held = terms[5][secagg.SECAGG][secagg.AGREED].tobytes()
        place = verified.Position(run.cfg.agreement, 2, TRAIN, 0, coordinator.before)
        digests = [
            {c: verified.digest_of(joined_groups({MODEL: r[MODEL]})) for c, r in view.items()}
            for view in (terms, other)
        ]
        text = verified.Statement(place, held, digests[1][5])
        other[5][secagg.SECAGG] |= ring.sign("verified_statement", text.content)
        for half, view, listed in zip(halves, (terms, other), digests, strict=True):
            signed = {c: run.ask(c, secagg.AGREE, 2, coordinator.listing(view)) for c in half if c < 5}
            consent = ring.sign("verified_list", verified.Listing(place, held, listed).content)
            signed[5] = {secagg.SECAGG: {**signed[half[0]][secagg.SECAGG], **consent}}
            said = f"{len(signed)} of 6 members signed"
            refused(run, half[0], secagg.UNMASK, 2, coordinator.consents(signed), said)
        refused(run, 0, secagg.AGREE, 2, coordinator.listing(other), "signed another list of terms at this place")
        refused(run, 3, secagg.AGREE, 2, coordinator.listing(terms), "signed another list of terms at this place")

        run = coordinator._run(2)
        ring = Keyring(5, run.cfg.agreement, key)
        coordinator._begin(run)
        terms, shares = coordinator.agree(run, coordinator.terms(run, 1, coordinator._model(run)), 1)
        ask, run.ask = run.ask, lambda c, phase, *a, **k: "lost" if c > 2 and phase == OPEN else ask(c, phase, *a, **k)
        coordinator.open(run, (terms, shares), 1)  # three open the sum
        run.ask = ask
        signed = {0: run.ask(0, PROPOSE, 1)}
        state = signed[0][PROPOSAL]
        signed |= {c: run.ask(c, CERTIFY, 1, coordinator.proposed(run, 0, state, 1)) for c in (1, 2)}
        refused(
            run,
            3,
            CERTIFY,
            1,
            coordinator.proposed(run, 0, state, 1),
            "the last round that members certified here is 0",
        )
        certificate = verified.Certificate(coordinator.end(run.cfg.agreement, 1), digest(state))
        signed[5] = {secagg.SECAGG: ring.sign("verified_certificate", certificate.content)}
        _, close = coordinator.certificate(signed, state, 1, run.cfg.agreement)
        for client in (0, 3):
            refused(run, client, CLOSE, 1, {**close, PROPOSAL: state}, "4 of 6 members signed")
            refused(run, client, secagg.PUBLISH, 2, None, "the last round that members certified here is 0")


def test_a_sum_without_a_member(player):
    player, run = player
    with pytest.raises(Refused):
        player.terms(run, 2, player._model(run), who=[0, 1, 2])
    assert "adds its values to those of clients [0, 1, 2, 3]" in player.refusals[-1]


def test_invented_terms_and_statements_of_another_place(player):
    player, run = player
    terms = player.terms(run, 2, player._model(run))
    forged = copy.deepcopy(terms)
    for array in forged[3][MODEL].values():
        array += np.uint64(1)
    refused(run, 0, secagg.AGREE, 2, player.listing(forged), "no signature of client 3 at this place")
    forged = copy.deepcopy(terms)
    forged[3][secagg.SECAGG][SIGNATURE] = terms[2][secagg.SECAGG][SIGNATURE]
    refused(run, 1, secagg.AGREE, 2, player.listing(forged), "no signature of client 3 at this place")


def test_keys_are_of_the_round_after_the_last_certificate(player, uncounted):
    """Keys of a round ahead would be drawn again once its certificate is here."""
    _, run = player
    said = "requests keys of round 3, and the last round that members certified here is 1"
    refused(run, 0, secagg.PUBLISH, 3, None, said)
    assert not isinstance(run.ask(0, secagg.PUBLISH, 2), str)


def test_half_opened_sums(player, uncounted):
    """Shares that the coordinator keeps to itself leave members where they are: they add nothing else at this place."""
    player, run = player
    model = player._model(run)
    terms, shares = player.agree(run, player.terms(run, 2, model), 2)
    assert len(shares) == 4
    refused(run, 0, PROPOSE, 2, None, "the last round that members certified here is 1")
    refused(run, 0, secagg.PUBLISH, 2, None, "keys of sum 2")
    other = {name: array + np.float32(1e-3) for name, array in model.items()}
    refused(run, 0, TRAIN, 2, {MODEL: other}, "signed its term of another request at this place already", exchange=0)
    signed = copy.deepcopy(terms)
    for reply in signed.values():
        reply[MODEL] = {name: array.view(np.int64) for name, array in reply[MODEL].items()}
    player.open(run, (signed, shares), 2)
    assert "uint64" in player.refusals[-1]
    wrong = copy.deepcopy(terms)
    for array in wrong[1][MODEL].values():
        array += np.uint64(2**40)
    player.open(run, (wrong, shares), 2)
    assert record_of(run, 0)["next"] == ""
    assert "not those of the list" in player.refusals[-1]
    player.before = bytes.fromhex(record_of(run, 0)["before"])  # none opened it
    player.open(run, (terms, shares), 2)
    player.certify(run, 2)
    assert record_of(run, 3)["round"] == 2


def test_mixed_models_and_two_certificates(player, uncounted):
    """Proposals that differ by a rounding are certified for at most one of two halves; a chosen one for none."""
    player, run = player
    player.open(run, player.agree(run, player.terms(run, 2, player._model(run)), 2), 2)
    signed = {0: run.ask(0, PROPOSE, 2)}
    state = signed[0][PROPOSAL]
    chosen = {name: array + np.float32(1e-3) for name, array in state.items()}
    refused(run, 1, CERTIFY, 2, player.proposed(run, 0, chosen, 2), "not the one that this node computed")
    unsigned = {**player.proposed(run, 0, state, 2), PROPOSAL: rounded(state)}
    refused(run, 1, CERTIFY, 2, unsigned, "no signature of client 0")
    signed[1] = run.ask(1, CERTIFY, 2, player.proposed(run, 0, state, 2))
    other = player.proposed(run, 0, rounded(state), 2)  # member 0 colludes
    signed |= {c: run.ask(c, CERTIFY, 2, other) for c in (2, 3)}
    refused(run, 0, CERTIFY, 2, other, "signed another model of round 2")
    for offered, signers in ((state, (0, 1)), (rounded(state), (2, 3))):
        _, close = player.certificate({c: signed[c] for c in signers}, offered, 2, run.cfg.agreement)
        refused(run, min(signers), CLOSE, 2, {**close, PROPOSAL: offered}, "2 of 4 members signed")
    with pytest.raises(Refused):
        player._round(run, 3, {})


def test_a_member_that_missed_a_round_adopts_what_others_certified(player):
    """Three of four sign; the fourth, which opened nothing, goes on with their model, and its state is theirs."""
    player, run = player
    terms, shares = player.agree(run, player.terms(run, 2, player._model(run)), 2)
    ask, run.ask = run.ask, lambda c, phase, *a, **k: "lost" if (c, phase) == (3, OPEN) else ask(c, phase, *a, **k)
    player.open(run, (terms, shares), 2)
    run.ask = ask
    assert record_of(run, 3)["round"] == 1
    player.certify(run, 2)
    assert record_of(run, 3)["round"] == 2
    player._round(run, 3, {})
    assert [record_of(run, c)["round"] for c in range(4)] == [3] * 4


def test_a_new_member_adopts_the_start_that_others_certified(tmp_path, uncounted):
    """It signs none; a model that a member chose is certified by nobody."""
    coordinator = VerifiedPlayer(tmp_path / "of", "verified", seed=3, rate=0)
    words = [*KINDS["verified"], "privacy.scores=none"]
    coordinator.owner = Coordinator(tmp_path / "members", *words, members=4, runs=9, start="continues")
    coordinator.cfg = dataclasses.replace(resolved(coordinator.owner.cfg), init="earlier")
    with watched():
        first = coordinator._run(1)
        first.cfg = dataclasses.replace(first.cfg, init="")
        for node in first.nodes:
            node.context.run_config = {"config": to_json(first.cfg), "overrides": ""}
        coordinator._begin(first)
        coordinator._round(first, 1, {})
        last = coordinator._model(first)
        (earlier,) = (tmp_path / "members" / "state_3").glob("fedavg-*")
        shutil.rmtree(earlier)
        second = coordinator._run(2)
        Player._begin(coordinator, second)
        coordinator.before = verified.first(second.cfg.agreement)
        chosen = {"arrays/" + name: array + np.float32(1) for name, array in last.items()}
        refused(
            second, 1, CERTIFY, 0, coordinator.proposed(second, 0, chosen, 0), "not the one that this node computed"
        )
        refused(second, 3, PROPOSE, 0, None, "adopts that of other members")
        coordinator.proposal, coordinator.signed, coordinator.closing = {}, {}, {}
        coordinator.certify(second, 0)
        assert [record_of(second, c)["round"] for c in range(4)] == [0] * 4
        assert_same_arrays(coordinator._model(second), last)
        coordinator._round(second, 1, {})
        assert record_of(second, 3)["round"] == 1


def test_replay_over_runs(player, uncounted):
    """Nothing that was signed in one run counts in the next."""
    player, run = player
    other = player._run(2)
    player._begin(other)
    for old, message in player.sent:
        if old is run and message[1] in (secagg.AGREE, secagg.UNMASK, *verified.EXCHANGES):
            other.ask(message[0], message[1], message[2], message[3])
    assert record_of(other, 0)["round"] == 0
    player._round(other, 1, {})
    assert record_of(other, 0)["round"] == 1


def test_the_checks_see_a_node_that_signs_twice(player):
    """The invariants of schedules can fail."""
    player, run = player
    player.facts.only("two statements at one position", ("x", "y"), 0, 1, record_of(run, 0)["before"])
    with pytest.raises(Broken, match="two statements"):
        player.terms(run, 2, player._model(run))
