"""What a run's status says, and what operators and monitors make of it; without Flower's programs."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.node import Node, ServerAddress
from fedgraph_flwr.cli.server import Health, Parties
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.grid import run_identity
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet import audit_chain, metrics, overview
from fedgraph_flwr.fleet.checking import Finding
from fedgraph_flwr.fleet.flower_commands import node_infos
from fedgraph_flwr.fleet.parties import keep_parties, read_parties
from fedgraph_flwr.fleet.run_folders import Unserved
from fedgraph_flwr.fleet.status import EVERY, RunStatus, WatchedGrid, read_status
from fedgraph_flwr.launch.prepare import prepare
from fedgraph_flwr.secure.audit_numbers import PHASES, AuditNumbers
from fedgraph_flwr.secure.spent import spent
from fedgraph_flwr.strategies.exchange import take
from fedgraph_flwr.strategies.round import Kind, Outcome

DASHBOARD = Path(__file__).parents[2] / "docs" / "fleet" / "grafana" / "dashboards" / "fedgraph.json"
ALERTS = Path(__file__).parents[2] / "docs" / "fleet" / "alerts.yaml"
NODES = {11: 0, 22: 1}
"""Node → client."""


class Wire:
    """A grid that returns what a test puts in its way."""

    def __init__(self):
        self.sent, self.arriving = [], []

    def get_node_ids(self):
        return list(NODES)

    def push_messages(self, messages):
        self.sent = list(messages)
        return [str(number) for number in range(len(self.sent))]

    def pull_messages(self, ids):
        return [self.arriving.pop()] if self.arriving else []


def request(node, phase, server_round):
    content = RecordDict({"config": ConfigRecord({"phase": phase, "round": server_round})})
    return Message(content, dst_node_id=node, message_type="query")


def reply(to, **records):
    return Message(RecordDict(records), reply_to=to)


def record(server_round, seconds, **more):
    return {"round": server_round, "seconds": seconds, "phases": {}, "failed": {}, **more}


def trained(status, server_round, seconds, failed=None, kind="no_reply"):
    """An exchange of a phase, and its round, end; ``failed``: reason by node."""
    costs = {"seconds": seconds, "bytes_up": 10, "bytes_down": 20}
    status.exchanged("train", server_round, costs, failed or {}, dict.fromkeys(failed or {}, kind))
    status.took_round(record(server_round, seconds))


@pytest.fixture
def folder(tmp_path):
    with run_identity(1):
        yield watched(tmp_path)


def watched(tmp_path):
    """A run of two nodes: node 22 did not reply in round 1, and both are asked in round 2."""
    (folder := tmp_path / "runs" / "first").mkdir(parents=True)
    status = RunStatus(folder, 5, strategy="fedavg", rounds=6)
    grid = WatchedGrid(wire := Wire(), status)
    assert not (folder / "status.json").exists()  # another run may own the folder
    assert grid.get_node_ids() == [11, 22]
    assert read_status(folder)["state"] == "running"
    asked = [request(node, "describe", 0) for node in NODES]
    grid.push_messages(asked)
    assert all(message.content["config"]["asks_versions"] for message in wire.sent)
    assert read_status(folder)["waiting"] == ["11", "22"]
    for message in asked:
        versions = ConfigRecord({"fedgraph-flwr": "0.2.0", "flwr": "1.42.0"})
        client = MetricRecord({"client": NODES[message.metadata.dst_node_id]})
        wire.arriving.append(reply(message, metrics=client, versions=versions))
        (arrived,) = grid.pull_messages([])
        assert arrived.content.keys() == {"metrics"}  # the server's schema knows no other record
    assert list(status.waiting) == []
    grid.push_messages([request(node, "train", 1) for node in NODES])
    assert all(message.content["config"]["asks_versions"] for message in wire.sent)  # upgraded between two rounds
    grid.push_messages([request(node, "evaluate", 1) for node in NODES])
    assert "asks_versions" not in wire.sent[0].content["config"]
    trained(status, 1, 4.0, {22: "no reply within 30 s"})
    status.took_round(record(1, 4.0, privacy={"epsilon": 0.5, "delta": 1e-5, "budget": 2.0, "noise": [1]}))
    grid.push_messages(asked := [request(node, "train", 2) for node in NODES])
    wire.arriving.append(Message(Error(1001, "odd"), reply_to=asked[0]))
    status.stored -= EVERY  # seconds later
    grid.pull_messages([])
    return folder


def test_replies_are_stored_at_most_once_a_second_and_at_the_end_of_an_exchange(tmp_path, monkeypatch):
    clock = 100.0
    monkeypatch.setattr("fedgraph_flwr.fleet.status.time.monotonic", lambda: clock)
    grid = WatchedGrid(wire := Wire(), RunStatus(tmp_path, 5))

    def arrives(message):
        wire.arriving.append(Message(Error(1001, "odd"), reply_to=message))
        grid.pull_messages([])
        return read_status(tmp_path)["waiting"]

    with run_identity(1):
        grid.push_messages(asked := [request(node, "train", 1) for node in (11, 22, 33)])
        assert arrives(asked[0]) == ["11", "22", "33"]  # within the second
        clock += EVERY
        assert arrives(asked[1]) == ["33"]
        assert arrives(asked[2]) == ["33"]
        grid.exchanged("train", 1, {"seconds": 1.0, "bytes_up": 1, "bytes_down": 1}, {}, {})
        assert read_status(tmp_path)["waiting"] == []  # nobody is left


def test_a_late_reply_is_counted_and_the_open_request_is_still_waited_for(tmp_path):
    grid = WatchedGrid(wire := Wire(), RunStatus(tmp_path, 5))
    with run_identity(1):
        (first,) = [request(22, "train", 1)]
        grid.push_messages([first])
        answers = [reply(first), Message(Error(1001, "odd"), reply_to=first)]
        grid.overdue[answers[0].metadata.reply_to_message_id] = "what the exchange notes"
        grid.push_messages([request(22, "train", 2)])
        wire.arriving += answers
        grid.pull_messages([])
        assert "late" not in grid.status.values["nodes"].get("22", {})  # an error is no late reply
        grid.pull_messages([])
        grid.status.write()
    status = read_status(tmp_path)
    assert (status["nodes"]["22"]["late"], status["waiting"]) == (1, ["22"])
    page = samples(metrics.exposition(metrics.of_runs({"first": status}, {"11": "bank_a", "22": "bank_b"})))
    assert page["fedgraph_late_replies_total", 'party="bank_b"'] == 1
    assert page["fedgraph_late_replies_total", 'party="bank_a"'] == 0


def test_counters_of_a_party_begin_at_zero():
    """Prometheus sees no increase in a counter that appears with 1."""
    page = samples(metrics.exposition(metrics.of_runs({}, {"11": "bank_a"})))
    assert page["fedgraph_late_replies_total", 'party="bank_a"'] == 0
    assert all(page["fedgraph_failures_total", f'party="bank_a",reason="{kind}"'] == 0 for kind in Kind)
    assert set(metrics.KINDS) == set(Kind)


def test_a_node_that_was_restarted_may_have_another_version(fleet, monkeypatch, capsys):
    infos = [INFOS[0] | {"online_since": "2099-01-01 00:00:00Z", "last_seen": ""}]
    monkeypatch.setattr(overview, "node_infos", lambda name: infos)
    assert main(["fleet", "status"]) == 0
    assert "version 0.2.0 before its restart, replied" in capsys.readouterr().out


def test_a_status_has_phase_round_and_who_is_waited_for(folder):
    status = read_status(folder)
    expected = {"run_id": "5", "phase": "train", "round": 2, "rounds": 6, "round_done": 1, "waiting": ["22"]}
    assert expected.items() <= status.items()
    assert status["seconds_left"] == 5 * 4.0
    assert status["exchanges"] == {"train": [1, 4.0]}
    assert (status["bytes_up"], status["bytes_down"]) == (10, 20)
    assert status["privacy"] == {"epsilon": 0.5, "delta": 1e-5, "budget": 2.0}
    late = status["nodes"]["22"]
    assert (late["client"], late["versions"]["flwr"]) == (1, "1.42.0")
    assert late["failures"] == {"no_reply": 1}
    assert late["failed"]["reason"] == "no reply within 30 s"
    assert "failures" not in status["nodes"]["11"]


def test_a_run_whose_process_is_gone_is_lost_and_resumed_totals_continue(folder):
    path = folder / "status.json"
    values = json.loads(path.read_text())
    assert read_status(folder)["state"] == "running"
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for pid, started in ((process.pid, values["started"]), (os.getpid(), 1.0), (None, values["started"])):
        path.write_text(json.dumps(values | {"pid": pid, "started": started}))  # gone; another process; an older file
        lost = read_status(folder)
        assert (lost["state"], lost["waiting"]) == ("lost", [])
        assert "resume=RUN" in lost["reason"]
    resumed = RunStatus(folder, 6, rounds=6)
    resumed.add_up(values)
    trained(resumed, 2, 3.0, {22: "no reply within 30 s"})
    status = read_status(folder)
    assert (status["state"], status["rounds_done"], status["exchanges"]) == ("running", 3, {"train": [2, 7.0]})
    assert status["nodes"]["22"]["failures"] == {"no_reply": 2}
    RunStatus(folder, 7).add_up({"nodes": [], "bytes_up": "x"})  # not a status


INFOS = [
    {"node": "11", "party": "bank_a", "status": "online", "online_since": "2026-11-28 08:00:00Z", "offline_since": ""},
    {"node": "22", "party": "bank_b", "status": "offline", "online_since": "", "offline_since": "2026-11-28 08:01:00Z"},
    {"node": "33", "party": "", "status": "registered", "online_since": "", "offline_since": ""},
]


class Served:
    """The server's run folders, for `overview`."""

    folder = Path()

    def __init__(self, name):
        pass

    def fleet(self):
        raise Unserved("an older server")

    def listing(self, filters):
        return [{"run": "first", "status": read_status(self.folder)}, {"run": "other", "status": "damaged"}]


