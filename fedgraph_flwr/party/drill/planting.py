"""A party's part of a drill: a copy of its book in which agreed patterns are planted on ordinary accounts, imported.

The copy has the columns that payments need and no others: no labels, no data of accounts. Planted payments have the label of the
plan, which no real label has, and their references start with it. The party alone knows which account takes a slot. Other books
call that account by the slot's name, and the imported file has this name for its planted records only (`link.files.ALIASES`), so
that both records of a payment match like real ones.

    plan.yaml              the plan
    drill_accounts.csv     ids of all accounts
    drill_payments.csv     all payments, then the planted ones
    drill_slots.csv        which account takes which slot; it stays at the party
    party.yaml             as of `init-party`; and the client file that its import writes
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.book import DAY
from fedgraph_flwr.data.features import BEFORE, WHOLE
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.graph import ClientGraph, unpack_words
from fedgraph_flwr.data.schema import TableLayout, flow
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.book.rows import party_of
from fedgraph_flwr.party.drill.plan import STAGES, Pattern, Plan
from fedgraph_flwr.party.link.files import ALIASES
from fedgraph_flwr.party.options import run_quietly
from fedgraph_flwr.party.party_file import PartyFile
from fedgraph_flwr.party.secret import party_secret
from fedgraph_flwr.party.tables import import_command
from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.edges import amounts_of, edge_times
from fedgraph_flwr.party.tables.nodes import column_of
from fedgraph_flwr.party.tables.parties import BETWEEN, PartyRule, fold, normal_ids, parties_of, record_values
from fedgraph_flwr.party.tables.reading import read_table

Ints = NDArray[np.int64]

PLAN, SLOTS, ACCOUNTS, PAYMENTS, PARTY = (
    "plan.yaml",
    "drill_slots.csv",
    "drill_accounts.csv",
    "drill_payments.csv",
    "party.yaml",
)
ORDINARY = "ordinary"
"""Class of payments that are not planted."""

MIDDLE = 0.1, 0.9
"""Quantiles between which the number and the sum of payments of an ordinary account are."""


@dataclass
class Book:
    """A party's own book.

    Attributes:
        party: its party's file.
        files: the originals: the party's file, both tables, and the files that they name.
        ids: account ids as written [N].
        source: payer of each payment as written [E]; likewise ``target``.
        parties: party of each payer and of each receiver, in normal form [2, E].
        time: in seconds [E].
        cents: amounts [E].
        keys: values of the match columns in normal form [K, E].
        layout: names of columns, by the party's file or the schema.
    """

    party: PartyFile
    files: list[Path]
    ids: NDArray[Any]
    source: NDArray[Any]
    target: NDArray[Any]
    parties: list[NDArray[Any]]
    time: Ints
    cents: Ints
    keys: list[list[str]]
    layout: TableLayout

    @property
    def dates(self) -> bool:
        """Whether no time has hours."""
        return not bool((self.time % DAY).any())

    @property
    def own(self) -> list[NDArray[np.bool_]]:
        """Which payers and receivers are own accounts [2, E]."""
        name = fold([self.party.party])[0]
        return [names == name for names in self.parties]

    def ordinary(self) -> list[str]:
        """Return the ids of ordinary accounts, sorted: number and sum of their payments are no extremes (`MIDDLE`)."""
        form = self.layout.id_form or "text"
        names, place = np.unique(normal_ids(self.ids, form), return_index=True)
        count, total = np.zeros(names.size, dtype=np.int64), np.zeros(names.size)
        for ends, mask in zip((self.source, self.target), self.own, strict=True):
            words = normal_ids(ends[mask], form)
            at = np.searchsorted(names, words).clip(max=max(names.size - 1, 0))
            known = names[at] == words
            np.add.at(count, at[known], 1)
            np.add.at(total, at[known], self.cents[mask][known])
        used = np.flatnonzero(count)
        kept = np.ones(used.size, dtype=bool)
        for values in (count[used], total[used]):
            if values.size:
                low, high = np.quantile(values, MIDDLE)
                kept &= (values >= low) & (values <= high)
        return sorted(str(self.ids[at]) for at in place[used[kept]])


def read_book(where: Path) -> Book:
    """Read a party's book as its file describes it.

    Args:
        where: the party's file, or its folder.

    Raises:
        FedGraphError: a table or column is missing, payments have no times or amounts, or they do not name parties.
    """
    path = where / PARTY if where.is_dir() else where
    party, folder = party_of(where)
    files = [path, *(file for key in ("nodes", "edges", "schema", "out") if (file := party.path(key, folder)))]
    schema = party.schema_in(folder)
    layout = replace(
        party.layout, label="", split="", edge_label="", edge_id="", graph="", recipe="", day="", currency=""
    )
    layout = layout.over(schema.tables) if schema else layout
    layout = layout.over(TableLayout(id="id", source="source", target="target"))
    for key, what in (("time", "times"), ("amount", "amounts")):
        if not getattr(layout, key):
            raise FedGraphError(
                f"{path} names no column with {what} of payments, which the patterns of a drill need: add columns.{key}"
            )
    if not (layout.party_columns or layout.party_prefix):
        raise FedGraphError(
            f"{path} does not say which party has the accounts of a payment: add party_columns or party_prefix, as `init-party`"
            " does"
        )
    if not (party.nodes and party.edges):
        raise FedGraphError(f"{path} has no nodes or no edges: a drill needs a table of accounts and one of payments")
    named = layout.party_columns, layout.party_prefix, layout.match_columns, layout.id_form
    if (rule := PartyRule.parse(party.party, *named)) is None:
        raise FedGraphError(f"{path} names no party: add party, its name in the payments")
    nodes, edges = str(folder / party.nodes), str(folder / party.edges)
    people, table, treatment = read_table(nodes, layout), read_table(edges, layout), Treatment(**party.formats)
    ends = [as_words(column_of(table, name, edges, "end of edges")) for name in (layout.source, layout.target)]
    parties = [fold(names) for names in parties_of(table, ends, rule, edges)]
    values = record_values(table, np.arange(len(table)), rule, edges, treatment)
    keys = [list(column) for column in zip(*(value.split(BETWEEN) for value in values.tolist()), strict=True)]
    return Book(
        party=party,
        files=[*files, Path(nodes), Path(edges)],
        ids=as_words(column_of(people, layout.id, nodes, "id")),
        source=ends[0],
        target=ends[1],
        parties=parties,
        time=edge_times(table, layout.time, edges, treatment).numpy(),
        cents=amounts_of(table, layout.amount, edges, treatment),
        keys=keys if rule.key else [],
        layout=layout,
    )


def check_folder(out: Path, books: list[Book]) -> None:
    """Refuse an output folder that is not new, or that holds an original.

    Raises:
        FedGraphError: names the folder.
    """
    inside = [file for book in books for file in book.files if file.resolve().is_relative_to(out.resolve())]
    if inside:
        raise FedGraphError(
            f"--out {out} holds the original {inside[0]}, which a drill never changes: pass a new folder"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FedGraphError(f"--out {out} is not a new folder: pass one, so that no drill is mixed with other files")


@dataclass
class Planted:
    """What a party planted.

    Attributes:
        accounts: number of accounts that take a slot, and of ordinary ones.
        payments: number of planted payments in the party's book, and of those with other parties.
    """

    accounts: tuple[int, int]
    payments: tuple[int, int]


def plant(plan: Plan, book: Book, out: Path, client: int, secret_seed: int | None = None) -> Planted:
    """Write a party's copy with its part of the plan, and import it.

    Args:
        plan: the plan.
        book: the party's book.
        out: new folder.
        client: the party's number in runs.
        secret_seed: derive the party's secret from it, for simulations.

    Raises:
        FedGraphError: the plan does not name the party, the book does not have the plan's days or hours, or it has too few
            ordinary accounts.
    """
    me, name = plan.party(book.party.party), book.party.party
    check_folder(out, [book])
    _check_times(plan, book)
    whole = replace(plan, hold_out=[]).patterns  # accounts do not depend on what is held out
    ordinary, wanted = book.ordinary(), sum(pattern.parties.count(me) for pattern in whole)
    if wanted > len(ordinary):
        raise FedGraphError(
            f"the plan has {wanted} accounts at party '{name}', which has {len(ordinary)} ordinary ones of {len(book.ids)}: lower"
            " counts, size or kinds"
        )
    secret = party_secret(out.absolute(), client, secret_seed)
    seed = hashlib.sha256(f"fedgraph drill accounts {secret} {plan.seed}".encode()).digest()
    drawn = np.random.default_rng(list(seed)).choice(len(ordinary), wanted, replace=False)
    places = [
        (pattern.number, member) for pattern in whole for member, party in enumerate(pattern.parties) if party == me
    ]
    present = {pattern.number for pattern in plan.patterns}
    slots = {slot: ordinary[at] for slot, at in zip(places, drawn, strict=True) if slot[0] in present}
    rows = [row for pattern in plan.patterns for row in planted_rows(pattern, plan, slots, me)]
    _write(plan, book, out, client, slots, rows)
    crossing = _import(plan, out, client, slots, secret_seed)
    return Planted((len(slots), len(ordinary)), (len(rows), crossing))


def planted_rows(
    pattern: Pattern, plan: Plan, slots: dict[tuple[int, int], str], me: int
) -> list[tuple[str, str, str, str, int, int, str]]:
    """Return the payments of a pattern as a party books them: parties and accounts of both ends, time, cents and reference.

    An own end is the account that takes the slot. The other end has the slot's name.

    Args:
        pattern: the pattern.
        plan: its plan.
        slots: own account of each slot, by pattern and member.
        me: position of the party in the plan.
    """
    rows = []
    for transfer in pattern.transfers:
        ends = transfer.source, transfer.target
        parties = [pattern.parties[end] for end in ends]
        if me not in parties:
            continue
        accounts = [
            slots[pattern.number, end] if party == me else pattern.names[end]
            for end, party in zip(ends, parties, strict=True)
        ]
        first, second = (plan.parties[party] for party in parties)
        rows.append((first, accounts[0], second, accounts[1], transfer.time, transfer.cents, transfer.reference))
    return rows


def _check_times(plan: Plan, book: Book) -> None:
    if book.dates and not plan.dates:
        raise FedGraphError(
            f"party '{book.party.party}' records dates without hours, and the plan plants hours: agree on a plan with dates: true"
        )
    first, last = int(book.time.min(initial=0)), int(book.time.max(initial=0))
    begin, end = plan.periods[0][0], plan.periods[2][1]
    if not len(book.time) or first // DAY > begin // DAY or last // DAY < end // DAY - 1:
        raise FedGraphError(
            f"party '{book.party.party}' has payments of days {first // DAY} to {last // DAY} since 1970, and the plan needs"
            f" {begin // DAY} to {end // DAY - 1}: agree on a plan with days that all tables have"
        )


def _write(
    plan: Plan, book: Book, out: Path, client: int, slots: dict[tuple[int, int], str], planted: list[tuple[Any, ...]]
) -> None:
    """Write the copy's files; ``planted`` has the party's payments of the plan."""
    import pandas as pd

    columns = list(zip(*planted, strict=True)) or [()] * 7
    spelled = dict(zip(fold(plan.parties).tolist(), plan.parties, strict=True))
    banks = [[spelled.get(word, word) for word in words.tolist()] for words in book.parties]
    cents = [*book.cents.tolist(), *columns[5]]
    table = {
        "payment": [*map(str, range(1, len(book.time) + 1)), *columns[6]],
        "from_party": [*banks[0], *columns[0]],
        "source": [*book.source.tolist(), *columns[1]],
        "to_party": [*banks[1], *columns[2]],
        "target": [*book.target.tolist(), *columns[3]],
        "time": [*book.time.tolist(), *columns[4]],
        "amount": [f"{value / 100:.2f}" for value in cents],
        "drill": [ORDINARY] * len(book.time) + [plan.label] * len(planted),
    }
    kinds = [word.rpartition(":")[2] for word in book.layout.match_columns.split(",") if word]
    match = {}
    for place, (kind, values) in enumerate(zip(kinds, book.keys, strict=True)):
        table[f"match_{place}"] = [*values, *(_match_value(kind, row) for row in planted)]
        match[f"match_{place}"] = "text"
    last = [str(end - 1) for _, end in plan.periods[:2]]
    party = {
        "party": plan.parties[plan.party(book.party.party)],
        "client": client,
        "nodes": ACCOUNTS,
        "edges": PAYMENTS,
        "schema": "schema.yaml",
        "out": f"client_{client:04d}.safetensors",
        "columns": {
            "id": "id",
            "source": "source",
            "target": "target",
            "time": "time",
            "amount": "amount",
            "edge_label": "drill",
            "edge_id": "payment",
        },
        "party_columns": ["from_party", "to_party"],
        "match": match,
        "id_form": book.layout.id_form,
        "features": book.layout.recipe or book.party.features or "payments",
        "windows": book.layout.windows,
        "day": WHOLE if plan.dates else BEFORE,
        "edge_classes": [ORDINARY, plan.label],
        "split": "temporal",
        "until": last,
    }
    lines = ["# A drill: planted payments in a copy of this party's book. It is no data about real accounts."]
    lines += [f"{key}: {flow(value)}" for key, value in party.items() if value not in ("", {})]
    plan.save(out / PLAN)
    write_bytes(out / PARTY, ("\n".join(lines) + "\n").encode())
    write_bytes(out / ACCOUNTS, pd.DataFrame({"id": book.ids}).to_csv(index=False).encode())
    write_bytes(out / PAYMENTS, pd.DataFrame(table).to_csv(index=False).encode())
    by_number = {pattern.number: pattern for pattern in plan.patterns}
    rows = [
        (account, number, by_number[number].kind, STAGES[by_number[number].stage], by_number[number].names[member])
        for (number, member), account in slots.items()
    ]
    listed = pd.DataFrame(rows, columns=["account", "pattern", "kind", "stage", "name"])
    write_bytes(out / SLOTS, listed.to_csv(index=False).encode())


def _match_value(kind: str, row: tuple[Any, ...]) -> str:
    """Return the value of a match column of a planted payment, alike at both parties."""
    *_, time, cents, reference = row
    day = str(np.datetime64(int(time) // DAY, "D"))
    return {"date": day, "amount": f"{cents / 100:.2f}"}.get(kind, reference)


def _import(plan: Plan, out: Path, client: int, slots: dict[tuple[int, int], str], secret_seed: int | None) -> int:
    """Import the copy, and give planted records the names of their slots; return the number of these records."""
    run_quietly(
        import_command, [str(out / PARTY), *([] if secret_seed is None else ["--secret-seed", str(secret_seed)])]
    )
    path = out / f"client_{client:04d}.safetensors"
    graph = ClientGraph.load(path)
    names = {name: pattern for pattern in plan.patterns for name in pattern.names}
    by_account = {account: (number, member) for (number, member), account in slots.items()}
    ids, aliases = unpack_words(graph.ids), []
    for row, far in enumerate(unpack_words(graph.foreign_id).tolist() if graph.foreign_id.size(1) else []):
        if pattern := names.get(far):
            _, member = by_account[str(ids[int(graph.foreign[0, row])])]
            aliases.append([row, pattern.names[member]])
    graph.linking[ALIASES] = aliases
    graph.save(path)
    return len(aliases)
