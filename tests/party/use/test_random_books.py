"""Random books: the score of a day follows from the rows known by its end, whatever else the book has."""

import numpy as np
import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from tests.party import bank_books as made
from tests.party.bank_books import HISTORY, MODELS, MONTH, START


def versions(rng, rows):
    """Return later versions of some rows: another amount, another account of the bank, both ends exchanged, or an equal one."""
    kind = rng.integers(4, size=len(rows))
    changed_rows = rows.copy()
    changed_rows["amount"] = changed_rows["amount"].where(kind != 0, 500.0)
    changed_rows["target"] = np.where(
        kind == 1, [word[0] + str((int(word[1:]) + 3) % made.EACH) for word in rows.target], rows.target
    )
    ends = ["source", "target", "from_bank", "to_bank"]
    changed_rows.loc[kind == 2, ends] = rows.loc[kind == 2, [ends[1], ends[0], ends[3], ends[2]]].to_numpy()
    return changed_rows


class RandomBook:
    """Files of a bank's book in the order of their days, and the day from which each is known."""

    def __init__(self, folder, seed):
        rng = np.random.default_rng(seed)
        pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
        self.folder, self.linked, self.accounts, hours = folder, pick(True, False), pick(True, False), pick(True, False)
        self.model = pick("network", "blend")
        keys = pick({}, *({"features": "", "windows": windows} for windows in ("", "2,7")))
        keys = (
            keys
            | pick({}, {"edge_columns": ["amount"], "edge_scales": {"amount": "none"}})
            | pick({}, {"edge_ids": "unique"})
        )
        keys = keys | (pick({}, {"undirected": True}) if "features" in keys else {})
        self.keys = keys
        rows = made.payments(hours=hours, seed=seed)
        made.tables(folder / "banks", rows[rows.day < HISTORY], accounts=self.accounts, **keys)
        made.of_bank(rows, "b").drop(columns="day").to_csv(folder / "banks" / "b_history.csv", index=False)
        bank_rows = made.of_bank(rows, "a").drop(columns="fraud")
        if not self.linked:
            bank_rows = bank_rows[(bank_rows.from_bank == "A") | rng.integers(2, size=len(bank_rows)).astype(bool)]
        late = rng.random(len(bank_rows)) < 0.15
        self.files = [("history", bank_rows[bank_rows.day < HISTORY], -1)]
        for day in range(HISTORY, HISTORY + MONTH):
            self.files.append((f"day{day}", bank_rows[(bank_rows.day == day) & ~late], -1))
        self.files.append(
            ("late", bank_rows[late & (bank_rows.day >= HISTORY - 2)], int(rng.integers(HISTORY, HISTORY + MONTH)))
        )
        for number in range(2):
            known = int(rng.integers(HISTORY, HISTORY + MONTH))
            old = bank_rows[(bank_rows.day < known) & (bank_rows.day > 2)]
            if self.linked:  # a record of two banks that only one corrects is no edge of a later link
                old = old[(old.from_bank == "A") & (old.to_bank == "A")]
            self.files.append((f"fixed{number}", versions(rng, old.sample(12, random_state=seed + number)), known))
        self.order = [self.files[0], *(self.files[1 + k] for k in rng.permutation(len(self.files) - 1))]
        self.imported = sorted({0, *(int(rng.integers(1, len(self.files) + 1)) for _ in range(2))})

    def book(self, name, files):
        """Return a book of some files, in order, with what was imported from it in between, by the number of files."""
        banks = self.folder / "banks"
        tables = (banks / "a_accounts.csv", banks / "a_history.csv")
        book = made.book(self.folder / name, banks / "a.yaml", *tables)
        yield 0, book
        for number, (file, rows, known) in enumerate(files[1:], 1):
            path = self.folder / name / f"{file}.csv"
            rows.drop(columns="day").to_csv(path, index=False)
            day = known if known >= 0 else rows.day.max()
            assert main(["book", "add", str(book), str(path), "--known", str(START + int(day))]) == 0
            yield number, book

    def graph(self, book, name):
        """Return the model's file as imported from a book, linked with the other bank's if the banks are linked."""
        paths = [self.folder / name / f"client_000{client}.safetensors" for client in range(1 + self.linked)]
        assert main(["import", "--book", str(book), "--out", str(paths[0])]) == 0
        if not self.linked:
            return paths[0]
        assert main(["import", str(self.folder / "banks" / "b.yaml"), "--out", str(paths[1])]) == 0
        assert main(["link", "--simulate", *map(str, paths), "--out", str(self.folder / name / "linked")]) == 0
        return self.folder / name / "linked" / paths[0].name

    def train(self, graph):
        """Return the exported models of the first file."""
        out = self.folder / "run"
        given = {"graph": str(graph.parent), "num_clients": 1 + self.linked, "progress": False}
        given["task"] = "nodes" if self.accounts else "edges"
        for name, keys in MODELS.items():
            fg.run(out=str(out / name), **given, **keys)
        if self.model == "blend":
            assert main(["blend", *(str(out / name) for name in MODELS), "--out", str(out / "blend")]) == 0

    def scores(self, name, book, graph, day):
        """Return the scores of a day by a model, by item."""
        span = ["--from", str(START + day), "--until", str(START + day), "--graph", str(graph), "--client", "0"]
        out = self.folder / "p.csv"
        assert main(["predict", str(self.folder / "run" / name), "--book", str(book), *span, "--out", str(out)]) == 0
        return pd.read_csv(out).set_index("id" if self.accounts else "edge")["p_yes"].sort_index()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_days_scores_follow_from_what_was_known_by_its_end(tmp_path, seed):
    """Of trees equal, of networks and blends within 1e-6: by files imported at three moments, and by a book cut at the day."""
    random = RandomBook(tmp_path, seed)
    graphs = []
    for number, book in random.book("book", random.order):
        if number in random.imported:
            graphs.append(random.graph(book, f"after{number}"))
        if number == 0:
            random.train(graphs[0])
    for day in range(HISTORY, HISTORY + MONTH):
        *_, (_, cut) = random.book(
            f"cut{day}", [f for f in random.files if (f[2] if f[2] >= 0 else f[1].day.max()) <= day]
        )
        for name in ("trees", random.model):
            scores = [random.scores(name, book, graph, day) for graph in graphs]
            scores.append(random.scores(name, cut, graphs[0], day))
            for place, other in enumerate(scores[1:]):
                pd.testing.assert_index_equal(scores[0].index, other.index)
                difference = np.abs(scores[0] - other).max()
                assert difference <= (0 if name == "trees" else 1e-6), (name, day, place, difference)
