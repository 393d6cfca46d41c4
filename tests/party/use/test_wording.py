"""Reasons in the units of the tables: values are those before scaling, and each column has a phrase."""

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.data.features import COUNT, WINDOWS, Book, Recipe, edge_columns, node_columns
from fedgraph_flwr.data.schema import Column, feature_names
from fedgraph_flwr.party.tables.columns import Treatment, features
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.party.use.cases import Around, Payments, picture
from fedgraph_flwr.party.use.explain import Reasons
from fedgraph_flwr.party.use.wording import Wording

DAY = 86_400
RECIPE = Recipe(windows=(2.0,))


def of_recipe(recipe: Recipe, edges: bool, usual=(), currency: str = "€") -> Wording:
    forms = {c.name: c.form for c in recipe.edge_columns}, {c.name: c.form for c in recipe.node_columns}
    return Wording(forms=forms, edges=edges, usual=dict(usual), currency=currency)


def test_a_payment_says_what_its_payer_received():
    """Three accounts send 12,400.00 to the payer within two days; the amounts are sums by hand."""
    rows = [(1, 0, 5, 400_000), (2, 0, 6, 640_000), (3, 0, 6, 200_000), (0, 4, 7, 1_150_000), (5, 4, 1, 30_000)]
    source, target, day, cents = (np.array(column) for column in zip(*rows, strict=True))
    x, names = edge_columns(Book(source, target, day * DAY, cents), RECIPE), [c.name for c in RECIPE.edge_columns]
    usual = dict(zip(names, x[4].tolist(), strict=True)) | {"sum_in_source_2d": (np.log1p(300) - 6) / 3}
    said = of_recipe(RECIPE, True, usual)
    held = dict(zip(names, x[3].tolist(), strict=True))
    assert said.text("sum_in_source_2d", held) == (
        "the payer received € 12,400 from 3 accounts within 2 days, usually € 300"
    )
    assert said.text("amount", held) == "amount € 11,500, usually € 300"
    assert said.text("since_in_source", held) == "the payer last received 1 day before, usually never"
    assert said.text("n_in_target_2d", held).startswith("the receiver received 0 payments within 2 days")
    assert of_recipe(RECIPE, True, currency="").text("amount", held) == "amount 11,500"


def test_an_account_says_what_it_paid():
    rows = [(0, 1, 1, 5_050), (0, 2, 2, 9_950), (3, 0, 2, 100), (1, 2, 5, 500), (1, 2, 6, 500), (1, 3, 6, 500)]
    source, target, day, cents = (np.array(column) for column in zip(*rows, strict=True))
    x = node_columns(Book(source, target, day * DAY, cents), RECIPE, 4)
    held = dict(zip([c.name for c in RECIPE.node_columns], x[0].tolist(), strict=True))
    said = of_recipe(RECIPE, False)
    assert said.text("sum_out", held) == "the account paid € 150 to 2 accounts"
    assert said.text("largest_out", held) == "the account paid € 99.50 in its largest payment"
    assert said.text("sum_out_2d", held) == "the account paid at most € 50.50 within 2 days"
    assert said.text("hop2_out", held) == "the account paid to accounts that paid to 2 accounts in all"  # by 3 payments
    assert said.text("partners_out_2d", held) == "the account paid to at most 1 accounts within 2 days"
    ends = {f"source {name}": value for name, value in held.items()}
    assert of_recipe(RECIPE, True).text("source sum_out", ends) == "the payer paid € 150 to 2 accounts"


@pytest.mark.parametrize("day", ["before", "whole"])
@pytest.mark.parametrize("edges", [True, False])
def test_each_column_of_the_recipe_has_a_phrase(edges, day):
    recipe = Recipe(windows=WINDOWS, day=day)
    said = of_recipe(recipe, edges)
    columns = [c for c in (recipe.edge_columns if edges else recipe.node_columns) if c.name != "amount"]
    texts = [said.text(column.name, {column.name: 0.0}) for column in columns]
    assert not [text for column, text in zip(columns, texts, strict=True) if column.name in text or "{" in text]
    assert len({*texts}) == len(texts)


def test_columns_of_tables_have_their_own_values():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"income": np.exp(rng.normal(10, 1, 40)).round(2), "age": rng.integers(18, 90, 40)})
    table["opened"] = pd.date_range("2020-03-01", periods=40).strftime("%Y-%m-%d")
    table["vip"], table["town"] = rng.choice(["yes", "no"], 40), rng.choice(["x", "y"], 40)
    table.loc[3, ["age", "town"]] = np.nan
    treatment = Treatment(scales={"income": "log"}, units={"income": "EUR"}, floor=1)
    made = features("node", table, list(table.columns), "n.csv", treatment)
    names = feature_names(made.fitted)
    said = Wording(columns=({}, made.fitted))
    for row in (0, 3, 17):
        held = dict(zip(names, made.x[row].tolist(), strict=True))
        income = table["income"][row]
        assert said.text("income", held) == f"income {income:,.0f} EUR"
        assert said.text("opened", held) == f"opened {table['opened'][row]}"
        assert said.text("vip", held) == f"vip {table['vip'][row]}"
        town = "missing" if row == 3 else "x" if table["town"][row] == "x" else "not x"
        assert said.text("town=x", held) == f"town is {town}"
        assert said.text("age missing", held) == f"age is {'missing' if row == 3 else 'known'}"
        assert (said.text("age", held) == "age is missing") == (row == 3)  # not the value in its place
    for name in ("age", "mean of sources age", "largest of payments out: age"):
        assert said.text(name, {name: float("nan")}) == f"{name} is unknown"
    assert Wording().text("column 7", {"column 7": 0.25}) == "column 7 = 0.25"
    assert (
        Wording(columns=({}, {"age": Column()}), edges=True).text("target age", {"target age": 4.0}) == "target age 4"
    )


