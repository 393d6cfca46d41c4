"""Columns of far ends that parties share by `link --share`: equal to `partition.share`, and nothing else leaves."""

import itertools
import json
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from fedgraph_flwr.config import compose
from fedgraph_flwr.data import far_ends
from fedgraph_flwr.data.far_ends import column_names, edge_maxima, far_rows, with_shares, with_told_records
from fedgraph_flwr.data.features import SUM, Book, edge_columns
from fedgraph_flwr.data.graph import ClientGraph, Graph, unpack_words
from fedgraph_flwr.data.own_columns import recipe_of, with_edge_columns
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.partition.clients import cut
from fedgraph_flwr.party.link.client import LinkClient
from fedgraph_flwr.party.link.policy import LinkPolicy, book_link, book_share, needs_consent, peer_names
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.tables.parties import BETWEEN
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.policy import read_policy
from fedgraph_flwr.tasks.edges import Edges
from tests.party import bank_books
from tests.party.linked_banks import BANKS, banks
from tests.party.two_banks import books, payments

SHARE = ["income:exact", "age"]


def linked(files, rules, relay=None, change=None):
    parties = [LinkParty(graph, rules, Keyring(graph.client)) for graph in files]
    if change:
        change(parties)
    simulate(parties, relay)
    return parties


def equal(left: Tensor, right: Tensor) -> bool:
    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.nan_to_num(7e9), right.nan_to_num(7e9))
    )


@pytest.mark.parametrize("match", ["payments", "routed"])
def test_linked_files_equal_the_partition_with_the_same_share(tmp_path, match):
    made = banks(tmp_path, accounts=30, payments=60)
    parties = linked([made.client(bank) for bank in BANKS], LinkRules(match=match, share=SHARE, min_records=4))
    graphs = [party.result() for party in parties]
    starts = [0, *torch.tensor([graph.num_nodes for graph in graphs]).cumsum(0).tolist()]
    parts = [torch.arange(a, b) for a, b in itertools.pairwise(starts)]
    expected = with_shares(cut(made.whole(graphs), parts), SHARE, floor=4, seed=0)
    for actual, wanted in zip(graphs, expected, strict=True):
        absent = actual.far_x.isnan().all(1)
        assert 0 < int(absent.sum()) < len(absent)
        assert actual.far == wanted.far
        for f in fields(wanted):
            if isinstance(getattr(wanted, f.name), Tensor) and f.name not in ("far_name", "book", "book_ids"):
                assert equal(getattr(actual, f.name), getattr(wanted, f.name)), f.name
    assert "withheld" in "\n".join(parties[0].report())


def test_a_far_end_has_the_values_of_its_owner_by_id(tmp_path):
    made = banks(tmp_path, accounts=10)
    files = [made.client(bank) for bank in BANKS]
    truth = {
        f"{bank.lower()}{BETWEEN}{word.lower()}": x
        for bank, graph in zip(BANKS, files, strict=True)
        for word, x in zip(unpack_words(graph.ids).tolist(), graph.x.tolist(), strict=True)
    }
    for party in linked(files, LinkRules(share=SHARE)):
        graph = party.result()
        names = unpack_words(graph.far_name).tolist()
        assert len(set(names)) == len(names) > 10
        place = [column_names(party.graph).index(name) for name in ("income", "age")]
        for name, (income, age) in zip(names, graph.far_x.tolist(), strict=True):
            assert income == truth[name][place[0]]
            assert 0 < age <= truth[name][place[1]] < 2 * age  # a power of two
        x = far_rows(graph, graph.far_id)
        assert x[:, graph.far["marks"]].all()
        assert not x[:, graph.far["marks"] + 1].any()
        assert not graph.x[:, graph.far["marks"] :][:, :2].any()


def test_a_file_without_share_keeps_the_names_of_far_ends(tmp_path):
    made = banks(tmp_path, accounts=10)
    for party in linked([made.client(bank) for bank in BANKS], LinkRules()):
        graph = party.result()
        assert len(graph.far_name) == len(graph.far_id) > 0
        assert not graph.far
        path = tmp_path / "file.safetensors"
        graph.save(path)
        assert unpack_words(type(graph).load(path).far_name).tolist() == unpack_words(graph.far_name).tolist()


