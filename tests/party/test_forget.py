"""Forgetting a party: equal, bit for bit, to a run that never had it; what is refused; and which clients are new."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import fedgraph_flwr as fg
from fedgraph_flwr import cli
from fedgraph_flwr.data.graph import ClientGraph, read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.forget import plan, without
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.use.predict import load_predictor
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.store.earlier import newcomers
from tests.nodes import party_nodes
from tests.party.linked_banks import BANKS, banks

KEYS = {"model.hidden": 4, "rounds": 2, "progress": False}


def linked(graphs, **rules):
    """Files that a link of these parties writes, numbered in their order."""
    for client, graph in enumerate(graphs):
        graph.client, graph.num_clients = client, len(graphs)
    parties = [LinkParty(graph, LinkRules(**rules), Keyring(graph.client)) for graph in graphs]
    simulate(parties)
    return [party.result() for party in parties]


def same(one, two, skip=("linking",)):
    for f in fields(one):
        a, b = getattr(one, f.name), getattr(two, f.name)
        if f.name not in skip:
            assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)) if isinstance(a, torch.Tensor) else a == b, f.name


def saved(graphs, folder: Path) -> Path:
    for graph in graphs:
        graph.save(folder / f"client_{graph.client:04d}.safetensors")
    return folder


@pytest.fixture
def made(tmp_path):
    return banks(tmp_path, accounts=12, payments=60)


@pytest.mark.parametrize("rules", [{}, {"share": ["age:exact"]}], ids=["plain", "share"])
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_files_without_a_party_are_those_of_a_link_without_it(made, gone, rules):
    """Tensor by tensor, against the protocol run with the other two parties only."""
    all_three = linked([made.client(bank) for bank in BANKS], **rules)
    two = linked([made.client(bank) for bank in BANKS if bank != BANKS[gone]], **rules)
    for graph, expected in zip(without(all_three, gone), two, strict=True):
        assert expected.cut_out.size(1) > 5
        same(graph, expected)
        assert graph.linking["party"] == expected.linking["party"]
        assert graph.linking["link"] != all_three[0].linking["link"]
    links = {graph.linking["link"] for graph in without(all_three, gone)}
    assert len(links) == 1


def test_the_order_of_two_removals_is_irrelevant(made):
    all_three = linked([made.client(bank) for bank in BANKS])
    (first,), (second,) = without(without(all_three, 0), 0), without(without(all_three, 1), 0)
    same(first, second)
    assert first.cut_out.numel() == first.cut_in.numel() == first.far_id.numel() == 0
    assert first.client == 0
    assert first.node_id.tolist() == list(range(first.num_nodes))


def hashes(folder: Path) -> list[tuple[str, str]]:
    """Digests of the parameters of the server's models and of all that clients stored, by name of the file."""
    paths = [*folder.glob("model*.safetensors"), *(folder / "state").rglob("*.safetensors")]
    tensors = {path: read_tensors(path)[0] for path in paths}  # files of clients also have the run's random name
    return sorted((path.name, digest({k: v.numpy() for k, v in held.items()}).hex()) for path, held in tensors.items())


