"""Recall of a drill: how many planted payments and patterns of each kind are among a party's alerts.

A party's alerts are its test payments with the highest scores, as many as its budget; equal scores in the order of its file,
which is arbitrary. A payment counts at the party of its payer, which scores it. A pattern is found if one of its payments is an
alert at any of the parties that the report covers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr.data.graph import unpack_words
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line
from fedgraph_flwr.evaluation.curves import Curves, margin
from fedgraph_flwr.party.drill.plan import Plan
from fedgraph_flwr.party.drill.planting import PLAN, SLOTS
from fedgraph_flwr.party.use.alerts import labelled
from fedgraph_flwr.party.use.blend import is_blend
from fedgraph_flwr.party.use.predict import finished
from fedgraph_flwr.party.use.worth import OWN_TREES, load_model, model_name, models_below
from fedgraph_flwr.store.results import CONFIG

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

RULE = "rule on one column"
RANDOM, MOST = "random alerts", "the most that the budget allows"
ALL = "all"

COLUMNS = ["kind", "method", "payments", "found", "recall", "patterns", "patterns_found", "alerts", "test"]


@dataclass
class Scored:
    """A party's test payments.

    Attributes:
        score: of each [n].
        pattern: number of its pattern, -1 where it is ordinary [n].
    """

    score: Floats
    pattern: Ints

    def alerts(self, budget: int) -> Ints:
        """Return the pattern of each alert, -1 for ordinary payments."""
        return self.pattern[np.argsort(-self.score, kind="stable")[:budget]]


def recall(scored: Mapping[str, Sequence[Scored]], kinds: Mapping[int, str], budget: int) -> Any:
    """Return a pandas table with one row per kind of pattern and method, and one for all kinds.

    Columns: ``kind``, ``method``, ``payments`` and ``found`` (planted payments, and those among the alerts), ``recall``,
    ``patterns``, ``patterns_found``, ``alerts``, and ``test``, the number of test payments.

    Args:
        scored: test payments of each party, by method.
        kinds: kind of each pattern.
        budget: alerts of each party.
    """
    import pandas as pd

    rows = []
    for kind in [*dict.fromkeys(kinds.values()), ALL]:
        numbers = [number for number, name in kinds.items() if kind in (name, ALL)]
        for method, parties in scored.items():
            planted = np.concatenate([party.pattern for party in parties])
            size = planted.size
            listed = np.concatenate([party.alerts(budget) for party in parties])
            alerts = listed.size
            planted, hits = planted[np.isin(planted, numbers)], listed[np.isin(listed, numbers)]
            if planted.size:
                values = (planted.size, hits.size, hits.size / planted.size)
                rows.append((kind, method, *values, np.unique(planted).size, np.unique(hits).size, alerts, size))
    return pd.DataFrame(rows, columns=COLUMNS)


def bounds(parties: Sequence[Scored], kinds: Mapping[int, str], budget: int) -> Any:
    """Return rows as of `recall` for alerts drawn at random, in expectation, and for the best that the budget allows.

    At random, party p finds b_p / n_p of its planted payments, and a pattern with m_p payments there stays hidden with chance
    Π_p C(n_p − m_p, b_p) / C(n_p, b_p). At best, each alert is a planted payment of a new pattern, if there are any.
    """
    import pandas as pd
    from scipy.special import gammaln

    sizes = np.array([party.pattern.size for party in parties])
    alerts = np.minimum(sizes, budget)
    held = np.array([[int((party.pattern == number).sum()) for party in parties] for number in kinds])
    free = sizes - held  # [patterns, parties]
    ways = gammaln(free + 1) - gammaln(np.maximum(free - alerts, 0) + 1)
    ways = np.where(free >= alerts, ways - gammaln(sizes + 1) + gammaln(sizes - alerts + 1), -np.inf)
    hidden = np.exp(ways.sum(axis=1))
    rows = []
    for kind in [*dict.fromkeys(kinds.values()), ALL]:
        mask = np.array([kind in (name, ALL) for name in kinds.values()], dtype=bool)
        payments, patterns = held[mask].sum(axis=0), int((held[mask].sum(axis=1) > 0).sum())
        if not (planted := int(payments.sum())):
            continue
        drawn, most = float((payments * alerts / np.maximum(sizes, 1)).sum()), int(np.minimum(payments, alerts).sum())
        best = min(patterns, int(np.minimum((held[mask] > 0).sum(axis=0), alerts).sum()))
        for name, hits, seen in ((RANDOM, drawn, float((1 - hidden[mask]).sum())), (MOST, most, best)):
            values = (planted, hits, hits / planted, patterns, seen, int(alerts.sum()), int(sizes.sum()))
            rows.append((kind, name, *values))
    return pd.DataFrame(rows, columns=COLUMNS)


def text(table: Any, hold_out: Sequence[str] = ()) -> list[str]:
    """Return the lines of a Markdown table: for each kind and method, patterns found and the recall of payments in %."""
    methods = list(dict.fromkeys(table["method"]))
    lines = [f"| patterns found, and % of their payments | {' | '.join(methods)} |", f"|---|{'---|' * len(methods)}"]
    for kind, rows in table.groupby("kind", sort=False):
        cells = [f"{round(r.patterns_found, 1):g} of {r.patterns}, {100 * r.recall:.0f} %" for r in rows.itertuples()]
        held = " (held out)" if kind in hold_out else ""
        lines.append(f"| {kind}{held} | {' | '.join(cells)} |")
    return lines


def kinds_of(plan: Plan) -> dict[int, str]:
    """Return the kind of each pattern of the test."""
    return {pattern.number: pattern.kind for pattern in plan.patterns if pattern.stage == 2}


def report(runs: Sequence[Path], planted: Sequence[Path], clients: Sequence[int | None], budget: int) -> Any:
    """Return the table of `recall` of finished runs on files of a drill.

    The first row is the rule: of each party, the one column, high or low, with the best average precision on its validation
    payments. It needs a run of trees.

    Args:
        runs: run folders, or a node's state folders.
        planted: folders that `plant` wrote, one per party.
        clients: number of each party in the runs; None for state folders.
        budget: alerts of each party.

    Raises:
        FedGraphError: a folder is no drill's, plans differ, or a run was made on other files.
    """
    import pandas as pd

    plans = [Plan.load(folder / PLAN) for folder in planted]
    for folder, plan in zip(planted, plans, strict=True):
        if plan.digest != plans[0].digest:
            raise FedGraphError(
                f"{folder} has the plan {plan.digest[:16]}, and {planted[0]} {plans[0].digest[:16]}: plant one plan at all"
                " parties"
            )
    scores: dict[str, list[Scored]] = {}
    rules: list[Scored] = []
    for folder, plan, client in zip(planted, plans, clients, strict=True):
        models = [(path, _load(path, client)) for run in runs for path in models_below(run)]
        local_model = next((model for _, model in models if not model.cfg.strategy.pooled), None)
        if local_model is None:
            raise FedGraphError(
                "a report needs a run whose parties keep their files, such as strategy=boosting: pass one"
            )
        accounts = accounts_by_number(local_model.party_graph(), read_slots(folder))
        trees = [(run, model) for run, model in models if _has_trees(model)]
        trees = [pair for pair in trees if model_name(pair[1]) == OWN_TREES] or trees
        for run, model in models:
            scores.setdefault(model_name(model), []).append(scores_of(model, accounts, plan, client, run))
        if trees:
            run, model = trees[0]
            rules.append(_rule(model, scores_of(model, accounts, plan, client, run)))
    first = {RULE: rules} if len(rules) == len(planted) else {}
    kinds = kinds_of(plans[0])
    limits = bounds(next(iter(scores.values())), kinds, budget)
    return pd.concat([recall(first | scores, kinds, budget), limits], ignore_index=True)


def _load(run: Path, client: int | None) -> Any:
    """Return a party's model of a run; a pooled one has a single client."""
    if (run / CONFIG).is_file() and not is_blend(run) and finished(run)[0].strategy.pooled:
        return load_model(run, 0)
    return load_model(run, client)


