"""Columns that a party computes from its own records: counts, sums, partners, and money that flows through an account.

A `Book` lists the party's records. A `Recipe` says which columns it gets: `edge_columns` of each record, `node_columns` of each
account. Both read the book only, so that no message contains them. Columns of records look back: a record at time τ reads
records with time < τ, and those of a window W have time ≥ τ − W. Records of equal time do not read each other.

Books without hours have all records of a day at one time. A recipe of whole days (``day="whole"``) judges a record at the end of
its day: it reads all other records of that day and of earlier ones, never itself, and a window of W days ends with its own day.
Records of one day have no order, so that each of two alike ones, one received and one paid, counts the other.

    n, sum, partners, since      of both ends, paid (out) and received (in)
    pair_before, back_before     earlier records between the same two accounts
    flow_in                      records into the payer that are alike in amount: |ln m − ln m'| < ln(1 / 0.9)
    flow_out                     with whole days: records of the same day that the receiver pays, alike in amount
    hop2, common                 records two steps away; accounts between both ends

Amounts are whole cents, so that sums do not depend on the order of records. Columns are centred and scaled by constants, not by
statistics, so that they mean the same at all parties and later records do not change earlier columns. Everything is computed by
sorts, sorted searches and prefix sums, and amounts within a window by a wavelet matrix (Claude, Navarro and Ordóñez, 2015), in
time O(R log R) for R records, also if they belong to one account.
"""

import copy
import fnmatch
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.config import one_of, typed
from fedgraph_flwr.data.book import DAY as DAY
from fedgraph_flwr.data.book import Book as Book
from fedgraph_flwr.data.capped import capped_values
from fedgraph_flwr.errors import FedGraphError, check_names, unknown

Ints = NDArray[Any]
Floats = NDArray[np.float64]
Values = Iterator[tuple[str, Any]]

WINDOWS = (0.25, 2.0, 14.0)
"""Days of the windows of the default recipe: within a day, over a weekend, and the usual pace of an account."""

ALIKE = math.log(1 / 0.9)
"""Two amounts are alike if their logarithms differ by less: the smaller is above 90 % of the larger."""

DEPTH = 5
"""Most records in a row that ``flow_in_depth`` follows."""

LAST = 64
"""Number of records of each end that `common` reads at most, the last ones within the window."""

NEVER = 3_650 * DAY
"""Seconds since the last record where there is none: ten years."""

GROWING = ("since_", "pair_before", "back_before")
"""What names of columns of records start with that look back without a bound: their values grow with the age of the book."""

RECIPES = ("payments",)
"""Names of recipes."""

BEFORE, WHOLE = DAYS = ("before", "whole")
"""What a record reads: records with an earlier time, or all others until the end of its day."""


class Form(NamedTuple):
    """Transform of a value: ln(1 + v − start) if ``log``, then minus ``center``, divided by ``scale``."""

    log: bool
    center: float
    scale: float
    start: float = 0.0


COUNT, SUM, SECONDS, HOURS, STEPS, SHARE = (
    Form(True, 1.0, 1.0),
    Form(True, 6.0, 3.0),
    Form(True, 12.0, 4.0),
    Form(True, 2.0, 1.5),
    Form(False, 1.0, 1.0),
    Form(False, 0.5, 0.5),
)
"""Forms of columns. 0 is an ordinary value of each, as accounts without columns have it."""


class Column(NamedTuple):
    """Description of a column.

    Attributes:
        name: with the window as last part, such as ``sum_out_source_2d``.
        form: transform of its values.
    """

    name: str
    form: Form


def window_label(days: float) -> str:
    """Return the length of a window as names of columns have it: ``6h`` for a quarter of a day, ``2d``."""
    return f"{days:g}d" if days == round(days) else f"{days * 24:g}h"