@pytest.mark.parametrize("strategy", ["fedgcn", "fedavg", "scaffold"])
def test_the_result_is_the_run_that_never_had_the_party(made, tmp_path, capsys, strategy):
    """Hash by hash of the models; the other run is on files that were linked without the party."""
    folder = saved(linked([made.client(bank) for bank in BANKS]), tmp_path / "three")
    keys = {"strategy": strategy, "strategy.fraction": 0.5 if strategy == "fedavg" else 1.0, **KEYS}
    whole = fg.run(graph=str(folder), out=str(tmp_path / "whole"), **keys)
    before = hashes(whole.path)
    alone = saved(linked([made.client(bank) for bank in "AC"]), tmp_path / "two")
    never = fg.run(graph=str(alone), out=str(tmp_path / "never"), **keys)
    assert cli.main(["forget", str(whole.path), "--party", "B", "--out", str(tmp_path / "replayed")]) == 0
    said = capsys.readouterr().out
    assert "client 1 ('b') is removed; 2 parties left, without" in said
    assert f"cost: all rounds again (2); with 3 parties they took {whole.summary['total_seconds']:.1f} s" in said
    assert len(hashes(never.path)) >= 2
    assert hashes(tmp_path / "replayed") == hashes(never.path)
    assert not {*hashes(never.path)} & {*before}
    assert fg.load_run(tmp_path / "replayed").summary["metrics"] == never.summary["metrics"]
    record = json.loads((tmp_path / "replayed" / "forgotten.json").read_bytes())
    assert (record["party"], record["client"], record["run"]) == ("b", 1, str(whole.path))
    assert hashes(whole.path) == before  # nothing of the earlier run changes


@pytest.mark.parametrize("gone", [0, 2])
def test_files_that_were_never_linked_stay_as_they_are(made, gone):
    """Each numbers its own nodes from 0, which is no node that parties share."""
    unlinked = [replace(made.client(bank), client=client, num_clients=3) for client, bank in enumerate(BANKS)]
    assert unlinked[0].node_id[0] == unlinked[1].node_id[0] == 0
    kept = [graph for graph in unlinked if graph.client != gone]
    for client, (after, before) in enumerate(zip(without(unlinked, gone), kept, strict=True)):
        same(after, before, skip=("client", "num_clients"))
        assert (after.client, after.num_clients) == (client, 2)


def test_a_party_of_a_simulation_is_named_by_its_number(tmp_path):
    """Clients of a partition: the replay is the run on the others' files, whose keys of single clients follow their numbers."""
    keys = {"strategy": "fedprox", "dataset": "csbm", "dataset.nodes_per_client": [30, 40], **KEYS}
    single = {"train.local_steps_by_client": [1, 2, 3], "adversary.kind": "sign_flip", "adversary.clients": [2]}
    whole = fg.run(num_clients=3, out=str(tmp_path / "whole"), **keys, **single)
    done = fg.forget(whole, 0, tmp_path / "replayed")
    graphs = [
        ClientGraph.load(tmp_path / "replayed" / "files" / f"client_{client:04d}.safetensors") for client in range(2)
    ]
    single |= {"train.local_steps_by_client": [2, 3], "adversary.clients": [1]}
    kept = [graph.to_pyg() for graph in graphs]
    never = fg.run(graphs=kept, out=str(tmp_path / "never"), strategy="fedprox", **KEYS, **single)
    assert hashes(done.path)[0] == hashes(never.path)[0]
    assert hashes(done.path)[0][0] == "model_best.safetensors"
    for f in fields(graphs[0]):  # features and edges are those of the party's own file
        if f.name in ("x", "y", "edge_index"):
            assert torch.equal(getattr(graphs[0], f.name), getattr(whole._client_graph(1), f.name))
    again = plan(done.path, "1")
    assert len(again.graphs) == 1


def test_a_run_from_a_trained_model_says_who_is_new(made, tmp_path):
    """A bank joins: by name, although its number was another bank's."""
    first = fg.run(
        graph=str(saved(linked([made.client(bank) for bank in "AC"]), tmp_path / "two")),
        out=str(tmp_path / "one"),
        **KEYS,
    )
    assert first.summary["parties"] == ["a", "c"]
    folder = saved(linked([made.client(bank) for bank in BANKS]), tmp_path / "three")
    second = fg.run(init=str(first.path), graph=str(folder), out=str(tmp_path / "next"), **KEYS)
    assert second.summary["start"]["new"] == ["b"]
    assert "new" not in fg.run(init=str(second.path), out=str(tmp_path / "last"), progress=False).summary["start"]
    assert newcomers(first.path, [], [0, 1, 2]) == ["client 2"]  # without names, as at a fleet's server


