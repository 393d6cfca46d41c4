"""Reasons: the columns and payments that carry the score of an item, from the party's own stored graph and new rows.

Networks: integrated gradients (Sundararajan et al., ICML 2017; captum) from columns at their mean and without messages to the
item's actual inputs. Each edge has a factor on its messages, whose contribution is that of the edge. Contributions sum to the
score less that of the start, up to an error: points are doubled, from `STEPS` to at most `MAX_STEPS`, until it is at most
`ERROR` of the sum of their sizes.

Trees: SHAP values (Lundberg et al., 2020; LightGBM), with the party's stored items as background.

    score = z_1 − z_0 of two classes,  z_c − mean of the others of more, c the predicted one;  the number itself for a target

Two checks come with each item: the score without its first reasons, and the rank correlation with the contributions in a model
with random parameters (Adebayo et al., NeurIPS 2018), which is near 1 if they follow from the data and not from the model.
"""

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from torch import Tensor

from fedgraph_flwr.data.far_ends import with_far_ends
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.value_formats import time_texts
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.models.plain import Plain
from fedgraph_flwr.numerics.forest import raw_scores
from fedgraph_flwr.party.use.blend import Blended, Weights
from fedgraph_flwr.party.use.cases import Around
from fedgraph_flwr.party.use.day import names_by_id
from fedgraph_flwr.party.use.export import PlainInputs, PlainReader, module_of
from fedgraph_flwr.party.use.predict import Predictor, as_client, as_scored, names_of
from fedgraph_flwr.party.use.trees import shapley
from fedgraph_flwr.party.use.wording import ENDS, OTHERS, Wording, wording
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.tasks.trees import objective_of

Floats = NDArray[np.float64]

STEPS, MAX_STEPS = 32, 512
"""Fewest and most points of integrated gradients."""

ERROR = 1e-2
"""Largest error of the sum of contributions of a network, relative to the sum of their sizes, unless it needs more points than
`MAX_STEPS`; reasons show two digits. Sundararajan et al. accept 5 %."""

WITHOUT = 5
"""Reasons that the second score of an item leaves out."""


@dataclass(frozen=True)
class Reasons:
    """Contributions to the score of one item.

    Attributes:
        item: its id.
        score: of the item.
        base: score at the start of the path, or the mean score of the stored items.
        without: score without its first `WITHOUT` reasons.
        columns: names of the columns [F].
        of_columns: their contributions [F].
        values: their values [F]; NaN for a sum over other nodes, and for an account of another party.
        random: contributions of columns and edges in a model with random parameters [F + E].
        of_edges: contributions of the edges of the graph [E].
        ends: ids of their sources and targets [2, E].
        edges: ids or numbers of these edges, "" for those that other parties predict [E].
        time: their times in seconds [E]; empty if unknown.
        wording: what the columns mean.
        around: the item among the payments of its tables, if there are any.
    """

    item: Any
    score: float
    base: float
    without: float
    columns: list[str]
    of_columns: Floats
    values: Floats
    random: Floats
    of_edges: Floats = field(default_factory=lambda: np.zeros(0))
    ends: NDArray[Any] = field(default_factory=lambda: np.zeros((2, 0), dtype=object))
    edges: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=object))
    time: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    wording: Wording = field(default_factory=Wording)
    around: Around | None = None

    @property
    def alike(self) -> float:
        """Rank correlation of sizes of contributions with those in the random model, where either has any; NaN below three."""
        contributions = np.concatenate([self.of_columns, self.of_edges])
        some = (contributions != 0) | (self.random != 0)
        if some.sum() < 3 or np.isnan(self.random).any():
            return float("nan")
        return float(spearmanr(np.abs(contributions[some]), np.abs(self.random[some])).statistic)

    def text(self, top: int) -> str:
        """Return the ``top`` largest contributions that raise the score, in one line; none of a value that is unknown."""
        frame = self.to_frame(len(self.of_columns) + len(self.of_edges))
        known = (frame["kind"] == "payment") | frame["value"].notna() | frame["name"].str.endswith(OTHERS)
        parts = []
        for row in frame[known & (frame["contribution"] > 0)].head(top).itertuples():
            parts.append(f"{row.text} ({row.contribution:+.2g})")
        return "; ".join(sanitize(part, 1000) for part in parts)

    def to_frame(self, top: int) -> Any:
        """Return a pandas table of the ``top`` largest contributions, without those that are 0; ``text`` has original units."""
        import pandas as pd

        both = np.concatenate([self.of_columns, self.of_edges])
        rows = np.argsort(-np.abs(both), kind="stable")[:top]
        rows = rows[both[rows] != 0]
        held = dict(zip(self.columns, self.values.tolist(), strict=True))
        times = time_texts(self.time, self.wording.dated) if self.time.size else [""] * len(self.edges)
        listed: list[tuple[Any, ...]] = []
        for row in rows.tolist():
            if (edge := row - len(self.columns)) < 0:
                name = self.columns[row]
                parts = self.wording.text(name, held), self.around.of_column(name) if self.around else ""
                listed.append(("column", name, "", "", "", ": ".join(filter(None, parts)), self.values[row]))
                continue
            name, (source, target), time = self.edges[edge], self.ends[:, edge], times[edge]
            text = self.around.of_payment(str(name)) if self.around else ""
            text = text or f"{source} → {target}, {time}".rstrip(" ,")
            start = f"payment {name}: " if name != "" else "payment "
            listed.append(("payment", name, source, target, time, f"{start}{text}", np.nan))
        names = ["kind", "name", "source", "target", "time", "text", "value"]
        frame = pd.DataFrame(listed, columns=names, dtype=object)
        frame.insert(0, "item", self.item)
        frame.insert(1, "rank", np.arange(1, len(rows) + 1))
        value = frame.pop("value").astype(np.float64)
        scores = {"score": self.score, "score_without_first": self.without, "random_model_correlation": self.alike}
        return frame.assign(contribution=both[rows], value=value, **scores)