def test_means_over_neighbours_are_shares_and_small_numbers_have_digits():
    rate = Column(statistics={"center": 0.003, "spread": 0.002})
    income = Column(scale="log", statistics={"center": 10.0, "spread": 1.0})
    columns = {"vip": Column("flag"), "town": Column("category", categories=("x",)), "rate": rate, "income": income}
    said = Wording(columns=({}, columns), usual={"rate": 0.0, "mean of sources vip": 0.0})
    for name, text in {
        "vip": "vip is yes: 60%, usually 0%",  # not "yes", as if all were
        "town=x": "town is x: 60%",
        "rate missing": "rate is missing: 60%",
        "income": "income = 0.6",  # a mean of logarithms is no mean of amounts
    }.items():
        assert said.text(f"mean of sources {name}", {f"mean of sources {name}": 0.6}) == f"mean of sources {text}"
    assert said.text("rate", {"rate": 0.6}) == "rate 0.0042, usually 0.003"
    assert said.text("rate", {"rate": -1.5 - 1e-7}) == "rate 0, usually 0.003"


def test_largest_columns_of_edges_are_said_as_those_of_a_payment():
    name = "largest of edges out: n_in_target_2d"
    forms = ({"n_in_target_2d": COUNT}, {})
    value, usual = (float(np.log1p(count)) - 1 for count in (6, 1))
    said = Wording(forms=forms, usual={name: usual}).text(name, {name: value})
    assert said == "largest of edges out: the receiver received 6 payments within 2 days, usually 1"


def test_a_reason_names_its_payment():
    """Amount, direction, account and bank of the other end, and how long before or after."""
    rows = [
        ("p1", "c9", "a1", "C", "A", "2026-03-04 09:00:00", 2450.0),
        ("p2", "a1", "b7", "A", "B", "2026-03-04 09:40:00", 2400.0),
        ("p3", "c8", "a1", "C", "A", "2026-03-04 08:00:00", 90.0),
        ("p4", "b7", "c3", "B", "C", "2026-03-05 09:40:00", 2390.0),
    ]
    names = ["ref", "source", "target", "from_bank", "to_bank", "at", "amount"]
    columns = Columns(party_columns="from_bank,to_bank", time="at", amount="amount", edge_id="ref")
    context = Around(Payments.of(pd.DataFrame(rows, columns=names), columns, Treatment()), 1, "€")
    into = "€ 2,400.00 out to b7 (B) 40 minutes after € 2,450.00 in from c9 (C)"
    assert context.of_column("flow_in_hours_2d") == context.of_column("flow_in_gap_14d") == into
    assert context.of_column("flow_out_gap_2d") == "€ 2,400.00 in from a1 (A) 1 day before € 2,390.00 out to c3 (C)"
    assert context.of_column("flow_out_gap_1h") == "", "none within an hour"
    assert context.of_column("since_in_source") == "€ 2,450.00 in from c9 (C) 40 minutes before"
    assert context.of_column("sum_in_source_2d") == "the largest: € 2,450.00 in from c9 (C) 40 minutes before"
    assert context.of_column("amount") == context.of_column("since_out_target") == ""
    assert context.of_payment("p3") == "€ 90.00 from c8 (C) to a1 (A), 2 hours before"
    assert context.path == "€ 2,450.00 in from c9 (C) 40 minutes before; € 2,390.00 out to c3 (C) 1 day after"
    said = str(picture(context))
    assert all(word in said for word in ("c9 (C)", "→ b7 (B)", "€ 2,400.00"))


def test_a_value_that_nobody_has_is_no_reason_of_an_alert():
    columns = ["target income", "source income", "amount of other nodes"]
    values = np.array([np.nan, 3.0, np.nan])
    one = Reasons("p1", 1.0, 0.0, 0.5, columns, np.array([0.9, 0.5, 0.1]), values, np.zeros(3))
    assert one.text(2) == "source income = 3 (+0.5); amount of other nodes (+0.1)"
    assert one.to_frame(3)["text"].tolist() == [
        "the receiver's income is unknown",
        "source income = 3",
        "amount of other nodes",
    ]