@pytest.fixture
def fleet(folder, monkeypatch):
    """A server whose SuperLink and run folders are those of this test."""
    monkeypatch.setattr(Served, "folder", folder)
    monkeypatch.setattr(overview, "ServerRuns", Served)
    monkeypatch.setattr(overview, "node_infos", lambda name: [info | {"last_seen": ""} for info in INFOS])
    runs = [{"run-id": "5", "status": "running"}, {"run-id": "4", "status": "finished:completed"}]
    monkeypatch.setattr(overview, "runs", lambda name: runs)
    monkeypatch.setattr("fedgraph_flwr.cli.fleet.check_connection", lambda name: None)
    return folder


def test_status_names_parties_and_the_progress_of_runs(fleet, capsys):
    assert main(["fleet", "status"]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[0] == "3 admitted nodes, 1 online"
    assert re.fullmatch(
        r"  bank_a \(11\): online since 2026-11-28 08:00:00Z, version 0\.2\.0, replied \d+ s ago, in first, round 2, train",
        text[1],
    )
    assert "bank_b (22): offline since 2026-11-28 08:01:00Z" in text[2]
    assert "round 2, train, which waits for it" in text[2]
    assert re.search(r"last error \d+ s ago \(first, round 1, train\): no reply within 30 s$", text[2])
    assert text[3] == "  node (33): never connected"
    assert text[4] == "2 runs: 1 running, 1 finished:completed"
    progress = "first: running, round 2 of 6, train waits for bank_b, about 20 s left, failed replies: bank_b 1"
    assert text[5:] == [f"  {progress}"]


def test_a_line_of_a_run_says_who_started_it_and_when():
    run = {"run": "first", "state": "running", "round": 1, "rounds": 2, "waiting": [], "failures": {}, "late": {}}
    at = datetime(2026, 11, 29, 9, 40, 39, tzinfo=UTC).timestamp()
    (line,) = overview.lines(
        {"nodes": [], "runs": [run | {"operator": "CN=bob", "stopped_by": "CN=eve", "started": at}]}
    )[2:]
    assert "started 2026-11-29 09:40Z by CN=bob, stopped by CN=eve" in line
    (line,) = overview.lines({"nodes": [], "runs": [run | {"operator": "CN=bob", "started": "x" * 99}]})[2:]
    assert "started ? by CN=bob" in line


def listed(number, name, status="online"):
    """A node as Flower lists it."""
    return SimpleNamespace(node_id=number, name=name, status=status)


def test_names_stay_after_a_removal_and_a_restart(tmp_path):
    """In reasons, status, metrics and the log: a number would begin a second series, whose first value fires an alert."""
    runs = tmp_path / "runs"
    keep_parties(runs, [listed(11, "bank_a"), listed(22, "bank_b"), listed(33, "")])
    keep_parties(runs, [listed(11, "bank_a"), listed(22, "bank_b", "unregistered"), listed(44, "bank_b")])
    assert read_parties(runs) == {
        "11": {"name": "bank_a", "removed": False},
        "22": {"name": "bank_b", "removed": True},
        "33": {"name": "", "removed": False},
        "44": {"name": "bank_b", "removed": False},
    }
    (folder := runs / "first").mkdir()
    status = RunStatus(folder, 5, rounds=6)
    grid = WatchedGrid(wire := Wire(), status)
    with run_identity(1):
        grid.push_messages([asked := request(22, "train", 1)])
        wire.arriving.append(Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=asked))
        (arrived,) = grid.pull_messages([])
        wire.arriving.append(Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=request(11, "train", 1)))
        (away,) = grid.pull_messages([])
    take(arrived, 22, 1, None, outcome := Outcome())
    take(away, 11, 0, None, outcome)
    assert "the server has removed this node" in outcome.failures[1]
    assert "missed two heartbeats" in outcome.failures[0]
    assert outcome.silent == {0, 1}
    status.replied(22, 1)
    status.exchanged("train", 1, {"seconds": 1.0, "bytes_up": 0, "bytes_down": 0}, {22: "client 1 x"}, {22: "error"})
    assert status.named("clients 0, 1 failed; client 1 failed; client 1 (bank_b); nodes 11, 33: round 22") == (
        "clients 0, 1 (bank_b) failed; client 1 (bank_b) failed; client 1 (bank_b); nodes bank_a, 33: round bank_b"
    )
    entry = read_status(folder)["nodes"]["22"]
    assert (entry["name"], entry["failed"]["reason"]) == ("bank_b", "client 1 (bank_b) x")
    (run,) = overview.joined([{"run-id": 5, "status": "running"}], [read_status(folder)], [])
    assert run["failures"] == {"bank_b": 1}
    for names in ({}, Parties("fleet", runs).names()):  # a server that was just started knows no nodes
        page = samples(metrics.exposition(metrics.of_runs({"first": read_status(folder)}, names)))
        assert page["fedgraph_failures_total", 'party="bank_b",reason="error"'] == 1
        assert not [labels for _, labels in page if '"22"' in labels]
    (runs / ".parties.json").write_text("[1]")
    assert read_parties(runs) == {}