def _has_trees(model: Any) -> bool:
    """Return whether a party's own file has the columns that a model's trees read."""
    return bool(getattr(model, "forest", None)) and not model.cfg.strategy.pooled


def read_slots(folder: Path) -> dict[str, int]:
    """Return the pattern of each account that takes a slot.

    Raises:
        FedGraphError: the folder is no drill's, or its file is damaged.
    """
    import pandas as pd

    path = folder / SLOTS
    if not path.is_file():
        raise FedGraphError(f"{folder} has no {SLOTS}: pass a folder that `fedgraph-flwr drill plant` wrote")
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
        return {account: int(number) for account, number in zip(table["account"], table["pattern"], strict=True)}
    except MALFORMED as error:
        raise FedGraphError(f"{path} is damaged ({first_line(error)}): restore it, or plant the drill again") from error


def accounts_by_number(graph: Any, slots: Mapping[str, int]) -> dict[int, int]:
    """Return the pattern of accounts that take a slot, by their number in the run."""
    numbers = dict(zip(unpack_words(graph.ids).tolist(), graph.node_id.tolist(), strict=True)) if len(graph.ids) else {}
    return {numbers[account]: pattern for account, pattern in slots.items() if account in numbers}


def scores_of(model: Any, accounts: Mapping[int, int], plan: Plan, client: int | None, run: Path) -> Scored:
    """Return a party's test payments with the scores of a model.

    Args:
        model: the model; a pooled one has the payments of all parties.
        accounts: pattern of own accounts that take a slot, by number.
        plan: the plan.
        client: number of the party, for pooled models.
        run: its folder, for errors.

    Raises:
        FedGraphError: the run was made on other files than those of this drill.
    """
    if plan.label not in model.input_spec.classes:
        classes = ", ".join(model.input_spec.classes)
        raise FedGraphError(f"{run} has the classes {classes}, not {plan.label}: pass a run on the files of this drill")
    logits, task = model.items(model.party_graph())
    rows = labelled(task, "test")
    if model.cfg.strategy.pooled:
        rows = rows[task.part.numpy()[rows] == client]
    return Scored(margin(logits.numpy())[rows], patterns_of(task, rows, accounts, run))