def _margin(outputs: Any, chosen: int) -> Any:
    """Return the score of outputs [V, W] as the module describes it: that of class ``chosen``, -1 for a number."""
    if chosen < 0:
        return outputs[:, 0]
    width = outputs.shape[1]
    return outputs[:, chosen] * width / (width - 1) - outputs.sum(1) / (width - 1)


def explain(
    predictor: Any, graph: Any, ids: Any, read: Any, items: Sequence[str], checks: bool = True
) -> list[Reasons]:
    """Return the reasons of items.

    Args:
        predictor: the model of a party.
        graph: as for `TaskPredictor.predict`.
        ids: ids of the graph's nodes.
        read: `prediction_input.NewNodes` of tables; None for a stored graph.
        items: ids of nodes, or ids or numbers of edges as `predict` lists them.
        checks: whether to compute the score without the first reasons and the contributions in a random model, NaN without.

    Raises:
        FedGraphError: an id is unknown, or the task, the method or the model has no scores of single items that follow from the
            party's own data.
    """
    if isinstance(predictor, Blended):
        every = [explain(member, graph, ids, read, items, checks) for member in predictor.members]
        return [_blended(parts, predictor.weights) for parts in zip(*every, strict=True)]
    if not isinstance(predictor, Predictor):
        raise FedGraphError(f"{predictor.source}: explain needs the folder of a run or a node")
    scored = predictor.task.capabilities.classes or (predictor.task.capabilities.targets and predictor.width == 1)
    fits = scored and predictor.task.ITEMS in ("nodes", "edges")
    predictor.check_task(fits, "explain needs classes or one target of nodes or edges")
    graph = predictor.as_graph(graph)
    if not isinstance(graph, Graph):
        raise FedGraphError(f"{predictor.source}: explain reads graphs with one type of nodes")
    if predictor.task.capabilities.targets:
        stats = predictor.target_stats
        graph = replace(graph, targets=torch.full((graph.num_nodes, 1), torch.nan), target_stats=stats)
    outputs, task = predictor.outputs(graph)
    names = names_of(graph, ids)
    numbers = _numbered(task, names, read)
    known = {str(name): row for row, name in zip(*numbers, strict=True)}
    if missing := [item for item in items if item not in known]:
        what = f"--items names '{sanitize(missing[0], 60)}', which is not among the {len(known)} {task.ITEMS}"
        raise FedGraphError(f"{what}: expected ids as `predict` lists them")
    rows = np.array([known[item] for item in items])
    chosen = _classes(predictor, outputs[torch.from_numpy(rows)])
    wanted = list(zip(items, rows.tolist(), chosen, strict=True))
    if predictor.forest:
        return _of_trees(predictor, graph, wanted)
    return _of_network(predictor, graph, outputs, names, numbers, wanted, checks)


