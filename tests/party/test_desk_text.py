"""First sentences of a party's pages: the finding next to what chance gives."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from fedgraph_flwr.evaluation.verdict import verdict
from fedgraph_flwr.party.use.alerts import figures
from fedgraph_flwr.party.use.pages import right_of_100, worth_text


def test_alerts_stand_next_to_a_random_choice():
    """One of ten alerts is right, and 20 of 100 items are positive: at random, twice as many would be right."""
    margin, y = np.zeros(100), np.zeros(100, dtype=np.int64)
    margin[:10], y[:1], y[81:] = 5.0, 1, 1
    choice = SimpleNamespace(threshold=0.0, test=figures(margin, y, None, 1.0), validation={})
    text = right_of_100(choice)
    assert text.startswith("About 10 (")
    assert text.endswith(" of 100 alerts are right (random picks: 20); they find 5 % of the positives, on test items.")
    assert right_of_100(SimpleNamespace(threshold=0.0, test={}, validation={})) == ""
    assert right_of_100(SimpleNamespace(threshold=float("inf"), test={}, validation={})).startswith(
        "No item is an alert"
    )
    choice.test = figures(margin, np.zeros_like(y), None, 1.0)
    assert right_of_100(choice) == "How many alerts are right is not known: none of the 100 test items is positive."


def test_rates_of_alerts_are_whole_numbers():
    at = {"items": 100_000, "positives": 120, "precision": (0.16666, 0.0769, 0.2833)}
    text = right_of_100(SimpleNamespace(threshold=0.0, test=at, validation={}))
    assert text == "About 17 (8 to 28) of 100 alerts are right (random picks: fewer than 1), on test items."


@pytest.mark.parametrize(
    ("low", "high", "margin", "sign", "expected"),
    [
        (0.02, 0.05, 0.01, 1, "better"),
        (-0.05, -0.02, 0.01, 1, "worse"),
        (0.02, 0.05, 0.01, -1, "worse"),
        (-0.005, 0.009, 0.01, 1, "level"),
        (0.002, 0.009, 0.01, 1, "level"),
        (-0.005, 0.02, 0.01, 1, "not decided"),
        (float("nan"), float("nan"), 0.01, 1, "not decided"),
        (0.0, 0.0, 0.0, 1, "level"),
        (0.001, 0.002, 0.0, 1, "better"),
    ],
)
def test_one_vocabulary(low, high, margin, sign, expected):
    assert verdict(low, high, margin, sign) == expected


def test_worth_begins_with_what_it_decides():
    rows = [
        ("Local", 0.0, 0.0, 0.0, ""),
        ("FedAvg", -0.003, -0.031, 0.015, "not decided"),
        ("Boosting", 0.1, 0.05, 0.15, "better"),
    ]
    table = pd.DataFrame(rows, columns=["run", "difference", "difference_low", "difference_high", "verdict"])
    table = table.assign(metric="accuracy", seeds=1)
    assert worth_text(table) == (
        "For this party FedAvg is not shown to help (not decided): −0.3 points to Local (−3.1 to +1.5), 1 seed."
        " Boosting helps this party: +10.0 points to Local (+5.0 to +15.0), 1 seed."
    )
