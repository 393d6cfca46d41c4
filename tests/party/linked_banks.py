"""Tables of three banks whose payments cross, and the whole graph that a plain join of the tables gives."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedgraph_flwr.data.graph import ClientGraph, Graph, unpack_words
from fedgraph_flwr.data.pyg import client_graph
from fedgraph_flwr.data.schema import Schema
from fedgraph_flwr.party.link.files import canonical
from fedgraph_flwr.party.secret import party_secret
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_tables
from fedgraph_flwr.party.tables.roles import Columns

BANKS = "ABC"
KEY = ["from_bank", "source", "to_bank", "target", "date", "amount", "ref"]
MATCH = "date:date,amount:amount,ref"


def once(book: pd.DataFrame, bank: str) -> pd.DataFrame:
    """A bank's book, in which a payment between two of its accounts stands once although both sides were booked."""
    mask = (book.from_bank == bank) & (book.to_bank == bank)
    return book[~(mask & book.duplicated(KEY) & book[KEY].notna().all(axis=1))]


@dataclass
class Banks:
    """The tables of each bank, and where they are.

    Attributes:
        nodes: accounts by bank.
        books: payments by bank, as booked there.
        folder: where the files are.
        columns: roles of the columns.
    """

    nodes: dict[str, pd.DataFrame]
    books: dict[str, pd.DataFrame]
    folder: Path
    columns: Columns
    undirected: bool = False

    def client(self, bank: str) -> ClientGraph:
        """The client file of one bank."""
        for name, table in (("nodes", self.nodes[bank]), ("edges", self.books[bank])):
            table.to_csv(self.folder / f"{bank}_{name}.csv", index=False)
        graph = self.read(self.folder / f"{bank}_nodes.csv", self.folder / f"{bank}_edges.csv", bank)
        made = client_graph(graph, BANKS.index(bank), len(BANKS))
        made.linking["secret"] = party_secret(self.folder, made.client, seed=0)
        return made

    def read(self, nodes: Path, edges: Path, own: str = "", **changed) -> Graph:
        schema = Schema.load(path) if (path := self.folder / "schema.yaml").is_file() else None
        treatment = Treatment(scaling="none", schema=schema, where=str(path))
        columns = Columns(**{**vars(self.columns), **changed})
        options = {"treatment": treatment, "own_party": own, "undirected": self.undirected}
        graph = from_tables(nodes, edges, columns, classes=("ok", "fraud"), **options)
        if schema is None:
            Schema.from_dict(graph.schema["agreed"], "import").save(path)
        return graph

    def joined(self) -> pd.DataFrame:
        """All edges that both parties of each know, with the source's columns: what `link` must find, by a plain join."""
        parts = [once(book, bank).query("from_bank == @bank and to_bank == @bank") for bank, book in self.books.items()]
        for a in BANKS:
            for b in set(BANKS) - {a}:
                sides = []
                for bank in (a, b):
                    book = self.books[bank]
                    side = book[(book.from_bank == a) & (book.to_bank == b)].sort_values(["time", "risk", "label"])
                    sides.append(side.assign(copy=side.groupby(KEY).cumcount()))
                parts.append(sides[0].merge(sides[1][[*KEY, "copy"]], on=[*KEY, "copy"]))
        return pd.concat(parts, ignore_index=True)[self.books["A"].columns]

    def whole(self, linked: list[ClientGraph]) -> Graph:
        """The graph of all tables, in the order of nodes of the linked files."""
        order = [word for graph in linked for word in unpack_words(graph.ids).tolist()]
        nodes = pd.concat(self.nodes.values()).set_index("id").loc[order].reset_index()
        nodes.to_csv(self.folder / "all_nodes.csv", index=False)
        self.joined().to_csv(self.folder / "all_edges.csv", index=False)
        paths = self.folder / "all_nodes.csv", self.folder / "all_edges.csv"
        return canonical(self.read(*paths, party_columns="", match_columns=""))


def banks(folder: Path, accounts: int = 20, payments: int = 80, seed: int = 0, data: bool = True, **options) -> Banks:
    """Three banks: payments within and between, copies, records of one side only, and a bank that is no client."""
    draw = np.random.default_rng(seed)
    sizes = {bank: accounts + 3 * place for place, bank in enumerate(BANKS)}
    nodes = {
        bank: pd.DataFrame(
            {
                "id": [f"{bank}{i:04d}" for i in range(size)],
                "income": draw.normal(size=size).round(3),
                "age": draw.integers(18, 90, size),
                "label": draw.choice(["ok", "fraud"], size),
                "part": draw.choice(["train", "val", "test"], size),
            }
        )
        for bank, size in sizes.items()
    }
    names = [*BANKS, "X"]
    count = 6 * payments
    ends = [(names[a], int(draw.integers(sizes.get(names[a], 9)))) for a in draw.integers(4, size=2 * count)]
    rows = pd.DataFrame(
        {
            "from_bank": [bank for bank, _ in ends[:count]],
            "source": [f"{bank}{i:04d}" for bank, i in ends[:count]],
            "to_bank": [bank for bank, _ in ends[count:]],
            "target": [f"{bank}{i:04d}" for bank, i in ends[count:]],
            "date": [f"2026-01-{day:02d}" for day in draw.integers(1, 29, count)],
            "amount": draw.integers(1, 400, count) / 4,
            "ref": [f"r{i}" for i in draw.integers(0, 10**6, count)],
            "time": draw.integers(0, 10**6, count),
            "risk": draw.normal(size=count).round(3),
            "label": draw.choice(["ok", "fraud"], count),
        }
    )
    rows = pd.concat([rows, rows.iloc[:: max(count // 20, 1)]], ignore_index=True)  # booked twice, by both
    books = {}
    for bank in BANKS:
        bank_rows = rows[(rows.from_bank == bank) | (rows.to_bank == bank)]
        inside = (bank_rows.from_bank == bank) & (bank_rows.to_bank == bank)
        book = bank_rows[inside | (draw.random(len(bank_rows)) > 0.2)].copy()  # a fifth of the records is missing
        theirs = (book.from_bank != bank).to_numpy()
        book.loc[theirs, "time"] += 7  # books differ in the time of day
        book.loc[theirs, "risk"] = 0.0
        books[bank] = book.sample(frac=1, random_state=int(draw.integers(1000)))
    columns = {"split": "part", "party_columns": "from_bank,to_bank", "match_columns": MATCH}
    if data:
        columns |= {"time": "time", "edge_label": "label", "edge_features": ["risk"]}
    return Banks(nodes, books, folder, Columns(**columns), **options)
