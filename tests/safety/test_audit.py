"""The audit log of a node: every request and reply is in it, and whoever changes it is noticed."""

import json
import math
from pathlib import Path

import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose
from fedgraph_flwr.fleet import audit_chain
from fedgraph_flwr.secure import audit
from fedgraph_flwr.secure.spent import SpentPrivacy, spent
from tests.nodes import model_of


@pytest.fixture
def log(node):
    """A node with a state folder after five requests, one of them refused, and that folder."""
    asked = node(state=True)
    model = {"model": model_of(asked)}
    replies = [
        asked.request("describe"),
        *(asked.request("train", r, model) for r in (1, 2)),
        asked.request("train", 2, model),
    ]
    replies.append(asked.request("evaluate", 2, model))
    assert [isinstance(reply, str) for reply in replies] == [False, False, False, True, False]
    return asked, Path(asked.context.node_config["state"]), replies


def lines_of(state):
    return (state / audit_chain.LOG).read_text().splitlines()


def test_all_requests_are_listed_with_what_left(log, tmp_path, capsys):
    asked, state, replies = log
    entries = [json.loads(line) for line in lines_of(state)]
    assert [entry["phase"] for entry in entries] == ["describe", "train", "train", "train", "evaluate"]
    assert [bool(entry["refused"]) for entry in entries] == [False, False, False, True, False]
    arrays = sum(len(a.data) for a in replies[1].array_records["model"].values())
    assert 0 < entries[1]["sent"]["model"] <= arrays, "bytes of the values, without the arrays' own headers"
    assert entries[1]["sent"].keys() == replies[1].keys(), "nothing left that is not listed"
    (row,) = fg.audit(state).to_dict("records")
    assert (row["requests"], row["refused"], row["rounds"], row["strategy"]) == (5, 1, 2, "fedavg")
    assert row["sent"] == sum(sum(entry["sent"].values()) for entry in entries)
    assert row["epsilon"] == 0
    assert main(["audit", str(state), "--out", str(tmp_path / "a.csv")]) == 0
    text = capsys.readouterr().out
    assert "5 requests in 2 rounds, 1 refused" in text
    assert "refused 1 times: the server requests phase 'train' of round 2 2 times" in text
    assert f"the chain of 5 lines is intact; the last one: 5:{entries[4]['hash']}" in text
    # later audits notice a log that was written again
    expect = f"5:{entries[4]['hash']}"
    asked.request("describe", 3)
    assert len(fg.audit(state, expect)) == 1
    with pytest.raises(fg.FedGraphError, match="line 5 has not the hash of the earlier audit"):
        fg.audit(state, "5:" + "0" * 64)
    with pytest.raises(fg.FedGraphError, match="ends after line 6, expected 9: line 7 was removed"):
        fg.audit(state, "9:" + "0" * 64)


def test_a_power_cut_leaves_the_audit_log_and_the_ledgers(tmp_path, monkeypatch):
    """A line is on the disk before the head that counts it, and a renamed file once its folder is."""
    synced, entry = [], dict.fromkeys(("phase", "refused", "noise"), "")
    audit_chain.append(tmp_path, entry)
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").resolve()))
    audit_chain.append(tmp_path, entry)
    assert [path.name[:7] for path in synced] == ["audit.j", ".audit.", tmp_path.name[:7]]
    synced.clear()
    noised = ["privacy.secagg=true", "privacy.dp=distributed", "privacy.noise_multiplier=4", "privacy.secagg_bits=20"]
    SpentPrivacy(tmp_path / "privacy.json", math.inf, "").book("1", compose(noised), 1)
    assert [path.suffix != "" for path in synced] == [True, False]
    assert synced[-1] == tmp_path


def test_only_parties_wait_until_their_checkpoint_is_on_the_disk(run, node, monkeypatch):
    """A party's checkpoint outlives a power cut. Those of simulated clients need not: hundreds would wait for the disk."""
    synced = []
    monkeypatch.setattr("os.fsync", lambda handle: synced.append(Path(f"/proc/self/fd/{handle}").resolve()))
    simulated = run("strategy=local", "rounds=1")
    assert len([*Path(simulated.cfg.out).rglob("client_*/round_*.safetensors")]) == 3
    assert any(path.name.startswith(".checkpoint") for path in synced)
    assert not any(path.parent.name.startswith("client_") for path in synced)
    asked = node("strategy=local", state=True)
    asked.request("train", 1, checkpoint=True, run="a")
    assert any(path.name.startswith(".round_000001") and path.parent.name == "client_0000" for path in synced)


