"""A node's ledger of opened secure sums, over all runs of a purpose, whatever files the party imports meanwhile.

A sum opens Σ_j w_j x_j, one linear equation for the clients' values. Two sums of the same values with weights (3, 1, 0, 0) and
(1, 3, 0, 0) are solved for x_0 and x_1 (`tests/safety/test_opened_sums.py`). The ledger keeps the vector w of every sum that the
node helped to open, and refuses one with which some client's unit vector would lie in the span of all of them, or closer to it
than `NEAR`: of two runs with weights (1, 1, 1, 1) and sizes (150, 152, 150, 60), a combination is the last client's update but
for a cosine of 0.99995. A repeated vector adds nothing and is accepted, so a run may be resumed, repeated with its seed, or sum
more than one statistic.

Sizes that change from month to month would make another vector each month. A node therefore announces the sizes of its first run
of the purpose in all later ones (`OpenedSums.fixed_sizes`): honest runs on the same clients always open the same vector.

A node is not in every sum. So each survivor reports the other vectors that it knows, under its signature of the survivors, and
all check the sum against all reports. Of two sums over more than two thirds of one batch, at least one survivor of the second
whose report the server needs was in the first. Sums over clients none of whom takes part later, in runs with other seeds, stay
unknown.

`STRICT` takes all models as one: values trained from another model count as the same values. A client that takes part in one
round and not in another then ends the second sum. `PER_MODEL` compares only sums whose models are closer than a relative L2
distance. A server can choose models that are farther apart and yet train alike: docs/attacks-details.md states what that reveals.

The arithmetic is exact: weights are rational numbers, so a vector is stored as coprime integers, and spans are computed modulo
random primes. A unit vector of the span is found unless a prime divides its denominator. For hundreds of vectors that are fewer
than one prime in 10^4, so `PRIMES` of them all miss it with a probability below 10^-12.

Sums of different groups are sums of different values, so each has its own span. All groups that are models share one (`MODELS`).
"""

import base64
import contextlib
import json
import math
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, FedGraphError, RunFailed

STRICT, PER_MODEL = "strict", "per_model"
RULES = (STRICT, PER_MODEL)

MODELS = "models"
"""Name of the span of all groups that are models or updates of one."""

PRIMES = 3
"""Random primes modulo which a span is computed."""

BUCKETS = 128
"""Numbers in the sketch of a model; distances between sketches have a relative standard deviation of 6 %."""

NEAR = 0.3
"""Least distance of each client's unit vector from the span of all opened vectors; 1: nothing is known of its values alone."""

ROUNDING = 1e-6
"""Relative difference of squared distances that counts as none."""

EARLIER = re.compile(r"opened_sums_[0-9a-f]{32}\.json")
"""Ledgers of versions before 0.3, one per client file."""

Vector = dict[str, int]

Sum = tuple[str, Mapping[str, float]]
"""Name of a group's span, and the weight of each client by name."""