@pytest.mark.parametrize(("key", "strategy"), [("init", "fedper"), ("evaluate", "fedper"), ("evaluate", "fedpub")])
def test_a_party_keeps_its_private_parameters_when_its_number_changes(made, tmp_path, key, strategy):
    """Bank C is client 2 with the others and client 1 without B, as is its file to the commands."""
    every = saved(linked([made.client(bank) for bank in BANKS]), tmp_path / "three")
    two = saved(linked([made.client(bank) for bank in "AC"]), tmp_path / "two")
    first = fg.run(graph=str(every), out=str(tmp_path / "first"), strategy=strategy, **KEYS)
    keys = {"train.lr": 1e-12} if key == "init" else {}
    later = fg.run(**{key: str(first.path)}, graph=str(two), out=str(tmp_path / "later"), progress=False, **keys)
    before, after = (
        [load_predictor(first.path, k).tensors for k in range(3)],
        [load_predictor(later.path, k).tensors for k in range(2)],
    )
    private = [name for name in before[0] if not torch.equal(before[0][name], before[2][name])]
    assert private
    for name in private:
        torch.testing.assert_close(after[1][name], before[2][name])
        torch.testing.assert_close(after[0][name], before[0][name])


def test_the_file_of_a_party_chooses_no_other_party(made, tmp_path, capsys):
    """B left: its number is C's."""
    folder = saved(linked([made.client(bank) for bank in "AC"]), tmp_path / "two")
    run = fg.run(graph=str(folder), out=str(tmp_path / "run"), **KEYS).path
    party, tables = tmp_path / "b.yaml", "nodes: C_nodes.csv\nedges: C_edges.csv\ncolumns: {id: id}\n"
    party.write_text(f"party: B\nclient: 1\n{tables}")
    for command in (["predict"], ["alerts", "--cost", "5,1"], ["explain", "--items", "A1"]):
        assert cli.main([command[0], str(run), "--party-file", str(party), *command[1:]]) == 2
        assert f"{run} has 'c' as client 1, and {party} is of 'B': pass --client I" in capsys.readouterr().err
    whole = fg.run(graph=str(folder), strategy="central", out=str(tmp_path / "whole"), **KEYS)
    assert whole.config.num_clients == 2
    assert cli.main(["predict", str(whole.path), "--party-file", str(party), "--client", "0"]) == 2
    assert "has the files of all parties in one place (strategy=central)" in capsys.readouterr().err
    party.write_text(f"party: C\nclient: 2\n{tables}")
    assert cli.main(["predict", str(run), "--party-file", str(party)]) == 2
    assert f"{run} has no client 2: expected 0..1 (a, c)" in capsys.readouterr().err
    assert cli.main(["predict", str(run), "--party-file", str(party), "--client", "1"]) == 0


