"""Flower's ``--node-config`` of a node: its keys, and what follows from them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fedgraph_flwr.config import DEVICES, MAX_THREADS, RunConfig, one_of
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.schema import fingerprint
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.fleet.agreements import Agreement, key_text
from fedgraph_flwr.secure import wing
from fedgraph_flwr.secure.keyring import read_key

KEYS = ("graph", "state", "policy", "key", "peers", "agreement", "device", "threads")
"""Keys of a SuperNode's ``--node-config``; docs/fleet.md documents them."""

PATHS = ("graph", "state", "policy", "key", "peers", "agreement")
ENGINE_KEYS = ("partition-id", "num-partitions", "live")

Settings = Mapping[str, Any]


def check(settings: Settings) -> None:
    """Refuse an unknown key, and a state folder that cannot be written."""
    for key in settings:
        if key not in KEYS + ENGINE_KEYS:
            raise unknown("key", key, KEYS, "in --node-config")
    if root := settings.get("state"):
        try:
            Path(str(root)).mkdir(parents=True, exist_ok=True)
            writable = os.access(str(root), os.W_OK)
            problem = "" if writable else "fix its permissions or pass another folder"
        except OSError as error:
            problem = f"{error.strerror}"
        if problem:
            raise FedGraphError(
                f"cannot write to the folder state={root} of --node-config: {problem}"
            )


def check_secure_node(settings: Settings) -> None:
    """Refuse secure sums at a party's own node without pinned keys or a state folder.

    Raises:
        FedGraphError: names the missing key of ``--node-config``.
    """
    needed = {
        "key": "to sign its sizes",
        "peers": "to know whose values are summed",
        "state": "for the clients of its sums",
    }
    for key, why in needed.items():
        if not settings.get(key) and not (key == "peers" and settings.get("agreement")):
            raise FedGraphError(
                f"privacy.secagg=true: this node needs {key}= in its --node-config {why}: start it"
                " by `fedgraph-flwr node` with --key, --peers and --state"
            )


def check_agreed(agreement: Agreement, graph: ClientGraph, settings: Settings) -> None:
    """Refuse a node that is not the member of its client number, or whose tables have another schema.

    Raises:
        FedGraphError: names the difference.
    """
    pin = agreement.pins.get(graph.client)
    key = settings.get("key")
    if pin is None or not key or key_text(read_key(str(key)).public_key()) != key_text(pin):
        name = agreement.members.get(graph.client, "none")
        raise FedGraphError(
            f"this node's graph is of client {graph.client}, which is {name} in the agreement, and key="
            " of its --node-config is not that member's: start it with --key of the member"
        )
    schema = agreement.values["schema"]
    if schema and (table_schema := fingerprint(graph)) != schema:
        raise FedGraphError(
            f"this node's tables have the schema {table_schema}, and members agreed on {schema}: import"
            " them with the agreed schema"
        )


def threads(settings: Settings, cfg: RunConfig) -> int:
    """Return Torch's number of threads: the node's ``threads``, else the run's."""
    number = settings.get("threads", cfg.threads)
    if not isinstance(number, int) or not 1 <= number <= MAX_THREADS:
        raise FedGraphError(
            f"threads={number} of --node-config: expected a whole number from 1 to {MAX_THREADS}"
        )
    return number


def device(settings: Settings, cfg: RunConfig) -> torch.device:
    """Return where a node trains: its ``device``, else the run's; ``auto`` picks a GPU."""
    name = str(settings.get("device", cfg.device))
    one_of(name, DEVICES, "device")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise FedGraphError(
            "device=cuda, but this node has no GPU that PyTorch can use; set device=auto or"
            " device=cpu"
        )
    return torch.device("cuda" if name in ("auto", "cuda") and available else "cpu")


def graph_file(settings: Settings, cfg: RunConfig) -> Path | None:
    """Return the client file that ``graph`` names, perhaps by the party's ``party.yaml``."""
    if not (path := settings.get("graph")):
        return None
    return wing.client_file(Path(str(path)), linked=not wing.has_section(cfg.strategy.client))


def load_graph(settings: Settings, cfg: RunConfig, file: Path | None) -> Any:
    """Return the client's graph: the node's file, else that of its partition.

    Files without edges between clients do not fix the number of clients: it is the run's.
    """
    from fedgraph_flwr import partition

    if not file and "partition-id" not in settings:
        raise FedGraphError(
            "this node has no graph: start the SuperNode with --node-config 'graph=\"FILE\"', where"
            " FILE was written by `fedgraph-flwr partition` or `fedgraph-flwr import`"
        )
    try:
        graph = partition.load(file) if file else _partition(settings, cfg)
    except FedGraphError as error:  # the reply replaces the path of the node config only
        reason = str(error).replace(str(file), str(settings.get("graph")))
        raise FedGraphError(reason) from error
    cut = isinstance(graph, ClientGraph) and (graph.cut_out.numel() or graph.cut_in.numel())
    if not cut and not cfg.strategy.pooled:
        graph.num_clients = max(cfg.num_clients, graph.client + 1)
    return graph


def _partition(settings: Settings, cfg: RunConfig) -> Any:
    from fedgraph_flwr import partition

    return partition.load_client(cfg, int(settings["partition-id"]))
