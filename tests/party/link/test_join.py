"""`link --entities columns`: columns of banks' accounts arrive at the network whose payments name them, and nothing else does."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.far_ends import column_names
from fedgraph_flwr.data.graph import unpack_words
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.partition import load
from fedgraph_flwr.party.link.join import JoinParty, party_of
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.keyring import Keyring
from tests.party.network_files import bring, write

SHARE = ["flag*:exact", "balance*:exact"]


def joined(files, rules, relay=None):
    parties = [party_of(rules)(graph, rules, Keyring(graph.client), repeatable=True) for graph in files]
    simulate(parties, relay)
    return parties


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write(tmp_path_factory.mktemp("join"))


@pytest.mark.parametrize("match", ["ids", "routed"])
def test_the_network_gets_the_columns_of_its_accounts(files, match):
    """Second derivation: a plain join of the files' rows by id, for accounts that payments name and a bank holds."""
    parties = joined(files, LinkRules(match=match, entities="columns", share=SHARE))
    network, *banks = (party.result() for party in parties)
    names = column_names(files[0])
    known = {word: x for graph in files[1:] for word, x in zip(unpack_words(graph.ids), graph.x.tolist(), strict=True)}
    before = dict(zip(unpack_words(files[0].ids), files[0].x.tolist(), strict=True))
    kept = [place for place, name in enumerate(names) if name.startswith("named")]
    matched = 0
    for word, x in zip(unpack_words(network.ids), network.x.tolist(), strict=True):
        expected = list(known.get(word, before[word]))
        for place in kept:
            expected[place] = before[word][place]
        assert x == pytest.approx(expected)
        matched += word in known
    assert matched == 16
    for before, after in zip(files[1:], banks, strict=True):
        rows = dict(zip(unpack_words(before.ids), before.x.tolist(), strict=True))
        assert dict(zip(unpack_words(after.ids), after.x.tolist(), strict=True)) == rows
        assert after.cut_out.numel() == after.cut_in.numel() == 0
    assert len({party.result().linking["link"] for party in parties}) == 1
    ends = [
        unpack_words(network.ids)[network.edge_index.numpy()],
        unpack_words(files[0].ids)[files[0].edge_index.numpy()],
    ]
    assert sorted(zip(*ends[0].tolist(), strict=True)) == sorted(zip(*ends[1].tolist(), strict=True))
    assert "client 1 ('a'): 10 identities, 8 shared" in "\n".join(parties[0].report())


def test_only_declared_columns_of_matched_accounts_leave(files, monkeypatch):
    """Every message is opened: accounts that only the bank has, and the other column, are in none."""
    sent, sealed = [], LinkParty._sealed

    def opened(self, peer, step, arrays):
        sent.append((self.client, peer, step, arrays))
        return sealed(self, peer, step, arrays)

    monkeypatch.setattr(LinkParty, "_sealed", opened)
    joined(files, LinkRules(match="ids", entities="columns", share=["balance:exact"]))
    shares = {(a, b): arrays for a, b, step, arrays in sent if step == "share"}
    assert {pair: len(arrays) for pair, arrays in shares.items() if len(arrays) > 1} == {
        (1, 0): 2,
        (1, 2): 2,
        (2, 0): 2,
        (2, 1): 2,
    }
    assert [len(shares[pair]["account"]) for pair in ((1, 0), (2, 0), (1, 2))] == [8, 8, 0]
    place = column_names(files[0]).index("balance")
    for bank in (1, 2):
        held = dict(zip(unpack_words(files[bank].ids), files[bank].x[:, place].numpy(), strict=True))
        named = {*unpack_words(files[0].ids)}
        values = np.concatenate(
            [a.ravel() for s, _, _, arrays in sent if s == bank for a in arrays.values() if a.dtype.kind == "f"]
        )
        assert sorted(values) == sorted(value for word, value in held.items() if word in named)


def test_protected_columns_arrive_in_their_form(files):
    parties = joined(files, LinkRules(match="routed", entities="columns", share=["balance:buckets", "flag:eps=1"]))
    names, x = column_names(files[0]), parties[0].result().x
    balance = x[x[:, names.index("flag missing")] == 0, names.index("balance")].abs()
    assert set(np.log2(balance[balance > 0].numpy()) % 1) == {0}
    flag = x[:, names.index("flag")]
    assert set(flag.tolist()) == {0, 1}
    true = {
        word: row[names.index("flag")]
        for g in files[1:]
        for word, row in zip(unpack_words(g.ids), g.x.tolist(), strict=True)
    }
    words = unpack_words(parties[0].result().ids)
    told = [value == true[word] for word, value in zip(words, flag.tolist(), strict=True) if word in true]
    assert 0.5 < np.mean(told) < 1  # kept with probability e / (e + 1) = .73
    assert "flag (eps=1)" in "\n".join(parties[0].report())