def test_a_server_writes_no_controls_to_a_terminal(fleet, capsys):
    """What a server sends as a number or a name may be any text."""
    status = read_status(fleet)
    red = "\x1b[31m\x1b]0;title\x07"
    status["nodes"]["22"]["failed"] |= {"round": red, "phase": red, "reason": red}
    status["nodes"]["22"]["failures"] = {"error": red, "no_reply": 1}
    status["nodes"]["22"]["late"] = 3
    (fleet / "status.json").write_text(json.dumps(status | {"round": red, "rounds": red, "phase": red}))
    assert main(["fleet", "status"]) == 0
    text = capsys.readouterr().out
    assert not set(text) & {"\x1b", "\x07"}
    assert "failed replies: bank_b 1, late replies: bank_b 3" in text


def test_status_as_json_is_what_the_text_has(fleet, capsys):
    assert main(["fleet", "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    late = status["nodes"][1]
    assert (late["party"], late["client"], late["run"], late["phase"], late["round"]) == (
        "bank_b",
        1,
        "first",
        "train",
        2,
    )
    assert late["last_error"]["reason"] == "no reply within 30 s"
    run = status["runs"][0]
    assert (run["id"], run["waiting"], run["failures"], run["seconds_left"]) == ("5", ["bank_b"], {"bank_b": 1}, 20.0)
    assert status["runs"][1] == {"id": "4", "state": "finished:completed"}


def samples(page):
    """Value by name and labels of a page of metrics, by the grammar of the text format."""
    values = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, labels, value = re.fullmatch(r'(\w+)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line).groups()
            values[name, labels or ""] = float(value)
    return values


def test_metrics_of_a_server_are_those_of_its_runs(folder):
    runs = folder.parent
    (runs / "second").mkdir()
    other = RunStatus(runs / "second", 6, strategy="fedavg", rounds=2)
    other.replied(22, 1)
    trained(other, 1, 2.0, {22: "no reply within 5 s"})
    trained(other, 2, 2.0, {22: "der Knoten lehnt ab"}, "refused")
    other.write(state="finished")
    statuses = {name: read_status(runs / name) for name in ("first", "second")}
    now = statuses["first"]["last_round"] + 100
    page = metrics.exposition(metrics.of_runs(statuses, {"11": "bank_a", "22": 'bank "b"'}, now))
    values = samples(page)
    assert values["fedgraph_runs", 'state="running"'] == values["fedgraph_runs", 'state="finished"'] == 1
    assert values["fedgraph_exchanges_total", 'phase="train"'] == 3
    assert values["fedgraph_exchange_seconds_total", 'phase="train"'] == 4 + 2 + 2
    assert values["fedgraph_bytes_total", 'direction="down"'] == 60
    assert values["fedgraph_failures_total", r'party="bank \"b\"",reason="no_reply"'] == 2
    assert values["fedgraph_failures_total", r'party="bank \"b\"",reason="refused"'] == 1
    assert values["fedgraph_run_last_round_age_seconds", 'run="first"'] == pytest.approx(100)
    assert ("fedgraph_run_last_round_age_seconds", 'run="second"') not in values  # it has ended
    assert values["fedgraph_run_rounds_total", 'run="second"'] == 2
    assert values["fedgraph_run_epsilon_spent", 'run="first"'] == 0.5
    assert values["fedgraph_run_epsilon_budget", 'run="first"'] == 2.0
    assert values["fedgraph_run_waiting_for", r'party="bank \"b\"",run="first"'] == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"nodes": []},
        {"nodes": {"11": 3}},
        {"nodes": {"11": {"failures": {"error": "x"}}}},
        {"nodes": {"11": {"late": "x"}}},
        {"exchanges": {"train": 1}},
        {"bytes_up": "x"},
        {"updated": "x"},
        {"round": []},
        {"privacy": {"epsilon": "x"}},
        {"waiting": 5},
        {"pid": float("inf")},
    ],
)
def test_a_damaged_status_hides_no_other_run(folder, damage):
    (other := folder.parent / "second").mkdir()
    (other / "status.json").write_text(json.dumps(read_status(folder) | {"updated": time.time() + 9} | damage))
    parties = Parties("fleet", folder.parent)
    values = samples(metrics.exposition(parties.metrics(begun=False)))
    assert values["fedgraph_runs", 'state="running"'] == 1


