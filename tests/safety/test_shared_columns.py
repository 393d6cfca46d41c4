"""What a party that receives columns of far ends learns beyond the declared forms (`link --share`, ``partition.share``)."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr.config import compose
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.far_ends import LEVELS, Column
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.clients import make
from fedgraph_flwr.party.link.policy import LinkPolicy, book_share
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.keyring import Keyring
from tests.party.linked_banks import BANKS, banks
from tests.party.two_banks import DAY, books, payments

COUNT = 6_000


@pytest.mark.parametrize(("first", "second"), [("eps=1", "eps=2"), ("eps=0.5", "eps=4"), ("eps=1", "eps=1.0")])
@pytest.mark.parametrize("binary", [False, True])
def test_draws_of_two_forms_are_independent(first, second, binary):
    """Where two draws from one number differ, the one of the larger ε would be the true level in every case."""
    one, two = (Column("age", 0, form, binary=binary) for form in (first, second))
    level = np.random.default_rng(0).integers(len(one.levels), size=COUNT)
    names = [str(i).encode() for i in range(COUNT)]
    told = [column.encode(one.levels[level], b"secret", names) for column in (one, two)]
    hit = [codes == level for codes in told]
    for column, right in zip((one, two), hit, strict=True):
        k, odds = len(column.levels), np.exp(column.epsilon)
        assert abs(right.mean() - odds / (odds + k - 1)) < 4 * np.sqrt(0.25 / COUNT)
    both = np.logical_and(*hit).mean()
    assert abs(both - hit[0].mean() * hit[1].mean()) < 4 * np.sqrt(0.25 / COUNT)
    assert hit[1][told[0] != told[1]].mean() < 0.99


def test_two_columns_and_two_kinds_of_one_column_have_independent_draws():
    level = np.full(COUNT, 1)
    names = [str(i).encode() for i in range(COUNT)]
    columns = [Column("age", 0, "eps=1"), Column("income", 1, "eps=1"), Column("age", 0, "eps=1", binary=True)]
    hit = [column.encode(LEVELS[1 + level], b"secret", names) == column.levels.searchsorted(1) for column in columns]
    for other in hit[1:]:
        assert abs((hit[0] & other).mean() - hit[0].mean() * other.mean()) < 4 * np.sqrt(0.25 / COUNT)


def test_the_ledger_adds_forms_months_and_draws_of_earlier_versions(tmp_path):
    """Two values of ε, and each month, add up towards one peer, also of equal values; draws of earlier versions, too."""
    made = banks(tmp_path, accounts=10, payments=40)
    policy = tmp_path / "policy.yaml"

    def book(share, files):
        parties = [LinkParty(graph, LinkRules(match="routed", share=[share]), Keyring(graph.client)) for graph in files]
        simulate(parties)
        accounts = parties[0].told(1)[0].size
        return book_share(policy, ["b"], parties[0].told_to(1), parties[0].session.hex(), accounts, 7.0)

    files = [made.client(bank) for bank in BANKS]
    assert [book("age:eps=1", files), book("age:eps=2", files), book("age:eps=1", files)] == [1, 3, 4]
    assert book("age:eps=2", files) == 6
    with pytest.raises(FedGraphError, match="local ε of an account to 9, above 7"):
        book("age:eps=3", files)
    ledger = tmp_path / "policy.shares.json"
    entries = json.loads(ledger.read_text())
    entries["b"]["age:eps=2"]["values"] = ["of an earlier version"]  # which drew the same levels otherwise
    ledger.write_text(json.dumps(entries))
    assert book("age:eps=2", files) == 2 * 1 + 2 + 2


def test_an_unchanged_value_has_another_draw_in_the_next_link(tmp_path):
    """An account whose draw stays was told apart with certainty from one whose value changed; now the odds are e^(2ε) at most."""
    made = banks(tmp_path, accounts=40, payments=300)
    rules, months = LinkRules(match="routed", share=["income:eps=1"]), []
    for _ in range(2):
        parties = [LinkParty(made.client(bank), rules, Keyring(place)) for place, bank in enumerate(BANKS)]
        simulate(parties)
        told = {}
        for party in parties:
            for peer in party.peers:
                _, codes, names = party.told(peer)
                told |= {(party.client, name): int(code) for name, code in zip(names, codes[0], strict=True)}
        months.append(told)
    same = np.array([code == months[1][account] for account, code in months[0].items()])
    assert same.size > 60
    kept, other = np.exp(1) / (np.exp(1) + 3), 1 / (np.exp(1) + 3)
    expected = kept**2 + 3 * other**2
    assert abs(same.mean() - expected) < 4 * np.sqrt(expected * (1 - expected) / same.size)


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_two_links_tell_a_change_by_the_odds_that_the_ledger_books(epsilon):
    """Of all pairs of draws, none is more than e^(2ε) times as likely for one pair of values as for another."""
    column, names = Column("age", 0, f"eps={epsilon}"), [str(i).encode() for i in range(COUNT)]
    rates = {}
    for values in ((0, 0), (0, 1), (1, 1), (2, 0)):
        first, second = (
            column.encode(np.full(COUNT, LEVELS[v]), b"secret%d" % link, names) for link, v in enumerate(values)
        )
        rates[values] = np.bincount(4 * first.astype(int) + second, minlength=16) / COUNT
    for one in rates.values():
        for other in rates.values():
            assert (one <= np.exp(2 * epsilon) * other + 4 * np.sqrt(0.25 / COUNT)).all()


@pytest.mark.parametrize(
    ("share", "name", "form", "accepted"),
    [
        (["*", "flag:eps=1"], "flag", "buckets", False),
        (["flag:eps=1", "*:exact"], "flag", "exact", False),
        (["flag:eps=1", "fl*:eps=2"], "flag", "eps=2", False),
        (["flag:eps=2", "*:exact"], "flag", "eps=1.5", True),
        (["*:exact"], "edges.sum_in_2d", "buckets", False),
        (["?dges.*:exact"], "edges.sum_in_2d", "buckets", False),
        (["*", "edges.n_*"], "edges.n_in_2d", "buckets", True),
        (["edges.*"], "edges.sum_in_2d", "exact", False),
        (["edges.*:exact"], "age", "exact", False),
    ],
)
def test_a_policy_tells_no_more_than_each_entry_that_names_a_column(share, name, form, accepted):
    """A later entry with a wider pattern once accepted exact values; a pattern for accounts, columns of single payments."""
    policy, column = LinkPolicy(match=["payments"], share=share), Column(name, 0, form)
    if accepted:
        policy.check_share([column])
        return
    with pytest.raises(FedGraphError, match=f"does not share column '{name}' as {form}"):
        policy.check_share([column])


# --- probes by payments -----------------------------------------------------------------------------------------------

START = 20_000 * DAY + 100 * 1800 + 7
"""Time of the private payment of 700 to account a0; all probes are later and within its windows."""


def pay(number, source, target, amount, later):
    banks_of = {"from_bank": source[0].upper(), "to_bank": target[0].upper()}
    row = {"ref": f"x{number}", "source": source, "target": target, **banks_of, "at": START + later, "amount": amount}
    return row | {"fraud": "no"}


def told(folder, probes, rules, base=None, withheld=()):
    """What bank a tells b of account a0 by column, and as of the same last payment of b to it, after some probes of b."""
    private = [pay(0, "a1", "a0", 700.0, 0), pay(1, "b0", "a0", 5.0, 40_000)]
    rows = pd.concat([base if base is not None else payments(), pd.DataFrame(private + probes)], ignore_index=True)
    folder = books(folder, rows, "features=payments,-common_*", split="", withheld=withheld).parent
    parties = [
        LinkParty(ClientGraph.load(folder / f"{bank}.safetensors"), rules, Keyring(i)) for i, bank in enumerate("ab")
    ]
    simulate(parties)
    message = parties[0]._make_share(1)
    names = unpack_words(parties[0].linked.ids)[parties[0].told(1)[0]].tolist()
    times = parties[0].graph.foreign_edge_time.numpy()[parties[0]._matched(1, parties[0]._by_mask(1)[0])]
    at = int(np.flatnonzero(times == START + 40_000)[0])
    of_account = {key: values[names.index("a0")] for key, values in message.items() if key.isdigit() and "a0" in names}
    return of_account | {key: values[at] for key, values in message.items() if key == "known" or key.startswith("edge")}


PROBES = [pay(2 + k, "b1", "a0", 2.0**k, 1000 * k) for k in range(1, 9)] + [pay(11, "a0", "b2", 99.0, 20_000)]


@pytest.mark.parametrize(
    "rules",
    [
        LinkRules(share=["*", "edges.*"]),
        LinkRules(share=["*:exact", "edges.*:exact"], match="routed"),
        LinkRules(share=["*:eps=4"], min_records=3),
        LinkRules(share=["*_6h:exact", "edges.sum_in_2d"], one_sided="stub"),
    ],
    ids=["buckets", "exact", "eps", "stub"],
)
@pytest.mark.parametrize("withheld", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_payment_of_the_receiver_changes_what_it_is_told(tmp_path, monkeypatch, rules, withheld):
    """Payments to and from an account, which both banks book, or bank a alone. Draws of the two links are alike here."""
    monkeypatch.setattr(LinkParty, "key_of_draws", LinkParty.secret)
    hidden = [row["ref"] for row in PROBES] if withheld else ()
    before = told(tmp_path / "before", [], rules)
    after = told(tmp_path / "after", PROBES, rules, withheld=hidden)
    assert before.keys() == after.keys()
    assert len(before) > 3
    assert {key: str(value) for key, value in before.items()} == {key: str(value) for key, value in after.items()}


@pytest.mark.parametrize("one_sided", ["drop", "stub"])
def test_payments_of_the_receiver_do_not_lift_an_account_over_the_floor(tmp_path, one_sided):
    rules = LinkRules(share=["age", "edges.n_in_2d"], min_records=3, one_sided=one_sided)
    rest = payments()
    rest = rest[(rest.source != "a0") & (rest.target != "a0")]
    half = [row["ref"] for row in PROBES[::2]]  # some of them at bank a alone
    groups = told(tmp_path / "books", PROBES, rules, rest, half)
    assert groups.keys() == {"known", "edge 0"}
    assert not groups["known"]
    assert groups == told(tmp_path / "alone", [], rules, rest)
    more = pd.concat([rest, pd.DataFrame([pay(20 + k, "a2", "a0", 5.0, 50_000 + k) for k in range(2)])])
    assert told(tmp_path / "more", PROBES, rules, more, half)["known"]


def test_a_partition_does_not_tell_it_either():
    """Columns of far ends of bank 0, after bank 0 paid one account of bank 1 more often."""
    words = ["dataset=payments", "dataset.accounts=60", "dataset.background=400", "dataset.per_kind=1", "num_clients=2"]
    words += ["dataset.recipe=payments", "dataset.windows=[2]", "dataset.without=[common_*]", "split.min_train=1"]
    cfg = compose([*words, "partition.share=['*:exact']", "partition.min_records=2"])
    graph = load(cfg.dataset, seed=0, num_clients=2)
    plain = make(graph, cfg)[0]
    between = graph.group[graph.edge_index]
    paid = ((between[0] == 0) & (between[1] == 1)).nonzero().view(-1)
    account = graph.edge_index[1, paid[0]]
    rows = torch.cat([torch.arange(graph.num_edges), paid[graph.edge_index[1, paid] == account].repeat(5)])
    graph.book = graph.book[:, rows]
    probed = make(graph.with_edges(graph.edge_index[:, rows], rows), cfg)[0]
    assert plain.far["names"] == probed.far["names"]
    assert len(plain.far["names"]) > 20
    assert torch.equal(plain.far_id, probed.far_id)
    assert torch.equal(plain.far_x.nan_to_num(7e9), probed.far_x.nan_to_num(7e9))
    assert not plain.far_x.isnan().all()
