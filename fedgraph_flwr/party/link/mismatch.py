"""Why two parties share no record although each has some that name the other: likely causes, tried on keys of records.

A key is ``party, id, party, id, values of the match columns, copy`` (`files.record_keys`). On one machine, `causes` changes the
keys of one party as a usual mistake would, and counts how many equal the other party's. On a fleet no party has the other's keys,
and trying would test more guesses than a link compares, so `facts` lists what a party can compare with the other by hand.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import combinations
from typing import NamedTuple

from fedgraph_flwr.party.tables.parties import BETWEEN

Key = tuple[str, ...]

ENDS = 4
"""Values at the start of a key: party and id of both ends."""

LEAST = 0.1
"""Share of the smaller set from which a cause counts as found."""

MAX_PAIRED = 50_000
"""Records up to which causes are tried two at a time."""


class Cause(NamedTuple):
    """A change of one party's keys that makes records equal.

    Attributes:
        text: what differs, and what to do.
        equal: number of records that are then equal.
    """

    text: str
    equal: int


class _Change(NamedTuple):
    text: str
    one: Callable[[Key], Key]
    both: bool = False
    """Whether the other party's keys are changed, too."""


def kinds_of(form: str) -> list[str]:
    """Return the kinds of the match columns from the form of keys (`PartyRule.form`)."""
    words = form.rpartition("key ")[2]
    return [] if words in ("", "none") else words.split(",")


def causes(own_keys: Sequence[bytes], other: Sequence[bytes], kinds: Sequence[str]) -> list[Cause]:
    """Return what makes keys of two parties equal, the best first; at most three.

    Args:
        own_keys: keys of one party's records with the other.
        other: keys of the other party's records.
        kinds: kinds of the match columns.
    """
    keys, others = [_split(key) for key in own_keys], [_split(key) for key in other]
    least = max(1, int(LEAST * min(len(keys), len(others))))
    changes = list(_changes(kinds))
    reasons = [cause for change in changes if (cause := _tried((change,), keys, others)).equal >= least]
    if not reasons and len(keys) + len(others) <= MAX_PAIRED:
        pairs = combinations(changes, 2)
        reasons = [cause for pair in pairs if (cause := _tried(pair, keys, others)).equal >= least]
    return sorted(reasons, key=lambda cause: -cause.equal)[:3]


def _split(key: bytes) -> Key:
    return tuple(key.decode().split(BETWEEN))


def _tried(changes: Sequence[_Change], keys: Sequence[Key], others: Sequence[Key]) -> Cause:
    """Return the number of equal keys after changes."""
    for change in changes:
        keys = [change.one(key) for key in keys]
        others = [change.one(key) for key in others] if change.both else others
    return Cause("; and ".join(change.text for change in changes), len({*keys} & {*others}))


def _changes(kinds: Sequence[str]) -> Iterator[_Change]:
    yield _Change(
        "source and target are exchanged at one of the two: import it with its columns.source and columns.target exchanged"
        " (party_columns, too)",
        lambda key: (*key[2:ENDS], *key[:2], *key[ENDS:]),
    )
    yield _Change(
        "leading zeros of ids differ: import both with id_form=number",
        lambda key: (key[0], key[1].lstrip("0"), key[2], key[3].lstrip("0"), *key[ENDS:]),
        both=True,
    )
    for place, kind in enumerate(kinds, ENDS):
        if kind == "date":
            for days, when in ((1, "earlier"), (-1, "later")):
                yield _Change(
                    f"dates are one day {when} at the first: match the value date (--match-columns), or shift one",
                    _at(place, partial(_shifted, days=days)),
                )
        if kind == "amount":
            for factor, unit in ((Decimal("0.01"), "cents"), (Decimal(100), "units of a hundred")):
                yield _Change(
                    f"amounts are in {unit} at the first, compared with the second: convert one",
                    _at(place, partial(_times, factor=factor)),
                )
            yield _Change(
                "amounts have another sign: make them positive", _at(place, lambda word: word.lstrip("-")), both=True
            )
    for place, kind in enumerate(kinds, ENDS):
        yield _Change(
            f"match column {place - ENDS + 1} ({kind}) differs: correct it, or leave it out of --match-columns at all",
            _at(place, lambda word: ""),
            both=True,
        )


def _at(place: int, change: Callable[[str], str]) -> Callable[[Key], Key]:
    """Return a function that changes one value of a key."""
    return lambda key: (*key[:place], change(key[place]), *key[place + 1 :])


def _shifted(word: str, days: int) -> str:
    try:
        return (date.fromisoformat(word) + timedelta(days=days)).isoformat()
    except (ValueError, OverflowError):
        return word


def _times(word: str, factor: Decimal) -> str:
    try:
        return format((Decimal(word) * factor).normalize(), "f")
    except InvalidOperation:
        return word


def facts(keys: Sequence[bytes], own_party: str, kinds: Sequence[str]) -> str:
    """Return what a party can compare with another by hand: directions, and ranges of dates and amounts; no id.

    Args:
        keys: of the records with the other party.
        own_party: the party's name, in normal form.
        kinds: kinds of the match columns.
    """
    rows = [_split(key) for key in keys]
    paid = sum(row[0] == own_party for row in rows)
    parts = [f"{paid} records go out and {len(rows) - paid} come in"]
    for place, kind in enumerate(kinds, ENDS):
        words = [row[place] for row in rows if row[place]]
        if kind == "date" and words:
            parts.append(f"dates from {min(words)} to {max(words)}")
        if kind == "amount" and words:
            numbers = sorted(map(Decimal, words))
            whole = ", all whole numbers" if all(number == number.to_integral() for number in numbers) else ""
            parts.append(f"amounts from {numbers[0]} to {numbers[-1]}{whole}")
    return ", ".join(parts)


USUAL = (
    "source and target exchanged, dates shifted by a day, amounts in cents instead of units, ids with leading zeros, or another"
    " reference"
)
"""Usual causes, for a party that cannot try them."""