def chosen(tmp_path, *names, earlier=()):
    """Nodes of a run of these parties, on a server with two connected nodes, one that is not, and a removed one."""
    known = ((11, "bank_a", "online"), (22, "", "online"), (33, "bank_c", "offline"), (44, "bank_d", "unregistered"))
    keep_parties(tmp_path, [SimpleNamespace(node_id=n, name=name, status=status) for n, name, status in known])
    (tmp_path / "first").mkdir(exist_ok=True)
    status = RunStatus(tmp_path / "first", 5)
    status.add_up({"nodes": {node: {} for node in earlier}})
    return WatchedGrid(Wire(), status, parties=names).get_node_ids()


def test_a_run_takes_the_parties_that_it_names(tmp_path):
    assert chosen(tmp_path) == [11, 22]
    assert chosen(tmp_path, "bank_a") == [11]
    assert chosen(tmp_path, "22", "bank_a") == [11, 22]
    with pytest.raises(
        RunFailed, match="parties= names bank_c, not connected now: start these nodes, or leave them out"
    ):
        chosen(tmp_path, "bank_a", "bank_c")
    assert chosen(tmp_path, "bank_a", "bank_c", earlier=["11", "33"]) == [11]  # a resumed run goes on without it
    for name in ("bank_d", "bank_e"):
        with pytest.raises(FedGraphError, match=f"party '{name}' is unknown .*; did you mean 'bank_.'"):
            chosen(tmp_path, "bank_a", name)


