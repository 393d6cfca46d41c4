"""``train.loss`` reaches the objective of every method whose client trains on cross-entropy."""

import pytest

from fedgraph_flwr.errors import FedGraphError


def test_classes_out_of_balance_train_otherwise(run):
    plain, weighted = run("strategy=fedavg"), run("strategy=fedavg", "train.loss=weighted")
    focal = run("strategy=fedavg", "train.loss=focal", "train.focal_gamma=2")
    same = run("strategy=fedavg", "train.loss=focal", "train.focal_gamma=0", "dtype=float64")
    losses = [[r["train"]["train_loss"] for r in finished.rounds] for finished in (plain, weighted, focal)]
    assert losses[0] != losses[1] != losses[2] != losses[0]
    exact = run("strategy=fedavg", "dtype=float64")
    assert [r["train"]["train_loss"] for r in same.rounds] == pytest.approx(
        [r["train"]["train_loss"] for r in exact.rounds]
    )


def test_a_sum_over_clients_keeps_to_cross_entropy(run):
    with pytest.raises(
        FedGraphError, match=r"strategy=fedgrad needs train\.loss=cross_entropy or weighted, got train\.loss=focal"
    ):
        run("strategy=fedgrad", "train.loss=focal")


def test_clients_of_other_schemas_do_not_train_together(run, monkeypatch):
    """Each party's file tells a fingerprint of its schema; one differs in a column."""
    from fedgraph_flwr.clients import description

    monkeypatch.setattr(description, "fingerprint", lambda graph: [1, 2, 3, 4 + (graph.client == 2)])
    with pytest.raises(FedGraphError, match="schemas of clients 0 and 2 differ: column 2"):
        run("strategy=fedavg")
