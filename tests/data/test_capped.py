"""Columns that read the last R records at each end: those of the plain recipe if R does not matter, and at most 2R readers."""

import numpy as np
import pytest

from fedgraph_flwr.config import compose
from fedgraph_flwr.data.features import DAY, Book, Recipe, edge_columns, node_columns
from fedgraph_flwr.data.payments import PaymentsSpec
from fedgraph_flwr.errors import FedGraphError


def book(seed: int, records: int = 150, accounts: int = 7, ties: bool = True) -> Book:
    """Return random records of six days: some of equal time and amount, some to oneself, some of amount 0."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(accounts, size=(2, records))
    time = (rng.random(records) * 6 * DAY).astype(np.int64)
    cents = rng.choice([0, 900, 1000, 1049, 20_000], records) + rng.integers(0, 3, records)
    return Book.of([*ends, time // 7_200 * 7_200 if ties else time, cents])


@pytest.mark.parametrize("ties", [False, True])
def test_without_more_records_than_the_cap_values_are_those_of_the_recipe(ties):
    some = book(3, records=40, accounts=9, ties=ties)
    full, capped = Recipe(windows=(2.0, 0.25)), Recipe(windows=(2.0, 0.25), last=64)
    expected = dict(zip([c.name for c in full.edge_columns], edge_columns(some, full).T, strict=True))
    columns = dict(zip([c.name for c in capped.edge_columns], edge_columns(some, capped).T, strict=True))
    assert set(expected) - set(columns) == {
        f"{name}_{w}" for name in ("hop2_in", "hop2_out", "flow_in_depth") for w in ("6h", "2d")
    }
    for name, values in columns.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("last", [1, 3, 8])
@pytest.mark.parametrize("seed", range(4))
def test_without_one_record_at_most_2r_others_change(last, seed):
    """Also where many records of an account have the same time, and where an account pays itself."""
    some, recipe = book(seed, records=120, accounts=5), Recipe(windows=(30.0, 1.0), last=last)
    columns, most = edge_columns(some, recipe), 0
    for gone in range(0, 120, 5):
        kept = np.arange(120) != gone
        changed = (edge_columns(some.where(kept), recipe) != columns[kept]).any(axis=1).sum()
        most = max(most, int(changed))
    assert last <= most <= 2 * last


def test_a_record_reads_no_later_one():
    some, recipe = book(1), Recipe(windows=(2.0,), last=4)
    early = some.time < np.quantile(some.time, 0.5)
    np.testing.assert_array_equal(edge_columns(some.where(early), recipe), edge_columns(some, recipe)[early])


def test_accounts_have_no_columns():
    recipe = Recipe(last=4)
    assert recipe.node_columns == []
    assert node_columns(book(0), recipe, 7).shape == (7, 0)
    assert edge_columns(Book.of(np.zeros((4, 0))), recipe).shape == (0, len(recipe.edge_columns))


def test_the_cap_is_written_and_read():
    assert Recipe.parse("payments,-flow_*,last=8").last == 8
    assert Recipe.from_dict(Recipe(last=8).to_dict(), "here") == Recipe(last=8)
    assert "last" not in Recipe().to_dict()
    for wrong in ("payments,last=x", "payments,last=65"):
        with pytest.raises(FedGraphError, match="must be a"):
            Recipe.parse(wrong)


@pytest.mark.parametrize("more", [{"ports": True}, {"features": "activity"}, {"recipe": None}])
def test_other_columns_have_no_cap(more):
    with pytest.raises(FedGraphError, match=r"dataset\.last=8 caps what columns"):
        PaymentsSpec(**({"recipe": "payments", "last": 8} | more))
    assert compose(["dataset=payments", "dataset.recipe=payments", "dataset.last=8"]).dataset.params["last"] == 8
