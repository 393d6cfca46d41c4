"""Payments between the accounts of several banks, with planted laundering patterns: generated, needs no files.

Persons pay standing contacts, merchants and each other; payrolls pay persons. Laundering patterns are planted among persons,
within one bank or across banks. Each pattern has decoys with label 0: ``decoy_dir`` copies with fresh members and times of the
same law whose edges have random directions, and ``decoy_time`` copies whose times are uniform over all days. So patterns do not
differ by degree: a model blind to direction cannot separate a pattern from the first kind, nor one blind to time from the second.

Ceilings, whatever the model: by its own columns a payment is found by chance (AUC 1/2); blind to direction or blind to time,
patterns and that kind of decoy are exchangeable, AUC 1/2 and F1 at most 2p / (1 + p) with p = 1 / (1 + decoys).
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedgraph_flwr.config import DatasetConfig, choice, number, typed
from fedgraph_flwr.data import deep_payments
from fedgraph_flwr.data.edge_columns import ports, window_counts
from fedgraph_flwr.data.features import BEFORE, DAYS, WINDOWS, Book, Recipe, cents_of, edge_columns, per_party
from fedgraph_flwr.data.graph import Graph, unsplit
from fedgraph_flwr.data.own_columns import with_edge_columns
from fedgraph_flwr.errors import FedGraphError, check_names

Ints = NDArray[np.int64]

DAY = 86_400
PERSON, MERCHANT, PAYROLL = 0, 1, 2
SHARES = (0.90, 0.08, 0.02)
"""Shares of persons, merchants and payrolls among accounts."""

BACKGROUND, PATTERN, DIRECTION_DECOY, TIME_DECOY, CHAIN = 0, 1, 2, 3, 4
CONTACTS, OWN_BANK = 6, 0.6
"""Number of standing contacts per account, and the share of them in its own bank."""

UNREAD = ("kinds", "cross", "decoy_dir", "decoy_time", "amounts")
"""Keys that ``depth`` does not read."""
KINDS = ("fan_in", "fan_out", "cycle", "scatter_gather", "gather_scatter", "bipartite", "stack")


class Skeleton(NamedTuple):
    """One pattern between members 0, 1, ...: its edges, and the stage of the window that each falls in.

    Attributes:
        source: member that each edge leaves.
        target: member that each edge reaches.
        stage: stage of each edge.
        members: number of members.
        stages: number of stages.
    """

    source: Ints
    target: Ints
    stage: Ints
    members: int
    stages: int


@dataclass
class Payments:
    """Accounts and payments, the latter sorted by time.

    Attributes:
        bank: bank of each account, ascending [N].
        kind: `PERSON`, `MERCHANT` or `PAYROLL` [N].
        source: paying account [E].
        target: receiving account [E].
        time: in seconds since the first day [E].
        amount: [E].
        form: format of the payment, 0 to 3 [E].
        label: whether it belongs to a laundering pattern [E].
        role: `BACKGROUND`, `PATTERN`, `DIRECTION_DECOY`, `TIME_DECOY` or `CHAIN` (other payments of a chain), before label
            noise [E].
        pattern: number of the pattern, decoy or chain, -1 for the background [E].
    """

    bank: Ints
    kind: Ints
    source: Ints
    target: Ints
    time: Ints
    amount: NDArray[np.float64]
    form: Ints
    label: NDArray[np.bool_]
    role: Ints
    pattern: Ints


@dataclass
class ColumnKeys:
    """Keys of the columns that banks compute from their own payments."""

    # days; each adds counts of payments at both ends as edge features
    windows: list[float] = number([], without_low=True)
    causal: bool = True  # counts look back only, not ahead too
    counts: str = choice("bank", ("bank", "all"))  # bank: payments that touch the sender's bank | all: every payment
    ports: bool = False  # whether port numbers are edge features
    recipe: str | None = None  # columns of a bank's own records: payments; windows are then those of the recipe
    without: list[str] = field(default_factory=list)  # patterns of columns that the recipe leaves out, such as flow_*
    last: int = number(
        0
    )  # most payments at each end that a column of the recipe reads, the last ones; 0: all in its windows
    day: str = choice(BEFORE, DAYS)  # what a record of the recipe reads: earlier ones | the others of its whole day too
    # features of accounts: constant | activity, counts of their payments
    features: str = choice("constant", ("constant", "activity"))

    def __post_init__(self) -> None:
        if self.without and not self.recipe:
            raise FedGraphError(f"dataset.without={self.without} needs a recipe: set dataset.recipe=payments")
        if self.day != BEFORE and not self.recipe:
            raise FedGraphError(f"dataset.day={self.day} needs a recipe: set dataset.recipe=payments")
        if self.last and (not self.recipe or self.ports or self.features == "activity"):
            needed = "dataset.recipe=payments, dataset.ports=false and dataset.features=constant"
            raise FedGraphError(f"dataset.last={self.last} caps what columns of payments read: set {needed}")
        self.recorded()

    def recorded(self) -> Recipe | None:
        """Return the recipe of columns of a bank's own records; None without one.

        Raises:
            FedGraphError: the recipe, a window or a column is unknown.
        """
        windows = tuple(self.windows) or WINDOWS
        return Recipe(self.recipe, windows, tuple(self.without), self.last, self.day) if self.recipe else None

    @property
    def counted(self) -> list[float]:
        """Days of the windows whose counts are edge features; a recipe has them as its own."""
        return [] if self.recipe else self.windows

    @property
    def activity_windows(self) -> list[float]:
        """Days of the windows that features of accounts count in."""
        return self.windows or [2.0]


@dataclass
class PaymentsSpec(ColumnKeys):
    """The keys of ``conf/dataset/payments.yaml``."""

    banks: int | None = number(None, low=1)  # null: the run's num_clients
    accounts: int = number(4000, low=10)  # N
    skew: float = number(0.7)  # sizes of banks fall with rank^-skew; 0: equal sizes
    background: int = number(40_000)  # payments that belong to no pattern
    days: int = number(30, low=1)
    kinds: list[str] | None = None  # of patterns; null: all
    per_kind: int = number(60)  # patterns of each kind
    size: list[int] | None = None  # [low, high] of k, which sets a pattern's size; null: [4, 8]
    window: float = number(2.0, without_low=True)  # days that a pattern takes
    dates: bool = False  # whether times are dates, without hours
    cross: float = number(0.5, 0, 1)  # probability that a member may be at another bank than the first
    decoy_dir: int = number(1)  # copies of each pattern with random directions, not laundering
    decoy_time: int = number(1)  # copies of each pattern with random times, not laundering
    # independent | passed: a member of a pattern passes on 90 to 99 % of what arrived, decoys too
    amounts: str = choice("independent", ("independent", "passed"))
    label_noise: float = number(0.0, 0, 1)  # share of payments whose label is flipped
    depth: int | None = number(None, low=2)  # null: patterns of kinds; d: chains whose labels lie 2 to d payments away
    # depth: banks of the other ends of a fan's payments: any | own, the bank of its account
    fans: str = choice("any", ("any", "own"))
    seed: int | None = None  # null: the run's seed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fans == "own" and not self.depth:
            raise FedGraphError("dataset.fans=own needs dataset.depth: leave it out, or set dataset.depth=3")
        check_names(self.kinds or (), KINDS, "dataset.kinds")
        unread = [k for k in UNREAD if getattr(self, k) != PaymentsSpec.__dataclass_fields__[k].default]
        if self.depth and unread:
            text = f"plants chains, which do not read dataset.{unread[0]}: leave it out"
            raise FedGraphError(f"dataset.depth={self.depth} {text}")
        low, high = self.sizes if self.size is None or len(self.size) == 2 else (0, 0)
        if not 2 <= low <= high:
            raise FedGraphError(f"dataset.size must be [low, high] with 2 <= low <= high, got {self.size}")
        if self.window > self.days:
            raise FedGraphError(f"dataset.window={self.window:g} days must be at most dataset.days={self.days}")

    @property
    def activity_windows(self) -> list[float]:
        """The counts' windows, else that of a pattern."""
        return self.windows or [self.window]

    @property
    def sizes(self) -> tuple[int, int]:
        """Smallest and largest k."""
        low, high = self.size or (4, 8)
        return low, high