def test_messages_hold_only_the_columns_that_the_rules_name(tmp_path, monkeypatch):
    """Every message of every phase is opened: the values of the other column, and codes beside the declared ones, are in none."""
    made = banks(tmp_path, accounts=10)
    for table in made.nodes.values():
        table["income"] = table["income"] * np.pi  # like no other number
    sent = []
    sealed = LinkParty._sealed

    def opened(self, peer, step, arrays):
        sent.append((step, arrays))
        return sealed(self, peer, step, arrays)

    monkeypatch.setattr(LinkParty, "_sealed", opened)
    files = [made.client(bank) for bank in BANKS]
    parties = linked(files, LinkRules(share=["age"]))
    secret = np.unique(np.concatenate([graph.x[:, column_names(graph).index("income")].numpy() for graph in files]))
    exact_age = np.concatenate([graph.x[:, column_names(graph).index("age")].numpy() for graph in files])
    assert "share" in {step for step, _ in sent}
    for step, arrays in sent:
        for key, array in arrays.items():
            if array.dtype.kind == "f":
                assert not np.isin(array, secret).any(), (step, key)
                assert not np.isin(array, exact_age[exact_age > 2]).any(), (step, key)
            if step == "share":
                assert (key, array.dtype) in (("account", np.int64), ("0", np.int8))
    told = [arrays["account"] for step, arrays in sent if step == "share"]
    matched = [set(party.result().far_id.tolist()) for party in parties]
    assert set(np.concatenate(told).tolist()) == set.union(*matched)


def test_an_account_without_a_matched_record_is_told_of_to_nobody(tmp_path):
    """A party that invents records of the other bank's accounts matches none of them and receives no columns."""
    made = banks(tmp_path, accounts=10)
    fake = made.books["A"].iloc[[0] * 10].copy()
    fake["from_bank"], fake["to_bank"], fake["source"] = "A", "B", made.nodes["A"]["id"][0]
    fake["target"] = made.nodes["B"]["id"][:10].to_numpy()
    fake["ref"] = [f"invented{i}" for i in range(10)]
    for bank, others in (("A", ["B"]), ("B", ["A", "C"]), ("C", ["B"])):
        book = made.books[bank]
        made.books[bank] = book[~book.from_bank.isin(others) & ~book.to_bank.isin(others)]
    made.books["A"] = pd.concat([made.books["A"], fake])
    parties = linked([made.client(bank) for bank in BANKS], LinkRules(share=SHARE))
    assert len(parties[0].pairs[1]["share"]["account"]) == 0
    assert parties[0].told(1)[0].size == 0
    assert not (parties[0].result().cut_out_owner == 1).any()


def alter(change):
    def apply(parties):
        made = parties[0]._make_share

        def altered(peer):
            arrays = dict(made(peer))
            change(arrays, parties[0])
            return arrays

        parties[0]._make_share = altered

    return apply


def _foreign(arrays, party):
    arrays["account"] = np.concatenate([arrays["account"][:-1], [party.linked.num_global_nodes + 5]])


def _other_party(arrays, party):
    arrays["account"] = np.sort(np.concatenate([arrays["account"][1:], [int(party.linked.cut_out[1].max())]]))


