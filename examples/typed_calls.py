"""Calls of the Python API as type checkers see them: keys and their values have types.

Each `type: ignore` marks a mistake that mypy and pyright find. Where they did not, they would report the comment as unused.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from typing import Any, assert_type

import fedgraph_flwr as fg


def score(seed: int, strategy: str = "fedprox") -> float:
    """Train once, and return the score."""
    run = fg.run(
        "train.lr=0.05", strategy=strategy, dataset={"name": "csbm", "nodes": 60}, train={"local_steps": 1}, seed=seed
    )
    assert_type(run, fg.Run)
    assert_type(run.summary, dict[str, Any])
    return run.score


def every_value() -> None:
    """Keys take names, values, and your classes and functions."""
    fg.run(stack="all", evaluation={"metric": score, "clients": 3}, out="runs/mine", tracking=["wandb"])
    fg.plot("runs/mine", fg.load("runs/mine"), metric="loss").savefig("loss.png")


def predictions(run: fg.Run) -> None:
    """Predictions have labels or values, by the task; each attribute has one type."""
    output = run.predict()
    print(
        output.labels[:3],
        output.probabilities.mean(),
        output.codes.sum(),
        output.logits.argmax(1),
        output.to_frame().head(),
    )
    print(output.values.mean(axis=0), run.predict_pairs([(0, 1)]).scores, output.rows)  # type: ignore[attr-defined]


def mistakes() -> None:
    """Misspelt keys, and values of another type."""
    fg.run(roundz=3)  # type: ignore[call-arg]
    fg.run(rounds="three")  # type: ignore[arg-type]
    fg.run(train={"lrr": 0.1})  # type: ignore[typeddict-unknown-key]
    fg.run(train={"lr": "fast"})  # type: ignore[typeddict-item]
    fg.run(privacy={"secagg": True, "noise": 1.0})  # type: ignore[typeddict-unknown-key]
    fg.plot(3)  # type: ignore[arg-type]
    fg.compare(fg.run(), metric="loss")  # type: ignore[call-arg]
