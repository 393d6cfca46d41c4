"""What a party that receives columns of far ends learns beyond the declared forms (`link --share`, ``partition.share``)."""

import json

import numpy as np
import pytest

from fedgraph_flwr.data.far_ends import LEVELS, Column
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.link.policy import book_share
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.keyring import Keyring
from tests.party.linked_banks import BANKS, banks

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
    """Two values of ε, and a month with one changed account, add up towards one peer; other draws of the same values, too."""
    made = banks(tmp_path, accounts=10, payments=40)
    policy = tmp_path / "policy.yaml"

    def book(share, files):
        parties = [LinkParty(graph, LinkRules(share=[share]), Keyring(graph.client)) for graph in files]
        simulate(parties)
        digest, accounts = parties[0].told_digest(1)
        return book_share(policy, "b", parties[0].told_to(1), digest, accounts, 7.0)

    files = [made.client(bank) for bank in BANKS]
    assert [book("age:eps=1", files), book("age:eps=2", files), book("age:eps=1", files)] == [1, 3, 3]
    made.nodes["A"]["age"] += 1
    files = [made.client(bank) for bank in BANKS]
    assert book("age:eps=2", files) == 5
    with pytest.raises(FedGraphError, match="local ε of an account to 8, above 7"):
        book("age:eps=3", files)
    ledger = tmp_path / "policy.shares.json"
    entries = json.loads(ledger.read_text())
    entries["b"]["age:eps=2"]["values"] = ["of an earlier version"]  # which drew the same levels otherwise
    ledger.write_text(json.dumps(entries))
    assert book("age:eps=2", files) == 1 + 2 + 2