def test_what_cannot_be_forgotten_is_one_error_message(made, tmp_path, capsys):
    three = linked([made.client(bank) for bank in BANKS])
    whole = fg.run(graph=str(saved(three, tmp_path / "three")), out=str(tmp_path / "whole"), **KEYS)

    def refused(*args: str) -> str:
        assert cli.main(["forget", *args]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        return error

    run = str(whole.path)
    assert "party 'd' is unknown (--party," in refused(run, "--party", "d")
    assert "expected one of: a, b, c" in refused(run, "--party", "7").lower()
    assert "holds no finished run" in refused(str(tmp_path), "--party", "a")
    assert "has the parties ['a', 'b', 'c'], expected those of the run without 'b': ['a', 'c']" in refused(
        run, "--party", "b", "--graph", str(tmp_path / "three")
    )
    for name, text in (("blend", json.dumps({"runs": [run]})), ("other", '{"runs": ["whole"]}'), ("bad", "{}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "blend.json").write_text(text)
    assert cli.main(["forget", run, "--party", "1", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "cost: all rounds again (2)" in said
    assert f"blends that weigh the run's models: {tmp_path / 'blend'}: delete them, too\n" in said
    for graph in three:
        graph.schema["agreed"]["scaling"] = "federated"
    saved(three, tmp_path / "three")
    assert "statistics of all parties, also of 'b': merge the schema again" in refused(run, "--party", "b")
    saved([replace(graph, shared=True, schema={}) for graph in three], tmp_path / "three")
    assert "parties share nodes" in refused(run, "--party", "b")
    text = (whole.path / "config.yaml").read_text()
    for old, new, message in (
        ("engine: inline", "engine: far", "is a run of the fleet 'far', whose parties hold their files: link again"),
        ("engine: inline", "engine: far", "config.yaml num_clients=2 out=DIR"),
        ("init: ''", "init: runs/x", "has init=runs/x, a model that the party may have trained"),
    ):
        assert old in text
        (whole.path / "config.yaml").write_text(text.replace(old, new))
        assert message in refused(run, "--party", "b")
    agreed = text.replace("engine: inline", "engine: far").replace("agreement: ''", "agreement: abc/1")
    (whole.path / "config.yaml").write_text(agreed)
    assert (
        "state folders, and agree on a new version without the party (`fedgraph-flwr agree`), and run --agreement"
        in refused(run, "--party", "b")
    )
    (whole.path / "config.yaml").write_text(text.replace(str(tmp_path / "three"), str(tmp_path / "one")))
    saved(without(without(three, 2), 1), tmp_path / "one")
    with pytest.raises(FedGraphError, match="has one party: without it, nothing remains"):
        plan(whole.path, "a")


@pytest.mark.slow
def test_the_commands_of_a_fleet_end_like_the_run_that_never_had_the_party(made, tmp_path, run, monkeypatch):
    """Those of the refusal: the nodes of a and c link again by their ledgers, c as client 1, and train on the new files."""
    (policy := tmp_path / "policy.yaml").write_text(
        "min_nodes: 0\nmax_share: 1.0\nlink: {match: [payments], min_shared: 1, hours: 0}\n"
    )

    def at_nodes(banks: str, **rules: bool) -> fg.Run:
        folder = tmp_path / f"nodes_{banks}"
        for client, bank in enumerate(banks):
            graph = replace(made.client(bank), client=client, num_clients=len(banks))
            graph.save(folder / f"client_{client:04d}.safetensors")
        graphs, sizes = sorted(folder.iterdir()), (9,) * len(banks)
        with monkeypatch.context() as patch:
            party_nodes(patch, graphs, policy)
            run(f"graph={folder}", *link_overrides(LinkRules(**rules)), sizes=sizes)
        files = [path.with_name(f"linked_{path.name}") for path in graphs]
        linked = saved([ClientGraph.load(path) for path in files], folder / "linked")
        with monkeypatch.context() as patch:
            party_nodes(patch, files, policy, folder)
            return fg.run(graph=str(linked), out=str(folder / "run"), strategy="fedgcn", **KEYS)

    whole, rerun = at_nodes(BANKS), at_nodes("AC", increment=True)
    alone = saved(linked([made.client(bank) for bank in "AC"]), tmp_path / "two")
    never = fg.run(graph=str(alone), out=str(tmp_path / "never"), strategy="fedgcn", **KEYS)

    def models(folder: Path, pattern: str = "**/*model*.safetensors", part: str = "") -> set[str]:
        held = [read_tensors(path)[0].items() for path in folder.glob(pattern)]
        return {digest({k: v.numpy() for k, v in pairs if k.startswith(part)}).hex() for pairs in held}

    assert models(rerun.path) == models(never.path, "model*.safetensors")
    assert not models(rerun.path) & models(whole.path)
    assert rerun.summary["metrics"] == never.summary["metrics"]
    stored = models(tmp_path / "nodes_AC", "state_*/**/model*.safetensors", "method")
    assert stored  # what FedGCN's clients keep for predictions
    assert stored <= models(never.path / "state", "**/model*.safetensors", "method")