def test_an_account_that_two_banks_claim_gets_no_columns(tmp_path):
    """Bank B claims A5. Where payments name banks, the network asks only A; otherwise it trusts neither."""
    routed = write(tmp_path)
    frame = pd.read_csv(tmp_path / "B.csv")
    frame.loc[len(frame)] = ["A5", "yes", 10**6]
    frame.to_csv(tmp_path / "B.csv", index=False)
    bring(tmp_path, "bank", "--nodes=B.csv", 2, "--own-party=B")
    claiming = load(tmp_path / "client_0002.safetensors")
    rules = LinkRules(match="ids", entities="columns", share=SHARE)
    parties = joined([*routed[:2], claiming], rules)
    gap = column_names(routed[0]).index("flag missing")

    def missing(party):
        graph = party.result()
        return {word for word, value in zip(unpack_words(graph.ids), graph.x[:, gap].tolist(), strict=True) if value}

    assert missing(parties[0]) == {"A0", "A1", "B0", "B1"}
    network = load(tmp_path / "client_0000.safetensors")
    network.group, network.linking = network.group[:0], {**network.linking, "parties": []}
    parties = joined([network, routed[1], claiming], rules)
    assert missing(parties[0]) == {"A0", "A1", "B0", "B1", "A5"}
    assert "1 accounts are held by several parties: without columns" in parties[0].report()


def test_an_account_below_the_floor_is_not_asked_for(files):
    graph = files[0]
    count = np.bincount(graph.edge_index.reshape(-1).numpy(), minlength=graph.num_nodes)
    floor = int(np.median(count)) + 1
    parties = joined(files, LinkRules(match="ids", entities="columns", share=SHARE, min_records=floor))
    few = int((count < floor).sum())
    assert f"{few} accounts have fewer than {floor} records: not asked for" in parties[0].report()
    lacking = parties[0].result().x[:, column_names(graph).index("flag missing")]
    words = unpack_words(graph.ids)[count >= floor]
    assert int((lacking == 0).sum()) == sum(word not in ("A0", "A1", "B0", "B1") for word in words)


def test_an_account_that_no_payment_names_is_not_asked_for(files):
    graph = files[0]
    free = graph.num_nodes - 1
    kept = (graph.edge_index != free).all(dim=0)
    data = {key: getattr(graph, key)[kept] for key in ("edge_attr", "edge_time", "edge_y")}
    network = replace(graph, edge_index=graph.edge_index[:, kept], **data)
    parties = joined([network, *files[1:]], LinkRules(match="ids", entities="columns", share=SHARE))
    assert "1 accounts have fewer than 1 records: not asked for" in parties[0].report()
    assert free not in np.concatenate([parties[0].values(peer)[0] for peer in (1, 2)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"name": "saldo"},
            "roles are .*'flag', 'balance'.* here and .*'flag', 'saldo'.* there",
        ),
        ({"kind": "category"}, "column 'balance'"),
        ({"scale": "log"}, "column 'balance'"),
    ],
)
def test_columns_that_differ_between_schemas_are_refused(files, change, message):
    schema = copy.deepcopy(files[2].schema)
    columns = schema["agreed"]["nodes"]["node"]
    if "name" in change:
        schema["agreed"]["roles"]["bank"]["node"] = ["flag", "saldo"]
        schema["agreed"]["nodes"]["node"] = {{"balance": "saldo"}.get(k, k): v for k, v in columns.items()}
    else:
        columns["balance"] |= change
    rules = LinkRules(match="ids", entities="columns", share=["flag"])
    with pytest.raises(RunFailed, match=f"clients 0 and 2 have different schemas .*{message}.*import both with one"):
        joined([*files[:2], replace(files[2], schema=schema)], rules)


def test_the_ledger_books_what_a_party_tells(files):
    """The network tells nothing, a bank its flag to the network, and nothing to another bank."""
    parties = joined(files, LinkRules(match="ids", entities="columns", share=["flag:eps=1"]))
    told = {(p.client, peer): [c.name for c in p.told_to(peer)] for p in parties for peer in p.peers}
    assert told == {(0, 1): [], (0, 2): [], (1, 0): ["flag"], (1, 2): [], (2, 0): ["flag"], (2, 1): []}
    assert [parties[1].told(peer)[0].size for peer in (0, 2)] == [8, 0]


def test_a_bank_without_a_matched_account_is_counted(files):
    other = load_renamed(files[2])
    parties = joined([*files[:2], other], LinkRules(match="ids", entities="columns", share=SHARE))
    assert "client 2 ('c'): 0 identities, 0 shared" in "\n".join(parties[0].report())
    assert "10 accounts are at 'b', which no client is: not asked for" in parties[0].report()