def load(cfg: DatasetConfig, *, seed: int = 0, num_clients: int = 5) -> Graph:
    """Generate the graph that ``cfg.params`` describes: accounts, payments with `edge_features`.

    An account's label is 1 if a laundering payment leaves or reaches it; a payment's label is in ``edge_y``.

    Raises:
        FedGraphError: a key or value that is not accepted, or a bank that is too small.
    """
    spec: PaymentsSpec = typed(PaymentsSpec, cfg.params, f"dataset={cfg.name}")
    p = generate(spec, seed=seed if spec.seed is None else spec.seed, banks=spec.banks or num_clients)
    p.time = p.time // DAY * DAY if spec.dates else p.time
    return as_graph(p, spec, edge_features(p, spec), cfg.name)


def as_graph(p: Payments, spec: ColumnKeys, edge_attr: NDArray[np.float64], name: str) -> Graph:
    """Return accounts and payments as a graph whose groups are banks, with the columns of the recipe for payments.

    An account's label is 1 if a laundering payment leaves or reaches it, of chains (``depth``) one each; a payment's label is in
    ``edge_y``.

    Args:
        p: the payments.
        spec: features of accounts.
        edge_attr: features of payments [E, D].
        name: the dataset's name.
    """
    n = p.bank.size
    ends = p.source[p.label], p.target[p.label]
    y = np.zeros(n, dtype=np.int64)
    y[np.intersect1d(*ends) if getattr(spec, "depth", None) else np.concatenate(ends)] = 1
    graph = Graph(
        x=torch.from_numpy(activity(p, spec)) if spec.features == "activity" else torch.ones(n, 1, dtype=torch.float32),
        edge_index=torch.from_numpy(np.stack([p.source, p.target])),
        y=torch.from_numpy(y),
        **unsplit(n),
        num_classes=2,
        num_edge_classes=2,
        name=name,
        group=torch.from_numpy(p.bank),
        edge_attr=torch.from_numpy(edge_attr.astype(np.float32)),
        edge_time=torch.from_numpy(p.time),
        edge_y=torch.from_numpy(p.label.astype(np.int64)),
    )
    recipe = spec.recorded()
    if recipe is None:
        return graph
    cents, _ = cents_of(p.amount, f"dataset={name}")
    book = Book(p.source, p.target, p.time, cents)
    graph.book = torch.from_numpy(np.stack([p.source, p.target, p.time, cents]))
    return with_edge_columns(graph, recipe, edge_columns(book, recipe, p.bank if spec.counts == "bank" else None))