@dataclass(frozen=True)
class Recipe:
    """Which columns a party computes from its records.

    Attributes:
        name: one of `RECIPES`.
        windows: lengths of the windows in days.
        without: patterns of names of columns that are left out, such as ``flow_*``.
        last: R, most records at each end that a column reads, the last ones (`capped`); then columns of records further away and
            of accounts do not exist. 0: all within the windows.
        day: one of `DAYS`; with ``whole``, windows are rounded up to whole days.
    """

    name: str = "payments"
    windows: tuple[float, ...] = WINDOWS
    without: tuple[str, ...] = ()
    last: int = 0
    day: str = BEFORE

    def __post_init__(self) -> None:
        check_names([self.name], RECIPES, "recipe of features")
        if not self.windows or any(not 0.5 < days * DAY < 2**53 for days in self.windows):
            got = ", ".join(f"{days:g}" for days in self.windows) or "none"
            raise FedGraphError(f"windows of a recipe must be numbers of days above 0, such as 2,0.5, got {got}")
        one_of(self.day, DAYS, "day of a recipe")
        lengths = {float(math.ceil(days)) for days in self.windows} if self.whole else set(self.windows)
        object.__setattr__(self, "windows", tuple(sorted(lengths)))
        object.__setattr__(self, "without", tuple(self.without))
        if not 0 <= self.last <= LAST:
            raise FedGraphError(f"last of a recipe must be a number of records from 0 (all) to {LAST}, got {self.last}")
        if self.last and self.whole:
            raise FedGraphError(
                f"last={self.last} of a recipe bounds how many records read a record, and with day=whole all of a day read"
                " it: leave out last, or set day=before"
            )
        names = [column.name for column in (*described_edges(self), *described_nodes(self))]
        for pattern in self.without:
            if not fnmatch.filter(names, pattern):
                raise unknown("column of the recipe", pattern, names)

    @property
    def whole(self) -> bool:
        """Whether a record reads the other records of its day."""
        return self.day == WHOLE

    @property
    def seconds(self) -> list[int]:
        """Lengths of the windows in seconds, ascending."""
        return [round(days * DAY) for days in self.windows]

    @property
    def labels(self) -> list[str]:
        """Windows as names of columns have them: ``6h`` for a quarter of a day, ``2d``."""
        return [window_label(days) for days in self.windows]

    def keeps(self, name: str) -> bool:
        """Return whether a column is not left out."""
        return not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.without)

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as JSON and YAML store it."""
        values = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        # as earlier releases wrote it
        return {key: value for key, value in values.items() if (key, value) not in (("last", 0), ("day", BEFORE))}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> "Recipe":
        """Build a recipe from the output of `to_dict`, or from YAML whose values are texts; ``where`` says where it is from.

        Raises:
            FedGraphError: it is not a mapping, or a key or value is not accepted.
        """
        made: Recipe = typed(cls, values, f"features={where}")
        return made

    @classmethod
    def parse(cls, text: str, windows: str = "", day: str = "") -> "Recipe":
        """Build a recipe from ``NAME,-PATTERN,...,last=R``, days separated by commas and one of `DAYS`, as tables write them.

        Raises:
            FedGraphError: a part is not accepted.
        """
        name, *words = [word.strip() for word in text.split(",") if word.strip()] or [""]
        values: dict[str, Any] = {"name": name, "without": [word[1:] for word in words if word.startswith("-")]}
        for word in words:
            if word.startswith("last="):
                values["last"] = word.removeprefix("last=")
            elif not word.startswith("-"):
                raise FedGraphError(f"features={text}: expected NAME, NAME,-PATTERN or NAME,last=R, got '{word}'")
        if days := [word for word in windows.split(",") if word.strip()]:
            values["windows"] = days
        if day:
            values["day"] = day
        return cls.from_dict(values, text)

    @property
    def edge_columns(self) -> list[Column]:
        """Columns of records, in order."""
        far = ("hop2_", "flow_in_depth_") if self.last else ()
        return [c for c in described_edges(self) if self.keeps(c.name) and not c.name.startswith(far)]

    @property
    def node_columns(self) -> list[Column]:
        """Columns of accounts, in order."""
        return [] if self.last else [column for column in described_nodes(self) if self.keeps(column.name)]


ENDS, WAYS = ("source", "target"), ("out", "in")


def described_edges(recipe: Recipe) -> Iterator[Column]:
    """Yield the columns of records, in order.

    The source is the payer and the target the receiver; out is what an account paid, and in what it received. Those with a
    window W at the end of their name read the records of W before the record.

        amount              amount of the record
        since_WAY_END       seconds since the last record of an end
        pair_before         earlier records from the payer to the receiver
        back_before         earlier records from the receiver to the payer
        flow_out_count      whole days: records of the day paid by the receiver that are alike in amount
        flow_out_kept       whole days: those of them that are not smaller than this one
        flow_out_gap        whole days: smallest difference to them, |Δ ln amount| / `ALIKE`
        n_WAY_END_W         records of an end
        sum_WAY_END_W       sum of their amounts
        partners_WAY_END_W  distinct accounts at their other ends
        flow_in_count_W     records received by the payer that are alike in amount
        flow_in_kept_W      those of them that are not smaller than this one
        flow_in_gap_W       smallest difference to them, |Δ ln amount| / `ALIKE`
        flow_in_hours_W     hours since the closest of them in amount
        flow_in_depth_W     records alike in amount in a row that lead to this one, each within W of the next, at most `DEPTH`
        hop2_in_W           records into the payers of the payer
        hop2_out_W          records out of the receivers of the receiver
        common_W            accounts that the payer paid and that paid the receiver, among the last `LAST` records of each,
                            without a time of which not all records are among them

    With whole days, "earlier" includes the other records of the day, times are days, ``common_W`` leaves out both ends, and a
    record from an account to itself is alike to none. In a row of ``flow_in_depth_W``, only the last step, into the record
    itself, may lie within one day; all others lead to a later day.
    """
    yield Column("amount", SUM)
    yield from (Column(f"since_{way}_{end}", SECONDS) for end in ENDS for way in WAYS)
    yield from (Column("pair_before", COUNT), Column("back_before", COUNT))
    if recipe.whole:
        yield from (Column("flow_out_count", COUNT), Column("flow_out_kept", COUNT), Column("flow_out_gap", SHARE))
    counts = {"n": COUNT, "sum": SUM, "partners": COUNT}
    others = {"flow_in_count": COUNT, "flow_in_kept": COUNT, "flow_in_gap": SHARE, "flow_in_hours": HOURS}
    others |= {"flow_in_depth": STEPS, "hop2_in": COUNT, "hop2_out": COUNT, "common": COUNT}
    for w in recipe.labels:
        for end, way in itertools.product(ENDS, WAYS):
            yield from (Column(f"{what}_{way}_{end}_{w}", form) for what, form in counts.items())
        yield from (Column(f"{what}_{w}", form) for what, form in others.items())


def described_nodes(recipe: Recipe) -> Iterator[Column]:
    """Yield the columns of accounts, in order.

    Out is what an account paid, and in what it received. Pairs are of a received record and a paid one within W after it.

        n_WAY            records                          largest_WAY    largest amount
        sum_WAY          sum of amounts                   mean_WAY       mean amount
        partners_WAY     distinct other accounts          elsewhere_WAY  share of records with an account of another party
        hop2_WAY         sum over its partners of the number of theirs
        back             share of its paid records to accounts that had paid it before
        active           seconds from its first record to its last
        n_WAY_W          most records within W before one of its records, itself not counted; likewise sum_WAY_W, partners_WAY_W
        hop2_WAY_W       most records of its partners within W
        common_W         most accounts between it and a receiver
        flow_count_W     pairs                            flow_alike_W   pairs that are alike in amount
        flow_share_W     share of pairs alike in amount   flow_kept_W    paid records of at most a received alike amount
        flow_out_W       share of paid records that follow an alike received one
        flow_in_W        share of received records that an alike paid one follows
        flow_sum_W       share of paid amounts that follow an alike received one
        flow_chain_W     paid records that follow an alike received one and that the receiver passes on
        flow_depth_W     most alike records in a row through the account, each within W of the next
        flow_first_W     most alike records in a row that follow one that it paid, at most `DEPTH`
        flow_last_W      most alike records in a row that lead to one that it received, at most `DEPTH`
        flow_gap_W       smallest difference of amounts over pairs, |Δ ln amount| / `ALIKE`
        flow_hours_W     fewest hours to the closest in amount over pairs

    With whole days, two records of one day are a pair too, whichever came first.
    """
    total = {"n": COUNT, "sum": SUM, "partners": COUNT, "largest": SUM, "mean": SUM, "elsewhere": SHARE, "hop2": COUNT}
    yield from (Column(f"{what}_{way}", form) for way in WAYS for what, form in total.items())
    yield from (Column("back", SHARE), Column("active", SECONDS))
    counts = {"n": COUNT, "sum": SUM, "partners": COUNT, "hop2": COUNT}
    others = {"common": COUNT, "flow_count": COUNT, "flow_alike": COUNT, "flow_share": SHARE, "flow_kept": COUNT}
    others |= {"flow_out": SHARE, "flow_in": SHARE, "flow_sum": SHARE, "flow_chain": COUNT, "flow_depth": STEPS}
    others |= {"flow_first": STEPS, "flow_last": STEPS, "flow_gap": SHARE, "flow_hours": HOURS}
    for w in recipe.labels:
        yield from (Column(f"{what}_{way}_{w}", form) for way in WAYS for what, form in counts.items())
        yield from (Column(f"{what}_{w}", form) for what, form in others.items())


def cents_of(amounts: NDArray[Any], where: str) -> tuple[Ints, int]:
    """Return amounts in whole cents [R], 0 for those below, and the number of amounts that are not above 0.

    Raises:
        FedGraphError: an amount is not a finite number, or their sum is too large.
    """
    values = np.asarray(amounts, dtype=np.float64)
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        raise FedGraphError(f"{where}: row {row + 1} has no amount: expected a number in each row")
    if (total := np.abs(values).sum()) >= 2**62 / 100:
        raise FedGraphError(f"{where}: amounts sum to {total:.3g}, expected below {2**62 / 100:.3g}: use a larger unit")
    cents = np.rint(np.maximum(values, 0) * 100).astype(np.int64)
    return cents, int((values <= 0).sum())


class _Events:
    """Records sorted by the account at one end, then by time.

    Attributes:
        order: record at each position [R].
        key: account · T + rank of the time, ascending [R].
        other: account at the other end [R].
        total: sum of cents before each position [R + 1].
    """

    def __init__(self, near: Ints, far: Ints, rank: Ints, steps: int, book: Book, whole: bool):
        key = near * steps + rank
        # records of a day are in no order of their rows
        self.order = np.lexsort((far, book.cents, key)) if whole else np.argsort(key, kind="stable")
        self.key, self.steps = key[self.order], steps
        self.near, self.other = near[self.order], far[self.order]
        self.time = book.time[self.order]
        self.total = before(book.cents[self.order])
        self._every: _Events | None = (
            None  # itself would be a cycle, which keeps a book's arrays until the next collection
        )

    @property
    def every(self) -> "_Events":
        """The records that these are some of."""
        return self._every or self

    def of(self, asked: NDArray[np.bool_] | None) -> "_Events":
        """Return the requests of some records, in their order; None: of all."""
        if asked is None:
            return self
        kept, events = np.flatnonzero(asked[self.order]), copy.copy(self)
        events._every = self
        for name in ("order", "key", "near", "other", "time"):
            setattr(events, name, getattr(self, name)[kept])
        return events

    def repeats(self) -> tuple[Ints, Ints]:
        """Return pairs of positions with the same two accounts and none between them, the later ones ascending."""
        if not self.near.size:
            return self.near, self.near
        code = self.near * (1 + int(self.other.max())) + self.other
        place = np.argsort(code, kind="stable")
        same = np.flatnonzero(np.diff(code[place]) == 0)
        same = same[np.argsort(place[same + 1], kind="stable")]
        return place[same], place[same + 1]


def before(values: NDArray[Any]) -> Ints:
    """Return the sums of the values before each position, [R + 1]."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(values)])


