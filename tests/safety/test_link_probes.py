"""Every message of `fedgraph-flwr link` is opened and read for what no rule names: it must not depend on it in any way.

Each case runs twice with the same keys and draws. The second time, everything that may not leave has other values: undeclared
columns, declared columns of accounts that are not shared, labels, splits, edges within a party, and data of records that only
one party has or that start at the other. So do columns of a bank's own records in its file, since what leaves is computed from
its book, and amounts in the book of accounts that are not told. All opened contents and all that passes the server must be the
same, bit by bit. So a value leaves neither as it is nor by any transform. Two things depend on the whole file, through a hash
keyed by the party's secret, and are held fixed here: the order of rows and the hash of the linked file (`test_link_attacks` tests
both).
"""

import random
import secrets
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey as Key

from fedgraph_flwr.data.graph import unpack_words
from fedgraph_flwr.party.link import matching, protocol
from fedgraph_flwr.party.link.command import link_overrides
from fedgraph_flwr.party.link.files import id_form
from fedgraph_flwr.party.link.join import party_of
from fedgraph_flwr.party.link.protocol import LinkParty
from fedgraph_flwr.party.link.rules import ANNOUNCE, LinkRules
from fedgraph_flwr.party.link.uplink import ENVELOPES
from fedgraph_flwr.party.tables.parties import BETWEEN, normal_ids
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import groups_of
from tests.party.linked_banks import BANKS, banks
from tests.party.network_files import write
from tests.support import recorded_messages

CASES = {
    "payments": LinkRules(),
    "payments, share": LinkRules(share=["age"], min_records=4),
    "payments, exact": LinkRules(share=["age:exact"], one_sided="stub"),
    "payments, ε": LinkRules(share=["age:eps=6"]),
    "increment": LinkRules(share=["age"], increment=True),
    "dry run": LinkRules(dry_run=True),
    "routed": LinkRules(match="routed"),
    "routed, share": LinkRules(match="routed", share=["age"]),
    "disclosed, share": LinkRules(one_sided="disclose", share=["age"]),
    "payments, edges": LinkRules(share=["edges.n_in_2d", "edges.sum_*:exact"], min_records=2),
    "routed, edges and nodes": LinkRules(match="routed", share=["edges.n_*", "age:exact"], one_sided="disclose"),
    "ids": LinkRules(match="ids"),
    "ids, share": LinkRules(match="ids", share=["age"]),
    "overlap": LinkRules(match="ids", entities="overlap"),
    "columns, ids": LinkRules(match="ids", entities="columns", share=["balance"]),
    "columns, routed": LinkRules(match="routed", entities="columns", share=["balance:exact", "flag:eps=1"]),
}


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    """Files of three banks: with payments, with columns of own records, with customers alone, and of a network and two banks."""
    plain, counted, bare, roles = (tmp_path_factory.mktemp(name) for name in ("plain", "counted", "bare", "roles"))
    made, record_banks = banks(plain, accounts=8, payments=20), banks(counted, accounts=8, payments=20)
    record_banks.columns = replace(record_banks.columns, recipe="payments", windows="2")
    customers = banks(bare, accounts=8, payments=20, data=False)
    for place, bank in enumerate(BANKS):
        customers.nodes[bank]["id"] = [f"c{i + 3 * place:04d}" for i in range(8 + 3 * place)]
        customers.books[bank] = customers.books[bank].iloc[:0]
    return {
        "payments": [made.client(bank) for bank in BANKS],
        "edges": [record_banks.client(bank) for bank in BANKS],
        "ids": [customers.client(bank) for bank in BANKS],
        "columns": write(roles),
    }


def files_of(books, rules):
    if any(entry.startswith("edges.") for entry in rules.share):
        return books["edges"]
    return books["columns" if rules.joins else "ids" if rules.match == "ids" else "payments"]


@contextmanager
def contents():
    """What parties seal, by step, sender and receiver, with the same keys, draws and hashes in each run."""
    sent, sealed, start, stream = {}, LinkParty._sealed, Sealer.__init__, random.Random(0)

    def spy(self, peer, step, arrays):
        sent[step, self.client, peer] = {key: (a.dtype.str, a.shape, a.tobytes()) for key, a in arrays.items()}
        return sealed(self, peer, step, arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "FEWEST", 32)
        patch.setattr(LinkParty, "_sealed", spy)
        patch.setattr(secrets, "token_bytes", stream.randbytes)
        drawn = SimpleNamespace(from_private_bytes=Key.from_private_bytes)
        drawn.generate = lambda: Key.from_private_bytes(stream.randbytes(32))
        patch.setattr(matching, "X25519PrivateKey", drawn)
        patch.setattr(Sealer, "__init__", lambda s, client, key=None: start(s, client, key or bytes([client + 1] * 32)))
        patch.setattr("fedgraph_flwr.party.link.files.file_digest", lambda graph, secret: secret)
        yield sent


