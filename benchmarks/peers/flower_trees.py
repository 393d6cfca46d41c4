"""Trees of banks on the columns that our boosting reads: by Flower's ``FedXgbBagging``, by XGBoost at each bank, and by ours."""

import itertools
import json
import logging
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score

from benchmarks.payments_worth import DATA, RECIPE, SHORT
from fedgraph_flwr import api, partition
from fedgraph_flwr.clients.boosting import BoostingClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.grid import run_identity
from fedgraph_flwr.engine.inline import InlineGrid

ROUNDS = 60
GRID = list(itertools.product((0.1, 0.3), (3, 6, 8)))
"""Learning rates and depths, of which validation items choose, as they do the round."""

Bank = dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]


def rows(seed: int) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield method with version, and its scores on the payments of a seed."""
    words = [*DATA["payments"], *RECIPE, *SHORT, "strategy=boosting", f"seed={seed}"]
    cfg = compose(words)
    banks = [columns(BoostingClient(cfg, partition.load_client(cfg, i))) for i in range(partition.num_clients(cfg))]
    with tempfile.TemporaryDirectory() as folder:
        options = ["checkpoint_every=0", "overwrite=true", f"out={folder}"]
        summary = api.run(*words, *options, progress=False).summary
    scores = summary["metrics"]["best_val"]
    common = {"seed": seed, "bytes": summary["bytes_up"] + summary["bytes_down"], "rounds": summary["rounds"]}
    precisions = {"test": scores["test_average_precision"], "validation": scores["val_average_precision"]}
    yield ("ours", version("fedgraph-flwr")), common | precisions | {"words": " ".join(words)}
    import xgboost

    apart = best([own(banks, *values) for values in GRID])
    yield ("XGBoost, each bank", xgboost.__version__), {"seed": seed, "bytes": 0} | apart
    flower = f"{version('flwr')}, xgboost {xgboost.__version__}"
    together = best([bagged(banks, *values) for values in GRID])
    yield ("Flower's FedXgbBagging", flower), {"seed": seed} | together


def columns(client: BoostingClient) -> Bank:
    """Return columns [V, F] and labels [V] of a bank's items in each part of its split."""
    places = {name: mask.nonzero().view(-1).numpy() for name, mask in client.task.masks.items()}
    y = client.y.cpu().numpy()
    return {name: (client.x[at], y[at].astype(np.int64)) for name, at in places.items()}


def best(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the result with the highest validation score."""
    return max(tried, key=lambda one: one["validation"])


def precision(model: Any, banks: list[Bank], part: str, trees: int) -> float:
    """Return the average precision of a model's first trees, mean over banks."""
    import xgboost

    scores = [
        average_precision_score(y, model.predict(xgboost.DMatrix(x), iteration_range=(0, trees), output_margin=True))
        for x, y in (bank[part] for bank in banks)
    ]
    return float(np.mean(scores))


def rules(rate: float, depth: int) -> dict[str, Any]:
    """Return XGBoost's parameters."""
    return {
        "objective": "binary:logistic",
        "eta": rate,
        "max_depth": depth,
        "tree_method": "hist",
        "nthread": 1,
        "seed": 0,
    }


def own(banks: list[Bank], rate: float, depth: int) -> dict[str, Any]:
    """Return the scores of a model for each bank, each at its own best number of trees."""
    import xgboost

    val, test = [], []
    for bank in banks:
        model = xgboost.train(rules(rate, depth), xgboost.DMatrix(*bank["train"]), ROUNDS)
        path = [precision(model, [bank], "val", trees) for trees in range(1, ROUNDS + 1)]
        val.append(max(path))
        test.append(precision(model, [bank], "test", 1 + int(np.argmax(path))))
    scores = {"validation": float(np.mean(val)), "test": float(np.mean(test)), "rounds": ROUNDS}
    return scores | {"words": json.dumps(rules(rate, depth))}


def bagged(banks: list[Bank], rate: float, depth: int) -> dict[str, Any]:
    """Return the scores of Flower's strategy at the best round, and the bytes until then; a round adds a tree of each bank."""
    import xgboost
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedXgbBagging

    logging.getLogger("flwr").setLevel(logging.WARNING)
    app, sent, data = ClientApp(), [], [xgboost.DMatrix(*bank["train"]) for bank in banks]

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Add a tree to the received model, and send it alone."""
        arrays: Any = message.content["arrays"]
        received = arrays["0"].numpy().tobytes()
        matrix = data[int(context.node_config["partition-id"])]
        if received:
            model = xgboost.Booster(rules(rate, depth), model_file=bytearray(received))
            model.update(matrix, model.num_boosted_rounds())
            model = model[model.num_boosted_rounds() - 1 :]
        else:
            model = xgboost.train(rules(rate, depth), matrix, 1)
        text = bytes(model.save_raw("json"))
        sent.append(len(received) + len(text))
        trees = ArrayRecord([np.frombuffer(text, dtype=np.uint8)])
        metrics = MetricRecord({"num-examples": matrix.num_row()})
        return Message(RecordDict({"arrays": trees, "metrics": metrics}), reply_to=message)

    strategy = FedXgbBagging(fraction_evaluate=0.0, min_train_nodes=len(banks), min_available_nodes=len(banks))
    empty = ArrayRecord([np.frombuffer(b"", dtype=np.uint8)])
    grid = InlineGrid(app, len(banks), {})
    with run_identity(grid.run_id):
        result = strategy.start(grid, empty, num_rounds=ROUNDS, train_config=ConfigRecord())
    model = xgboost.Booster(rules(rate, depth), model_file=bytearray(result.arrays["0"].numpy().tobytes()))
    path = [precision(model, banks, "val", len(banks) * trees) for trees in range(1, ROUNDS + 1)]
    trees = 1 + int(np.argmax(path))
    scores = {"validation": max(path), "test": precision(model, banks, "test", len(banks) * trees)}
    return scores | {"rounds": trees, "bytes": sum(sent[: len(banks) * trees]), "words": json.dumps(rules(rate, depth))}
