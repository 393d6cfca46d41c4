"""Amounts in several currencies are converted by the party's rates, or refused; they are never added up."""

import pandas as pd
import pytest

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.party_file import PartyFile
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.edges import amounts_of


def table(*rows):
    return pd.DataFrame(rows, columns=["amount", "ccy", "country"])


MIXED = table(("10.00", "EUR", "DE"), ("20.00", "USD", "US"), ("5.00", "EUR", "FR"))


def test_several_currencies_without_rates_are_refused():
    expected = r"in several currencies \(column 'ccy': EUR 2, USD 1\).* pass rates.EUR=VALUE"
    with pytest.raises(FedGraphError, match=expected):
        amounts_of(MIXED, "amount", "t.csv", Treatment())
    with pytest.raises(FedGraphError, match=r"pass rates\.USD=VALUE"):
        amounts_of(MIXED, "amount", "t.csv", Treatment(rates={"EUR": 1.0}))


def test_rates_of_the_party_convert_each_amount():
    party = PartyFile(party="a", nodes="n", edges="e", rates={"EUR": "1", "USD": "0.9"})
    amounts = amounts_of(MIXED, "amount", "t.csv", Treatment(**party.formats))
    assert amounts.tolist() == [1000, 1800, 500]
    dollars = amounts_of(table(("20.00", "USD", "US")), "amount", "t.csv", Treatment(**party.formats))
    assert dollars.tolist() == [1800], "also a file with one of them"


def test_one_currency_needs_no_rate_and_other_columns_are_none():
    one = MIXED.assign(ccy="EUR")
    assert amounts_of(one, "amount", "t.csv", Treatment()).tolist() == [1000, 2000, 500]
    countries = MIXED.drop(columns="ccy").assign(currency_risk=["0.1", "0.7", "2"], cross_currency=["yes", "no", ""])
    assert amounts_of(countries, "amount", "t.csv", Treatment()).tolist() == [1000, 2000, 500]


def test_names_of_currencies_are_found_by_the_name_of_their_column():
    names = MIXED.assign(ccy=["Euro", "US Dollar", "Euro"]).rename(columns={"ccy": "Payment Currency"})
    with pytest.raises(FedGraphError, match=r"column 'Payment Currency': Euro 2, US Dollar 1"):
        amounts_of(names, "amount", "t.csv", Treatment())


def test_two_columns_of_currencies_are_refused():
    both = MIXED.assign(received_currency=["USD", "USD", "EUR"])
    with pytest.raises(FedGraphError, match=r"several columns of currencies \(ccy, received_currency\)"):
        amounts_of(both, "amount", "t.csv", Treatment(rates={"EUR": 1.0, "USD": 0.9}))


@pytest.mark.parametrize("value", ["0", "x", "-1", "inf"])
def test_a_rate_is_a_positive_number(value):
    with pytest.raises(FedGraphError, match=f"rates USD={value}: expected the value of one unit"):
        PartyFile(party="a", nodes="n", edges="e", rates={"USD": value})
