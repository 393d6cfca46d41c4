"""A model's inputs of a client's graph: prepared and cached next to its file, or read in blocks."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.numerics.prepared import prepared


def replace_inputs(client: Any, inputs: Any) -> None:
    """Train and predict on other inputs."""
    client.inputs = inputs
    client.batch = client.batch._replace(inputs=inputs)


def model_inputs(client: Any, graph: Any, variant: Mapping[str, Any]) -> Any:
    """Return the model's inputs of a graph.

    With ``train.sampler=neighbors``, they are `GraphInputs`, which need no preparation, unless the client needs the whole pass or
    the model prepares its features.

    Args:
        client: whose model and settings.
        graph: its graph, or one derived from it and the configuration.
        variant: keys that identify a derived graph in the cache.
    """
    model = client.model
    whole = client.capabilities.samples == "whole" or model.capabilities.prepares_features
    if client.cfg.train.sampler == "neighbors" and not whole and isinstance(graph, ClientGraph):
        return model.graph_inputs(graph, client.device, client.dtype)
    if client.file is None or not isinstance(graph, ClientGraph):
        return model.prepare(graph, client.device, client.dtype)
    make = partial(model.prepare, graph, "cpu", client.dtype)
    return prepared(client.file, client.cfg, variant, graph, make).to(client.device)