class _Index:
    """A book, sorted by both ends, and searches in it.

    Attributes:
        out: records by payer.
        into: records by receiver.
        low: for each window, the rank of the first time within it [R].
        whole: whether a record reads its day; times are then those of days.
        ends: payer and receiver [2, R].
        loop: whether a record leads from an account to itself [R].
        flowing: amounts that flows compare, in cents [R].
    """

    def __init__(self, book: Book, windows: Sequence[int], whole: bool = False):
        times, rank = np.unique(book.time, return_inverse=True)
        self.book, self.rank, self.steps, self.windows = book, rank.astype(np.int64), times.size + 1, list(windows)
        self.whole, self.ends = whole, np.stack([book.source, book.target])
        self.loop = book.source == book.target
        self.flowing = np.where(self.loop, 0, book.cents) if whole else book.cents
        reach = [
            window - DAY if whole else window for window in windows
        ]  # the last day of a window is the record's own
        low = (np.searchsorted(times, times - seconds, "left").astype(np.int32) for seconds in reach)
        self.low = [of_times[self.rank] for of_times in low]
        self.out = _Events(book.source, book.target, self.rank, self.steps, book, whole)
        self.into = _Events(book.target, book.source, self.rank, self.steps, book, whole)

    def itself(self, asked: _Events, events: _Events) -> Ints:
        """Return 1 where a record is among those that `bounds` gives, else 0, in the order of ``asked`` [R]."""
        if not self.whole:
            return np.zeros(asked.order.size, dtype=np.int64)
        flags = np.ones_like(self.loop) if asked.every is events else self.loop
        return flags[asked.order].astype(np.int64)

    def bounds(self, asked: _Events, events: _Events, whole: bool | None = None) -> tuple[Ints, list[Ints]]:
        """Return where the records before each request end in ``events`` [R], and where those of each window start [R each].

        Requests are the accounts of ``asked`` at its times, in its order. With ``whole`` (default: the book's), records of the
        same day are before it, itself included (`itself`).
        """
        start = asked.near * self.steps
        side: Any = "right" if (self.whole if whole is None else whole) else "left"
        end = np.searchsorted(events.key, asked.key, side).astype(np.int32)
        first = [np.searchsorted(events.key, start + low[asked.order], "left").astype(np.int32) for low in self.low]
        return end, first


def _distinct(first: Ints, end: Ints, repeats: tuple[Ints, Ints]) -> Ints:
    """Return the number of distinct other ends among positions [first, end), both ascending, [R].

    A pair of repeats lies within [first, end) for a range of requests, because both bounds ascend: O(R log R).
    """
    opens = np.searchsorted(end, repeats[1], "right")
    closes = np.searchsorted(first, repeats[0], "right")
    size = end.size + 1
    change = np.bincount(np.minimum(opens, closes), minlength=size) - np.bincount(closes, minlength=size)
    return end - first - np.cumsum(change)[:-1]


