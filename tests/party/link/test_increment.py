"""`link --since`: only records that the last link did not match are sent, and the files equal those of a link of all records."""

import logging
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.ledger import Ledger
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.keyring import Keyring
from tests.nodes import party_nodes
from tests.party.linked_banks import BANKS, KEY, banks


def link(files, rules, ledgers=(None, None, None)):
    parties = [
        LinkParty(graph, rules, Keyring(graph.client), ledger=ledger)
        for graph, ledger in zip(files, ledgers, strict=True)
    ]
    simulate(parties)
    return parties


def months(folder, payments=100, **options):
    """Three banks, and the same with the first month's records, fewer accounts, and some records that one bank booked late."""
    made, draw = banks(folder, accounts=8, payments=payments, **options), np.random.default_rng(3)
    late = {f"{bank}{len(made.nodes[bank]) - 1:04d}" for bank in BANKS}
    first = {}
    for bank, book in made.books.items():
        early = pd.util.hash_pandas_object(book[KEY], index=False).to_numpy() % 4 > 0
        repeated = book.duplicated(KEY, keep=False).to_numpy()
        booked = (early & (draw.random(len(book)) < 0.9)) | repeated
        first[bank] = book[booked & ~book.source.isin(late) & ~book.target.isin(late)]
    nodes = {bank: table[~table.id.isin(late)] for bank, table in made.nodes.items()}
    return made, replace(made, nodes=nodes, books=first)


def equal(one, two):
    """All but the number of the link, which is new in each run of nodes."""
    one, two = (replace(graph, linking=graph.linking | {"link": ""}) for graph in (one, two))
    for f in fields(one):
        a, b = getattr(one, f.name), getattr(two, f.name)
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)) if isinstance(a, torch.Tensor) else a == b, f.name


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ({"share": ["age:exact"]}, {}),
        ({"match": "routed", "one_sided": "stub"}, {}),
        ({"one_sided": "disclose"}, {"data": False, "undirected": True}),
    ],
    ids=["share", "stub", "undirected"],
)
def test_an_increment_equals_a_link_of_all_records(tmp_path, rules, options):
    made, first = months(tmp_path, **options)
    before = link([first.client(bank) for bank in BANKS], LinkRules(**rules))
    for party in before:
        party.ledger().save(tmp_path / f"{party.client}.ledger")
    ledgers = [Ledger.load(tmp_path / f"{client}.ledger") for client in range(3)]
    whole = link([made.client(bank) for bank in BANKS], LinkRules(**rules))
    more = link([made.client(bank) for bank in BANKS], LinkRules(**rules, increment=True), ledgers)
    for party, expected in zip(more, whole, strict=True):
        equal(party.result(), expected.result())
        assert party.result().linking["form"] == party.graph.linking["form"]
        assert party.ledger().peers.keys() == expected.ledger().peers.keys()
        for name, records in expected.ledger().peers.items():
            again = party.ledger().peers[name]
            assert (again.keys, {*again.alone}) == (records.keys, {*records.alone})
            assert all(torch.equal(again.data[key], values) for key, values in records.data.items())
        for peer in party.peers:
            sent, every = ({*side.values(peer)[1]} for side in (party, expected))
            old = {key.encode() for key in ledgers[party.client].peers[party.names[peer]].keys}
            assert len(old) > 10
            assert sent == every - old
            message, matched = party._make_match(peer), party.intersection(peer)[0].size
            assert len(message["row"]) == len(old) + matched
            assert all(len(message[key]) <= matched for key in ("position", "edge_time", "edge_attr") if key in message)
            late = {*expected.ledger().peers[party.names[peer]].keys} & {
                *ledgers[party.client].peers[party.names[peer]].alone
            }
            assert late or party.client
        assert f"{len(old)} more of the last link" in "\n".join(party.report())