def test_chosen_parties_are_the_clients_of_a_run_on_a_fleet():
    assert compose(["parties=[a,b]", "engine=far"]).num_clients == 2
    for overrides, reason in (
        (["num_clients=3"], "num_clients must be that of `parties`, or left out, got 3"),
        (["parties=[a,a]"], "parties must be a list of distinct names"),
    ):
        with pytest.raises(FedGraphError, match=reason):
            compose(["parties=[a,b]", "engine=far", *overrides])
    with pytest.raises(FedGraphError, match="parties= chooses nodes of a fleet, and engine=inline is none"):
        prepare(compose(["parties=[a,b]"]))
    with pytest.raises(FedGraphError, match="at least 3"):  # the bounds of secure sums hold for those who are chosen
        prepare(compose(["parties=[a,b]", "engine=far", "privacy.secagg=true"]))


def test_parties_of_one_name_are_told_apart(monkeypatch):
    """A key is admitted under the name of its file, and two banks may send a node.pub."""
    listed = [
        SimpleNamespace(
            node_id=number,
            name=name,
            status=status,
            registered_at=str(number),
            last_activated_at="",
            last_deactivated_at="",
        )
        for number, name, status in (
            (1, "node", "offline"),
            (2, "node", "online"),
            (3, "bank", "online"),
            (4, "", "online"),
        )
    ]
    client = SimpleNamespace(ListNodes=lambda request: SimpleNamespace(nodes_info=listed, now=""))
    monkeypatch.setattr("fedgraph_flwr.fleet.flower_commands._control", lambda name: nullcontext(client))
    assert [info["party"] for info in node_infos("fleet")] == ["node 1", "node 2", "bank", ""]