def edge_columns(
    book: Book, recipe: Recipe, accounts: Ints | None = None, rows: Ints | None = None
) -> NDArray[np.float32]:
    """Return the columns of records, float32 [R, K], as ``recipe.edge_columns`` names them.

    Args:
        book: R records.
        recipe: the columns.
        accounts: if the book joins those of several parties, the party of each account [A]. A record's columns are then
            those of its payer's party, which reads only its own book.
        rows: records whose columns are returned, in this order [R']; those of others are not computed. None: all.
    """
    size = book.time.size
    book = book.of_days() if recipe.whole else book
    if accounts is not None:
        book = per_party(book, accounts)[0]
    if recipe.last:
        windows = list(zip(recipe.labels, recipe.seconds, strict=True))
        every = capped_values(book, windows, recipe.last, ALIKE, NEVER)
        values = every if rows is None else ((name, value[rows]) for name, value in every)
    else:
        values = _edge_values(book, recipe) if rows is None else _values_of(book, recipe, rows)
    return _matrix(values, recipe.edge_columns, size if rows is None else rows.size)


def _values_of(book: Book, recipe: Recipe, rows: Ints) -> Values:
    """Yield name and value of each column of some records [R'], of a book of those records only that decide about them."""
    index = _Index(book, recipe.seconds, recipe.whole)
    asked = _placed(book.time.size, rows, np.ones(rows.size, dtype=bool))
    reached = np.zeros(book.accounts, dtype=bool)
    reached[book.source[asked]] = reached[book.target[asked]] = True
    near = reached[book.source] | reached[book.target]
    if _flows(recipe.edge_columns):
        near |= _leading(index, asked, DEPTH)
    far = {key: values[near] for key, values in _two_steps(index, asked)}
    del index
    at = (np.cumsum(near) - 1)[rows]
    values = _edge_values(book.where(near), recipe, asked=asked[near], far=far)
    yield from ((name, value[at]) for name, value in values)


def _two_steps(index: "_Index", asked: NDArray[np.bool_]) -> Iterator[tuple[tuple[str, int], Ints]]:
    """Yield, by direction and window, the sum over the records at an end of asked ones of those at their other ends [R]."""
    for way, near, events in (("in", index.out, index.into), ("out", index.into, index.out)):
        ends = near.of(asked)
        last, first = index.bounds(ends, events)
        change = np.zeros(events.order.size + 1, dtype=np.int32)
        np.add.at(change, first[-1], 1)
        np.add.at(change, last, -1)
        between = np.zeros(events.order.size, dtype=bool)
        between[events.order] = np.cumsum(change)[:-1] > 0
        requests = near.of(between)
        until, since = index.bounds(requests, events)
        until = until - index.itself(requests, events)
        for window, (start, low) in enumerate(zip(first, since, strict=True)):
            total = before(_placed(between.size, requests.order, until - low)[events.order])
            yield (way, window), _placed(between.size, ends.order, total[last] - total[start])


def _flows(columns: Iterable[Column]) -> bool:
    return any(column.name.startswith("flow_") for column in columns)


