"""Client of gradient boosting: trees on the columns of its own items, or histograms for trees that the server grows.

Leaves the client, with ``bagging``: sums of its targets, all of its trees, and two flags. Thresholds are midpoints of two real
values, and leaves tell of single records. With ``histogram``: sums of its targets, counts of values by bin, and sums of gradients
by bin and node; under secure sums the server sees only their totals. Under a node's policy, values count in cells of at least
``min_nodes`` of its own items (`methods.cells`). A server that chooses the model still finds single targets and their cells.
With neither if nothing is shared (``strategy.shared=[]``).
Never leaves it: predictions of single items.
"""

from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.clients import lightgbm_trees
from fedgraph_flwr.clients.base import GraphClient, ReplyContent, phase
from fedgraph_flwr.clients.chosen_parts import ChosenParts
from fedgraph_flwr.clients.lightgbm_trees import LabelledRows
from fedgraph_flwr.clients.outputs import outputs_of
from fedgraph_flwr.clients.requirements import one_type, unfit
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods import boosting
from fedgraph_flwr.methods.boosting import (
    BASE,
    BINS,
    CELLS,
    COUNTS,
    FOREST,
    HISTOGRAM,
    NODES,
    START,
    UNIT,
    BoostingParams,
    Edges,
    Growth,
    Objective,
)
from fedgraph_flwr.methods.cells import Branches, Cells
from fedgraph_flwr.methods.labels import large_enough
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.forest import Forest, logits_of
from fedgraph_flwr.numerics.forest import (
    Floats,
    check_forest,
    constants,
    empty_forest,
    first_trees,
    joined,
    leaves,
    raw_scores,
)
from fedgraph_flwr.numerics.gathered import Gathered
from fedgraph_flwr.tasks import kind_of
from fedgraph_flwr.tasks.trees import columns_of, forest_of, num_columns, objective_of
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check
from fedgraph_flwr.wire.trees import as_arrays

RAW, OWN, GROWN = "raw", "own", "grown"