def edge_features(p: Payments, spec: PaymentsSpec) -> NDArray[np.float64]:
    """Return features of payments [E, D]: log-amount, format as four flags, then those that are computed."""
    return np.concatenate([((np.log(p.amount) - 5) / 1.2)[:, None], np.eye(4)[p.form], computed(p, spec)], axis=1)


def computed(p: Payments, spec: ColumnKeys) -> NDArray[np.float64]:
    """Return the counts and ports of payments as ln(1 + count) [E, D]."""
    columns = [np.log1p(_counts(p, spec, round(days * DAY))) for days in spec.counted]
    if spec.ports:
        columns.append(np.log1p(ports(p.source, p.target, p.time)))
    return np.concatenate([np.zeros((p.time.size, 0)), *columns], axis=1)


def activity(p: Payments, spec: ColumnKeys) -> NDArray[np.float32]:
    """Return features of accounts [N, 4 + 3 W], as ln(1 + count), which each account's bank computes from its own table.

    The first are payments out and in, and distinct receivers and senders. For each of W windows (``activity_windows``)
    follow the most payments out and in within it, and the most payments in before one out.
    """
    n = p.bank.size
    pairs = np.unique(np.stack([p.source, p.target]), axis=1)
    columns = [np.bincount(ends, minlength=n) for ends in (p.source, p.target, *pairs)]
    for days in spec.activity_windows:
        out, before, _, into = window_counts(p.source, p.target, p.time, round(days * DAY)).T
        for ends, counts in ((p.source, out), (p.target, into), (p.source, before)):
            most = np.zeros(n, dtype=np.int64)
            np.maximum.at(most, ends, counts)
            columns.append(most)
    return np.log1p(np.stack(columns, axis=1)).astype(np.float32)


