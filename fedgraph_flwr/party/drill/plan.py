"""Plan of a drill: which patterns are planted when, and at which party each of their accounts is.

All parties hold the same small file. From it, each derives the same patterns, with a role (a slot) for each account and a party
for each slot. Only that party decides which of its accounts takes the slot. A payment between two parties has the same reference,
amount and time in both books, because both derive them.

    seed: 7
    parties: [a, b, c]
    start: '2026-01-01'    # first day
    days: 90               # 60 % of them for training, 20 % each for validation and test
    dates: true            # times are days
    amount: 150.0          # median of the first payments of patterns
    kinds: [fan_in, fan_out, cycle, scatter_gather, bipartite, stack]
    counts: [6, 3, 3]      # patterns of each kind in training, validation and test
    size: [4, 8]           # smallest and largest k of `data.payments.skeleton`
    within: 2.0            # days that a pattern takes
    cross: 0.5             # share of accounts that may be at any party; the others are at the pattern's home
    hold_out: []           # kinds without patterns in training and validation
"""

import hashlib
import math
import re
from dataclasses import asdict, dataclass, field, fields
from datetime import date, timedelta
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedgraph_flwr.config import at_least, number, typed
from fedgraph_flwr.config.config_file import load_texts
from fedgraph_flwr.data import payments
from fedgraph_flwr.data.book import DAY
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.data.schema import DRILL, flow
from fedgraph_flwr.errors import FedGraphError, check_names
from fedgraph_flwr.party.tables.parties import fold

USUAL = ("fan_in", "fan_out", "cycle", "scatter_gather", "bipartite", "stack")
KINDS = (*USUAL, "gather_scatter", "random")
"""Kinds of patterns, those of AMLworld (Altman et al. 2023); `USUAL` ones by default."""

STAGES = ("training", "validation", "test")
SHARES = 0.6, 0.8
"""Shares of the days until the end of training and of validation."""

MOST = 1000
"""Most patterns of each kind and stage, since a plan comes from another party."""

_NAME = re.compile(r"\w[\w .&-]{0,63}")
"""Names go into tables and messages of other parties."""

_MEDIAN = math.exp(5)
"""Median of the first payments that `data.payments.passed_on` draws."""

EPOCH = date(1970, 1, 1)


class Transfer(NamedTuple):
    """One planted payment.

    Attributes:
        reference: its reference in both books.
        source: slot that pays, as a member of its pattern.
        target: slot that is paid.
        time: in seconds since 1970.
        cents: amount.
    """

    reference: str
    source: int
    target: int
    time: int
    cents: int


class Pattern(NamedTuple):
    """One planted pattern.

    Attributes:
        number: its number in the plan.
        kind: one of `KINDS`.
        stage: 0 to 2, a position in `STAGES`.
        parties: position of the party of each slot.
        names: name by which the other parties' books call the account of each slot.
        transfers: its payments.
    """

    number: int
    kind: str
    stage: int
    parties: tuple[int, ...]
    names: tuple[str, ...]
    transfers: tuple[Transfer, ...]


