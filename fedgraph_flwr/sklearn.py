"""Estimators with scikit-learn's interface, whose samples are graphs.

    from fedgraph_flwr.sklearn import FederatedClassifier

    estimator = FederatedClassifier("fedprox", rounds=50, train__lr=0.01).fit(graphs)
    estimator.predict(graph)
    GridSearchCV(estimator, {"train__lr": [0.01, 0.1]}, cv=KFold(3)).fit(graphs)

These conventions of scikit-learn do not apply:

- ``X`` is one PyG ``Data``, or a list with one per client. It is no array, so `sklearn.utils.estimator_checks` cannot run.
- Labels are in the graphs. Pass no ``y``, and no ``scoring`` that needs one: ``score`` reads ``graph.y``, and a classifier's
  is the run's metric, such as ``FederatedClassifier(evaluation__metric="average_precision")``.
- Predictions have one row per node. Those of a list of graphs are one array, in the graphs' order.
- ``cv`` divides the clients: each candidate is scored on the graphs of clients that did not train. Divide one ``Data`` before, by
  `fedgraph_flwr.datasets.partition`.
"""

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch_geometric.data import Data

from fedgraph_flwr import api
from fedgraph_flwr.data.many_graphs import MASKS
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation import metrics

__all__ = ["FederatedClassifier", "FederatedRegressor"]


class _Federated(BaseEstimator):
    """Estimator that trains a shared model by a run.

    Args:
        strategy: the method.
        model: the model; None: the package's default, as for the other arguments.
        partition: how one graph is divided.
        num_clients: number of clients of one graph.
        rounds: number of rounds.
        seed: seed of partition, split and training.
        keys: other keys of a run, with ``__`` or ``.`` between section and key, or nested: ``train__lr=0.1``.
    """

    _task = ""

    def __init__(
        self,
        strategy: Any = "fedavg",
        model: Any = None,
        partition: Any = None,
        num_clients: int | None = None,
        rounds: int | None = None,
        seed: int = 0,
        **keys: Any,
    ):
        self.strategy = strategy
        self.model = model
        self.partition = partition
        self.num_clients = num_clients
        self.rounds = rounds
        self.seed = seed
        self.keys = keys

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all arguments by name; ``deep`` changes nothing."""
        return {name: getattr(self, name) for name in self._get_param_names()} | self.keys

    def set_params(self, **params: Any) -> Self:
        """Set arguments, also keys that are not set yet, such as ``train__lr``. `fit` checks them."""
        for name, value in params.items():
            if name in self._get_param_names():
                setattr(self, name, value)
            else:
                self.keys = {**self.keys, name: value}
        return self

    def fit(self, X: Any, y: None = None) -> Self:
        """Train on one graph, which is divided among clients, or on a list of graphs, one per client.

        Attributes that end with an underscore describe the run: ``score_``, ``summary_``, ``history_`` (a pandas table). Its
        folder is deleted, unless ``out`` is set.

        Args:
            X: PyG ``Data`` with ``x``, ``edge_index`` and ``y``, or a list of them.
            y: None; the labels are in the graphs.

        Raises:
            FedGraphError: wrong input, or a method that trains no shared model.
        """
        if y is not None:
            raise FedGraphError("fit reads the labels from the graphs' y: leave the argument y out")
        keys = {name: value for name, value in self.get_params().items() if value is not None}
        with tempfile.TemporaryDirectory() as folder:
            defaults = {"task": self._task} if self._task else {}
            keys = {**defaults, "progress": False, "out": str(Path(folder) / "run"), **keys}
            run = api.run([*map(self._labelled, X)] if isinstance(X, list | tuple) else self._labelled(X), **keys)
            self.predictor_ = run._predictor(None)
            self.predictor_.tensors = {name: tensor.clone() for name, tensor in self.predictor_.tensors.items()}
            self.score_, self.summary_, self.history_ = run.score, run.summary, run.rounds
            self._evaluation = run.config.evaluation
            self.n_features_in_ = self.predictor_.input_spec.num_features
            self._fitted()
            try:
                self.predictor_.predict(_unlabelled(_listed(X)[0]))
            except FedGraphError as error:
                del self.predictor_
                raise FedGraphError(
                    f"strategy={run.config.strategy.name} trains no model for new graphs: {error}"
                ) from error
        return self

    def _labelled(self, graph: Any) -> Any:
        """Return a graph as a run reads it."""
        return graph

    def _fitted(self) -> None:
        """Set further attributes while the run's folder exists."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, which holds no graph that the predictor has read."""
        state = dict(super().__getstate__())
        if "predictor_" in state:
            bare = dataclasses.replace(self.predictor_)
            vars(bare).update({key: value for key, value in vars(self.predictor_).items() if key == "target_stats"})
            state["predictor_"] = bare
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_")

    def _predicted(self, X: Any) -> list[Any]:
        check_is_fitted(self)
        return [self.predictor_.predict(_unlabelled(graph)) for graph in _listed(X)]