def _blended(parts: Sequence[Reasons], weights: Weights) -> Reasons:
    """Return the reasons of one item by a blend: contributions of its members to columns and payments, weighted and added.

    The margin of a blend is the weighted sum of its members' margins and a constant, since log-softmax moves all classes alike.
    """
    if len(weights.bias) > 2:
        raise FedGraphError("explain of a blend needs two classes: explain the runs that it blends")
    bias = float(weights.bias[1] - weights.bias[0])
    columns = list(dict.fromkeys(name for part in parts for name in part.columns))
    place = {name: row for row, name in enumerate(columns)}
    count = max(part.of_edges.size for part in parts)
    values = np.full(len(columns), np.nan)
    sums = np.zeros((2, len(columns) + count))  # contributions, and those in random models
    for part, weight in zip(parts, weights.runs, strict=True):
        positions = np.array([place[name] for name in part.columns], dtype=np.int64)
        rows = np.concatenate([positions, len(columns) + np.arange(part.of_edges.size)])
        known = positions[~np.isnan(part.values)]
        values[known] = part.values[~np.isnan(part.values)]
        for total, given in zip(sums, (np.concatenate([part.of_columns, part.of_edges]), part.random), strict=True):
            np.add.at(total, rows, weight * np.concatenate([given, np.zeros(rows.size - given.size)]))
    scores = [
        float(weights.runs @ [getattr(part, name) for part in parts]) + bias for name in ("score", "base", "without")
    ]
    most = max(parts, key=lambda part: part.of_edges.size)
    split = len(columns)
    return Reasons(
        item=most.item,
        score=scores[0],
        base=scores[1],
        without=scores[2],
        columns=columns,
        of_columns=sums[0, :split],
        values=values,
        random=sums[1],
        of_edges=sums[0, split:],
        ends=most.ends,
        edges=most.edges,
        time=most.time,
        wording=functools.reduce(Wording.joined, (part.wording for part in parts)),
    )


Wanted = tuple[Any, int, int]
"""Id of an item, its place among the outputs, and the class whose score is explained."""


