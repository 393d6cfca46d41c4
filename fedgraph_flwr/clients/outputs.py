"""Outputs of a finished run's model for a client's items, as columns for another method. Only in simulations."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.wire.trees import unflatten


def outputs_of(run: Path, graph: Any) -> tuple[Tensor, Tensor]:
    """Return the logits [V, W] and the targets of a client's items, by the model of the run's headline score.

    Args:
        run: run folder of a simulation.
        graph: the client's graph.

    Raises:
        FedGraphError: the folder holds no finished run of this client.
    """
    try:
        headline = json.loads((run / "summary.json").read_bytes())["headline"]
        cfg = compose([], run / "config.yaml")
        at = "best" if "best_val" in headline and (run / "model_best.safetensors").is_file() else "final"
        tensors = read_tensors(run / f"model_{at}.safetensors")[0]
        memory: dict[str, Any] = {}
        if (path := run / f"models_{at}.safetensors").is_file():
            tensors |= unflatten(read_tensors(path)[0]).get(str(graph.client), {})
        if kept := StateFolder.find_model(run / "state", "best" if at == "best" else "last", graph.client):
            tree = unflatten(read_tensors(kept)[0])
            tensors, memory = tensors | tree.get("model", {}), tree.get("method", {})
        kind = locate(cfg.strategy.client)
        client: GraphClient = kind(cfg, graph)
        client.model.fit_to({name: tensors[name] for name in client.model.state_dict() if name in tensors}, f"{run}")
        client.model.load_state_dict(tensors, strict=False)
        if memory:
            client.load(memory)
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise FedGraphError(
            f"strategy.run={run} holds no finished run on the graph of client {graph.client} ({first_line(error)}): pass the"
            " folder of a finished simulation on the same client files"
        ) from error
    return client.predict().detach().cpu(), client.task.y.cpu()
