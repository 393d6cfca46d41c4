"""Published payments between banks, from files put there by hand: IBM's, and those of AMLGentex.

Each row is a payment, and accounts are nodes. Features of a payment are ln(1 + amount) / 10, flags of its kind, then the columns
that `payments` computes. None is fitted to the data, so later payments change no earlier one's.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgraph_flwr.config import number, typed
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.payments import DAY, ColumnKeys, Ints, Payments, as_graph, computed
from fedgraph_flwr.errors import FedGraphError, first_line

HEADER = (
    "Timestamp,From Bank,Account,To Bank,Account,Amount Received,Receiving Currency,Amount Paid,Payment Currency,"
    "Payment Format,Is Laundering"
)
TIME, FROM_BANK, FROM_ACCOUNT, TO_BANK, TO_ACCOUNT, _, _, PAID, CURRENCY, FORMAT, LABEL = range(11)
ENDS = ((FROM_BANK, TO_BANK), (FROM_ACCOUNT, TO_ACCOUNT))

TX_LOG, ACCOUNTS = "temporal/tx_log.parquet", "spatial/accounts.csv"
"""Files that an experiment of AMLGentex writes."""


@dataclass
class AmlSpec(ColumnKeys):
    """The keys of ``conf/dataset/aml.yaml``."""

    parties: int = number(10, low=1)  # groups of banks; the bank with the k-th most accounts joins group k mod parties


@dataclass
class GentexSpec(ColumnKeys):
    """The keys of ``conf/dataset/amlgentex.yaml``."""

    parties: int | None = number(None, low=1)  # groups of banks, as in AmlSpec; null: each bank


@dataclass(frozen=True)
class PaymentRows:
    """Payments of a file, in its order.

    Attributes:
        party: of each account [N].
        ends: paying and receiving account [2, E].
        seconds: time [E].
        amount: at least 0 [E].
        label: 0 or 1 [E].
        flags: kinds of payments, as codes [E] and their number.
    """

    party: Ints
    ends: Ints
    seconds: Ints
    amount: NDArray[np.float64]
    label: Ints
    flags: Sequence[tuple[Ints, int]] = ()

    def graph(self, spec: ColumnKeys, name: str) -> tuple[Graph, Ints]:
        """Return the graph, whose groups are parties, and the account that each node is [N]."""
        order = np.argsort(self.party, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        by_time = np.argsort(self.seconds, kind="stable")
        none = np.zeros(self.seconds.size, dtype=np.int64)
        p = Payments(
            bank=self.party[order],
            kind=np.zeros(order.size, dtype=np.int64),
            source=place[self.ends[0]][by_time],
            target=place[self.ends[1]][by_time],
            time=self.seconds[by_time],
            amount=self.amount[by_time],
            form=none,
            label=self.label[by_time].astype(bool),
            role=none,
            pattern=none - 1,
        )
        columns = [np.log1p(p.amount)[:, None] / 10, *(np.eye(count)[codes[by_time]] for codes, count in self.flags)]
        return as_graph(p, spec, np.concatenate([*columns, computed(p, spec)], axis=1), name), order


def aml(folder: Path, params: dict[str, Any]) -> Graph:
    """Read IBM's payments for anti money laundering (Altman et al., NeurIPS 2023); groups are ``parties`` groups of banks.

    Each row of ``<name>_Trans.csv`` is a payment: time, bank and account that pay, bank and account that receive, amount and
    currency received, amount and currency paid, format, and whether it is laundering. Flags are currency and format.

    Args:
        folder: where the file is.
        params: keys of the dataset, and its name.

    Raises:
        FedGraphError: a key that is not accepted, another header, or a row that is not a payment.
    """
    import pandas as pd

    path, spec = folder / f"{params['name']}_Trans.csv", spec_of(AmlSpec, params, "aml")
    with path.open(encoding="utf-8-sig") as file:
        head = file.readline().strip().replace("Account.1", "Account")
    if head != HEADER:
        raise _damaged(path, f"the columns '{head[:200]}', expected '{HEADER}'")
    wanted = [TIME, FROM_BANK, FROM_ACCOUNT, TO_BANK, TO_ACCOUNT, PAID, CURRENCY, FORMAT, LABEL]
    texts = dict.fromkeys((FROM_BANK, FROM_ACCOUNT, TO_BANK, TO_ACCOUNT, CURRENCY, FORMAT), "category")
    types: dict[int, Any] = {TIME: str, PAID: np.float64, LABEL: np.int64, **texts}
    try:
        table = pd.read_csv(path, skiprows=1, header=None, names=range(11), usecols=wanted, dtype=types)
        moment = pd.to_datetime(table[TIME], format="%Y/%m/%d %H:%M").to_numpy()
    except ValueError as error:
        raise _damaged(path, f"a row that is not a payment ({first_line(error)})") from error
    amount, label = _checked(path, table, PAID, LABEL)
    both = [np.concatenate([table[first].astype(str), table[second].astype(str)]) for first, second in ENDS]
    bank, account = (pd.factorize(texts)[0].astype(np.int64) for texts in both)
    code = pd.factorize(bank * (1 + int(account.max(initial=0))) + account)[0].astype(np.int64)
    owner = np.empty(1 + int(code.max(initial=-1)), dtype=np.int64)
    owner[code] = bank
    kinds = [
        (table[key].cat.codes.to_numpy().astype(np.int64), len(table[key].cat.categories)) for key in (CURRENCY, FORMAT)
    ]
    seconds = moment.astype("datetime64[s]").astype(np.int64)
    return PaymentRows(_dealt(owner, spec.parties), code.reshape(2, -1), seconds, amount, label, kinds).graph(
        spec, "aml"
    )[0]


def amlgentex(folder: Path, params: dict[str, Any]) -> Graph:
    """Read the output folder of an experiment of AMLGentex (AI Sweden, Handelsbanken and Swedbank, arXiv:2506.13989).

    Rows of ``temporal/tx_log.parquet`` between two accounts are payments (``isSAR``: label); a step is a day. Income from
    outside (source) and spending (sink) are left out, as are pattern and model of a payment, which give the label away, and
    balances. Accounts are those of ``spatial/accounts.csv``: label ``IS_SAR``, features age / 100, ln(1 + salary) / 10 and
    ln(1 + initial balance) / 10. Groups are banks by ``BANK_ID``, the largest first.

    Args:
        folder: that of the experiment.
        params: keys of the dataset, and its name.

    Raises:
        FedGraphError: a key that is not accepted, a missing column, a row that is not a payment, or an account without a row.
    """
    import pandas as pd
    import pyarrow.parquet

    log, listed, spec = folder / TX_LOG, folder / ACCOUNTS, spec_of(GentexSpec, params, "amlgentex")
    wanted = ["step", "nameOrig", "nameDest", "bankOrig", "bankDest", "amount", "isSAR"]
    known = ["ACCOUNT_ID", "INIT_BALANCE", "SALARY", "AGE", "IS_SAR", "BANK_ID"]
    _has(log, pyarrow.parquet.read_schema(log).names, wanted)
    _has(listed, pd.read_csv(listed, nrows=0).columns, known)
    accounts = pd.read_csv(listed, usecols=known, dtype={"BANK_ID": str, "IS_SAR": str})
    table = pd.read_parquet(log, columns=wanted)
    table = table[(table["bankOrig"].astype(str) != "source") & (table["bankDest"].astype(str) != "sink")]
    amount, label = _checked(log, table, "amount", "isSAR")
    suspicious = accounts["IS_SAR"].str.lower()
    incomplete = accounts.isna().to_numpy().any() or accounts["ACCOUNT_ID"].duplicated().any()
    if incomplete or not suspicious.isin(("true", "false")).all():
        raise _damaged(listed, "an empty cell, an account twice, or an IS_SAR other than true and false")
    ids = pd.Index(accounts["ACCOUNT_ID"])
    ends = np.stack([ids.get_indexer(table[key]) for key in ("nameOrig", "nameDest")]).astype(np.int64)
    if (unknown := (ends < 0).any(axis=0)).any():
        row = table[unknown].iloc[0]
        ends_of = f"from {row['nameOrig']} to {row['nameDest']}: use both files of the same experiment"
        raise FedGraphError(
            f"{log} has {unknown.sum()} payments of accounts that {listed} does not list, such as {ends_of}"
        )
    party = _dealt(pd.factorize(accounts["BANK_ID"])[0].astype(np.int64), spec.parties)
    rows = PaymentRows(party, ends, table["step"].to_numpy(np.int64) * DAY, amount, label)
    graph, order = rows.graph(spec, "amlgentex")
    money = np.log1p(accounts[["SALARY", "INIT_BALANCE"]].to_numpy(np.float64).clip(min=0)) / 10
    features = np.concatenate([accounts[["AGE"]].to_numpy(np.float64) / 100, money], axis=1)[order].astype(np.float32)
    y = (suspicious == "true").to_numpy(np.int64)[order]
    return replace(graph, x=torch.cat([graph.x, torch.from_numpy(features)], dim=1), y=torch.from_numpy(y))


def spec_of(kind: Any, params: dict[str, Any], name: str) -> Any:
    """Return the keys of a dataset."""
    keys = {key: value for key, value in params.items() if key not in ("name", "collection")}
    return typed(kind, keys, f"dataset={name}")


def _has(path: Path, columns: Collection[str], wanted: Collection[str]) -> None:
    """Check the columns of a file."""
    if missing := [name for name in wanted if name not in list(columns)]:
        raise _damaged(path, f"no column {', '.join(missing)}, but {', '.join(map(str, columns))}")


def _damaged(path: Path, what: str) -> FedGraphError:
    return FedGraphError(f"{path} has {what}: fetch the file again")


def _checked(path: Path, table: Any, amounts: Any, labels: Any) -> tuple[NDArray[np.float64], Ints]:
    """Return the amounts and the labels of payments."""
    amount, label = table[amounts].to_numpy(np.float64), table[labels].to_numpy(np.int64)
    if table.isna().to_numpy().any() or not np.isin(label, (0, 1)).all() or not (amount >= 0).all():
        raise _damaged(path, "a row with an empty cell, a negative amount, or a label that is neither 0 nor 1")
    return amount, label


def _dealt(bank: Ints, parties: int | None) -> Ints:
    """Return the party of each account [N]: the bank with the k-th most accounts joins party k mod ``parties``, None: party k."""
    size = np.bincount(bank)
    rank = np.empty_like(size)
    rank[np.argsort(-size, kind="stable")] = np.arange(size.size)
    return rank[bank] % (parties or size.size)
