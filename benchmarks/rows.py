"""Which stored rows still hold: their commit is in this history, and the code of their run is unchanged since.

    python -m benchmarks.rows [--write]            # list rows that do not; --write stores the list
    python -m benchmarks.same_bits OTHER --renew   # give rows of OTHER's code the digest of this one, where all bits are equal

A row stores the digest of its run's code (`fedgraph_flwr.store.code`). Older rows have none, and are listed as such.
"""

import argparse
import csv
import functools
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
RESULTS = HERE / "simulations" / "results"
STORED = HERE / "simulations" / "base" / "stale.csv"

DIGESTS = """
import json, sys
from fedgraph_flwr.config import configuration
from fedgraph_flwr.errors import FedGraphError
try:
    from fedgraph_flwr.store.code import digest
except ModuleNotFoundError:  # before the room had its name
    from fedgraph_flwr.runs.code import digest
def code(words):
    try:
        return digest(configuration(words.split()))
    except FedGraphError as error:
        return f"refused: {error}"
print(json.dumps({words: code(words) for words in json.load(sys.stdin)}))
"""


def digests(words: Iterable[str], checkout: Path = HERE) -> dict[str, str]:
    """Return the digest of each run's code in a checkout, by its overrides."""
    given = json.dumps(sorted(set(words)))
    env = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS], input=given, env=env, cwd=checkout, capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout))


def seedless(words: str) -> str:
    """Return overrides without the seed, on which no code depends."""
    return " ".join(word for word in words.split() if not word.startswith("seed="))


NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")


def words_of(words: str) -> set[str]:
    """Return a run's overrides without the seed, the last of each key, with ``#`` for each number."""
    pairs = dict(word.partition("=")[::2] for word in seedless(words).split())
    return {f"{key}={NUMBER.sub('#', value)}" for key, value in pairs.items()}


def method(words: str) -> str:
    """Return the method of a run."""
    return next((w.partition("=")[2] for w in reversed(words.split()) if w.startswith("strategy=")), "fedavg")


def covering(tables: Mapping[str, list[dict[str, str]]]) -> list[str]:
    """Return the overrides of few rows with a digest, which together have every word of each method's rows."""
    by_method: dict[str, dict[frozenset[str], str]] = defaultdict(dict)
    for row in (row for table_rows in tables.values() for row in table_rows if row.get("code")):
        by_method[method(row["words"])].setdefault(frozenset(words_of(row["words"])), seedless(row["words"]))
    chosen = []
    for _, known in sorted(by_method.items()):
        missing = set().union(*known)
        while missing:
            most = max(sorted(known, key=sorted), key=lambda words: len(words & missing))
            chosen.append(known[most])
            missing -= most
    return chosen


def pairs_of(words: str) -> set[frozenset[str]]:
    """Return the words of `words_of`, each alone and with each other one."""
    return set(map(frozenset, itertools.combinations_with_replacement(words_of(words), 2)))


@dataclass
class Compared:
    """What runs of two checkouts say of stored rows.

    Attributes:
        moved: methods that count as differing: of a run that differs, equal runs of its method have every pair of words.
        equal: pairs of words of equal runs, by method.
        unequal: pairs of words of each run that differs, with its method.
    """

    moved: set[str] = field(default_factory=set)
    equal: dict[str, set[frozenset[str]]] = field(default_factory=lambda: defaultdict(set))
    unequal: list[tuple[str, set[frozenset[str]]]] = field(default_factory=list)

    def row(self, words: str, difference: str) -> None:
        """Add the comparison of a row."""
        if difference:
            self.unequal.append((method(words), pairs_of(words)))
        else:
            self.equal[method(words)] |= pairs_of(words)
        self.moved |= {name for name, pairs in self.unequal if pairs <= self.equal[name]}

    def holds(self, words: str) -> bool:
        """Whether a row is the same by these runs.

        Equal runs of its method have each of its words, and no run that differs shares a pair of its words that they lack.
        """
        name, pairs = method(words), pairs_of(words)
        alone = {pair for pair in pairs if len(pair) == 1}
        odd = [those & pairs - self.equal[name] for other, those in self.unequal if other == name]
        return name not in self.moved and alone <= self.equal[name] and not any(odd)


def rows(folder: Path = RESULTS) -> dict[str, list[dict[str, str]]]:
    """Return the rows of every table that sweeps wrote."""
    tables = {}
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if {"words", "commit", "method"} <= set(reader.fieldnames or ()):
                tables[path.stem] = list(reader)
    return tables


@functools.cache
def ancestor(commit: str) -> bool:
    """Whether a commit is one of this history."""
    words = ["git", "-C", str(HERE), "merge-base", "--is-ancestor", commit, "HEAD"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def stale(tables: dict[str, list[dict[str, str]]]) -> list[list[str]]:
    """Return table, reason and number of the rows that no longer hold; runs that were never started have no commit."""
    ran = [(table, row) for table, table_rows in tables.items() for row in table_rows if row["commit"]]
    now = digests(seedless(row["words"]) for _, row in ran if row.get("code"))
    count: Counter[tuple[str, str]] = Counter()
    for table, row in ran:
        if not ancestor(row["commit"]):
            count[table, f"commit {row['commit'][:12]} is not in this history"] += 1
        elif not row.get("code"):
            count[table, "written before rows had a digest"] += 1
        elif row["code"] != now[seedless(row["words"])]:
            count[table, "the code has changed"] += 1
    return [[table, reason, str(number)] for (table, reason), number in sorted(count.items())]


def carrying(other: Path, folder: Path = RESULTS) -> int:
    """Return the number of rows with the digest of a checkout's code."""
    known = [row for table_rows in rows(folder).values() for row in table_rows if row.get("code")]
    codes = digests((seedless(row["words"]) for row in known), other)
    return sum(row["code"] == codes[seedless(row["words"])] for row in known)


def renew(other: Path, compared: Compared, folder: Path = RESULTS) -> int:
    """Give rows with the digest of ``other`` that of this checkout where they hold (`Compared`). Return how many."""
    tables, renewed = rows(folder), 0
    words = [seedless(row["words"]) for table_rows in tables.values() for row in table_rows if row.get("code")]
    before, now = digests(words, other), digests(words)
    for table, table_rows in tables.items():
        changed = 0
        for row in table_rows:
            key = seedless(row["words"])
            if row.get("code") and row["code"] == before[key] != now[key] and compared.holds(key):
                row["code"], changed = now[key], changed + 1
        if changed:
            with (folder / f"{table}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(table_rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(table_rows)
        renewed += changed
    return renewed


def listed() -> list[list[str]]:
    """Return the stored list."""
    with STORED.open(newline="") as file:
        return list(csv.reader(file))[1:]


def main() -> None:
    """Print the list, and store it if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    args, stale_rows = parser.parse_args(), stale(rows())
    for table, reason, number in stale_rows:
        print(f"{table:32} {number:>5}  {reason}")
    if args.write:
        with STORED.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([["table", "reason", "rows"], *stale_rows])


if __name__ == "__main__":
    main()