def simulated(graphs, rules):
    """Link files, and return the parties and what they send."""

    def public(step, made):
        if step == ANNOUNCE:
            sent.update({(step, client): str(arrays) for client, arrays in made.items()})

    before = [None] * len(graphs)
    if rules.increment:
        before = [party.ledger() for party in simulated(graphs, replace(rules, increment=False))[0]]
    with contents() as sent:
        parties = [
            party_of(rules)(graph, rules, Keyring(graph.client), ledger=ledger)
            for graph, ledger in zip(graphs, before, strict=True)
        ]
        protocol.simulate(parties, public)
    return parties, sent


def other(values, free):
    """Values of another kind in the free places, which keep their type."""
    flags = values.dtype == torch.int64 and values.max() <= 1  # labels, -1 where unknown
    moved = 1 - values.clamp(min=0) if flags else 2 * values.float().mean().to(values) - 3 * values - 1
    return values.where(~free, moved)


def without_secrets(party):
    """The party's file, in which all that may not leave is replaced."""
    graph, rules = party.graph, party.rules
    told = torch.zeros(graph.num_nodes, dtype=torch.bool)
    sent = torch.zeros(graph.foreign.size(1), dtype=torch.bool)
    as_of = torch.zeros(graph.foreign.size(1), dtype=torch.bool)
    for peer in party.peers if not rules.dry_run else ():
        rows = party.values(peer)[0]
        shared = rows[party.intersection(peer)[0]]
        if not rules.identities:
            sent[shared[party._sends_data(peer, shared)]] = True
            records = [key.rpartition(BETWEEN.encode())[0] for key in party.values(peer)[1]]
            copied = [records.count(record) > 1 for record in records]  # their data say which copy matches which
            sent[rows[np.isin(rows, shared, invert=True) & rules.discloses | copied]] = True
        if rules.share:
            words = set(party.told(peer)[2])
            listed = [str(name).encode() in words for name in normal_ids(unpack_words(graph.ids), id_form(graph))]
            told |= (mine := torch.tensor(listed))
            if party.records:  # told as of the time at which this party booked the record
                as_of[shared[mine[graph.foreign[0, shared]].numpy()]] = True
    free = torch.ones(graph.num_nodes, graph.num_features, dtype=torch.bool)
    free[:, [column.place for column in party.columns]] = ~told[:, None]
    assert free.any()
    assert not party.records or 0 < as_of.sum() < as_of.numel()
    changed = {"x": other(graph.x, free), "y": (graph.y + 1) % max(graph.num_classes, 2)}
    changed |= {mask: getattr(graph, mask).flip(0) for mask in ("train_mask", "val_mask", "test_mask")}
    for key in ("edge_attr", "edge_time", "edge_y"):
        inner, foreign = getattr(graph, key), getattr(graph, f"foreign_{key}")
        changed |= {key: other(inner, torch.ones_like(inner, dtype=torch.bool))} if inner.numel() else {}
        if foreign.numel():
            every = (~sent).view(-1, *[1] * (foreign.ndim - 1)).repeat(1, *foreign.shape[1:])
            if key == "edge_attr":
                every[:, graph.num_shared_edge_features :] = True
            every = every & ~as_of if key == "edge_time" else every
            changed[f"foreign_{key}"] = other(foreign, every)
    if graph.book.numel():
        untold = ~torch.cat([told, torch.zeros(len(graph.book_ids), dtype=torch.bool)])[graph.book[:2]].any(dim=0)
        changed["book"] = torch.cat([graph.book[:3], torch.where(untold, 3 * graph.book[3] + 7, graph.book[3])[None]])
    return replace(graph, **changed)


def difference(first, second):
    """The first message that differs between two runs; empty where all are the same."""
    if first.keys() != second.keys():
        return f"other messages: {first.keys() ^ second.keys()}"
    return next((str(key) for key in first if first[key] != second[key]), "")


@pytest.fixture(scope="module")
def pairs(books):
    """Parties of a case, what they send, and the files without what may not leave."""
    cache = {}

    def get(case):
        if case not in cache:
            parties, sent = simulated(files_of(books, CASES[case]), CASES[case])
            full = parties
            if CASES[case].increment:  # data of records of the last link were sent then
                full = simulated(files_of(books, CASES[case]), replace(CASES[case], increment=False))[0]
            cache[case] = parties, sent, [without_secrets(party) for party in full]
        return cache[case]

    return get