def test_prometheus_reads_the_page(folder):
    from prometheus_client import parser

    page = metrics.exposition(metrics.of_runs({"first": read_status(folder)}, {"22": 'bank "b"\n'}))
    families = {family.name: family for family in parser.text_string_to_metric_families(page)}
    assert families["fedgraph_failures"].type == "counter"
    (counted,) = [sample for sample in families["fedgraph_failures"].samples if sample.value]
    assert counted.labels == {"party": 'bank "b"\n', "reason": "no_reply"}


def test_metrics_of_a_node_are_those_of_its_audit_log(tmp_path):
    numbers, before = AuditNumbers(tmp_path / audit_chain.LOG), time.time()
    assert metrics.exposition(numbers.metrics()) == ""
    price = {"noise_multiplier": 4.0, "sensitivity": 1.0, "releases": 2}
    entry = {"run": "5", "strategy": "fedavg", "round": 1, "exchange": 0, "received": 100, "refused": "", "noise": {}}
    entries = [
        entry | {"phase": "train", "sent": {"model": 40, "metrics": 2}},
        entry | {"phase": "train", "sent": {"model": 40}, "noise": price | {"unit": "client", "purpose": "fraud"}},
        entry | {"phase": "train", "sent": {"error": 9}, "refused": "rounds=500 exceeds 200"},
    ]
    for line in entries:
        audit_chain.append(tmp_path, line)
        numbers.metrics()  # each look reads only what is new
    values = samples(metrics.exposition(numbers.metrics()))
    assert values["fedgraph_node_requests_total", 'phase="train",result="replied"'] == 2
    assert values["fedgraph_node_requests_total", 'phase="train",result="refused"'] == 1
    assert values["fedgraph_node_bytes_total", 'direction="received"'] == 300
    assert values["fedgraph_node_bytes_total", 'direction="sent"'] == 91
    assert values["fedgraph_node_epsilon_spent", 'purpose="fraud"'] == spent({"one": price})
    assert int(before) <= values["fedgraph_node_last_request_timestamp_seconds", ""] <= time.time() + 1
    for number in range(2 * PHASES):
        audit_chain.append(tmp_path, entry | {"phase": f"phase-{number}", "sent": {}})
    page = metrics.exposition(numbers.metrics())
    assert page.count("phase=") == PHASES + 2  # train has two results, and all others are one
    with (tmp_path / audit_chain.LOG).open("ab") as file:
        file.write(b"half a li")
    assert metrics.exposition(numbers.metrics()) == page


@pytest.mark.parametrize(
    "noise", [{"noise_multiplier": 0}, {"releases": "2"}, {"sensitivity": None}, {"noise_multiplier": 1e999}, [1], "x"]
)
def test_a_damaged_line_of_the_audit_log_costs_its_own_numbers_only(tmp_path, noise):
    """`audit` names it; the page of metrics stays there."""
    price = {"noise_multiplier": 4.0, "sensitivity": 1.0, "releases": 2}
    entry = {
        "run": "5",
        "strategy": "fedavg",
        "phase": "train",
        "round": 1,
        "exchange": 0,
        "received": 100,
        "refused": "",
    }
    good = price | {"unit": "client", "purpose": "fraud"}
    bad = good | noise if isinstance(noise, dict) else noise
    for held in (2, 4):
        audit_chain.append(tmp_path, entry | {"sent": {}, "noise": good | {"releases": held}})
    first, second = (tmp_path / audit_chain.LOG).read_text().splitlines()
    damaged = json.dumps(json.loads(first) | {"noise": bad})
    (tmp_path / audit_chain.LOG).write_text(f"{damaged}\n{second}\n")
    values = samples(metrics.exposition(AuditNumbers(tmp_path / audit_chain.LOG).metrics()))
    assert values["fedgraph_node_epsilon_spent", 'purpose="fraud"'] == spent({"one": price})
    assert values["fedgraph_node_requests_total", 'phase="train",result="replied"'] == 2