def test_parties_of_one_role_match_nothing_and_say_so(files):
    banks = [replace(graph, client=place, num_clients=2) for place, graph in enumerate(files[1:])]
    parties = joined(banks, LinkRules(match="routed", entities="columns", share=SHARE))
    assert parties[0].report() == ["all parties have role 'bank', so that no accounts were matched"]
    with pytest.raises(FedGraphError, match=r"client 0 names no record of another party: .* pass --match ids"):
        joined(files, LinkRules(share=SHARE))


def load_renamed(graph):
    return replace(graph, linking={**graph.linking, "party": "c"})


def test_a_party_that_leaves_ends_the_link(files):
    def leave(phase, sent):
        if phase == "match":
            for pair in [pair for pair in sent if pair[0] == 1]:
                del sent[pair]

    with pytest.raises(
        RunFailed, match=r"needs messages of clients \[1, 2\] in phase 'match' of link, got those of \[2\]"
    ):
        joined(files, LinkRules(match="ids", entities="columns", share=SHARE), leave)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"9": np.arange(8)}, "column '9', which the rules or its role do not name"),
        ({"account": np.arange(3)}, r"account is int64 \(3,\), expected int64 \(8,\)"),
    ],
)
def test_a_bank_that_tells_more_than_its_role_has_is_refused(files, monkeypatch, other, message):
    make = JoinParty._make_share
    monkeypatch.setattr(
        JoinParty, "_make_share", lambda self, peer: {**make(self, peer), **(other if self.client == 1 else {})}
    )
    with pytest.raises(RunFailed, match=f"client 1 sent .*{message}"):
        joined(files, LinkRules(match="ids", entities="columns", share=SHARE))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"match": "ids"}, "entities=columns brings columns of nodes to other parties: pass --share COLUMNS"),
        (
            {"share": SHARE},
            "entities=columns matches nodes, not records: pass --match ids, or --match routed for hashes",
        ),
        (
            {"match": "routed", "share": SHARE, "one_sided": "stub"},
            "one_sided=stub applies to records, not to match=ids or",
        ),
    ],
)
def test_wrong_rules_are_refused(keys, message):
    with pytest.raises(FedGraphError, match=message):
        LinkRules(entities="columns", **keys)


def test_columns_of_another_kind_are_refused(tmp_path, capsys):
    write(tmp_path)
    frame = pd.read_csv(tmp_path / "B.csv").assign(flag=[7.5 * i for i in range(10)])
    frame.to_csv(tmp_path / "B.csv", index=False)
    args = ["import", "--role=bank", f"--nodes={tmp_path}/B.csv", f"--schema={tmp_path}/s.yaml", "--client=2"]
    assert main([*args, "--num-clients=3", f"--out={tmp_path}/x.safetensors"]) == 2
    assert (
        "features must be yes or no; column 'flag' has '0.0' in row 1: write it so, or leave the cell empty"
        in capsys.readouterr().err
    )


def test_files_without_roles_are_refused(files):
    bare = replace(files[1], linking={key: value for key, value in files[1].linking.items() if key != "role"})
    rules = LinkRules(match="ids", entities="columns", share=SHARE)
    with pytest.raises(FedGraphError, match="the file of client 1 has no role, so entities=columns cannot say which"):
        joined([files[0], bare, files[2]], rules)


def test_link_simulate_writes_files_for_a_run(files, tmp_path, capsys):
    paths = []
    for graph in files:
        paths.append(str(tmp_path / f"{graph.client}.safetensors"))
        graph.save(paths[-1])
    args = ["--match=routed", "--entities=columns", f"--share={','.join(SHARE)}", f"--out={tmp_path}/linked"]
    assert main(["link", "--simulate", *paths, *args]) == 0
    assert "of 8 accounts, told no columns, received flag (exact)" in capsys.readouterr().out
    words = [
        "task=edges",
        "rounds=1",
        "model.hidden=4",
        f"graph={tmp_path}/linked",
        f"out={tmp_path}/run",
        "split.step=null",
    ]
    assert main(["run", *words, "--quiet", "--no-report"]) == 0
    day = pd.DataFrame({"source": ["A5", "new1"], "target": ["B3", "A5"], "amount": [7.0, 8.0], "t": [200, 201]})
    day.to_csv(tmp_path / "day.csv", index=False)
    predict = ["predict", f"{tmp_path}/run", "--client=0", f"--edges={tmp_path}/day.csv", f"--out={tmp_path}/p.csv"]
    assert main(predict) == 0
    predictions = pd.read_csv(tmp_path / "p.csv")
    assert predictions[["source", "target"]].to_numpy().tolist() == [["A5", "B3"], ["new1", "A5"]]
    assert predictions["p_yes"].between(0, 1).all()
    assert main([*predict[:2], "--client=1", *predict[3:]]) == 2
    assert (
        "day.csv needs --nodes FILE: the graph of role bank was imported from a table of nodes"
        in capsys.readouterr().err
    )
