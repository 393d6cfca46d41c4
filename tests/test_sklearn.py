"""The estimators: scikit-learn's own tools use them, and they predict as the run that they make."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.utils import estimator_html_repr
from torch_geometric.data import Data

import fedgraph_flwr as fg
from fedgraph_flwr.sklearn import FederatedClassifier, FederatedRegressor
from tests.conftest import client_graph

KEYS = {"rounds": 2, "model__hidden": 8}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def graph(client: int, number: bool = False) -> Data:
    held = client_graph(client)
    y = (held.x[:, 0] + 2) if number else held.y
    return Data(x=held.x, edge_index=held.edge_index, y=y)


@pytest.fixture(scope="module")
def graphs() -> list[Data]:
    return [graph(client) for client in range(3)]


def test_a_classifier_predicts_as_its_run(graphs, folder):
    estimator = FederatedClassifier("fedprox", strategy__prox__mu=0.5, train={"lr": 0.05}, seed=3, **KEYS)
    assert estimator.fit(graphs[:2]) is estimator
    assert not any(folder.iterdir())  # the run's folder is gone
    keys = {"strategy": {"name": "fedprox", "prox": {"mu": 0.5}}, "train": {"lr": 0.05}, "seed": 3}
    run = fg.run(graphs[:2], rounds=2, model={"hidden": 8}, progress=False, **keys)
    expected = [run.predict(party_graph) for party_graph in graphs]
    np.testing.assert_array_equal(estimator.predict_proba(graphs[2]), expected[2].probabilities)
    np.testing.assert_array_equal(
        estimator.predict(graphs), np.concatenate([party_graph.codes for party_graph in expected])
    )
    assert estimator.score_ == run.score
    assert estimator.history_.equals(run.rounds) or list(estimator.history_.test_accuracy) == list(
        run.rounds.test_accuracy
    )
    assert (list(estimator.classes_), estimator.n_features_in_) == ([0, 1, 2], graphs[0].x.size(1))
    assert estimator.score(graphs[2]) == pytest.approx((expected[2].codes == graphs[2].y.numpy()).mean())
    masked = graphs[2].clone()
    masked.test_mask, masked.y[1] = torch.arange(len(masked.y)) < 5, -1
    right = (expected[2].codes == masked.y.numpy())[[0, 2, 3, 4]]
    assert estimator.score(masked) == pytest.approx(right.mean())
    weights = np.arange(len(masked.y)) + 1.0
    assert estimator.score(masked, sample_weight=weights) == pytest.approx(np.average(right, weights=[1, 3, 4, 5]))
    unseen = masked.clone()
    unseen.y[:2] = 3
    assert estimator.score(unseen) == pytest.approx(right[[1, 2, 3]].sum() / 5)
    stored = pickle.dumps(estimator)
    assert graphs[0].x.numpy().tobytes()[:200] not in stored
    np.testing.assert_array_equal(pickle.loads(stored).predict(graphs), estimator.predict(graphs))


def test_a_classifier_scores_by_its_metric(graphs):
    """Oracle: scikit-learn's functions, of each class against the rest."""
    for metric, expected in (("average_precision", average_precision_score), ("auc", roc_auc_score)):
        estimator = FederatedClassifier(evaluation__metric=metric, **KEYS).fit(graphs[:2])
        chances, y = estimator.predict_proba(graphs[2]), graphs[2].y.numpy()
        of_class = [expected(y == label, chances[:, label]) for label in range(3)]
        assert estimator.score(graphs[2]) == pytest.approx(np.mean(of_class))
    with pytest.raises(fg.FedGraphError, match=r"evaluation\.metric=auc has no weights of nodes"):
        estimator.score(graphs[2], sample_weight=np.ones(len(y)))


def test_scikit_learns_tools_use_it(graphs):
    estimator = FederatedClassifier(train__lr=0.05, classes=["a", "b", "c"], **KEYS)
    copied = clone(estimator)
    assert copied.get_params() == estimator.get_params()
    assert copied.get_params()["train__lr"] == 0.05
    assert is_classifier(copied)
    assert is_regressor(FederatedRegressor())
    assert "FederatedClassifier" in repr(copied)
    assert "train__lr" in estimator_html_repr(copied)
    with pytest.raises(NotFittedError):
        copied.predict(graphs)
    search = GridSearchCV(estimator, {"train__lr": [1e-6, 0.1], "strategy": ["fedavg"]}, cv=KFold(3)).fit(graphs)
    assert search.best_params_ == {"train__lr": 0.1, "strategy": "fedavg"}
    alone = clone(estimator).set_params(train__lr=0.1).fit(graphs[1:])
    assert search.cv_results_["split0_test_score"][1] == alone.score(graphs[:1])
    assert set(search.predict(graphs)) <= {"a", "b", "c"}


def test_a_regressor_predicts_as_its_run():
    graphs = [graph(client, number=True) for client in range(2)]
    graphs[0].y[3] = torch.nan
    estimator = FederatedRegressor(**KEYS).fit(graphs)
    named = [
        Data(x=party_graph.x, edge_index=party_graph.edge_index, targets=party_graph.y[:, None])
        for party_graph in graphs
    ]
    run = fg.run(named, task="nodes-regression", rounds=2, model={"hidden": 8}, progress=False)
    expected = np.concatenate([run.predict(party_graph).values[:, 0] for party_graph in named])
    np.testing.assert_array_equal(estimator.predict(graphs), expected)
    y = torch.cat([party_graph.y for party_graph in graphs]).numpy()
    known = ~np.isnan(y)
    rest = np.square(y - expected)[known].sum() / np.square(y[known] - y[known].mean()).sum()
    assert estimator.score(graphs) == pytest.approx(1 - rest)
    again = pickle.loads(pickle.dumps(estimator))
    np.testing.assert_array_equal(again.predict(graphs[0]), expected[: len(graphs[0].y)])


def test_one_graph_is_divided_and_wrong_input_is_one_sentence(graphs):
    whole = fg.datasets.load("csbm", nodes=60, num_clients=2)
    one = FederatedClassifier(partition="random", num_clients=2, **KEYS).fit(whole)
    assert one.predict(whole).shape == (60,)
    for wrong, message in (
        (lambda: FederatedClassifier(roundz=3).fit(graphs), "'roundz' is unknown"),
        (lambda: FederatedClassifier().fit(graphs, [0]), "leave the argument y out"),
        (lambda: FederatedClassifier().fit([]), "got an empty one"),
        (lambda: FederatedClassifier().fit(np.ones((3, 2))), "must be a PyG Data or HeteroData, got ndarray"),
        (lambda: one.predict([]), "no graphs: pass a PyG Data"),
        (lambda: one.predict(graphs[0]), "features"),
        (lambda: one.score(Data(x=whole.x, edge_index=whole.edge_index)), "the number of each node's class"),
        (lambda: FederatedRegressor().fit(graphs), "must hold one or more floating-point numbers"),
        (lambda: FederatedClassifier("local", **KEYS).fit(graphs), "strategy=local trains no model for new graphs"),
    ):
        with pytest.raises(fg.FedGraphError, match=message):
            wrong()