class OpenedSums:
    """The ledger.

    Args:
        path: its file; None: kept in memory.
        rule: one of `RULES`.
        distance: relative L2 distance below which `PER_MODEL` takes models as the same.
    """

    def __init__(self, path: Path | None = None, rule: str = STRICT, distance: float = 0.0):
        self.path, self.rule, self.distance = path, rule, distance
        self._memory: dict[str, Any] = _empty()

    def fixed_sizes(self, client: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sizes that a client announces: those of its first run of this purpose, and others as they are.

        Args:
            client: the client.
            sizes: its current sizes, by name.
        """
        with self._locked() as ledger:
            kept = ledger.setdefault("sizes", {}).setdefault(client, {})
            for name, size in sizes.items():
                if not kept.get(name):
                    kept[name] = size
            return {name: kept[name] for name in sizes}

    def admit(self, sums: Sequence[Sum], sketch: NDArray[np.float32] | None, where: str) -> bytes:
        """Store the weights of the sums of one exchange before they are opened, and return a report for the other members.

        Args:
            sums: per group, the name of its span and the weight of each client by name.
            sketch: sketch of the model from which the values were trained.
            where: beginning of the error message.

        Returns:
            The other vectors that this node knows of sums of the same values, as JSON; empty if there is none.

        Raises:
            RunFailed: a sum would reveal one client's values together with opened ones; nothing is stored.
            FedGraphError: the file cannot be read.
        """
        others: dict[str, list[Vector]] = {}
        with self._locked() as ledger:
            new: list[tuple[str, dict[str, Any]]] = []
            for kind, weights in sums:
                if not (vector := primitive(weights)):
                    continue
                entries = [*ledger["sums"].get(kind, []), *(entry for own, entry in new if own == kind)]
                known = [entry["weights"] for entry in entries if self._near(entry, sketch)]
                self._check(kind, vector, known, where)
                if more := [own for own in known if own != vector]:
                    others[kind] = more
                if vector not in known or self.rule == PER_MODEL:
                    entry: dict[str, Any] = {"weights": vector}
                    if sketch is not None and self.rule == PER_MODEL:
                        entry["model"] = base64.b64encode(sketch.astype(np.float32).tobytes()).decode()
                    new.append((kind, entry))
            for kind, entry in new:
                ledger["sums"].setdefault(kind, []).append(entry)
        return json.dumps(others).encode() if others else b""

    def confirm(
        self, sums: Sequence[Sum], sketch: NDArray[np.float32] | None, reports: Mapping[int, bytes], where: str
    ) -> None:
        """Check the sums of one exchange against what all members know: a node does not know sums that it was not in.

        Args:
            sums: as for `admit`.
            sketch: sketch of the model.
            reports: by client, the result of its `admit`.
            where: beginning of the error message.

        Raises:
            RunFailed: a sum would reveal one client's values, or a report is none.
        """
        with self._locked() as ledger:
            known = {
                kind: [entry["weights"] for entry in entries if self._near(entry, sketch)]
                for kind, entries in ledger["sums"].items()
            }
        for client, report in reports.items():
            try:
                found = json.loads(report) if report else {}
                for kind, vectors in found.items():
                    known.setdefault(kind, []).extend(_vector(vector) for vector in vectors)
            except MALFORMED as error:
                raise RunFailed(f"{where}: client {client} sent no valid report of the sums that it knows") from error
        for kind, weights in sums:
            if vector := primitive(weights):
                self._check(kind, vector, known.get(kind, []), where)

    def _check(self, kind: str, vector: Vector, known: Sequence[Vector], where: str) -> None:
        distinct = {tuple(own.items()): own for own in known if own != vector}
        vectors = [*distinct.values(), vector]
        if distinct and (alone := revealed(vectors) or nearly_revealed(vectors)):
            raise RunFailed(
                f"{where}: a sum with weights {_shown(vector)} would reveal the values of client {alone} together with"
                f" {len(distinct)} sums of '{kind}' that were opened before ({self.rule}, opened_sums of this node's policy): a"
                " client took part in one sum and not in another, or weights changed; repeat the round with the same clients"
            )

    def sketch(self, model: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return a random projection of parameters [P] → [`BUCKETS`] by the ledger's secret seed; lengths stay about the same."""
        with self._locked() as ledger:
            rng = np.random.default_rng(ledger["seed"])
        signs = rng.integers(0, 2, model.size) * 2.0 - 1
        return np.bincount(rng.integers(0, BUCKETS, model.size), signs * model, BUCKETS).astype(np.float32)

    def _near(self, entry: Mapping[str, Any], sketch: NDArray[np.float32] | None) -> bool:
        """Return whether an opened sum's values may be those of this model; unknown models are near."""
        if self.rule == STRICT or sketch is None or "model" not in entry:
            return True
        other = np.frombuffer(base64.b64decode(entry["model"]), np.float32)
        return bool(np.linalg.norm(sketch - other) <= self.distance * np.linalg.norm(other))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        """Yield the content, and write it afterwards if it changed; another run of the node waits meanwhile."""
        if self.path is None:
            yield self._memory
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            before = self.path.read_bytes() if self.path.is_file() else b""
            content = _read(self.path, before) if before else _merged(self.path.parent)
            yield content
            if (after := json.dumps(content).encode()) != before:
                write_bytes(self.path, after)


def primitive(weights: Mapping[str, float]) -> Vector:
    """Return the coprime integers in the same proportions as weights, without zeros; empty if all are zero."""
    exact = {name: Fraction(weight) for name, weight in weights.items() if weight}
    common = math.lcm(*(weight.denominator for weight in exact.values()))
    whole = {name: int(weight * common) for name, weight in exact.items()}
    divisor = math.gcd(*whole.values()) or 1
    return {name: value // divisor for name, value in sorted(whole.items())}


def revealed(vectors: Sequence[Mapping[str, int]]) -> str:
    """Return the name whose unit vector lies in the span of vectors; empty if none does.

    A unit vector lies in the row space of a matrix if and only if its entry is 0 in every solution of A x = 0. Two random
    solutions modulo a random prime above 2^30 are both 0 in another entry with a probability below 2^-60.
    """
    vectors = _connected(vectors)
    names = sorted({name for vector in vectors for name in vector})
    found: set[str] = set()
    for _ in range(PRIMES):
        solutions = _solutions(vectors, names, random_prime())
        found |= {names[column] for column in np.flatnonzero((solutions == 0).all(1))}
    return min(found, default="")


def nearly_revealed(vectors: Sequence[Mapping[str, int]], near: float = NEAR) -> str:
    """Return a name whose unit vector is closer to the span of vectors than ``near`` and than to each of them; empty if none is.

    With an orthonormal basis Q of the span, the distance of e_i is √(1 - Σ_k Q_ki²). A name that one vector alone is as close to
    has so large a weight in it that ``max_share`` of the policy decides. No other vector may bring it closer.
    """
    vectors = _connected(vectors)
    names = sorted({name for vector in vectors for name in vector})
    matrix = np.array([[float(vector.get(name, 0)) for name in names] for vector in vectors])  # [sums, N]
    matrix /= np.linalg.norm(matrix, axis=1, keepdims=True)
    _, lengths, rows = np.linalg.svd(matrix, full_matrices=False)
    basis = rows[lengths > 1e-12 * lengths[0]]
    together = 1 - (basis**2).sum(0)
    alone = 1 - (matrix**2).max(0)
    close = together < np.minimum(alone, near**2) * (1 - ROUNDING)
    return names[int(np.flatnonzero(close)[0])] if close.any() else ""


def _merged(folder: Path) -> dict[str, Any]:
    """Return a new ledger with the sums of a folder's earlier ledgers, one per client file.

    Their sketches have other seeds, so their models count as near to all.
    """
    content = _empty()
    for path in sorted(path for path in folder.glob("opened_sums_*.json") if EARLIER.fullmatch(path.name)):
        for kind, entries in _read(path, path.read_bytes())["sums"].items():
            known = content["sums"].setdefault(kind, [])
            known += [{"weights": entry["weights"]} for entry in entries]
    return content


def _connected(vectors: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    """Return the vectors that share names with the last one, directly or through others: disjoint batches are independent."""
    *others, last = vectors
    reached, chosen, growing = set(last), [last], True
    while growing:
        near = [vector for vector in others if not reached.isdisjoint(vector)]
        others = [vector for vector in others if reached.isdisjoint(vector)]
        reached = reached.union(*near)
        chosen, growing = [*chosen, *near], bool(near)
    return chosen


def _solutions(vectors: Sequence[Mapping[str, int]], names: Sequence[str], prime: int) -> NDArray[np.int64]:
    """Return two random solutions x of A x = 0 modulo a prime below 2^31, [N, 2], by Gaussian elimination."""
    columns = {name: column for column, name in enumerate(names)}
    matrix = np.zeros((len(vectors), len(names)), np.int64)
    for row, vector in zip(matrix, vectors, strict=True):
        row[[columns[name] for name in vector]] = [value % prime for value in vector.values()]
    pivots: list[int] = []
    for column in range(len(names)):
        rank = len(pivots)
        if not (below := np.flatnonzero(matrix[rank:, column])).size:
            continue
        matrix[[rank, rank + below[0]]] = matrix[[rank + below[0], rank]]
        pivot = matrix[rank, column:] * pow(int(matrix[rank, column]), -1, prime) % prime
        matrix[rank, column:] = pivot
        matrix[rank + 1 :, column:] = (
            matrix[rank + 1 :, column:] - matrix[rank + 1 :, column, None] * pivot % prime
        ) % prime
        pivots.append(column)
        if len(pivots) == len(vectors):
            break
    found = np.array([[secrets.randbelow(prime) for _ in range(2)] for _ in names], np.int64).reshape(-1, 2)
    found[pivots] = 0
    for row, column in reversed(list(zip(matrix, pivots, strict=False))):
        found[column] = -(row[:, None] * found % prime).sum(0) % prime
    return found


def random_prime() -> int:
    """Draw a prime between 2^30 and 2^31 (Miller-Rabin with bases 2, 3, 5 and 7, which is exact below 3.2e9)."""
    while True:
        number = 2**30 + 2 * secrets.randbelow(2**29) + 1
        if number % 3 and number % 5 and number % 7 and all(_passes(number, base) for base in (2, 3, 5, 7)):
            return number


def _passes(number: int, base: int) -> bool:
    """Return whether an odd number passes the Miller-Rabin test with a base."""
    twos = (number - 1 & -(number - 1)).bit_length() - 1
    odd = number - 1 >> twos
    return pow(base, odd, number) == 1 or any(pow(base, odd << k, number) == number - 1 for k in range(twos))


def _vector(found: Mapping[str, int]) -> Vector:
    """Return a vector of a report or a file, sorted by name.

    Raises:
        TypeError: a weight is not a whole number.
    """
    if not all(type(value) is int for value in found.values()):
        raise TypeError("weights")
    return dict(sorted(found.items()))


def _empty() -> dict[str, Any]:
    return {"seed": secrets.randbits(62), "sums": {}}


def _shown(vector: Vector) -> str:
    shown = ", ".join(f"{name}: {value}" for name, value in list(vector.items())[:8])
    return f"{{{shown}{', ...' if len(vector) > 8 else ''}}}"


def _read(path: Path, raw: bytes) -> dict[str, Any]:
    """Return a ledger's content.

    Raises:
        FedGraphError: it is damaged. Without it the node opens no sum.
    """
    try:
        content: dict[str, Any] = json.loads(raw)
        if not isinstance(content["seed"], int):
            raise ValueError("seed")
        if not all(type(size) in (int, list) for kept in content.get("sizes", {}).values() for size in kept.values()):
            raise ValueError("sizes")
        for entries in content["sums"].values():
            for entry in entries:
                entry["weights"] = _vector(entry["weights"])
                if len(base64.b64decode(entry.get("model", ""), validate=True)) not in (0, 4 * BUCKETS):
                    raise ValueError("model")
    except MALFORMED as error:
        raise FedGraphError(
            f"{path} is not the ledger of this node's opened secure sums: restore it, or remove it to forget which they were"
        ) from error
    return content