@dataclass
class Plan:
    """What all parties agree on; the module's docstring shows the file."""

    seed: int = number(0)
    parties: list[str] = field(default_factory=list)
    start: str = ""
    days: int = number(90, 10, 3660)
    dates: bool = False
    amount: float = number(150.0, high=1e9, without_low=True)
    kinds: list[str] = field(default_factory=lambda: list(USUAL))
    counts: list[int] = field(default_factory=lambda: [6, 3, 3])
    size: list[int] = field(default_factory=lambda: [4, 8])
    within: float = number(2.0, without_low=True)
    cross: float = number(0.5, 0, 1)
    hold_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_names(self.kinds, KINDS, "kind of pattern")
        check_names(self.hold_out, self.kinds, "kind of pattern that hold_out names")
        if not self.kinds or len({*self.kinds}) < len(self.kinds):
            raise FedGraphError(f"kinds must name different kinds of patterns, got {self.kinds}")
        if {*self.hold_out} == {*self.kinds}:
            raise FedGraphError(f"hold_out {self.hold_out} leaves no pattern to train on: leave a kind out of it")
        names = fold(self.parties).tolist()
        if len(names) < 2 or len({*names}) < len(names) or not all(names):
            raise FedGraphError(f"a drill needs two parties or more with different names, got {self.parties}")
        if unfit := [name for name in self.parties if not _NAME.fullmatch(name)]:
            raise FedGraphError(
                f"parties {unfit!a}: a name has up to 64 letters, digits, spaces, '.', '_', '&' or '-', and starts with a letter,"
                " a digit or '_'"
            )
        if len(self.counts) != 3 or not 1 <= min(self.counts) <= max(self.counts) <= MOST:
            raise FedGraphError(
                f"counts must be three numbers of patterns from 1 to {MOST}, such as [6, 3, 3], got {self.counts}"
            )
        if len(self.size) != 2 or not 2 <= self.size[0] <= self.size[1] <= 50:
            raise FedGraphError(f"size must be [low, high] with 2 <= low <= high <= 50, got {self.size}")
        at_least(self.seed, 0, "seed")
        self.first_day  # noqa: B018  refuses another form
        short = min(end - begin for begin, end in self.periods) // DAY
        if self.within > short:
            raise FedGraphError(
                f"patterns that take within={self.within:g} days do not fit into the {short} days of a test of {self.days} days:"
                " lower within, or raise days"
            )

    @property
    def first_day(self) -> int:
        """Days from 1970 to the first day.

        Raises:
            FedGraphError: the start is not a date.
        """
        try:
            return (date.fromisoformat(self.start) - EPOCH).days
        except ValueError:
            raise FedGraphError(f"start must be the first day, such as 2026-01-01, got '{self.start}'") from None

    @property
    def periods(self) -> list[tuple[int, int]]:
        """First second of each stage, and the first one after it."""
        ends = [0, *(round(share * self.days) for share in SHARES), self.days]
        return [((self.first_day + first) * DAY, (self.first_day + last) * DAY) for first, last in pairwise(ends)]

    def save(self, path: Path) -> None:
        """Write the file, one line per key."""
        lines = ["# Plan of a drill: all parties hold the same file (`fedgraph-flwr drill plant`)."]
        lines += [f"{key}: {flow(value)}" for key, value in asdict(self).items()]
        write_bytes(path, ("\n".join(lines) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Read the file.

        Raises:
            FedGraphError: the file is missing or not YAML, a key is unknown, or a value is not accepted.
        """
        values = load_texts(path, "a drill's plan")
        if not isinstance(values, dict):
            raise FedGraphError(f"{path} must hold keys and values, as `fedgraph-flwr drill plan` writes them")
        check_names(values, [key.name for key in fields(cls)], "key", str(path))
        plan: Plan = typed(cls, dict(values), f"{path}=")
        return plan

    @cached_property
    def digest(self) -> str:
        """Hash of the plan and of all payments that follow from it, 64 hexadecimal digits: parties compare it."""
        drawn = [(p.number, p.kind, p.stage, p.parties, p.transfers) for p in self._drawn("")]
        return hashlib.sha256(f"fedgraph drill {flow(asdict(self))} {drawn}".encode()).hexdigest()

    @property
    def label(self) -> str:
        """Name of the class of planted payments, which no real label has."""
        return f"{DRILL}{self.digest[:8]}"

    @cached_property
    def patterns(self) -> list[Pattern]:
        """All patterns."""
        return self._drawn(f"{self.label}-")

    def party(self, name: str) -> int:
        """Return the position of a party.

        Raises:
            FedGraphError: the plan does not name it.
        """
        names = fold(self.parties).tolist()
        if (folded_name := str(fold([name])[0])) not in names:
            raise FedGraphError(
                f"the plan does not name party '{name}', only {', '.join(self.parties)}: agree on another plan"
            )
        return int(names.index(folded_name))

    def _drawn(self, prefix: str) -> list[Pattern]:
        """Return the patterns; the draws of one do not depend on which others there are."""
        stages = np.repeat(np.arange(3), self.counts)
        places = [(kind, int(stage)) for kind in self.kinds for stage in stages]
        return [
            self._pattern(number, kind, stage, prefix)
            for number, (kind, stage) in enumerate(places)
            if stage == 2 or kind not in self.hold_out
        ]

    def _pattern(self, number: int, kind: str, stage: int, prefix: str) -> Pattern:
        rng = np.random.default_rng([self.seed, number])
        shape = payments.skeleton(kind, int(rng.integers(self.size[0], self.size[1] + 1)))
        home, free = rng.integers(len(self.parties)), rng.random(shape.members) < self.cross
        parties = np.where(free, rng.integers(len(self.parties), size=shape.members), home)
        begin, end = self.periods[stage]
        length = self.within * DAY
        place = (shape.stage + rng.random(shape.stage.size)) / shape.stages
        time = np.floor(begin + rng.random() * (end - begin - length) + place * length).astype(np.int64)
        time = time // DAY * DAY if self.dates else time
        amount = payments.passed_on(shape, 1, rng)[0] * (self.amount / _MEDIAN)
        cents = np.maximum(np.round(100 * amount).astype(np.int64), 1)
        columns = shape.source.tolist(), shape.target.tolist(), time.tolist(), cents.tolist()
        transfers = [
            Transfer(f"{prefix}p{number}-{edge}", *values) for edge, values in enumerate(zip(*columns, strict=True))
        ]
        names = tuple(f"{prefix}a{number}-{member}" for member in range(shape.members))
        return Pattern(number, kind, stage, tuple(parties.tolist()), names, tuple(transfers))


def common_period(periods: list[tuple[int, int]]) -> tuple[str, int]:
    """Return the first day that all books have, and the number of days.

    Args:
        periods: first and last time of each book, in seconds.

    Raises:
        FedGraphError: the books have no common day.
    """
    first, last = max(begin for begin, _ in periods) // DAY, min(end for _, end in periods) // DAY
    if last < first:
        raise FedGraphError("the tables have no common day: pass tables of the same months")
    return (EPOCH + timedelta(days=first)).isoformat(), last - first + 1
