"""Columns of a table as features: against scikit-learn's transformers, and by hand."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, RobustScaler, StandardScaler

from fedgraph_flwr.data.schema import Column, Schema
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import Treatment, feature_names, features, fit, frequent, warn_unscaled


def made(columns: dict, **treatment):
    table = pd.DataFrame(columns)
    lines = []
    return features("node", table, list(table), "t.csv", Treatment(floor=1, say=lines.append, **treatment)), lines


def by_name(node_features) -> dict[str, np.ndarray]:
    return dict(zip(feature_names(node_features.agreed), node_features.x.numpy().T, strict=True))


def test_kinds_are_found():
    n = 40
    node_features, lines = made(
        {
            "age": [str(i) for i in range(n)],
            "active": ["yes", "NO"] * (n // 2),
            "vip": ["0", "1"] * (n // 2),
            "opened": ["2024-02-29", "2023-01-01 12:00"] * (n // 2),
            "born": ["31.12.1980", "01.02.1990"] * (n // 2),
            "signed": ["12/31/1980", "01/02/1990"] * (n // 2),
            "job": ["clerk", "nurse"] * (n // 2),
            "name": [f"customer {i}" for i in range(n)],
            "part": ["train", "test"] * (n // 2),
            "void": [None] * n,
        }
    )
    kinds = {name: column.kind for name, column in node_features.agreed.items()}
    assert kinds == {
        "age": "number",
        "active": "flag",
        "vip": "flag",
        "opened": "date",
        "born": "date",
        "signed": "date",
        "job": "category",
        "name": "ignored",
        "part": "ignored",
        "void": "ignored",
    }
    assert "name (40 different values in 40 rows)" in " ".join(lines)
    assert "columns.split=part" in " ".join(lines)
    assert "void (empty)" in " ".join(lines)
    assert node_features.agreed["signed"].format == "%m/%d/%Y"  # the 31st is no month


def test_types_of_parquet_are_kinds():
    node_features, _ = made(
        {
            "flag": [True, False, True],
            "when": pd.to_datetime(["1970-01-02", None, "1970-01-04"]),
            "n": [1, 2, 3],
            "share": [0.5, np.nan, 1],
        },
        scaling="none",
    )
    assert [column.kind for column in node_features.agreed.values()] == ["flag", "date", "number", "number"]
    columns = by_name(node_features)
    assert columns["when"].tolist() == [1, 2, 3]  # days since 1970; the gap is filled with the median of 1 and 3
    assert columns["when missing"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("scale", ["standard", "robust", "log"])
def test_numbers_are_scaled_as_scikit_learn_does(scale):
    rng = np.random.default_rng(0)
    held = np.exp(rng.normal(3, 2, 50)) * rng.choice([-1, 1], 50)
    held[[3, 17]] = np.nan
    node_features, _ = made({"income": held}, scales={"income": scale})
    filled = SimpleImputer(strategy="median").fit_transform(held[:, None])
    known = held[~np.isnan(held)][:, None]
    if scale == "log":
        filled, known = (np.sign(v) * np.log(1 + np.abs(v)) for v in (filled, known))
    expected = (RobustScaler() if scale == "robust" else StandardScaler()).fit(known).transform(filled)
    np.testing.assert_allclose(by_name(node_features)["income"], expected[:, 0], rtol=1e-5, atol=1e-6)
    assert by_name(node_features)["income missing"].nonzero()[0].tolist() == [3, 17]


def test_categories_are_one_hot_with_an_other_one():
    jobs = ["nurse", "clerk", "nurse", None, "sailor", "clerk", "nurse"]
    table = pd.DataFrame({"job": jobs})
    node_features = features("node", table, ["job"], "t.csv", Treatment(floor=2))
    assert node_features.agreed["job"].categories == ("clerk", "nurse")  # one sailor alone is "other"
    filled = table.fillna("nurse")  # the most frequent
    encoder = OneHotEncoder(categories=[["clerk", "nurse"]], handle_unknown="ignore", sparse_output=False)
    columns = by_name(node_features)
    assert list(columns) == ["job=clerk", "job=nurse", "job=other", "job missing"]
    np.testing.assert_array_equal(
        np.stack([columns["job=clerk"], columns["job=nurse"]], 1), encoder.fit_transform(filled)
    )
    assert columns["job=other"].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert columns["job missing"].tolist() == [0, 0, 0, 1, 0, 0, 0]


def test_the_users_word_wins():
    node_features, _ = made(
        {"zip": ["10", "20", "10"], "age": ["1", "2", "3"]}, kinds={"zip": "category", "age": "ignored"}
    )
    assert list(by_name(node_features)) == ["zip=10", "zip=20", "zip=other"]
    with pytest.raises(FedGraphError, match="column 'job' has 'clerk' in row 1"):
        made({"job": ["clerk", "nurse"]}, kinds={"job": "number"})
    with pytest.raises(FedGraphError, match="column 'job' has no dates"):
        made({"job": ["clerk", "nurse"]}, kinds={"job": "date"})
    with pytest.raises(FedGraphError, match="must be yes or no; column 'job' has 'nurse' in row 2"):
        made({"job": ["yes", "nurse"]}, kinds={"job": "flag"})
    with pytest.raises(
        FedGraphError, match=r"scales\.job=log has no effect on a category: leave it out, or pass kinds\.job=number"
    ):
        made({"job": ["clerk", "nurse", "cook"] * 5}, scales={"job": "log"})


def test_doubtful_columns_are_asked_about():
    with pytest.raises(
        FedGraphError, match=r"column 'age' has 'three' in row 3: correct the value, or pass kinds.age=category"
    ):
        made({"age": ["1", "2", "three", "4"]})
    with pytest.raises(FedGraphError, match="day and month are ambiguous"):
        made({"when": ["01/02/2024", "03/04/2024"]})


def test_words_for_nothing_are_missing_in_numbers_but_not_in_categories():
    node_features, _ = made(
        {"age": ["1", "NaN", "null", "4"], "kind": ["none", "some", "none", "some"]}, scaling="none"
    )
    columns = by_name(node_features)
    assert columns["age"].tolist() == [1, 2.5, 2.5, 4]
    assert "kind=none" in columns
    assert "kind missing" not in columns


def test_values_that_do_not_differ_become_zero():
    node_features, _ = made({"year": [0.1] * 7, "x": list(range(7))})
    np.testing.assert_allclose(by_name(node_features)["year"], 0, atol=1e-6)


def test_statistics_of_the_schema_go_before_those_of_the_table():
    column = Column(statistics={"center": 10.0, "spread": 5.0})
    assert fit(column, np.array([1.0, 2.0]), "local").statistics == {"fill": 1.5, "center": 10.0, "spread": 5.0}


def test_new_rows_become_features_as_the_old_ones():
    """By the fitted columns alone: a table of one row gives the row it was in the first table."""
    columns = {
        "age": ["1", "5", None, "9"],
        "job": ["a", "b", "b", None],
        "d": ["2024-01-01", "2024-01-05", "2024-02-01", ""],
    }
    node_features, _ = made(columns)
    schema = Schema(("x", "y"), {"node": node_features.fitted})
    for row in range(4):
        one = pd.DataFrame({name: [values[row]] for name, values in columns.items()}, dtype=str)
        again = features("node", one, list(one), "new.csv", Treatment(schema=schema, where="s.yaml"))
        torch.testing.assert_close(again.x[0], node_features.x[row])


def test_many_words_are_cut_to_the_most_frequent():
    count = {f"w{i}": 100 - i for i in range(80)} | {"rare": 1}
    kept = frequent(count, 5)
    assert len(kept) == 50
    assert set(kept) == {f"w{i}" for i in range(50)}


@pytest.mark.parametrize(("largest", "warned"), [(50.0, False), (5000.0, True)])
def test_unscaled_features_get_a_warning(largest, warned):
    lines = []
    warn_unscaled(torch.tensor([[0.0, 1.0], [largest, 0.5]]), ["income", "flag"], lines.append)
    assert bool(lines) == warned
    assert all("'income' reaches 5000" in text for text in lines)