def test_alert_rules_and_the_dashboard_name_metrics_that_there_are(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("fedgraph_flwr.cli.server.node_infos", lambda name: INFOS)
    monkeypatch.setattr("fedgraph_flwr.cli.server.runs", lambda name: [{"status": "pending"}])
    assert main(["fleet", "init", str(tmp_path / "keys")]) == 0
    for name in ("bob", "eve"):
        assert main(["fleet", "operator", name, "--days", "9", "--keys", str(tmp_path / "keys")]) == 0
    assert main(["fleet", "remove", str(tmp_path / "keys" / "eve.crt"), "--keys", str(tmp_path / "keys")]) == 0
    health = Health("https://127.0.0.1:1", tmp_path / "keys" / "ca.crt", folder.parent)
    health.superexec = SimpleNamespace(up=True, restarts=0)
    parties = Parties("fleet", folder.parent)
    node = Node([], False, 1, ServerAddress("fleet.example.org", 9090, tmp_path / "keys" / "ca.crt"))
    reached = Finding("reachable", True, "it responds", days=40)
    monkeypatch.setattr(ServerAddress, "reach", lambda self: reached)
    node._look()
    of_node = samples(metrics.exposition(node.metrics()))
    assert of_node["fedgraph_certificate_days_left", 'certificate="server.crt"'] == pytest.approx(40, abs=1)
    try:
        page = metrics.exposition(
            [*parties.metrics(begun=True), *health.metrics(tmp_path / "keys"), *node.metrics()[:2]]
        )
    finally:
        node.end()
    values = samples(page)
    named = {
        word
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
        for word in re.findall(r"fedgraph_\w+", rule["expr"])
    }
    assert named <= {name for name, _ in values}
    (tmp_path / "state").mkdir()
    price = {"noise_multiplier": 4.0, "sensitivity": 1.0, "releases": 2, "unit": "client", "purpose": "fraud"}
    entry = {
        "run": "5",
        "strategy": "fedavg",
        "phase": "train",
        "round": 1,
        "exchange": 0,
        "received": 1,
        "refused": "",
    }
    audit_chain.append(tmp_path / "state", entry | {"sent": {"model": 1}, "noise": price})
    of_node = samples(metrics.exposition(AuditNumbers(tmp_path / "state" / audit_chain.LOG).metrics()))
    labels = {"instance", "job"} | {word for _, text in (*values, *of_node) for word in re.findall(r'(\w+)="', text)}
    for panel in (panels := json.loads(DASHBOARD.read_text())["panels"]):
        for target in panel["targets"]:
            assert {*re.findall(r"fedgraph_\w+", target["expr"])} <= {name for name, _ in (*values, *of_node)}, panel[
                "title"
            ]
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= labels, panel["title"]
    shown = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    assert {name for name, _ in values if name.startswith("fedgraph_run")} - {*re.findall(r"\w+", shown)} == {
        "fedgraph_run_rounds_total"
    }
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert values["fedgraph_party_online", 'party="bank_a"'] == 1
    assert values["fedgraph_party_online", 'party="bank_b"'] == values["fedgraph_party_online", 'party="33"'] == 0
    assert values["fedgraph_certificate_days_left", 'certificate="server.crt"'] == pytest.approx(365, abs=1)
    assert values["fedgraph_certificate_days_left", 'certificate="bob.crt"'] == pytest.approx(9, abs=1)
    assert ("fedgraph_certificate_days_left", 'certificate="eve.crt"') not in values
    assert values["fedgraph_node_connected", ""] == 0
    rss = psutil.Process().memory_info().rss
    assert values["fedgraph_memory_bytes", 'process="server"'] > 0.5 * rss


def test_no_number_of_a_graph_is_in_a_metric(folder):
    """Scores and sizes of a round's record stay out of the status, so no metric can have them."""
    status = RunStatus(folder, 5, rounds=6)
    status.took_round(
        record(
            1,
            1.0,
            metrics={"test_accuracy": 0.123456},
            clients={"test-count": [987654321987]},
            train={"loss": 0.98765432},
        )
    )
    text = (folder / "status.json").read_text()
    assert not [number for number in ("0.123456", "987654321987", "0.98765432") if number in text]
