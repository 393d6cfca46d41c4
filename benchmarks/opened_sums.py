"""Residual leak of ``opened_sums: per_model``: what two sums reveal whose models are a given distance apart.

    python -m benchmarks.opened_sums [--clients 4] [key=value ...]

A server opens the sum of all clients' updates from one model, and the sum without client 0 from another model, `distance` times
as long as the first one away in a random direction. Their difference is client 0's update plus an error: the change of the other
clients' updates. Printed is the error relative to the update, and the cosine of the estimate and the update. ``strict`` refuses
the second sum at every distance.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedgraph_flwr import partition
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.numerics.streams import reseed
from fedgraph_flwr.wire.messages import derive_seed

DISTANCES = (0.0, 1e-6, 1e-3, 1e-2, 0.1, 0.3, 1.0, 3.0)


def update(cfg: RunConfig, client: GraphClient, model: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the change of the shared parameters by one client's training [P]."""
    parameters = [model[name].astype(np.float32) for name in client.shared]
    reseed(derive_seed(cfg.seed, client.graph.client, 1, "train"), client.device)
    client.optimizer = None
    trained = client.fit(parameters, {})[0]
    return np.concatenate([(after - before).ravel() for after, before in zip(trained, parameters, strict=True)])


def leaks(cfg: RunConfig, distances: tuple[float, ...] = DISTANCES) -> dict[float, tuple[float, float]]:
    """Return error and cosine of the estimate of client 0's update, by relative distance of the two models."""
    clients = [GraphClient(cfg, partition.load_client(cfg, index)) for index in range(cfg.num_clients)]
    first = {name: tensor.detach().numpy().astype(np.float64).copy() for name, tensor in clients[0].shared.items()}
    norm = np.sqrt(sum((array**2).sum() for array in first.values()))
    rng = np.random.default_rng(0)
    direction = {name: rng.normal(size=array.shape) for name, array in first.items()}
    length = np.sqrt(sum((array**2).sum() for array in direction.values()))
    updates = np.stack([update(cfg, client, first) for client in clients])
    found = {}
    for distance in distances:
        other = {name: array + distance * norm / length * direction[name] for name, array in first.items()}
        rest = sum(update(cfg, client, other) for client in clients[1:])
        estimate, true = updates.sum(0) - rest, updates[0]
        cosine = estimate @ true / (np.linalg.norm(estimate) * np.linalg.norm(true))
        found[distance] = float(np.linalg.norm(estimate - true) / np.linalg.norm(true)), float(cosine)
    return found


def main() -> None:
    """Print one line per distance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        os.environ.setdefault("FEDGRAPH_DATA", root)
        cfg = compose(["dataset=csbm", f"num_clients={args.clients}", "model.dropout=0", *args.overrides])
        print("distance  relative error  cosine")
        for distance, (error, cosine) in leaks(cfg).items():
            print(f"{distance:8g}  {error:14.2g}  {cosine:6.3f}")


if __name__ == "__main__":
    main()
