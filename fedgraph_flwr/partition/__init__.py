"""From one graph to the private graphs of M clients: who owns which nodes, the clients' files, where they are kept."""

from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition.clients import assign, cut, pool

__all__ = ["assign", "cut", "load_client", "num_clients", "pool", "prepare"]


def folder(cfg: RunConfig) -> Path:
    """The folder of client files: the one named by ``graph=``, else made from dataset and partition."""
    return Path(cfg.graph) if cfg.graph else prepare(cfg)


def prepare(cfg: RunConfig) -> Path:
    """The folder of client files of a configuration, computed once."""
    raise NotImplementedError


def num_clients(cfg: RunConfig) -> int:
    """How many client files there are: M, or 1 for the pooled graph."""
    found = len(list(folder(cfg).glob("client_*.safetensors")))
    if not found:
        raise FedGraphError(f"graph={folder(cfg)} holds no client files; expected client_0000.safetensors and so on")
    return found


def load_client(cfg: RunConfig, index: int) -> Any:
    """One client's graph."""
    return ClientGraph.load(folder(cfg) / f"client_{index:04d}.safetensors")