def _numbered(task: Any, names: NDArray[Any], read: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return places of the items among the outputs, and their ids; with tables, those of their rows."""
    if not isinstance(task, Edges):
        rows = np.arange(len(names)) if read is None else read.rows
        return rows, names[rows]
    place = task.order.argsort().numpy()
    return (place, np.arange(place.size).astype(object)) if read is None else (place[read.edges], read.edge_ids)


def _classes(predictor: Predictor, outputs: Tensor) -> list[int]:
    """Return the class whose score is explained, by item: the second of two, else the predicted one; -1 for a number."""
    if not predictor.task.capabilities.classes:
        return [-1] * len(outputs)
    return [1] * len(outputs) if outputs.size(1) == 2 else outputs.argmax(1).tolist()


def _of_trees(predictor: Predictor, graph: Any, items: list[Wanted]) -> list[Reasons]:
    """Return the reasons of items by trees, whose columns they read; replaced ones are missing in the second score."""
    x, background = predictor.inputs_of_trees(graph), predictor.inputs_of_trees(predictor.client_graph)
    objective = objective_of(predictor.cfg, predictor.width)
    forest = dict(predictor.forest)
    leaf = np.flatnonzero(forest["feature"] < 0)
    value = forest["value"].copy()
    value[leaf] = np.random.default_rng(0).permutation(value[leaf])
    names = predictor.column_names
    meaning = wording(predictor, predictor.client_graph, names, background)

    def score(raw: Floats, which: int) -> float:
        return float(_margin(raw[None], -1 if objective.binary else which)[0])

    rows = [row for _, row, _ in items]
    contributions, random = (
        shapley(trees, x[rows], background, objective.outputs) for trees in (forest, forest | {"value": value})
    )
    listed = []
    for (item, row, which), contribution, other in zip(items, contributions, random, strict=True):
        parts, others = (_margin(both.T, -1 if objective.binary else which) for both in (contribution, other))
        without = x[row].copy()
        without[np.argsort(-np.abs(parts[:-1]), kind="stable")[:WITHOUT]] = np.nan
        raw = raw_scores(forest, np.stack([x[row], without]), objective.outputs)
        scores = [score(values, which) for values in raw]
        base = float(parts[-1])
        listed.append(
            Reasons(item, scores[0], base, scores[1], names, parts[:-1], x[row], others[:-1], wording=meaning)
        )
    return listed


@dataclass
class _Network:
    """An exported model on the inputs of one item; the first ``known`` nodes are the party's, of others it has no columns."""

    net: torch.nn.Module
    inputs: PlainInputs
    known: int
    place: int
    chosen: int
    plain: Plain

    def __call__(self, x: Tensor, mask: Tensor, attr: Tensor) -> Tensor:
        """Return the score [1] for features [1, N, F], factors of messages [1, E], and features of the item [1, D]."""
        from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

        inputs, edges = self.inputs, self.inputs.edge_index
        set_masks(self.net, mask[0], edges, apply_sigmoid=False)
        masked: list[Any] = [module for module in self.net.modules() if hasattr(module, "edge_mask")]
        for module in masked:
            module.edge_mask = mask[0]
        try:
            given = replace(inputs, x=x[0], item_attr=None if inputs.item_attr is None else attr)
            outputs = given.outputs(self.net, self.plain)
            outputs = outputs[self.place : self.place + 1] if inputs.item_index is None else outputs
        finally:
            clear_masks(self.net)
            for module in masked:
                module.edge_mask = None
        score: Tensor = _margin(outputs, self.chosen) + 0 * (x.sum() + mask.sum() + attr.sum())  # all have a gradient
        return score

    def starts(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the actual arguments of a call, and those at the start: columns at their mean, no messages."""
        inputs = self.inputs
        attr = inputs.x.new_zeros(1, 0) if inputs.item_attr is None else inputs.item_attr
        mean = attr if inputs.edge_attr is None or not attr.numel() else inputs.edge_attr.mean(0, keepdim=True)
        mask = inputs.x.new_ones(1, inputs.edge_index.size(1))
        x = inputs.x.clone()
        x[: self.known] = x[: self.known].mean(0)
        return (inputs.x[None], mask, attr), (x[None], torch.zeros_like(mask), mean)

    @property
    def nodes(self) -> list[int]:
        """The item's node, or its source and target; both once if they are the same."""
        if self.inputs.item_index is None:
            return [self.place]
        return list(dict.fromkeys(self.inputs.item_index[:, 0].tolist()))

    @property
    def ends(self) -> list[str]:
        """Start of the names of columns of each of `nodes`."""
        return [""] if self.inputs.item_index is None else ["source ", "target "][: len(self.nodes)]

    def columns_of(self, x: Floats, attr: Floats, others: Floats) -> Floats:
        """Return numbers of the item's columns, of the columns of its nodes, and of the others' columns, as one vector."""
        return np.concatenate([attr, *x[self.nodes], others])

    def contributions(self) -> tuple[Floats, Floats]:
        """Return contributions of columns, as `columns_of` has them, and of edges [E]."""
        try:
            from captum.attr import IntegratedGradients
        except ImportError:
            raise FedGraphError(
                "explain of a network needs captum: pip install 'fedgraph-flwr[explain]'", "package"
            ) from None
        actual, start = self.starts()
        with torch.no_grad():
            gap = float(self(*actual)) - float(self(*start))
        steps = STEPS
        while True:
            attributions = IntegratedGradients(self).attribute(actual, start, n_steps=steps, internal_batch_size=1)
            x, mask, attr = (part[0].detach().double().numpy() for part in attributions)
            columns = self.columns_of(x, attr, x.sum(0) - x[self.nodes].sum(0))
            both = np.concatenate([columns, mask])
            if abs(both.sum() - gap) <= ERROR * np.abs(both).sum() or steps >= MAX_STEPS:
                return columns, mask
            steps *= 2

    def values(self) -> Floats:
        """Return values of the columns as `columns_of` has them, NaN for those of other nodes and unknown ones."""
        x, _, attr = (part[0].double().numpy() for part in self.starts()[0])
        x[self.known :] = np.nan
        return self.columns_of(x, attr, np.full(x.shape[1], np.nan))

    def without(self, contributions: tuple[Floats, Floats]) -> float:
        """Return the score without the first `WITHOUT` contributions: edges without message, columns at their mean."""
        (x, mask, attr), (mean, _, mean_attr) = ([part[0].clone() for part in given] for given in self.starts())
        first = np.argsort(-np.abs(np.concatenate(contributions)), kind="stable")[:WITHOUT]
        columns = torch.zeros(len(contributions[0]), dtype=torch.bool)
        columns[torch.from_numpy(first[first < len(columns)])] = True
        mask[torch.from_numpy(first[first >= len(columns)] - len(columns))] = 0
        d, width = attr.numel(), x.size(1)
        of_nodes = columns[d:].view(-1, width)
        cleared = of_nodes[-1].repeat(len(x), 1)
        cleared[self.nodes] = of_nodes[:-1]
        attr = torch.where(columns[:d], mean_attr, attr)
        with torch.no_grad():
            return float(self(torch.where(cleared, mean, x)[None], mask[None], attr[None]))


def _of_inputs(predictor: Predictor, graph: Any, of_nodes: list[str], of_edges: list[str]) -> Wording:
    """Return the wording of a network's columns, with the medians of the party's stored nodes and edges, else the graph's."""
    stored = graph if predictor.client_graph is None else predictor.client_graph
    tables = [(of_nodes, stored.x), (of_edges, stored.edge_attr)]
    parts = [
        wording(predictor, stored, names, rows.numpy() if rows.size(1) == len(names) else np.zeros((0, len(names))))
        for names, rows in tables
    ]
    of_ends = {f"{end}{name}": value for end in ENDS for name, value in parts[0].usual.items()}
    return replace(parts[0], usual={**parts[0].usual, **of_ends, **(parts[1].usual if parts[0].edges else {})})


def _randomised(net: torch.nn.Module) -> torch.nn.Module:
    """Return the model with random parameters of the same spread."""
    random, draw = copy.deepcopy(net), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in random.parameters():
            spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
            if spread:  # scales of a normalisation that are all 1 stay
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype) * spread)
    return random