class FederatedClassifier(ClassifierMixin, _Federated):
    """Classifier of nodes.

    Attributes:
        classes_: classes [C]: the names of ``classes=``, else the numbers 0..C-1.
        n_features_in_: F.
    """

    __doc__ += str(_Federated.__doc__).partition("\n\n")[2]

    def _fitted(self) -> None:
        names = self.predictor_.input_spec.classes
        self.classes_ = np.array(names) if "classes" in self.keys else np.arange(len(names))

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each node [N]; of several graphs, one after the other."""
        codes = self._codes(X)  # first: it knows whether there are classes yet
        return self.classes_[codes]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class, float64 [N, C]."""
        return np.concatenate([predictions.probabilities for predictions in self._predicted(X)])

    def score(self, X: Any, y: None = None, sample_weight: np.ndarray | None = None) -> float:
        """Return ``evaluation.metric`` on the nodes of ``test_mask``, or on all labelled nodes of graphs without that mask.

        It is the accuracy by default. A class that no graph had in training is never predicted, so its nodes count as errors.

        Args:
            X: one graph, or a list of them, with labels ``y``.
            y: None.
            sample_weight: weight of each node [N], for the accuracy.

        Raises:
            FedGraphError: weights of another metric than the accuracy.
        """
        labels = np.concatenate([_labels(graph).numpy() for graph in _listed(X)])
        known = _known(X, lambda y: y >= 0)
        check_is_fitted(self)
        if (metric := self._evaluation.headline) != "accuracy":
            if sample_weight is not None:
                raise FedGraphError(f"evaluation.metric={metric} has no weights of nodes: leave sample_weight out")
            chances = self.predict_proba(X)[known]
            unseen = max(0, int(labels[known].max()) + 1 - chances.shape[1])
            logits = np.log(np.maximum(np.pad(chances, ((0, 0), (0, unseen))), np.finfo(np.float64).tiny))
            return metrics.score(metric, logits, labels[known], self._evaluation.own)
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(accuracy_score(labels[known], self._codes(X)[known], sample_weight=weights))

    def _codes(self, X: Any) -> np.ndarray:
        """Return the number of each node's class [N]."""
        return np.concatenate([predictions.codes for predictions in self._predicted(X)])


class FederatedRegressor(RegressorMixin, _Federated):
    """Regressor of one or more numbers of each node, which ``y`` [N] or [N, T] holds; NaN where unknown.

    Attributes:
        n_features_in_: F.
    """

    __doc__ += str(_Federated.__doc__).partition("\n\n")[2]
    _task = "nodes-regression"

    def _labelled(self, graph: Any) -> Any:
        made = _unlabelled(graph, keep=MASKS)
        made.targets = _numbers(graph)
        return made

    def _fitted(self) -> None:
        self.predictor_.target_stats  # noqa: B018 (read while the run's folder exists)

    def predict(self, X: Any) -> np.ndarray:
        """Return the numbers of each node, float64 [N], or [N, T] of several; of several graphs, one after the other."""
        values = np.concatenate([predictions.values for predictions in self._predicted(X)])
        return values[:, 0] if values.shape[1] == 1 else values

    def score(self, X: Any, y: None = None, sample_weight: np.ndarray | None = None) -> float:
        """Return R² (mean over targets) on the nodes of ``test_mask``, or on all nodes with known numbers without that mask.

        Args:
            X: one graph, or a list of them, with numbers ``y``.
            y: None.
            sample_weight: weight of each node [N].
        """
        values = np.concatenate([_numbers(graph).numpy() for graph in _listed(X)])
        known = _known(X, lambda y: ~y.isnan().view(len(y), -1).any(1))
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(r2_score(values[known], self.predict(X)[known], sample_weight=weights))


def _listed(graphs: Any) -> list[Any]:
    """Return one graph or several as a list.

    Raises:
        FedGraphError: there are none.
    """
    if isinstance(graphs, list | tuple) and not graphs:
        raise FedGraphError("no graphs: pass a PyG Data, or a list of them")
    return list(graphs) if isinstance(graphs, list | tuple) else [graphs]


def _unlabelled(graph: Any, keep: Sequence[str] = ()) -> Any:
    """Return a ``Data`` without labels, and without masks unless they are to keep; other objects are returned as they are."""
    if not isinstance(graph, Data):
        return graph
    made = copy.copy(graph)
    for key in {"y", "targets", *MASKS}.difference(keep) & {*made.keys()}:
        del made[key]
    return made


def _labels(graph: Any) -> Tensor:
    """Return the classes of a graph's nodes, int64 [N].

    Raises:
        FedGraphError: there are none.
    """
    y = getattr(graph, "y", None)
    if not isinstance(y, Tensor) or y.is_floating_point() or y.numel() != graph.num_nodes:
        raise FedGraphError("y of a graph to score must hold the number of each node's class, -1 where unknown")
    return y.view(-1).long()


def _numbers(graph: Any) -> Tensor:
    """Return the numbers of a graph's nodes, float32 [N, T].

    Raises:
        FedGraphError: there are none.
    """
    y = getattr(graph, "y", None)
    if not isinstance(y, Tensor) or not y.is_floating_point() or len(y) != graph.num_nodes:
        raise FedGraphError(
            "y of a graph must hold one or more floating-point numbers for each node, NaN where unknown"
        )
    return y.view(len(y), -1).to(torch.float32)


def _known(graphs: Any, labelled: Callable[[Tensor], Tensor]) -> np.ndarray:
    """Return which nodes of the graphs are scored, bool [N]: those of the test mask that are labelled."""
    listed = _listed(graphs)
    tested = all(isinstance(getattr(graph, "test_mask", None), Tensor) for graph in listed)
    known = [labelled(graph.y).view(-1) & (graph.test_mask if tested else True) for graph in listed]
    mask = torch.cat(known).numpy()
    if not mask.any():
        raise FedGraphError("no node to score: label some, and mark some of these in test_mask, or leave the mask out")
    return mask