CHANGES = {
    "unknown": (_foreign, "in no record shared"),
    "of another": (_other_party, "in no record shared"),
    "twice": (
        lambda arrays, _: arrays.update(account=np.sort(np.r_[arrays["account"][1:], arrays["account"][1]])),
        "twice",
    ),
    "short": (lambda arrays, _: arrays.update({"0": arrays["0"][1:]}), "invalid message"),
    "infinite": (
        lambda arrays, _: arrays.update({"0": np.full_like(arrays["0"], np.inf)}),
        "from inf to inf, expected -3e",
    ),
    "nan": (
        lambda arrays, _: arrays.update({"0": np.full_like(arrays["0"], np.nan)}),
        "from nan to nan, expected",
    ),
    "code": (
        lambda arrays, _: arrays.update({"1": np.full_like(arrays["1"], 99)}),
        r"'age' \(buckets\) from 99 to 99, expected",
    ),
    "type": (lambda arrays, _: arrays.update({"1": arrays["1"].astype(np.int64)}), "is int64 .* expected int8"),
    "missing": (lambda arrays, _: arrays.pop("1"), "invalid message"),
    "more": (
        lambda arrays, _: arrays.update({"2": arrays["1"]}),
        "column '2', which the rules or its role do not name",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_wrong_columns_are_refused_by_the_name_of_their_sender(tmp_path, change):
    made = banks(tmp_path, accounts=6, payments=30)
    altered, message = CHANGES[change]
    with pytest.raises(RunFailed, match=f"client 0 sent.*{message}"):
        linked([made.client(bank) for bank in BANKS], LinkRules(share=SHARE), change=alter(altered))


def test_parties_that_share_other_columns_are_named(tmp_path):
    made = banks(tmp_path, accounts=6, payments=20)
    parties = [
        LinkParty(made.client(bank), LinkRules(share=["age", "income"][: 1 + (bank == "C")]), Keyring(place))
        for place, bank in enumerate(BANKS)
    ]
    with pytest.raises(RunFailed, match="differ in rules"):
        simulate(parties)


def test_a_simulation_repeats_its_draws_for_equal_files_and_secrets(tmp_path):
    made = banks(tmp_path, accounts=40)
    files = [made.client(bank) for bank in BANKS]
    rules = LinkRules(share=["income:eps=1"])

    def drawn(files):
        parties = [LinkParty(graph, rules, Keyring(graph.client), repeatable=True) for graph in files]
        simulate(parties)
        return [party.result().far_x for party in parties]

    first, second = drawn(files), drawn(files)
    assert all(equal(a, b) for a, b in zip(first, second, strict=True))
    changed = [replace(graph, x=graph.x + torch.eye(len(graph.x), graph.x.size(1))) for graph in files]
    others = [replace(graph, linking={**graph.linking, "secret": f"{9 + graph.client:064x}"}) for graph in files]
    for third in (drawn(others), drawn(changed)):
        assert not all(equal(a.sort(dim=0).values, b.sort(dim=0).values) for a, b in zip(first, third, strict=True))


@pytest.mark.parametrize(
    ("accepted", "share", "message"),
    [
        ([], ["age"], "does not share column 'age' as buckets: it accepts none"),
        (["age"], ["age:exact"], "as exact"),
        (["age", "income"], ["*:eps=1", "age"], ""),
        (["age:eps=1"], ["age:eps=2"], "as eps=2"),
        (["age:eps=2"], ["age:eps=1"], ""),
        (["?ge"], ["*e"], "column 'income'"),
        (["*:exact"], ["age:eps=3", "income"], ""),
        (["age:eps=9"], ["age"], "as buckets"),
    ],
)
def test_a_policy_names_columns_and_forms(tmp_path, accepted, share, message):
    graph = banks(tmp_path, accounts=6, payments=20).client("A")
    columns = far_ends.shared_columns(graph, share)
    policy = LinkPolicy(match=["payments"], share=accepted)
    if not message:
        policy.check_share(columns)
        return
    with pytest.raises(FedGraphError, match=message):
        policy.check_share(columns)


def test_the_ledger_adds_epsilon_of_each_link(tmp_path):
    policy = tmp_path / "policy.yaml"
    column = far_ends.Column("age", 1, "eps=3")
    assert book_share(policy, ["b"], [column], "x", 10, 7.0) == 3
    assert book_share(policy, ["b"], [column], "x", 10, 7.0) == 3
    assert book_share(policy, ["b"], [column], "y", 10, 7.0) == 6
    assert book_share(policy, ["c"], [column], "y", 10, 7.0) == 3
    with pytest.raises(FedGraphError, match="local ε of an account to 9, above 7"):
        book_share(policy, ["b"], [column], "z", 10, 7.0)
    assert book_share(policy, ["b"], [column], "y", 10, 7.0) == 6
    policy.with_name("policy.shares.json").write_text("{]")
    with pytest.raises(FedGraphError, match="the ε that was spent is unknown"):
        book_share(policy, ["b"], [column], "y", 10, 7.0)
    assert needs_consent(LinkRules(share=["age"]))


@pytest.mark.parametrize("form", ["eps=0", "eps=inf", "eps=nan", "eps=-1", "eps=x", "bins", ""])
def test_a_form_that_is_none_is_refused(form):
    with pytest.raises(FedGraphError, match="with FORM exact, buckets or eps=E with E above 0"):
        LinkRules(share=[f"age:{form}"])


def test_each_party_tells_the_columns_of_its_end_of_a_payment(tmp_path):
    """What a bank reads of the far end of a payment is what the other bank computed for it, found by the payment's time.

    In buckets, it is its own payments with that account and a power of two for all others.
    """
    folder = books(tmp_path / "books", payments(), "features=payments", share="edges.n_*_2d:exact,edges.sum_in_2d")
    imported = [ClientGraph.load(folder.parent / f"{bank}.safetensors") for bank in "ab"]
    graphs = [ClientGraph.load(folder / f"client_{i:04d}.safetensors") for i in range(2)]
    names = [column.name for column in recipe_of(imported[0]).edge_columns]
    shared = imported[0].num_shared_edge_features
    place = {name: shared + number for number, name in enumerate(names)}
    for client, graph in enumerate(graphs):
        far = imported[1 - client]
        rows = {at: row for row, at in enumerate(far.foreign_edge_time.tolist())}
        assert sorted(map(tuple, graph.own_columns["told"])) == sorted(
            (place[name], place[name.replace("_source", "_target")])
            for name in ("n_in_source_2d", "n_out_source_2d", "sum_in_source_2d")
        )
        for cut_edges, end in (("cut_out", "target"), ("cut_in", "source")):
            attr, times = getattr(graph, f"{cut_edges}_edge_attr"), getattr(graph, f"{cut_edges}_edge_time").tolist()
            theirs = far.foreign_edge_attr[[rows[at] for at in times]]
            assert len(times) > 20
            for name in ("n_in", "n_out"):
                assert torch.equal(attr[:, place[f"{name}_{end}_2d"]], theirs[:, place[f"{name}_{end}_2d"]])
            mine = imported[client].foreign_edge_attr[
                [imported[client].foreign_edge_time.tolist().index(at) for at in times]
            ]
            other = "source" if end == "target" else "target"
            assert torch.equal(attr[:, place[f"n_in_{other}_2d"]], mine[:, place[f"n_in_{other}_2d"]])
            column = place[f"sum_in_{end}_2d"]
            read, seen, true = (
                torch.expm1(v[:, column].double() * SUM.scale + SUM.center) for v in (attr, mine, theirs)
            )
            told, others = (1 + read - seen).log2(), true - seen
            assert (others > 1).any()
            assert (seen > 1).any()
            assert torch.allclose(told, told.round(), atol=1e-3)
            assert torch.allclose(told.round(), (1 + others + 1e-3).log2().floor())
        whole = Edges(compose(["task=edges", "split.kind=temporal"]), graph)
        between = whole.until(len(whole.points) - 1).edge_attr[graph.edge_index.size(1) :]
        assert between[:, place["n_in_source_2d"]].any()
        assert not between[:, place["since_in_source"]].any()
    with pytest.raises(FedGraphError, match="need records"):
        LinkRules(match="ids", share=["edges.n_in_2d"])
    with pytest.raises(FedGraphError, match="ε of an account grows"):
        LinkRules(share=["edges.n_in_2d:eps=1"])


def test_a_node_enters_what_it_tells_in_its_ledger_before_it_is_sent(tmp_path):
    made = banks(tmp_path, accounts=6, payments=20)
    party = linked([made.client(bank) for bank in BANKS], LinkRules(share=["age:eps=2", "income"]))[0]
    path = tmp_path / "policy.yaml"
    path.write_text('link: {match: [payments], share: ["age:eps=2", income], epsilon: 3}\n')
    client = object.__new__(LinkClient)
    vars(client).update(party=party, policy=read_policy(str(path)), keyring=Keyring(0))
    client.book_share()
    ledger = json.loads((tmp_path / "policy.shares.json").read_text())
    assert ledger.keys() == {"client 1", "client 2"}
    assert {name: entry["epsilon"] for name, entry in ledger["client 1"].items()} == {
        "age:eps=2": 2,
        "income:buckets": 0,
    }
    assert ledger["client 2"]["income:buckets"]["accounts"] == party.told(2)[0].size > 0
    client.book_share()
    assert json.loads((tmp_path / "policy.shares.json").read_text()) == ledger
    other = linked([made.client(bank) for bank in BANKS], LinkRules(share=["age:eps=2", "income"], min_records=3))[0]
    vars(client).update(party=other)
    with pytest.raises(FedGraphError, match="local ε of an account to 4, above 3"):
        client.book_share()


@pytest.mark.parametrize("day", ["before", "whole"])
@pytest.mark.parametrize("share", [[], ["edges.*_2d:exact"]])
def test_trees_read_the_same_largest_columns_in_a_simulation_and_from_linked_files(tmp_path, day, share):
    """Of payments from another bank too: the file has the receiver's columns, and so has the partition."""
    rows = bank_books.payments(days=14)
    folder = bank_books.banks(tmp_path, rows, day=day, share=share)
    files = [ClientGraph.load(folder / f"client_{i:04d}.safetensors") for i in range(2)]
    words = [word for graph in files for word in unpack_words(graph.ids).tolist()]
    place = {word: row for row, word in enumerate(words)}
    ends = np.stack([rows[end].map(place).to_numpy() for end in ("source", "target")])
    time, cents = (
        rows["at"].to_numpy("datetime64[s]").astype(np.int64),
        (rows["amount"] * 100).round().to_numpy().astype(np.int64),
    )
    party, recipe = np.array([word[0] == "b" for word in words]).astype(np.int64), recipe_of(files[0])
    book = np.stack([*ends, time, cents])
    n = len(words)
    graph = Graph(
        x=torch.ones(n, 1),
        edge_index=torch.from_numpy(ends),
        y=torch.zeros(n, dtype=torch.int64),
        **{f"{stage}_mask": torch.zeros(n, dtype=torch.bool) for stage in ("train", "val", "test")},
        num_classes=2,
        edge_time=torch.from_numpy(time),
        book=torch.from_numpy(book),
        group=torch.from_numpy(party),
    )
    graph = with_edge_columns(graph, recipe, edge_columns(Book.of(graph.book), recipe, party))
    whole, arriving = with_told_records(graph, share, 5)
    for file, part in zip(
        files, cut(whole, [torch.from_numpy(np.flatnonzero(party == k)) for k in range(2)], arriving), strict=True
    ):
        maxima, expected = edge_maxima(file), edge_maxima(part)
        assert file.num_shared_edge_features == 0
        assert file.cut_in.size(1) > 50
        np.testing.assert_allclose(maxima, expected, atol=1e-5)
        names = [column.name for column in recipe.edge_columns]
        into = maxima[:, len(names) :]
        amounts = [cents[ends[1] == place[word]].max() / 100 for word in unpack_words(file.ids).tolist()]
        np.testing.assert_allclose(torch.expm1(into[:, 0] * SUM.scale + SUM.center), amounts, rtol=1e-4)


def test_a_member_that_rotates_its_key_keeps_what_it_was_told(tmp_path):
    policy, column = tmp_path / "policy.yaml", far_ends.Column("age", 1, "eps=3")
    for key in (1, 2):
        pins = {1: ec.derive_private_key(key, ec.SECP384R1()).public_key()}
        keyring = Keyring(0, key=None, pins=pins, names={1: "rings/carol"})
        names = peer_names(1, keyring)
        assert len(names) == 2
        assert book_share(policy, names, [column], str(key), 10, 7.0) == 3 * key
        if key == 1:
            book_link(policy, {1: "carol"}, keyring, 24)
        else:
            with pytest.raises(FedGraphError, match="the last link run with client 1"):
                book_link(policy, {1: "carol"}, keyring, 24)