def test_a_changed_missing_or_repeated_record_is_refused_by_name(tmp_path, caplog):
    """The party's log names the record; the message that the server may see does not."""
    made, first = months(tmp_path)
    ledgers = [party.ledger() for party in link([first.client(bank) for bank in BANKS], LinkRules())]
    key = ledgers[0].peers["b"].keys[0].split("\x1f")
    book = made.books["A"]
    (row,) = book.index[
        (book.ref.astype(str) == key[-2]) & (book.source == key[1].upper()) & (book.target == key[3].upper())
    ][:1]
    caplog.set_level(logging.ERROR)
    for what, changed in (
        ("are missing", book.drop(row)),
        ("changed", book.assign(risk=book.risk.where(book.index != row, 9.0))),
        ("are repeated", pd.concat([book, book.loc[[row]]])),
    ):
        caplog.clear()
        files = [replace(made, books={**made.books, "A": changed}).client(bank) for bank in BANKS]
        with pytest.raises(RunFailed, match=rf"1 records that the last link matched with client 1 {what}") as caught:
            link(files, LinkRules(increment=True), ledgers)
        assert key[-2] in caplog.text
        assert key[-2] not in str(caught.value)
    files = [made.client(bank) for bank in BANKS]
    with pytest.raises(RunFailed, match="keep different records of the last link"):
        link(files, LinkRules(increment=True), [ledgers[0], None, ledgers[2]])
    with pytest.raises(RunFailed, match="another schema or other options"):
        link(files, LinkRules(increment=True), [replace(ledger, basis="x") for ledger in ledgers])
    least = min(len(records.keys) for party in link(files, LinkRules()) for records in party.ledger().peers.values())
    link(files, LinkRules(min_shared=least))  # all records count, but of an increment only the new ones
    with pytest.raises(
        RunFailed, match=rf"share fewer than {least} \(min_shared; with --since only new records count: wait"
    ):
        link(files, LinkRules(increment=True, min_shared=least), ledgers)
    with pytest.raises(FedGraphError, match="--since applies to records"):
        LinkRules(match="ids", increment=True)


def test_the_command_extends_last_months_files(tmp_path, capsys):
    made, first = months(tmp_path)
    for name, book in (("one", first), ("two", made)):
        for client, bank in enumerate(BANKS):
            book.client(bank).save(tmp_path / name / f"{client}.safetensors")
    files = {name: sorted(map(str, (tmp_path / name).glob("*.safetensors"))) for name in ("one", "two")}

    def run(*words):
        return cli.main(["link", "--simulate", *map(str, words)])

    assert run(*files["one"], "--out", tmp_path / "linked") == 0
    assert run(*files["two"], "--out", tmp_path / "all") == 0
    assert run(*files["two"], "--since", tmp_path / "linked", "--out", tmp_path / "more") == 0
    assert "more of the last link" in capsys.readouterr().out
    for path in sorted((tmp_path / "all").glob("*.safetensors")):
        equal(ClientGraph.load(tmp_path / "more" / path.name), ClientGraph.load(path))
    assert run(*files["two"], "--since", tmp_path / "one", "--out", tmp_path / "x") == 2
    assert "holds no ledger of a link" in capsys.readouterr().err
    assert cli.main(["link", "engine=x", "num_clients=3", "--since", str(tmp_path)]) == 2
    assert "without a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_nodes_keep_their_ledgers(tmp_path, run, monkeypatch):
    """Each next to its policy; the server asks for an increment, and the files are those of a link of all records."""
    made, first = months(tmp_path, payments=40)
    (tmp_path / "policy.yaml").write_text("min_nodes: 0\nlink: {match: [payments], min_shared: 1, hours: 0}\n")
    for name, book in (("one", first), ("two", made)):
        paths = [tmp_path / name / f"client_{client:04d}.safetensors" for client in range(3)]
        for path, bank in zip(paths, BANKS, strict=True):
            book.client(bank).save(path)
        with monkeypatch.context() as patch:
            party_nodes(patch, paths, tmp_path / "policy.yaml")
            run(f"graph={tmp_path / name}", *link_overrides(LinkRules(increment=name == "two")))
    expected = link([made.client(bank) for bank in BANKS], LinkRules())
    for path, party in zip(paths, expected, strict=True):
        equal(ClientGraph.load(path.with_name(f"linked_{path.name}")), party.result())
        ledger = Ledger.load(tmp_path / f"policy.{party.names[party.client]}.ledger")
        assert {name: records.keys for name, records in ledger.peers.items()} == {
            name: records.keys for name, records in party.ledger().peers.items()
        }