def patterns_of(task: Any, rows: Ints, accounts: Mapping[int, int], run: Path) -> Ints:
    """Return the pattern of items, -1 for ordinary ones; an account takes one slot, so that a planted payment has its payer's.

    Raises:
        FedGraphError: a planted payment has a payer without a slot.
    """
    payer, planted = task.ends[0].numpy()[rows], task.y.numpy()[rows] == 1
    patterns = np.array([accounts.get(number, -1) for number in payer.tolist()], dtype=np.int64)
    if (patterns[planted] < 0).any():
        raise FedGraphError(f"{run} has planted payments of accounts without a slot: pass the folder of the same drill")
    return np.where(planted, patterns, -1)


def _rule(model: Any, known: Scored) -> Scored:
    """Return the test payments with the values of the column that is best on validation payments."""
    graph = model.party_graph()
    x = np.asarray(model.inputs_of_trees(graph), dtype=np.float64)
    _, task = model.items(graph)
    val, test = labelled(task, "val"), labelled(task, "test")
    positive = task.y.numpy()[val] == 1
    best, score = -1.0, np.zeros(test.size)
    for column in x.T:
        for sign in (1.0, -1.0):
            values = np.nan_to_num(sign * column, nan=-np.inf, neginf=-np.finfo(np.float64).max)
            precision = float(Curves(values[val], positive).precision()[0]) if val.size else np.nan
            if precision > best:
                best, score = precision, values[test]
    return Scored(score, known.pattern)