class BoostingClient(GraphClient):
    """Client that fits gradient-boosted trees.

    `memory` holds the base rate, its own trees (``own``), and with ``histogram`` the edges of bins and the raw scores of its
    training items (``raw``).
    """

    Params: ClassVar[type] = BoostingParams
    uplink = staticmethod(boosting.uplink)
    downlink = staticmethod(boosting.downlink)
    serves: ClassVar[frozenset[str]] = frozenset({"nodes", "edges", "nodes-regression", "nodes-multilabel"})
    stacks: ClassVar[tuple[str, ...] | None] = None
    reads_messages: ClassVar[bool] = False
    model: Forest
    params: BoostingParams
    new: Arrays = empty_forest()
    sits_out = ended = True
    _branches: list[Branches] | None = None

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Refuse typed graphs, parts that change gradient steps, and losses that trees do not have."""
        one_type(cfg, model)
        params, inputs = method_params(cls, cfg), f"strategy.inputs={method_params(cls, cfg).inputs}"
        parts, far = (
            "', '".join(part.name for part in ChosenParts(cfg.strategy).all),
            kind_of(cfg).capabilities.far_ends,
        )
        cases = [
            (parts, f"takes no gradient steps, which its parts '{parts}' would change: leave them out"),
            (cfg.train.loss == "focal", "does not support train.loss=focal: set cross_entropy or weighted"),
            (
                cfg.task.loss != "mse" and not kind_of(cfg).capabilities.classes,
                f"fits squares, got task.loss={cfg.task.loss}: set task.loss=mse",
            ),
            (
                params.neighbours and (params.inputs == "embeddings" or not far),
                f"with strategy.neighbours=true reads columns of nodes, got task={cfg.task.name} and {inputs}: leave it out",
            ),
            (
                params.edge_columns and (params.inputs == "embeddings" or kind_of(cfg).ITEMS != "nodes"),
                f"with strategy.edge_columns=true reads columns of the edges of nodes, got task={cfg.task.name} and {inputs}:"
                " leave it out",
            ),
            (
                (params.inputs == "columns") != (not params.run),
                f"with {inputs} has strategy.run='{params.run}': pass the run folder with inputs=embeddings or both only",
            ),
        ]
        for refused, why in cases:
            if refused:
                raise FedGraphError(f"strategy={cfg.strategy.name} {why}")
        if params.mode == "bagging":
            lightgbm_trees.lightgbm()

    # --- items --------------------------------------------------------------------------------------------------------

    @cached_property
    def objective(self) -> Objective:
        """The loss."""
        return objective_of(self.cfg, self.task.width)

    def build_model(self) -> Forest:
        """Return an empty forest for the items' columns."""
        graph, cfg = self.graph, self.cfg
        if isinstance(graph.num_features, list):
            raise unfit(cfg, "nodes and edges of one type", "a graph of several", "import the tables of one type")
        columns = num_columns(cfg, self.params, graph.num_features, graph.num_edge_features, self.task.width)
        return forest_of(cfg, self.params, self.objective, columns)

    def prepared(self, whole: Any) -> tuple[Any, Any]:
        """Return the columns of all items as `x`, unless they need another model; they are the same in all stages."""
        self.whole = whole
        return (self._plain() if self.params.inputs == "columns" else None), None

    def _plain(self) -> Gathered:
        return columns_of(self.task, self.graph, self.params.neighbours, self.params.edge_columns)

    @property
    def x(self) -> Gathered:
        """What trees read of all items: columns, outputs of another model, or both [V, F], NaN where missing.

        Raises:
            FedGraphError: a server names a folder to a party's own node, or the model is one of other items.
        """
        if self.inputs is None:
            if not self.policy.trusting:
                raise FedGraphError(f"this node reads no model from strategy.run={self.params.run}: set inputs=columns")
            logits, y = outputs_of(Path(self.params.run), self.whole)
            if logits.shape != (len(self.task.y), self.task.width) or not torch.equal(y, self.task.y.cpu()):
                raise FedGraphError(
                    f"strategy.run={self.params.run} predicts other items than task={self.cfg.task.name} of this run: pass a run"
                    " with the same task, split and client files"
                )
            columns = self._plain().parts if self.params.inputs == "both" else []
            self.inputs = Gathered([*columns, (logits.double().numpy(), np.arange(len(logits)))])
        inputs: Gathered = self.inputs
        return inputs

    @property
    def rows(self) -> np.ndarray:
        """Places of the training items."""
        return self.train_nodes.cpu().numpy()

    def targets_of(self, rows: np.ndarray) -> Floats:
        """Return targets [V, K] of items."""
        return self.objective.targets(self.y.cpu().numpy()[rows])

    def weights_of(self, rows: np.ndarray) -> Floats:
        """Return the weight of each item: that of its class under ``train.loss=weighted``, else 1."""
        if self.class_weights is None:
            return np.ones(len(rows))
        return self.class_weights.cpu().double().numpy()[self.y.cpu().numpy()[rows]]

    def predict(self) -> Tensor:
        """Return logits of all items, float64 [V, W]."""
        return self.model(self.x)

    predict_shared = predict

    def predict_at(self, places: Tensor) -> Tensor:
        """Return logits of some items [K, W]; columns of no others are read."""
        return self.model(self.x.at(places.numpy()))

    @property
    def outputs(self) -> int:
        """K, the outputs of the forest."""
        return self.objective.outputs

    # --- what all clients agree on ------------------------------------------------------------------------------------

    @phase
    def base(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Return Σ targets and numbers of training items, weighted [W], without classes that are too small to be sent."""
        total, count = self.totals(self.policy.min_nodes)
        return {BASE: {"total": total / UNIT, "count": count / UNIT}}, {}

    def totals(self, floor: int) -> tuple[Floats, Floats]:
        """Return Σ targets and numbers of training items, weighted [W]."""
        y, weights = self.y.cpu().numpy()[self.rows], self.weights_of(self.rows)
        if y.ndim == 1:
            counts = np.bincount(y, minlength=self.task.width)
            held = np.where(large_enough(counts, floor), np.bincount(y, weights, self.task.width), 0.0)
            return held, np.full(len(held), held.sum())
        known = ~np.isnan(y)
        shown = known.sum(axis=0) >= floor
        return np.where(known, y, 0).sum(axis=0) * shown, known.sum(axis=0) * shown * 1.0

    @phase
    def bins(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Return the number of the training items' values in each bin of each column."""
        self.check_policy()
        edges = boosting.unpacked_edges(groups.get(BINS, {}), self.model.columns, 4 * CELLS)
        if self.floor <= 1:
            return {COUNTS: {"count": self.bin_counts(edges)}}, {}
        held = boosting.held_bins(edges)
        held[:, -1] = False
        return {COUNTS: {"count": Cells(self.x[self.rows], edges, self.floor).value_counts()[held] / UNIT}}, {}

    def bin_counts(self, edges: Edges) -> Floats:
        """Return the counts of the training items' values, as `boosting.bin_counts`."""
        parts = [boosting.bin_counts(x, edges) for x in self.x.at(self.rows).blocks()]
        return np.sum([np.zeros(sum(len(bounds) + 1 for bounds in edges)), *parts], axis=0)

    def receive(self, groups: dict[str, Arrays]) -> None:
        """Store the base rate, or how many trees of the model are those of ``init``, and the edges of bins."""
        if BASE in groups:
            self.memory[BASE] = torch.from_numpy(np.array(groups[BASE]["score"]))
        if START in groups:
            most = len(self.model.arrays["start"])
            check(groups[START], {"trees": ArrayField((1,), "int32", 0, most)}, "the server sent a number of trees")
            self.memory[START] = torch.from_numpy(np.array(groups[START]["trees"]))
        if BINS in groups:
            edges = boosting.unpacked_edges(groups[BINS], self.model.columns, self.params.bins)
            self._check_same(groups[BINS])
            if BINS in self.memory and not np.array_equal(self.memory[BINS]["edge"], groups[BINS]["edge"]):
                for name in ("cells", "binned"):
                    self.__dict__.pop(name, None)
            self.memory[BINS] = {key: torch.from_numpy(value) for key, value in boosting.packed_edges(edges).items()}

    def _check_same(self, edges: Arrays) -> None:
        """Refuse other edges than those of this run: one edge after the other would find a value. Noise allows them."""
        if self.floor <= 1 or BINS not in self.memory or self.protection.noise:
            return
        held = as_arrays(self.memory[BINS])
        if any(not np.array_equal(held[name], edges[name]) for name in held):
            raise FedGraphError("the server sent other edges of bins than before in this run: start a new run")

    @property
    def start(self) -> Floats:
        """The base rate b [K]: the server's, or the client's own if nothing is shared."""
        if BASE not in self.memory:
            self.memory[BASE] = torch.from_numpy(self.objective.base(*self.totals(0)))
        return self.memory[BASE].cpu().numpy()

    @property
    def first(self) -> Arrays:
        """The forest to which the client's own trees are added: that of ``init``, else the base rate."""
        if self.cfg.init and START not in self.memory and not self.shared:
            self.memory[START] = torch.tensor([len(self.model.arrays["start"])])
        count = int(self.memory[START]) if START in self.memory else 0
        return first_trees(self.model.arrays, count) if count else constants(self.start)

    # --- training -----------------------------------------------------------------------------------------------------

    @property
    def floor(self) -> int:
        """Fewest own items of a node and bin whose sums leave the client."""
        return self.policy.min_nodes if self.shared else 0

    def check_policy(self) -> None:
        """Refuse to send statistics of fewer items than the node's policy requires.

        Raises:
            FedGraphError: leaves of single trees may have fewer, or bins of histograms that the server sees.
        """
        least = self.policy.min_nodes
        if not self.shared or not least:
            return
        if self.params.mode == "bagging" and self.params.min_data_in_leaf < least:
            raise FedGraphError(
                f"strategy.min_data_in_leaf={self.params.min_data_in_leaf} allows leaves of fewer than {least} items, which this"
                f" node's policy requires (min_nodes): set at least {least}"
            )
        if self.params.mode == "histogram" and not self.protection.sums_only:
            raise FedGraphError(
                f"histograms have bins of fewer than {least} items, which this node's policy requires (min_nodes): set"
                " privacy.secagg=true, so that the server sees only sums over clients"
            )

    def train(self) -> float:
        """Fit the trees of this round, or the histograms of the roots; return the loss on the training items."""
        self.check_policy()
        if self.params.mode == "bagging":
            return self.fit_trees()
        loss = self.begin_histograms()
        if not self.shared:
            held = self.model.arrays if self.model.arrays["start"].size else constants(self.start)
            self.model.hold(joined([held, boosting.grown(self.growth, self.sums)]))
        return loss

    @property
    def growth(self) -> Growth:
        """The trees of an iteration before their first split."""
        return Growth(self.objective.outputs, self.edges, self.params)

    def fit_trees(self) -> float:
        """Fit this round's trees with LightGBM, from the base rate and the client's earlier trees."""
        forest: Arrays = as_arrays(self.memory.get(OWN, {})) or empty_forest()
        rows, val = self.rows, self.task.masks["val"].nonzero().view(-1).cpu().numpy()
        first = {name: array.copy() for name, array in self.first.items()}
        start = raw_scores(first, self.x, self.objective.outputs)
        raw = raw_scores(forest, self.x, self.objective.outputs) + start
        done = int(np.bincount(forest["output"]).max(initial=0))
        left = self.params.trees - done
        planned = min(self.params.per_round or left, left)
        trained = self.trained_outputs()
        self.sits_out, self.ended, self.new = not trained.any(), True, empty_forest()
        if trained.any() and planned > 0 and not bool(self.memory.get("ended", torch.tensor(False))):
            train, other = (
                LabelledRows(self.x.at(r), self.targets_of(r), self.weights_of(r), raw[r]) for r in (rows, val)
            )
            self.new, stopped = lightgbm_trees.fit(
                self.objective, train, other, self.params, planned, trained, self.cfg.seed
            )
            self.ended = stopped or planned == left
            self.memory["ended"] = torch.tensor(self.ended)
            forest = joined([forest, self.new])
            self.memory[OWN] = {name: torch.from_numpy(np.array(array)) for name, array in forest.items()}
            raw = raw_scores(forest, self.x, self.objective.outputs) + start
        if not self.shared:
            self.model.hold(joined([first, forest]))
        return self.loss_of(raw[rows], rows)

    def trained_outputs(self) -> np.ndarray:
        """Return the outputs for which the client fits trees [K]: none if it sits out.

        Of classes, those are trained of which it has ``params.of_class`` items, or the policy's ``min_nodes`` if more.
        """
        least, y = 2 * self.params.min_data_in_leaf, self.y.cpu().numpy()[self.rows]
        of_class = max(self.policy.min_nodes, self.params.of_class)
        if y.ndim == 2:
            known = (~np.isnan(y)).sum(axis=0) >= least
            if self.objective.kind == "square":
                return known
            return known & ((y == 1).sum(axis=0) >= of_class) & ((y == 0).sum(axis=0) >= of_class)
        held = np.bincount(y, minlength=self.task.width) >= of_class
        held &= bool(held.sum() > 1 and len(y) >= least)
        return np.array([held.all()]) if self.objective.binary else held

    def loss_of(self, raw: Floats, rows: np.ndarray) -> float:
        """Return the task's loss of raw scores [V, K] of items."""
        weights = None if self.class_weights is None else self.class_weights.cpu().double()
        logits = torch.from_numpy(logits_of(raw, self.objective.binary))
        return float(self.task.loss(logits, self.y.cpu()[torch.from_numpy(rows)], self.cfg, weights))

    def begin_histograms(self) -> float:
        """Store the raw scores of the training items, from which this iteration's gradients follow; return their loss."""
        self.memory.pop(GROWN, None)
        self._branches = None
        raw = self.model.raw(self.x.at(self.rows))
        if not self.model.arrays["start"].size:
            raw = raw + self.start
        self.memory[RAW] = torch.from_numpy(raw)
        return self.loss_of(raw, self.rows) if len(raw) else 0.0

    @property
    def edges(self) -> Edges:
        """Edges of the bins: the server's, or the client's own if nothing is shared."""
        columns = self.model.columns
        if BINS not in self.memory:
            bin_edges = boosting.agreed_edges(columns, self.params.bins, self.bin_counts)
            self.memory[BINS] = {
                key: torch.from_numpy(value) for key, value in boosting.packed_edges(bin_edges).items()
            }
        return boosting.unpacked_edges(as_arrays(self.memory[BINS]), columns, self.params.bins)

    @cached_property
    def cells(self) -> Cells:
        """The cells in which the training items count."""
        return Cells(self.x[self.rows], self.edges, self.floor)

    @cached_property
    def binned(self) -> np.ndarray:
        """The bins of the training items' values [V, F]."""
        edges = self.edges
        parts = [boosting.binned(x, edges) for x in self.x.at(self.rows).blocks()]
        return np.concatenate([boosting.binned(np.zeros((0, len(edges))), edges), *parts])

    def sums(self, forest: Arrays, tree: np.ndarray, node: np.ndarray) -> Floats:
        """Return the histograms of nodes of the trees that grow [Q, F, B + 1, 3]."""
        edges, rows = self.edges, self.rows
        x, raw = self.x.at(rows), self.memory[RAW].cpu().numpy()
        targets = self.targets_of(rows)
        g, h = self.objective.gradients(raw, targets)
        weights = self.weights_of(rows)[:, None]
        width = boosting.held_bins(edges).shape[1]
        places = np.full(len(forest["feature"]) + 1, -1)
        places[forest["start"][tree] + node] = np.arange(len(tree))
        if self.floor <= 1:
            at = np.concatenate(
                [places[leaves(forest, x[:0])], *(places[leaves(forest, part)] for part in x.blocks())], axis=1
            )
            return boosting.histograms(self.binned, width, g * weights, h * weights, at, tree)
        known, sums = ~np.isnan(targets), np.zeros((len(tree), x.shape[1], width, 3))
        if self._branches is None:
            self._branches = [Branches(self.cells, known[:, k]) for k in range(self.outputs)]
        for k in np.unique(tree):
            branches, start = self._branches[k], forest["start"][k]
            branches.extend(forest, k, edges)
            at, part = places[start + branches.at], np.flatnonzero(tree == k)
            bins = branches.bins(node[part])
            few = np.bincount(at[known[:, k] & (at >= 0)], minlength=len(tree))[part] < self.floor
            sums[part] = boosting.histograms(
                bins, width, (g * weights)[:, [k]], (h * weights)[:, [k]], at[None], 0 * tree
            )[part]
            sums[part[few]] = 0.0
        return sums

    def sent_sums(self, forest: Arrays, tree: np.ndarray, node: np.ndarray) -> dict[str, Arrays]:
        """Return the histograms of nodes as they are sent, without bins that a column does not have [Q, bins of all, 3]."""
        return {HISTOGRAM: {"sums": self.sums(forest, tree, node)[:, boosting.held_bins(self.edges)]}}

    @phase
    def grow(self, groups: dict[str, Arrays], config: dict[str, Any]) -> ReplyContent:
        """Return the histograms of the nodes that the server may split next."""
        self.check_policy()
        forest, nodes = groups.get(FOREST, {}), groups.get(NODES, {})
        outputs = self.objective.outputs
        check_forest(forest, outputs, self.model.columns, outputs, self.params.nodes, "the server sent growing trees")
        tree, node = (np.asarray(nodes.get(key, np.zeros(0))) for key in ("tree", "node"))
        sizes = np.diff(np.append(forest["start"], len(forest["feature"])))
        valid = tree.dtype == node.dtype == np.int32 and tree.ndim == 1 and tree.shape == node.shape
        valid = valid and len({*zip(tree.tolist(), node.tolist(), strict=True)}) == len(tree)
        if not valid or not ((tree >= 0) & (tree < outputs)).all() or not ((node >= 0) & (node < sizes[tree])).all():
            raise FedGraphError(
                "the server requests histograms of nodes that are not in the trees that it sent, or one twice"
            )
        if self.floor > 1:
            earlier = as_arrays(self.memory.get(GROWN, {}))
            if earlier and not boosting.extends(forest, earlier):
                raise FedGraphError(
                    "the server sent growing trees that change the splits of this round's earlier request"
                )
            self.memory[GROWN] = {name: torch.from_numpy(np.array(array)) for name, array in forest.items()}
        return self.sent_sums(forest, tree, node), {}

    def send(self) -> ReplyContent:
        """Return this round's trees, or the histograms of the roots."""
        if not self.shared:
            return {}, {}
        if self.params.mode == "bagging":
            return {FOREST: self.new}, {"sits_out": int(self.sits_out), "ended": int(self.ended)}
        if not self.num_train:
            self.check_policy()
            self.begin_histograms()
        growth = self.growth
        return self.sent_sums(growth.forest(), growth.tree, growth.node), {}
