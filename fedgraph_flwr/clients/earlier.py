"""Models of an earlier run at a client: what ``init`` and ``evaluate`` find of its private parameters.

A simulated client reads the state in the earlier run's folder. A party's own node searches its state folder for a saved model
whose shared parameters are those received, so that a server cannot pass off other parameters as a model of an earlier run.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.saved_models import BEST, GRAPH, LAST
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.data.graph import read_header, read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.evaluation.metrics import reports_best
from fedgraph_flwr.wire.trees import Tree, unflatten

TRAINED = "trained"
"""In the metadata of a node's saved model: whether the node trained in that run before."""


def in_run(run: Path, client: int) -> Path | None:
    """Return the file with a simulated client's private state at the round of a run's headline score or checkpoint, if any.

    Raises:
        FedGraphError: the run's folder is not on this machine.
    """
    if not run.is_dir():
        raise FedGraphError(
            f"{run} is not on this machine, which holds client {client}: pass a folder that all can read"
        )
    checkpoint = run / "checkpoint.safetensors"
    if checkpoint.is_file() and not (run / "summary.json").is_file():
        stored = sorted((run / "state").glob(f"*/client_{client:04d}/round_*.safetensors"))
        done = int(read_header(checkpoint)[1]["round"])
        return next((path for path in reversed(stored) if int(path.stem[6:]) <= done), None)
    return StateFolder.find_model(run / "state", BEST if reports_best(run) else LAST, client)


def in_node(
    state: Path, client: int, received: Mapping[str, Any], trained: bool = False, runs: Sequence[str] | None = None
) -> Path | None:
    """Return the newest saved model of a node whose shared parameters are those received; None if there is none.

    Its client may have had another number then.

    Args:
        state: the node's state folder.
        client: index of its client, whose models come first.
        received: shared parameters, by name.
        trained: accept only models of runs in which the node trained before it saved them.
        runs: digests of agreements, of whose runs the model must be; None: of any run.
    """
    paths = sorted(state.rglob("client_*/model_*.safetensors"), key=lambda path: -path.stat().st_mtime_ns)
    paths.sort(key=lambda path: path.parent.name != f"client_{client:04d}")
    if runs is not None:
        paths = [path for path in paths if any(f"-{one[32:]}-" in path.parent.parent.name for one in runs)]
    return next((path for path in paths if received and _holds(path, received, trained)), None)


def _holds(path: Path, received: Mapping[str, Any], trained: bool) -> bool:
    """Return whether a saved model has exactly these shared parameters; it lacks the counters of a network."""
    parts, values = read_tensors(path)
    model = {name: tensor.numpy() for name, tensor in unflatten(parts).get("model", {}).items()}
    if trained and values.get(TRAINED) is not True:
        return False
    counters = {name for name, array in received.items() if not array.shape and array.dtype.kind in "iu"}
    return received.keys() - counters <= model.keys() and all(
        array.dtype == model[name].dtype and np.array_equal(array, model[name])
        for name, array in received.items()
        if name in model
    )


def take(client: GraphClient, path: Path | None) -> None:
    """Load private parameters from a saved model; to evaluate it, also what its predictions read.

    Without a file, private parameters stay those of the run's seed, with which a new client of ``init`` starts.

    Raises:
        FedGraphError: a private parameter has another shape, or a client to be evaluated has no file.
    """
    names = {
        name for name, t in client.model.state_dict().items() if name not in client.shared and t.is_floating_point()
    }
    reads = (*client.predicts_with, *client.chosen_parts.predicts_with)
    evaluates = bool(client.cfg.evaluate)
    if path is None:
        if evaluates and (names or reads) and not client.other_clients:
            raise FedGraphError(
                f"client {client.graph.client} has no private state of the run evaluate={client.cfg.evaluate}, without which its"
                " model is not complete: restore the state folder, or use init= to train it"
            )
        return
    tree: Tree = unflatten(read_tensors(path)[0])
    model: dict[str, Tensor] = {name: t for name, t in tree.get("model", {}).items() if name not in client.shared}
    client.model.fit_to(model, str(path))
    expected = client.model.state_dict()
    for name in sorted(names | model.keys()):
        shapes = [list(tensors[name].shape) if name in tensors else None for tensors in (model, expected)]
        if shapes[0] != shapes[1]:
            raise FedGraphError(
                f"client {client.graph.client} cannot take the private parameters in {path}: {name} is {shapes[0]} there and"
                f" {shapes[1]} in this run's model; pass the model keys of that run and files with the same columns"
            )
    client.model.load_state_dict(model, strict=False)
    memory = {key: part for key, part in tree.get("method", {}).items() if key != GRAPH}
    if evaluates and memory and not client.other_clients:
        client.load({**client.save(), **memory})