@pytest.mark.parametrize("case", CASES)
def test_messages_do_not_depend_on_what_no_rule_names(pairs, case):
    parties, sent, changed = pairs(case)
    rules = parties[0].rules
    assert {key[0] for key in sent} == {*rules.phases} - {"write", "count"}
    assert difference(sent, simulated(changed, rules)[1]) == ""
    if rules.share:  # what is declared does leave: the probe reads it
        columns = [*parties[1].columns, *(source for source, _ in parties[1].records)]
        place = min(columns, key=lambda column: column.epsilon).place  # a randomised one may hide the change
        key, part = ("x", (slice(None), place)) if parties[1].columns else ("book", 3)
        moved = [party.graph for party in parties]
        moved[1] = replace(moved[1], **{key: getattr(moved[1], key).clone()})
        getattr(moved[1], key)[part] = (64 - getattr(moved[1], key)[part]) ** (1 + (key == "book"))
        assert difference(sent, simulated(moved, rules)[1]).startswith("('share'")


def relayed(run, folder, graphs, rules):
    """Link files as on a fleet, in process, and return what the parties seal and what they send the server."""
    for graph in graphs:
        graph.save(folder / f"client_{graph.client:04d}.safetensors")
    with contents() as sent, pytest.MonkeyPatch.context() as patch, recorded_messages(patch) as seen:
        run(f"graph={folder}", *link_overrides(rules))
    up = Counter()
    for node, content in ((node, content) for way, node, content in seen if way == "up"):
        plain = {name: arrays for name, arrays in groups_of(content).items() if name != ENVELOPES}
        plain = {name: {key: array.tobytes() for key, array in arrays.items()} for name, arrays in plain.items()}
        sizes = {key: array.size for key, array in groups_of(content).get(ENVELOPES, {}).items()}
        up[str((node, plain, sizes, content.metric_records, content.config_records))] += 1
    return {**sent, **up}


@pytest.mark.parametrize("case", ["routed", "payments, share", "columns, routed"])
def test_on_a_fleet_the_same_holds_of_all_that_a_node_sends(pairs, run, tmp_path, case):
    parties, _, changed = pairs(case)
    rules = parties[0].rules
    first = relayed(run, tmp_path / "a", [party.graph for party in parties], rules)
    assert {key[0] for key in first if isinstance(key, tuple)} == {*rules.phases} - {"announce", "write"}
    assert sum(count for key, count in first.items() if isinstance(key, str)) > 3 * (len(rules.phases) - 1)
    assert difference(first, relayed(run, tmp_path / "b", changed, rules)) == ""


LEAKS = {
    "value": lambda graph: graph.x[:1],
    "logarithm": lambda graph: graph.x.abs().log1p().mean(0),
    "bucket": lambda graph: graph.x.abs().log2().clamp(-9, 9).to(torch.int8)[:3],
    "order": lambda graph: graph.x.argsort(dim=0),
    "bit": lambda graph: (graph.y[:1] % 2).to(torch.bool),
    "sum of amounts": lambda graph: graph.edge_attr.sum().view(1),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_planted_leak_is_found(pairs, monkeypatch, leak):
    """A party adds something of its file to its last message, which the receiver ignores."""
    parties, _, changed = pairs("routed, share")
    make = LinkParty._make_confirm

    def leaking(self, peer):
        return make(self, peer) | {"more": LEAKS[leak](self.graph).numpy()}

    monkeypatch.setattr(LinkParty, "_make_confirm", leaking)
    sent = [simulated(graphs, parties[0].rules)[1] for graphs in ([party.graph for party in parties], changed)]
    assert difference(*sent).startswith("('confirm', ")


def test_a_column_of_the_other_end_is_found(pairs, monkeypatch):
    """A party tells what it knows of the other end of a shared payment beside its own."""
    parties, _, changed = pairs("payments, edges")
    made = LinkParty._told_records

    def with_other(self, peer):
        arrays, rows = made(self, peer), self._matched(peer, self._by_mask(peer)[0])
        far = self.records[0][1].place
        return arrays | {
            "edge 0": arrays["edge 0"] + (self.graph.foreign_edge_attr[rows, far].numpy() > 0).astype("int8")
        }

    monkeypatch.setattr(LinkParty, "_told_records", with_other)
    sent = [simulated(graphs, parties[0].rules)[1] for graphs in ([party.graph for party in parties], changed)]
    assert difference(*sent).startswith("('share', ")