@pytest.mark.parametrize(("phase", "server_round"), [("train", "1"), ("nothing", 1)])
def test_the_first_request_is_listed_although_it_is_refused(node, phase, server_round):
    """The state folder is created for it."""
    asked = node(state=True)
    assert not Path(asked.context.node_config["state"]).exists()
    assert isinstance(asked.request(phase, server_round), str)
    (line,) = lines_of(Path(asked.context.node_config["state"]))
    assert json.loads(line)["refused"]


def replaced(lines, n, old, new):
    return [line.replace(old, new) if number == n else line for number, line in enumerate(lines, 1)]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda x: replaced(x, 3, '"round": 2', '"round": 1'),
            "line 3 does not follow from line 2: it, or lines before it, were changed",
        ),
        (lambda x: [*x[:2], *x[3:]], "line 3 is entry 4: lines were removed or moved"),
        (lambda x: [x[0], x[2], x[1], *x[3:]], "line 2 is entry 3: lines were removed or moved"),
        (lambda x: x[:4], "ends after line 4, expected 5: line 5 was removed"),
        (lambda x: [*x[:4], x[4][:-30]], "line 5 is no entry of the log"),
        (lambda x: replaced(x, 1, '"describe"', '"train"'), "line 1 does not follow from line 0"),
        (lambda x: [*x[:1], "[]", *x[2:]], "line 2 is no entry of the log"),
        (lambda x: [*x[:1], "", *x[1:]], "line 2 is no entry of the log"),
    ],
    ids=["changed", "removed", "moved", "shortened", "cut", "first", "other", "blank"],
)
def test_a_damaged_line_is_named(log, change, says, capsys):
    _, state, _ = log
    (state / audit_chain.LOG).write_text("\n".join(change(lines_of(state))) + "\n")
    assert main(["audit", str(state)]) == 2
    assert says in capsys.readouterr().err


def test_a_chain_written_again_does_not_fit_its_head(log):
    """Line 3 left out, and all hashes computed again."""
    _, state, _ = log
    entries, before, again = [json.loads(line) for line in lines_of(state)], audit_chain.START, []
    del entries[2]
    for n, entry in enumerate(entries, 1):
        del entry["hash"]
        before = audit_chain.next_hash(before, audit_chain.text_of({**entry, "n": n}))
        again.append(json.dumps({**entry, "n": n, "hash": before}))
    (state / audit_chain.LOG).write_text("\n".join(again) + "\n")
    with pytest.raises(fg.FedGraphError, match="ends after line 4, expected 5"):
        fg.audit(state)


def test_a_node_whose_log_was_shortened_refuses(log):
    asked, state, _ = log
    whole = (state / audit_chain.LOG).read_bytes()
    (state / audit_chain.LOG).write_bytes(whole[:-40])
    assert "<state>/audit.jsonl is shorter than audit.head says" in asked.request("describe", 3)
    (state / audit_chain.LOG).write_bytes(whole)
    (state / audit_chain.HEAD).unlink()
    assert "does not name the last line" in asked.request("describe", 3)


def test_a_line_of_a_process_that_died_is_replaced(log):
    """It died after it wrote the line, and before the reply left: the head does not know the line."""
    asked, state, _ = log
    head = (state / audit_chain.HEAD).read_bytes()
    asked.request("describe", 3)
    (state / audit_chain.HEAD).write_bytes(head)
    assert fg.audit(state)["requests"].tolist() == [5]
    asked.request("describe", 4)
    entries = list(audit.verified(state))
    assert [entry["round"] for entry in entries] == [0, 1, 2, 2, 2, 4]


def test_releases_with_noise_are_added_up(tmp_path, capsys):
    """ε of two runs is that of the node's ledger of privacy."""
    entry = {"strategy": "fedavg", "phase": "train", "round": 1, "exchange": 0, "received": 10, "refused": ""}
    one = {"noise_multiplier": 2.0, "sensitivity": 1e5}
    for run, count, unit in (("7", 3, "client"), ("8", 2, "client"), ("9", 1, "row")):
        for held in range(1, count + 1):
            noise = {"unit": unit, **one, "releases": held}
            audit_chain.append(tmp_path, {**entry, "run": run, "sent": {"model": 40}, "noise": noise})
    table = fg.audit(tmp_path)
    assert table["epsilon"].tolist() == [spent({"a": {**one, "releases": n}}) for n in (3, 2, 1)]
    together = {"a": {**one, "releases": 3}, "b": {**one, "releases": 2}}
    assert table.attrs["epsilon"] == {"client": spent(together), "row": table["epsilon"][2]}
    assert table["sent"].tolist() == [120, 80, 40]
    assert main(["audit", str(tmp_path)]) == 0
    assert "all runs together: ε" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [([], "has no audit.jsonl: expected the state folder"), (["--expect", "x"], "has no audit.jsonl")],
)
def test_a_folder_without_log_is_refused(words, says, tmp_path, capsys):
    assert main(["audit", str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err