def _counts(p: Payments, spec: ColumnKeys, window: int) -> Ints:
    """Return `window_counts` of payments, as the sender's bank or an observer of all banks sees them."""
    if spec.counts == "all":
        return window_counts(p.source, p.target, p.time, window, spec.causal)
    book = Book(p.source, p.target, p.time, np.zeros_like(p.time))
    seen = per_party(book, p.bank)[0]  # two banks see a payment between them
    return window_counts(seen.source, seen.target, seen.time, window, spec.causal)[: p.time.size]


def skeleton(kind: str, k: int) -> Skeleton:
    """Return the edges of a pattern of size k.

    ``fan_in`` k→1, ``fan_out`` 1→k, ``cycle`` of k, ``scatter_gather`` 1→k→1, ``gather_scatter`` k→1→k, ``bipartite``
    ⌊k/2⌋×⌈k/2⌉, ``stack``: bipartite, then to 2 more, ``random``: a path of k hops, a random walk that does not come back. Each
    hop of a cycle and of a path is a stage; a hub is member 0.
    """
    many, left, right = np.arange(1, k + 1), np.arange(k // 2), np.arange(k // 2, k)
    layers = {
        "fan_in": [_complete(many, [0])],
        "fan_out": [_complete([0], many)],
        "cycle": [np.array([[i], [(i + 1) % k]]) for i in range(k)],
        "random": [np.array([[i], [i + 1]]) for i in range(k)],
        "scatter_gather": [_complete([0], many), _complete(many, [k + 1])],
        "gather_scatter": [_complete(many, [0]), _complete([0], many + k)],
        "bipartite": [_complete(left, right)],
        "stack": [_complete(left, right), _complete(right, [k, k + 1])],
    }[kind]
    source, target = np.concatenate(layers, axis=1)
    stage = np.repeat(np.arange(len(layers)), [layer.shape[1] for layer in layers])
    return Skeleton(source, target, stage, 1 + int(max(source.max(), target.max())), len(layers))


def _complete(sources: NDArray[np.int64] | list[int], targets: NDArray[np.int64] | list[int]) -> Ints:
    """Return all edges from one set of members to another [2, E]."""
    left, right = np.meshgrid(sources, targets, indexing="ij")
    return np.stack([left.ravel(), right.ravel()])


def generate(spec: PaymentsSpec, *, seed: int, banks: int) -> Payments:
    """Draw accounts and payments: a pure function of the keys, the seed and the number of banks.

    Raises:
        FedGraphError: a bank has too few persons for a pattern.
    """
    bank, kind, activity, contacts = _accounts(spec, banks, np.random.default_rng([seed, 0]))
    background = _background(spec, kind, activity, contacts, np.random.default_rng([seed, 1]))
    draws = np.random.default_rng([seed, 2]), np.random.default_rng([seed, 4])
    *planted, passed = _chains(spec, bank, kind, seed) if spec.depth else _patterns(spec, bank, kind, *draws)
    source, target, time, role, pattern = (np.concatenate(pair) for pair in zip(background, planted, strict=True))
    order = np.argsort(time, kind="stable")
    fixed = np.concatenate([np.zeros(background[0].size), passed])[order]
    source, target, time, role, pattern = (column[order] for column in (source, target, time, role, pattern))
    rng = np.random.default_rng([seed, 3])
    label = (role == PATTERN) ^ (rng.random(role.size) < spec.label_noise)
    amount, form = rng.lognormal(5, 1.2, role.size), rng.integers(4, size=role.size)
    amount = np.where(fixed > 0, fixed, amount)
    return Payments(bank, kind, source, target, time, amount, form, label, role, pattern)


def _accounts(spec: PaymentsSpec, banks: int, rng: np.random.Generator) -> tuple[Ints, Ints, NDArray[np.float64], Ints]:
    """Return bank, kind and activity of each account [N], and its standing contacts [N, 6]."""
    n = spec.accounts
    weight = np.arange(1, banks + 1) ** -spec.skew
    bank = np.sort(rng.choice(banks, n, p=weight / weight.sum()))
    kind = rng.choice(3, n, p=SHARES)
    activity = np.minimum(rng.pareto(1.5, n) + 1, 50)
    first, count = np.searchsorted(bank, bank), np.bincount(bank, minlength=banks)[bank]
    neighbours = first[:, None] + (rng.random((n, CONTACTS)) * count[:, None]).astype(np.int64)
    anyone = rng.integers(n, size=(n, CONTACTS))
    near = rng.random((n, CONTACTS)) < (0 if spec.depth else OWN_BANK)
    return bank, kind, activity, np.where(near, neighbours, anyone)


def _background(
    spec: PaymentsSpec, kind: Ints, activity: NDArray[np.float64], contacts: Ints, rng: np.random.Generator
) -> tuple[Ints, ...]:
    """Return source, target, time, role and pattern of payments outside patterns, without payments to oneself."""
    size = spec.background

    def drawn(of: int, uniform: bool = False) -> Ints:
        """Accounts of a kind, by activity or uniformly."""
        accounts = np.flatnonzero(kind == of)
        if not accounts.size:
            kinds = ("person", "merchant", "payroll")
            raise FedGraphError(f"dataset.accounts={spec.accounts} gives no {kinds[of]}: raise it")
        share = None if uniform else activity[accounts] / activity[accounts].sum()
        return accounts[rng.choice(accounts.size, size, p=share)]

    source, way = drawn(PERSON), rng.random(size)
    standing = contacts[source, rng.integers(CONTACTS, size=size)]
    target = np.select([way < 0.55, way < 0.80], [standing, drawn(MERCHANT)], rng.integers(spec.accounts, size=size))
    salary = (way >= 0.80) & (way < 0.90)
    source = np.where(salary, drawn(PAYROLL, uniform=True), source)
    target = np.where(salary, drawn(PERSON, uniform=True), target)
    time = (rng.random(size) * spec.days * DAY).astype(np.int64)
    kept = source != target
    none = np.zeros(int(kept.sum()), dtype=np.int64)
    return source[kept], target[kept], time[kept], none + BACKGROUND, none - 1


def drawn_chains(spec: PaymentsSpec, kind: Ints, seed: int) -> deep_payments.Chains:
    """Return the chains of ``dataset.depth``: as many as there would be patterns of all kinds."""
    count, rng = len(KINDS) * spec.per_kind, np.random.default_rng([seed, 2])
    return deep_payments.chains(np.flatnonzero(kind == PERSON), count, spec.depth or 0, rng)


def _chains(spec: PaymentsSpec, bank: Ints, kind: Ints, seed: int) -> tuple[NDArray[Any], ...]:
    """Return source, target, time, role, pattern and amount of payments of chains, as `_patterns` does."""
    chains, sizes = drawn_chains(spec, kind, seed), spec.sizes if spec.size else deep_payments.SIZES
    people, rng = np.flatnonzero(kind == PERSON), np.random.default_rng([seed, 4])
    home = bank[people] * (spec.fans == "own")
    if (np.bincount(home) == 1).any():
        raise FedGraphError("a bank has one person, too few for a fan: raise dataset.accounts, or set dataset.fans=any")
    source, target, time, label, *rest = deep_payments.planted(
        chains, people, home, (spec.days, spec.window), sizes, rng
    )
    return source, target, time, np.where(label, PATTERN, CHAIN), *rest


def _patterns(
    spec: PaymentsSpec, bank: Ints, kind: Ints, rng: np.random.Generator, money: np.random.Generator
) -> tuple[NDArray[Any], ...]:
    """Return source, target, time, role, pattern and amount of planted patterns and their decoys; 0 for any amount."""
    people = np.flatnonzero(kind == PERSON)
    low, high = spec.sizes
    roles = np.repeat([PATTERN, DIRECTION_DECOY, TIME_DECOY], [1, spec.decoy_dir, spec.decoy_time])
    parts: list[tuple[NDArray[Any], ...]] = []
    total = 0
    for name in spec.kinds or KINDS:
        sizes = rng.integers(low, high + 1, spec.per_kind)
        for k in range(low, high + 1):
            shape = skeleton(name, k)
            role = np.repeat(roles, int((sizes == k).sum()))
            ids = total + np.arange(role.size)
            total += role.size
            members = _members(spec, people, bank, shape.members, role.size, rng)
            ends = members[:, shape.source], members[:, shape.target]
            flipped = _directions(role, shape.source.size, rng)
            start = rng.random((role.size, 1)) * (spec.days - spec.window)
            within = (shape.stage + rng.random((role.size, shape.stage.size))) / shape.stages * spec.window
            anytime = rng.random(within.shape) * spec.days
            days = np.where(role[:, None] == TIME_DECOY, anytime, start + within)
            columns = (
                np.where(flipped, ends[1], ends[0]),
                np.where(flipped, ends[0], ends[1]),
                (days * DAY).astype(np.int64),
                np.broadcast_to(role[:, None], within.shape),
                np.broadcast_to(ids[:, None], within.shape),
                passed_on(shape, role.size, money) if spec.amounts == "passed" else np.zeros(within.shape),
            )
            parts.append(tuple(column.ravel() for column in columns))
    nothing = (*(np.zeros(0, dtype=np.int64),) * 5, np.zeros(0))
    return tuple(np.concatenate(column) for column in zip(nothing, *parts, strict=True))


def passed_on(shape: Skeleton, patterns: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return amounts of patterns [P, edges] whose members pass on 90 to 99 % of what the stage before brought.

    As many payments as arrived pass on one each; otherwise they share the sum alike.
    """
    amount = rng.lognormal(5, 1.2, (patterns, shape.source.size))
    kept = rng.uniform(0.90, 0.99, amount.shape)
    for stage in range(1, shape.stages):
        for member in np.unique(shape.source[shape.stage == stage]):
            out = np.flatnonzero((shape.source == member) & (shape.stage == stage))
            into = np.flatnonzero((shape.target == member) & (shape.stage == stage - 1))
            arrived = amount[:, into]
            if into.size != out.size:
                arrived = arrived.sum(axis=1, keepdims=True) / out.size
            amount[:, out] = arrived * kept[:, out]
    return amount


def _directions(role: Ints, edges: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return which edges are reversed [P, edges]: of direction decoys at random, neither all nor none."""
    flipped = rng.random((role.size, edges)) < 0.5
    while (wrong := flipped.all(1) | ~flipped.any(1)).any() and edges > 1:
        flipped[wrong] = rng.random((int(wrong.sum()), edges)) < 0.5
    return flipped & (role == DIRECTION_DECOY)[:, None]


def _members(
    spec: PaymentsSpec, people: Ints, bank: Ints, members: int, patterns: int, rng: np.random.Generator
) -> Ints:
    """Return distinct persons for each pattern [P, members]: at any bank with probability ``cross``, else at the first's bank."""
    home = bank[people]
    first, count = np.searchsorted(home, home), np.bincount(home)[home]
    few = int(count.min(initial=members))
    if (few < members and spec.cross < 1) or (
        patterns and people.size < 2 * members
    ):  # distinct members are drawn by trial
        raise FedGraphError(
            f"{people.size} persons are too few for patterns of {members} members, with {few} persons at one bank: raise"
            " dataset.accounts, or lower num_clients or dataset.size"
        )
    if not patterns:
        return np.zeros((0, members), dtype=np.int64)
    free = rng.random((patterns, members)) < spec.cross
    leader = rng.integers(people.size, size=(patterns, 1))
    free[:, 0] = True

    def drawn() -> Ints:
        near = first[leader] + (rng.random(free.shape) * count[leader]).astype(np.int64)
        return np.where(free, rng.integers(people.size, size=free.shape), near)

    chosen = drawn()
    chosen[:, :1] = leader
    while (repeated := _repeated(chosen)).any():
        chosen = np.where(repeated, drawn(), chosen)
    return people[chosen]


def _repeated(rows: Ints) -> NDArray[np.bool_]:
    """Return which entries of each row stood in it before."""
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    repeats = np.zeros(rows.shape, dtype=bool)
    np.put_along_axis(repeats, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return repeats
