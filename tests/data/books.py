"""Random books of records, and the transforms of their columns."""

import numpy as np

from fedgraph_flwr.data.features import COUNT, DAY, HOURS, SECONDS, SHARE, STEPS, SUM, Book, Form


def book(seed: int, records: int = 150, accounts: int = 7, days: float = 6.0, ties: bool = True) -> Book:
    """Return random records: some of equal time and amount, some to oneself, some of amount 0."""
    rng = np.random.default_rng(seed)
    source, target = rng.integers(accounts, size=(2, records))
    source[source == 2] = 3  # account 2 only receives
    target[target == 4] = 5  # account 4 only pays
    time = (rng.random(records) * days * DAY).astype(np.int64)
    if ties:
        time = time // 7_200 * 7_200
    cents = rng.choice([0, 1, 900, 1000, 1049, 1099, 1111, 20_000, 21_000], records) + rng.integers(0, 3, records)
    return Book(source.astype(np.int64), target.astype(np.int64), time - 10**6, cents.astype(np.int64))


def form_of(name: str) -> Form:
    """Return the transform of a column of records, by its documented unit."""
    if "gap" in name:
        return SHARE
    if "hours" in name:
        return HOURS
    if "depth" in name:
        return STEPS
    if name.startswith("since"):
        return SECONDS
    return SUM if name.startswith(("sum", "amount")) else COUNT


def transformed(name: str, values: list[float]) -> np.ndarray:
    form = form_of(name)
    read = np.log1p(values) if form.log else np.array(values)
    return ((read - form.center) / form.scale).astype(np.float32)
