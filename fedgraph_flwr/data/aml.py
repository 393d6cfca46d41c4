"""IBM's synthetic payments for anti money laundering (Altman et al., NeurIPS 2023), from Kaggle's CSV files.

Each row of ``<name>_Trans.csv`` is a payment: time, bank and account that pay, bank and account that receive, amount and currency
received, amount and currency paid, format, and whether it is laundering. Accounts are nodes without features.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.config import number
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.payments import ColumnKeys, Ints, Payments, as_graph, computed, keys_of
from fedgraph_flwr.errors import FedGraphError, first_line

HEADER = (
    "Timestamp,From Bank,Account,To Bank,Account,Amount Received,Receiving Currency,Amount Paid,Payment Currency,"
    "Payment Format,Is Laundering"
)
TIME, FROM_BANK, FROM_ACCOUNT, TO_BANK, TO_ACCOUNT, _, _, PAID, CURRENCY, FORMAT, LABEL = range(11)


@dataclass
class AmlSpec(ColumnKeys):
    """The keys of ``conf/dataset/aml.yaml``."""

    parties: int = number(10, low=1)  # groups of banks; the bank with the k-th most accounts joins group k mod parties


def read(folder: Path, params: dict[str, Any]) -> Graph:
    """Read a file of payments; its groups are ``parties`` groups of banks.

    Features of a payment are ln(1 + amount paid) / 10, flags of its currency and format, then computed columns. None is
    fitted to the data, so later payments change no earlier one's.

    Args:
        folder: where the file is.
        params: keys of the dataset, and its name.

    Raises:
        FedGraphError: a key that is not accepted, another header, or a row that is not a payment.
    """
    import pandas as pd

    path = folder / f"{params['name']}_Trans.csv"
    spec = keys_of(AmlSpec, {key: value for key, value in params.items() if key not in ("name", "collection")}, "aml")
    with path.open(encoding="utf-8-sig") as file:
        head = file.readline().strip().replace("Account.1", "Account")
    if head != HEADER:
        raise FedGraphError(f"{path} has the columns '{head[:200]}', expected '{HEADER}': fetch the file again")
    wanted = [TIME, FROM_BANK, FROM_ACCOUNT, TO_BANK, TO_ACCOUNT, PAID, CURRENCY, FORMAT, LABEL]
    texts = dict.fromkeys((FROM_BANK, FROM_ACCOUNT, TO_BANK, TO_ACCOUNT, CURRENCY, FORMAT), "category")
    types: dict[int, Any] = {TIME: str, PAID: np.float64, LABEL: np.int64, **texts}
    try:
        table = pd.read_csv(path, skiprows=1, header=None, names=range(11), usecols=wanted, dtype=types)
        seconds = (
            pd.to_datetime(table[TIME], format="%Y/%m/%d %H:%M").to_numpy().astype("datetime64[s]").astype(np.int64)
        )
    except ValueError as error:
        raise FedGraphError(
            f"{path} has a row that is not a payment ({first_line(error)}): fetch the file again"
        ) from error
    amount, label = table[PAID].to_numpy(), table[LABEL].to_numpy()
    if table.isna().to_numpy().any() or not np.isin(label, (0, 1)).all() or not (amount >= 0).all():
        raise FedGraphError(
            f"{path} has a row with an empty cell, a negative amount, or a label that is neither 0 nor 1: fetch the file again"
        )
    bank, ends = _accounts(table)
    size = np.bincount(bank)
    rank = np.empty_like(size)
    rank[np.argsort(-size, kind="stable")] = np.arange(size.size)
    party = rank[bank] % spec.parties
    order = np.argsort(party, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    by_time = np.argsort(seconds, kind="stable")
    form, none = table[FORMAT].cat.codes.to_numpy().astype(np.int64), np.zeros(seconds.size, dtype=np.int64)
    p = Payments(
        bank=party[order],
        kind=np.zeros(order.size, dtype=np.int64),
        source=place[ends[0]][by_time],
        target=place[ends[1]][by_time],
        time=seconds[by_time],
        amount=amount[by_time],
        form=form[by_time],
        label=label[by_time].astype(bool),
        role=none,
        pattern=none - 1,
    )
    currency = table[CURRENCY].cat.codes.to_numpy()[by_time]
    columns = [np.log1p(p.amount)[:, None] / 10, _flags(currency), _flags(p.form), computed(p, spec)]
    return as_graph(p, spec, np.concatenate(columns, axis=1), "aml")


def _accounts(table: Any) -> tuple[Ints, Ints]:
    """Return the bank of each account, by number of first appearance [N], and the accounts of each payment [2, E]."""
    import pandas as pd

    both = [np.concatenate([table[first].astype(str), table[second].astype(str)]) for first, second in ENDS]
    bank, account = (pd.factorize(texts)[0].astype(np.int64) for texts in both)
    code = pd.factorize(bank * (1 + int(account.max(initial=0))) + account)[0]
    owner = np.empty(1 + int(code.max(initial=-1)), dtype=np.int64)
    owner[code] = bank
    return owner, code.reshape(2, -1).astype(np.int64)


ENDS = ((FROM_BANK, TO_BANK), (FROM_ACCOUNT, TO_ACCOUNT))


def _flags(codes: Ints) -> np.ndarray:
    """Return one column of 0 and 1 per code [E, K]."""
    return np.eye(1 + int(codes.max(initial=-1)), dtype=np.float64)[codes]