def views(book: Book, recipe: Recipe, party: Ints) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the columns of records as the payers' and as the receivers' parties compute them, each float32 [R, K].

    Args:
        book: R records.
        recipe: the columns.
        party: of each account [A].
    """
    joined, rows = per_party(book.of_days() if recipe.whole else book, party)
    every = edge_columns(joined, recipe)
    payers = every[: book.time.size]
    receivers = payers.copy()
    receivers[rows[book.time.size :]] = every[book.time.size :]
    return payers, receivers


def of_payer(name: str) -> bool:
    """Return whether a column of records reads other records of the payer, which its own party knows best."""
    return "_source" in name or name.startswith(("flow_in_", "hop2_in_", "common_"))


END_FORMS = {"since": SECONDS, "n": COUNT, "sum": SUM, "partners": COUNT}
"""Forms of columns of one end of a record, by what they say of its account: ``since_WAY``, and with a window ``n_WAY_W``."""


def columns_at(book: Book, recipe: Recipe, accounts: Ints, times: Ints) -> dict[str, NDArray[np.float32]]:
    """Return what records say of accounts as of times, as the columns of one end of a record, by name without the end.

    Args:
        book: the records, none of which is the one that asks.
        recipe: its windows, and whether it reads whole days.
        accounts: of each request [Q].
        times: in seconds [Q].

    Returns:
        Values float32 [Q] by name, such as ``n_in_2d``.
    """
    if recipe.whole:
        book, times = book.of_days(), times // DAY * DAY
    order = np.lexsort((times, accounts))
    near, at = accounts[order], times[order]
    known, rank = np.unique(book.time, return_inverse=True)
    steps = known.size + 1
    end = np.searchsorted(known, at, "right" if recipe.whole else "left")
    reach = [seconds - DAY if recipe.whole else seconds for seconds in recipe.seconds]
    starts = [np.searchsorted(known, at - seconds, "left") for seconds in reach]
    columns: dict[str, NDArray[np.float32]] = {}

    def put(name: str, values: Any) -> None:
        form = END_FORMS[name.partition("_")[0]]
        columns[name] = np.empty(order.size, dtype=np.float32)
        columns[name][order] = (np.log1p(values) - form.center) / form.scale

    for way, one, other in (("in", book.target, book.source), ("out", book.source, book.target)):
        events = _Events(one, other, rank, steps, book, recipe.whole)
        last, zero = (np.searchsorted(events.key, near * steps + place) for place in (end, 0))
        passed = at - np.append(events.time, 0)[last - 1]
        put(f"since_{way}", np.where(last > zero, passed, NEVER))
        repeats = events.repeats()
        for w, start in zip(recipe.labels, starts, strict=True):
            first = np.searchsorted(events.key, near * steps + start)
            put(f"n_{way}_{w}", last - first)
            put(f"sum_{way}_{w}", (events.total[last] - events.total[first]) / 100)
            put(f"partners_{way}_{w}", _distinct(first, last, repeats))
    return columns


def per_party(book: Book, party: Ints) -> tuple[Book, Ints]:
    """Return the books of all parties as one, and the row of each record.

    The first R are as the payers' parties see them, then follow those between parties as the receivers' see them.
    """
    first, second = party[book.source], party[book.target]
    rows = np.concatenate([np.arange(book.time.size), np.flatnonzero(first != second)])
    seen_by = np.concatenate([first, second[first != second]])
    code = np.stack([book.source[rows], book.target[rows]]) + seen_by * party.size
    return Book(code[0], code[1], book.time[rows], book.cents[rows]), rows


def _matrix(values: Values, columns: Sequence[Column], size: int) -> NDArray[np.float32]:
    """Return the first values by name as a matrix of these columns, transformed, [size, K]."""
    place = {column.name: (number, column.form) for number, column in enumerate(columns)}
    matrix = np.zeros((len(columns), size), dtype=np.float32)
    for name, every in values:
        if name in place:
            (number, form), value = place.pop(name), every[:size]
            matrix[number] = ((np.log1p(value) if form.log else value) - form.center) / form.scale
    if place:
        raise ValueError(f"no values of {', '.join(place)}")
    return matrix.T


def _edge_values(
    book: Book,
    recipe: Recipe,
    nodes: bool = False,
    asked: NDArray[np.bool_] | None = None,
    far: Mapping[tuple[str, int], Ints] | None = None,
) -> Values:
    """Yield name and value of each column of records [R].

    With ``nodes``, only those that `_node_values` reads, flow included. Values of records that are not among ``asked`` [R] say
    nothing; what `_two_steps` yields of these is then ``far``.
    """
    windows, names = recipe.seconds, recipe.labels
    index = _Index(book, windows, recipe.whole)
    yield "amount", book.cents / 100

    def spread(asked: _Events, values: Any) -> Any:
        return _placed(book.time.size, asked.order, values)

    held: dict[tuple[str, str], tuple[Ints, list[Ints]]] = {}
    counts: dict[str, list[Ints]] = {}
    ways = {"out": index.out, "in": index.into}
    ends = {"source": index.out.of(asked), "target": index.into.of(asked)}
    repeats = {way: events.repeats() for way, events in ways.items()}
    alone = [number == 1 for number in _same(index)] if index.whole else [index.loop] * len(names)
    for (end, near), (way, events) in itertools.product(ends.items(), ways.items()):
        last, first = held[end, way] = index.bounds(near, events)
        itself = index.itself(near, events)
        numbers = [spread(near, last - start - itself) for start in first]
        for w, number in zip(names, numbers, strict=True):
            yield f"n_{way}_{end}_{w}", number
        if across := near.every is not events:
            counts[way] = numbers
        if nodes and across:
            continue
        yield f"since_{way}_{end}", spread(near, _since(index, near, events, last, itself))
        cents = itself * book.cents[near.order]
        for w, start, only in zip(names, first, alone, strict=True):
            paid = (events.total[last] - events.total[start] - cents) / 100
            yield f"sum_{way}_{end}_{w}", spread(near, paid)
            partners = _distinct(start, last, repeats[way]) - itself * only[near.order]
            yield f"partners_{way}_{end}_{w}", spread(near, partners)
    del repeats
    yield from zip(("pair_before", "back_before"), _pairs(index), strict=True)
    for end, way in (("source", "in"), ("target", "out")):
        last, first = held[end, way]
        for window, (w, start, number) in enumerate(zip(names, first, counts[way], strict=True)):
            if far is None:
                total = before(number[ways[way].order])
                sums = spread(ends[end], total[last] - total[start])
            else:
                sums = far[way, window]
            # a record of the day against this one counts it, and one to oneself counts itself
            yield f"hop2_{way}_{w}", sums - _back_today(index) - index.loop * number if index.whole else sums
    if nodes or _flows(recipe.edge_columns):
        leading = None if asked is None else _leading(index, asked)
        bounds = held["source", "in"] if leading is None else index.bounds(index.out.of(leading), index.into)
        for w, window, flow in zip(names, windows, _flow(index, *bounds, leading), strict=True):
            yield f"flow_in_count_{w}", flow.number
            yield f"flow_in_kept_{w}", flow.kept
            yield f"flow_in_gap_{w}", flow.gap / ALIKE
            yield f"flow_in_depth_{w}", flow.depth
            yield f"flow_in_hours_{w}", np.where(flow.number > 0, flow.seconds, window) / 3_600
        if index.whole and not nodes:
            later = _Index(book.reversed(), [DAY], whole=True)
            (today,) = _flow(later, *later.bounds(later.out.of(asked), later.into), asked)
            yield from (
                ("flow_out_count", today.number),
                ("flow_out_kept", today.kept),
                ("flow_out_gap", today.gap / ALIKE),
            )
    received = ends["target"], *held["target", "in"]
    for w, common in zip(names, _common(index, (ends["source"], *held["source", "out"]), received), strict=True):
        yield f"common_{w}", common


def _since(index: _Index, asked: _Events, events: _Events, last: Ints, itself: Ints) -> Ints:
    """Return the seconds since the last record before each request [R], other than itself (`_Index.itself`)."""
    if not last.size:
        return last
    start = index.bounds(asked, events, whole=False)[0] if index.whole else last
    known = start > 0
    known[known] = events.near[start[known] - 1] == asked.near[known]
    since = np.where(known, asked.time - events.time[np.maximum(start - 1, 0)], NEVER)
    return np.where(last - start > itself, 0, since)


def _same(index: _Index) -> list[Ints]:
    """Return, for each window, how many records between the same accounts end with a record's day, itself included [R]."""
    code = np.unique(index.ends, axis=1, return_inverse=True)[1].ravel()
    key = np.sort(code * index.steps + index.rank)
    last = np.searchsorted(key, code * index.steps + index.rank, "right")
    return [last - np.searchsorted(key, code * index.steps + low, "left") for low in index.low]


def _back_today(index: _Index) -> Ints:
    """Return the number of other records of the same day from the receiver to the payer [R]."""
    ends = index.ends
    code = (ends * index.book.accounts + ends[::-1]) * index.steps + index.rank
    events = np.sort(code[0])
    counts: Ints = np.searchsorted(events, code[1], "right") - np.searchsorted(events, code[1], "left")
    return counts - index.loop


def _pairs(index: _Index) -> Ints:
    """Return the number of earlier records between the same accounts, in the same direction and against it, [2, R].

    With whole days, those of the day are among them, except itself.
    """
    ends = index.ends
    codes, code = np.unique(ends * index.book.accounts + ends[::-1], return_inverse=True)
    code = code.reshape(ends.shape)
    events = np.sort(code[0] * index.steps + index.rank)
    first = np.searchsorted(events, np.arange(codes.size) * index.steps)
    side: Any = "right" if index.whole else "left"
    earlier: Ints = np.searchsorted(events, code * index.steps + index.rank, side) - first[code]
    return earlier - np.stack([np.ones_like(index.loop), index.loop]) if index.whole else earlier