def _of_network(
    predictor: Predictor,
    graph: Any,
    outputs: Tensor,
    names: NDArray[Any],
    numbers: tuple[NDArray[np.int64], NDArray[Any]],
    items: list[Wanted],
    checks: bool,
) -> list[Reasons]:
    """Return the reasons of items by a network, as plain PyG computes it."""
    plain, dtype = predictor.plain(), predictor.cfg.dtype
    net = module_of(plain, dtype)
    random = _randomised(net)
    client_graph = as_client(
        graph, predictor.client, len(predictor.input_spec.classes) if predictor.predicts_edges else 0
    )
    task: Any = predictor.task(as_scored(predictor.cfg, predictor.task), client_graph)
    reader: Any = PlainReader(plain, getattr(torch, dtype))
    of_nodes, of_edges = predictor.feature_names(client_graph)
    meaning = _of_inputs(predictor, client_graph, of_nodes, of_edges)
    edge_names = np.full(len(outputs) + 1, "", dtype=object)  # the last one: predicted by another party
    edge_names[numbers[0]] = numbers[1]
    called = names_by_id(client_graph, names)
    listed = []
    for item, row, which in items:
        if isinstance(task, Edges):
            read, inputs, numbered = task.inputs_of_item(row, reader)
            edges = edge_names[numbered.numpy()]
        else:
            read = (
                client_graph
                if client_graph.until(0) is client_graph
                else client_graph.until(int(client_graph.val_mask[row]) or 2 * int(not client_graph.train_mask[row]))
            )
            read = with_far_ends(read) if task.capabilities.far_ends and client_graph.far else read
            inputs, edges = reader.inputs_of(read), np.arange(read.edge_index.size(1)).astype(object)
        made = _Network(net, inputs, client_graph.num_nodes, row, which, plain)
        actual, start = made.starts()
        with torch.no_grad():
            score, base = (float(made(*given)) for given in (actual, start))
        expected = float(_margin(outputs[row : row + 1].double(), which))
        if abs(score - expected) > 1e-3 * max(1.0, abs(expected)):
            what = f"which gives item '{sanitize(item, 40)}' a score of {score:.4g} and not {expected:.4g}"
            raise FedGraphError(
                f"strategy={predictor.name} cannot be explained: it predicts with more than its model, {what}"
            )
        contributions = made.contributions()
        other = [np.full_like(part, np.nan) for part in contributions]
        if checks:
            other = list(replace(made, net=random).contributions())
        columns = [*of_edges] if actual[2].numel() else []
        columns += [f"{end}{name}" for end in [*made.ends] for name in of_nodes]
        far = [called.get(number, f"account {number}") for number in read.node_id[client_graph.num_nodes :].tolist()]
        listed.append(
            Reasons(
                item=item,
                score=score,
                base=base,
                without=made.without(contributions) if checks else float("nan"),
                columns=[*columns, *(f"{name}{OTHERS}" for name in of_nodes)],
                of_columns=contributions[0],
                values=made.values(),
                random=np.concatenate(other),
                of_edges=contributions[1],
                ends=np.concatenate([names, np.array(far, dtype=object)])[read.edge_index.numpy()],
                edges=edges,
                time=read.edge_time.numpy(),
                wording=meaning,
            )
        )
    return listed