def node_columns(
    book: Book, recipe: Recipe, nodes: int, party: Ints | None = None, until: int | None = None
) -> NDArray[np.float32]:
    """Return the columns of accounts, float32 [N, K], as ``recipe.node_columns`` names them.

    Args:
        book: the records; accounts from N on are at other parties, which have no columns.
        recipe: the columns.
        nodes: N.
        party: if the book joins those of several parties, the party of each account [A]: its columns are those that its party
            computes from its own book.
        until: last time that is read; None reads all records.
    """
    if recipe.last:
        return np.zeros((nodes, 0), dtype=np.float32)
    if until is not None:
        book = book.where(book.time <= until)
    book = book.of_days() if recipe.whole else book
    if party is None:
        places = np.arange(nodes)
        home = np.zeros(max(nodes, book.accounts), dtype=np.int64)
        home[nodes:] = 1
    else:
        book, _ = per_party(book, party)
        places = party[:nodes] * party.size + np.arange(nodes)
        home = np.arange(max(book.accounts, 1 + int(places.max(initial=-1))))
        home = np.where(party[home % party.size] == home // party.size, 0, 1)
    values = _node_values(book, recipe, home)
    return _matrix(((name, value[places]) for name, value in values), recipe.node_columns, nodes)


_AT_OWN_END = {
    f"{what}_{way}_{end}": (what, way)
    for end, way in (("source", "out"), ("target", "in"))
    for what in ("n", "sum", "partners")
}
"""Kind of an edge column that counts an account's records at its own end → what it counts, and their direction."""


def _node_values(book: Book, recipe: Recipe, home: Ints) -> Values:
    """Yield name and value [A] of each column of accounts.

    Args:
        book: the records.
        recipe: the columns.
        home: 0 for own accounts, 1 for those of other parties [A].
    """
    size = home.size
    ends = {"out": (book.source, book.target), "in": (book.target, book.source)}

    def most(values: Any, way: str, least: float = 0, ufunc: np.ufunc = np.maximum) -> Any:
        """The largest (or by ``ufunc`` smallest) value of each account's records, ``least`` without any [A]."""
        extremes = np.full(size, least, dtype=np.float64)
        ufunc.at(extremes, ends[way][0], np.asarray(values, dtype=np.float64))
        return extremes

    def summed(values: Any, way: str) -> Any:
        return np.bincount(ends[way][0], weights=values, minlength=size)

    def share(part: Any, whole: Any) -> Any:
        return np.divide(part, whole, out=np.zeros(size), where=whole > 0)

    amount = book.cents / 100
    number = {way: np.bincount(near, minlength=size).astype(np.float64) for way, (near, _) in ends.items()}
    total = {way: summed(book.cents, way) / 100 for way in ends}
    for way, (near, far) in ends.items():
        yield f"n_{way}", number[way]
        yield f"sum_{way}", total[way]
        pairs = np.unique(near * size + far)
        partners = np.bincount(pairs // size, minlength=size)
        yield f"partners_{way}", partners
        yield f"largest_{way}", most(amount, way)
        yield f"mean_{way}", share(total[way], number[way])
        yield f"elsewhere_{way}", share(summed(home[far], way), number[way])
        yield f"hop2_{way}", np.bincount(pairs // size, weights=partners[pairs % size], minlength=size)
    first = np.minimum(*(most(book.time, way, np.inf, np.minimum) for way in ends))
    last = np.maximum(*(most(book.time, way, -np.inf) for way in ends))
    yield "active", np.where(np.isfinite(first), last - first, 0)
    flows = {}
    held: dict[str, Any] = {}
    for name, value in _edge_values(book, recipe, nodes=True):
        kind, _, w = name.rpartition("_")
        if name == "back_before":
            yield "back", share(summed(value > 0, "out"), number["out"])
        if kind in _AT_OWN_END:
            what, way = _AT_OWN_END[kind]
            yield f"{what}_{way}_{w}", most(value, way)
        if kind == "n_in_source":
            flows[w] = summed(value, "out")
        elif kind == "hop2_in":
            yield name, most(value, "out")
        elif kind == "hop2_out":
            yield name, most(value, "in")
        elif kind == "common":
            yield name, most(value, "out")
        elif kind.startswith("flow_in_"):
            held[name] = value
    if not any(column.name.startswith("flow_") for column in recipe.node_columns):
        return
    back = _Index(book.reversed(), recipe.seconds, recipe.whole)
    passed = _flow(back, *back.bounds(back.out, back.into))
    for w, days, later in zip(recipe.labels, recipe.windows, passed, strict=True):
        count = held[f"flow_in_count_{w}"]
        follows, on = count > 0, later.number > 0
        alike = summed(count, "out")
        yield f"flow_count_{w}", flows[w]
        yield f"flow_alike_{w}", alike
        yield f"flow_share_{w}", share(alike, flows[w])
        yield f"flow_kept_{w}", summed(held[f"flow_in_kept_{w}"] > 0, "out")
        yield f"flow_out_{w}", share(summed(follows, "out"), number["out"])
        yield f"flow_in_{w}", share(summed(on, "in"), number["in"])
        yield f"flow_sum_{w}", share(summed(np.where(follows, book.cents, 0), "out") / 100, total["out"])
        yield f"flow_chain_{w}", summed(follows & on, "out")
        through = np.where(follows, held[f"flow_in_depth_{w}"] + 1 + later.depth, 0)
        yield f"flow_depth_{w}", most(through, "out")
        yield f"flow_first_{w}", most(later.depth, "out")
        yield f"flow_last_{w}", most(held[f"flow_in_depth_{w}"], "in")
        yield f"flow_gap_{w}", most(held[f"flow_in_gap_{w}"], "out", 1.0, np.minimum)
        hours = np.where(follows, held[f"flow_in_hours_{w}"], days * 24)
        yield f"flow_hours_{w}", most(hours, "out", days * 24, np.minimum)


class Flow(NamedTuple):
    """Records into the payer of each record that are alike in amount, within a window.

    Attributes:
        number: how many [R].
        kept: how many of them are not smaller than the record [R].
        gap: smallest |Δ ln amount|, `ALIKE` without any [R].
        seconds: time since the closest in amount, of several the last; 0 without any [R].
        depth: records alike in amount in a row, each into the payer of the next, that lead to the record, at most `DEPTH` [R].
    """

    number: Ints
    kept: Ints
    gap: Floats
    seconds: Ints
    depth: Ints


def _leading(index: _Index, asked: NDArray[np.bool_], steps: int = DEPTH - 1) -> NDArray[np.bool_]:
    """Return the records that decide how many in a row lead to the asked ones: those and alike ones into their payers [R].

    Rows of records have `DEPTH` steps; of the last record of a row, only the place counts, not what leads to it.
    """
    every, logs = asked.copy(), np.log(np.maximum(index.flowing, 1))
    fresh = asked
    for _ in range(steps):
        near = index.out.of(fresh)
        last, first = index.bounds(near, index.into)
        accounts = np.unique(near.near, return_index=True)[1]
        if not accounts.size:
            break
        # of each account one range of places and one of amounts, wider than `Flow` compares
        low, high = np.minimum.reduceat(first[-1], accounts), np.maximum.reduceat(last, accounts)
        count = np.maximum(high - low, 0).astype(np.int64)
        into = index.into.order[np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - low, count)]
        least, most = (np.repeat(of.reduceat(logs[near.order], accounts), count) for of in (np.minimum, np.maximum))
        alike = (logs[into] >= least - 2 * ALIKE) & (logs[into] <= most + 2 * ALIKE)
        fresh = _placed(asked.size, into[alike], np.ones(int(alike.sum()), dtype=bool)) & ~every
        every |= fresh
    return every


def _flow(index: _Index, last: Ints, first: Sequence[Ints], wanted: NDArray[np.bool_] | None = None) -> Iterator[Flow]:
    """Yield the flow of each window.

    Args:
        index: the book.
        last: where the records received by the payer before each wanted record end, in the order of ``index.out`` [R'].
        first: where those of each window start [R' each].
        wanted: the wanted records [R], with those that decide about rows of records; None: all.
    """
    events, asked = index.into, index.out.of(wanted)
    # within a day, records have no order: a row of records may reach the last one's day once, and cannot lead to itself
    chained: Iterator[Any] = itertools.repeat(None)
    if index.whole and last.size:
        chained = (
            flow.depth
            for flow in _flow_of(index, asked, *index.bounds(asked, events, whole=False), itertools.repeat(None))
        )
    return _flow_of(index, asked, last, first, chained)


def _flow_of(
    index: _Index, asked: _Events, last: Ints, first: Sequence[Ints], chained: Iterator[Any]
) -> Iterator[Flow]:
    """Yield the flow of each window; ``chained`` has the depth that rows through a record count, None for the flow's own."""
    events = index.into
    amounts, code = np.unique(index.flowing, return_inverse=True)
    logs = np.log(np.maximum(amounts, 1))
    low = np.where(amounts > 0, np.searchsorted(logs, logs - ALIKE, "right"), 0)
    high = np.where(amounts > 0, np.searchsorted(logs, logs + ALIKE, "left"), 0)
    positive = int((amounts <= 0).sum())
    low = np.maximum(low, np.minimum(positive, high))
    code = code.astype(np.int64)
    wavelet = _Wavelet(code[events.order], amounts.size)
    # last position of each amount at each account: amounts of an account, by position
    place = events.near * max(amounts.size, 1) + code[events.order]
    by_amount = np.argsort(place, kind="stable")
    placed = place[by_amount]
    for start, reached in zip(first, chained, strict=False):
        rows = np.flatnonzero(last > start)
        amount = code[asked.order[rows]]
        a, b = start[rows], last[rows]
        under, above = wavelet.below(a, b, low[amount]), wavelet.below(a, b, high[amount])
        hit = above > under
        rows, amount, a, b, under, above = (values[hit] for values in (rows, amount, a, b, under, above))
        less = wavelet.below(a, b, amount)
        gap, seconds = np.full(rows.size, ALIKE), np.zeros(rows.size, dtype=np.int64)
        for chosen, rank in ((less > under, less - 1), (above > less, less)):
            some = np.flatnonzero(chosen)
            near = wavelet.ranked(a[some], b[some], rank[some])
            apart = np.abs(logs[near] - logs[amount[some]])
            account = events.near[a[some]] * max(amounts.size, 1) + near
            ends = np.searchsorted(placed, account, "right")
            starts = np.searchsorted(placed, account, "left")
            position = by_amount[_last_below(by_amount, starts, ends, b[some])]
            passed = asked.time[rows[some]] - events.time[position]
            closer = (apart < gap[some]) | ((apart == gap[some]) & (passed < seconds[some]))
            gap[some[closer]], seconds[some[closer]] = apart[closer], passed[closer]
        size = index.book.time.size
        at = asked.order[rows]
        depth = _placed(size, at, np.ones(at.size, dtype=np.int64))
        for step in range(1, DEPTH):  # records that follow an alike one, which ends `step` in a row
            some = np.flatnonzero(depth[at] == step)
            listed = np.flatnonzero((depth if reached is None else reached)[events.order] >= step)
            part = _Wavelet(code[events.order[listed]], amounts.size)
            x, y = np.searchsorted(listed, a[some]), np.searchsorted(listed, b[some])
            further = part.below(x, y, high[amount[some]]) > part.below(x, y, low[amount[some]])
            depth[at[some[further]]] = step + 1
            if not further.any():
                break
        yield Flow(
            _placed(size, at, above - under),
            _placed(size, at, above - less),
            _placed(size, at, gap, ALIKE),
            _placed(size, at, seconds),
            depth,
        )


def _placed(size: int, at: Ints, values: Any, otherwise: float = 0) -> Any:
    """Return values at some places, and another one elsewhere [size]."""
    array = np.full(size, otherwise, dtype=values.dtype)
    array[at] = values
    return array


def _last_below(values: Ints, low: Ints, high: Ints, limit: Ints) -> Ints:
    """Return the last place in [low, high) whose value, ascending there, is below the limit; there must be one."""
    low, high = low.copy(), high.copy()
    while (high - low > 1).any():
        middle = (low + high) // 2
        less = values[middle] < limit
        low, high = np.where(less, middle, low), np.where(less, high, middle)
    return low


class _Wavelet:
    """Wavelet matrix of numbers 0..n-1 [R]: counts and ranks within any range of positions, in O(log n)."""

    def __init__(self, values: Ints, size: int):
        self.bits = max(int(max(size, 1)).bit_length(), 1)
        self.zeros: list[NDArray[np.int32]] = []
        values = values.astype(np.int32)
        for bit in reversed(range(self.bits)):
            zero = (values >> bit) & 1 == 0
            self.zeros.append(np.concatenate([[0], np.cumsum(zero)]).astype(np.int32))
            values = np.concatenate([values[zero], values[~zero]])

    def below(self, first: Ints, last: Ints, limit: Ints) -> Ints:
        """Return how many values at positions [first, last) are below the limit, each [Q]."""
        a, b = first.astype(np.int32), last.astype(np.int32)
        limit = limit.astype(np.int32)
        counts = np.zeros(a.size, dtype=np.int32)
        for level, zeros in zip(reversed(range(self.bits)), self.zeros, strict=True):
            one = ((limit >> level) & 1).astype(bool)
            za, zb = zeros[a], zeros[b]
            counts += np.where(one, zb - za, 0)
            a = np.where(one, a - za + zeros[-1], za)
            b = np.where(one, b - zb + zeros[-1], zb)
        return counts.astype(np.int64)

    def ranked(self, first: Ints, last: Ints, rank: Ints) -> Ints:
        """Return the value with this rank, from 0, among those at positions [first, last), each [Q]."""
        a, b, rank = first.astype(np.int32), last.astype(np.int32), rank.astype(np.int32)
        values = np.zeros(a.size, dtype=np.int64)
        for level, zeros in zip(reversed(range(self.bits)), self.zeros, strict=True):
            za, zb = zeros[a], zeros[b]
            one = rank >= zb - za
            values += one.astype(np.int64) << level
            rank = np.where(one, rank - (zb - za), rank)
            a = np.where(one, a - za + zeros[-1], za)
            b = np.where(one, b - zb + zeros[-1], zb)
        return values


CHUNK = 1 << 19
"""Number of candidates that `_common` looks at in one step."""


def _common(
    index: _Index, paid: tuple[_Events, Ints, list[Ints]], received: tuple[_Events, Ints, list[Ints]]
) -> list[Ints]:
    """Return, for each window, the number of accounts that the payer paid and that paid the receiver [R].

    With whole days, both ends do not count, so that a record cannot change its own value.

    Args:
        index: the book.
        paid: requests of payers, and bounds of their paid records.
        received: requests of receivers, and bounds of their received records.
    """
    book, size = index.book, index.book.time.size
    counts = [np.zeros(size, dtype=np.int64) for _ in index.windows]
    if not size:
        return counts
    looks = _Lookup(index.out), _Lookup(index.into)
    ranges = []
    for asked, last, first in (paid, received):
        both = np.zeros((2, size), dtype=np.int64)
        most = LAST + 1 if index.whole else LAST  # itself does not count
        both[:, asked.order] = _whole_times(asked.every, np.maximum(first[-1], last - most), first[-1]), last
        ranges.append(both)
    lengths = np.stack([np.maximum(high - low, 0) for low, high in ranges])
    sides = (index.out, index.into, book.target), (index.into, index.out, book.source)
    shorter = np.where(lengths.min(axis=0) > 0, lengths.argmin(axis=0), -1)
    for side, (events, others, far) in enumerate(sides):  # the end with fewer records lists its partners
        rows = np.flatnonzero(shorter == side)
        parts = np.concatenate([[0], np.cumsum(lengths[side][rows])])
        cuts = np.append(np.unique(np.searchsorted(parts, np.arange(0, parts[-1], CHUNK))), rows.size)
        for start, stop in itertools.pairwise(cuts.tolist()):
            part = rows[start:stop]
            count = lengths[side][part]
            row = np.repeat(part, count)
            within = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
            position = ranges[side][0][row] + within
            # the same account later in the range counts once, by its last record
            fresh = looks[side].following[position] >= ranges[side][1][row]
            row, position = row[fresh], position[fresh]
            met, place = looks[1 - side].find(far[row], events.other[position], ranges[1 - side][1][row])
            met &= place >= ranges[1 - side][0][row]
            if index.whole:
                between = events.other[position]
                met &= (between != book.source[row]) & (between != book.target[row])
            row, position, place = row[met], position[met], place[met]
            earlier = np.minimum(index.rank[events.order[position]], index.rank[others.order[place]])
            for number, low in enumerate(index.low):
                counts[number] += np.bincount(row[earlier >= low[row]], minlength=size)
    return counts


def _whole_times(events: _Events, low: Ints, first: Ints) -> Ints:
    """Move starts of ranges behind records of a time that is only partly in the range, so that ties have no order.

    Args:
        events: records, which the ranges index.
        low: starts of the ranges.
        first: where they would start without a limit on their number of records.
    """
    starts = low.copy()
    rows = np.flatnonzero(low > first)
    rows = rows[events.key[low[rows]] == events.key[low[rows] - 1]]
    starts[rows] = np.searchsorted(events.key, events.key[low[rows]], "right")
    return starts


class _Lookup:
    """Search for the last record between two accounts before a position."""

    def __init__(self, events: _Events):
        self.width = 1 + int(max(events.other.max(initial=-1), events.near.max(initial=-1)))
        code = events.near * self.width + events.other
        self.place = np.argsort(code, kind="stable")
        self.code = code[self.place]
        size = code.size
        self.following = np.full(size, size)
        same = np.flatnonzero(np.diff(self.code) == 0)
        self.following[self.place[same]] = self.place[same + 1]

    def find(self, near: Ints, other: Ints, limit: Ints) -> tuple[NDArray[np.bool_], Ints]:
        """Return whether there is one, and its position [Q]."""
        wanted = near * self.width + other
        low = np.searchsorted(self.code, wanted, "left")
        known = self.code[np.minimum(low, self.code.size - 1)] == wanted
        known[known] = self.place[low[known]] < limit[known]
        place = np.zeros(near.size, dtype=np.int64)
        rows = np.flatnonzero(known)
        high = np.searchsorted(self.code, wanted[rows], "right")
        place[rows] = self.place[_last_below(self.place, low[rows], high, limit[rows])]
        return known, place
