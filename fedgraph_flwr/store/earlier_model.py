"""The model of an earlier run, with which another starts (``init``) or which it scores (``evaluate``).

A run that did not finish has the model of its last checkpoint, with which another may start.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedgraph_flwr.data.graph import read_header, read_tensors
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.store.checkpoint import read_checkpoint
from fedgraph_flwr.store.folder import CHECKPOINT, INPUT_SPEC
from fedgraph_flwr.store.results import (
    SUMMARY,
    read_summary,
)
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import as_arrays, unflatten


def has_model(folder: Path) -> bool:
    """Return whether a run's folder has a model: it finished, or wrote a checkpoint."""
    return (folder / SUMMARY).is_file() or (folder / CHECKPOINT).is_file()


def headline_model(folder: Path, key: str = "evaluate") -> Path:
    """Return the file of a finished run's shared parameters, of the round of its headline score; for ``init`` also a checkpoint.

    Raises:
        FedGraphError: the folder holds no finished run.
    """
    if not (folder / SUMMARY).is_file():
        if key == "init" and has_model(folder):
            return folder / CHECKPOINT
        other = f" or {CHECKPOINT}" if key == "init" else ""
        raise FedGraphError(
            f"{key}={folder} holds no finished run: expected a folder with {SUMMARY}{other}"
        )
    if members := read_summary(folder, ["headline"]).get("blend"):
        raise FedGraphError(
            f"{key}={folder} is a blend of other runs and holds no model: pass one of {members}"
        )
    return folder / (
        "model_best.safetensors" if metrics.reports_best(folder) else "model_final.safetensors"
    )


def keeps_models(path: Path) -> bool:
    """Return whether a run's server kept parameters of each client beside the file that `headline_model` returns."""
    if path.name == CHECKPOINT:
        return any(name.startswith("server/models/") for name in read_header(path)[0])
    return path.with_name(path.name.replace("model_", "models_")).is_file()


def earlier_record(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run, or what the checkpoint of another says: ``nodes`` and ``privacy``.

    Raises:
        FedGraphError: it is damaged.
    """
    if (folder / SUMMARY).is_file() or not has_model(folder):
        return read_summary(folder)
    checkpoint = read_checkpoint(folder)
    record: dict[str, Any] = {"nodes": checkpoint.nodes}
    if isinstance(spent := checkpoint.pending.get("privacy"), dict):
        # those that may have followed the checkpoint are booked in it
        booked = checkpoint.tree["server"]["privacy"]["releases"]
        record["privacy"] = spent | {"releases": int(booked)}
    return record


class EarlierModel(NamedTuple):
    """Model of an earlier run, at the round of its headline score or of its checkpoint.

    Attributes:
        path: file of the shared parameters.
        arrays: the shared parameters.
        models: those of clients that have their own.
    """

    path: Path
    arrays: Arrays
    models: dict[int, Arrays]


def earlier_model(folder: Path, key: str, schemas: Mapping[int, Sequence[int]]) -> EarlierModel:
    """Return the model of a finished run for clients with these fingerprints of their schemas.

    Raises:
        FedGraphError: the folder holds no finished run, or its files had another schema.
    """
    path = headline_model(folder, key)
    spec = folder / INPUT_SPEC
    try:
        known = json.loads(spec.read_bytes()).get("fingerprint") if spec.is_file() else None
    except MALFORMED as error:
        raise FedGraphError(
            f"{spec} defines no features and classes ({first_line(error)}): repeat the run"
        ) from error
    for client, found in schemas.items():
        if known and list(found) != known:
            what = f"client {client} has another schema than the run {key}={folder}, so columns mean something else"
            raise FedGraphError(
                f"{what} to the model: import its tables with that run's schema (--schema)"
            )
    if path.name == CHECKPOINT:
        return EarlierModel(path, as_arrays(read_checkpoint(folder).tree.get("arrays", {})), {})
    personal = folder / path.name.replace("model_", "models_")
    models = as_arrays(unflatten(read_tensors(personal)[0])) if personal.is_file() else {}
    return EarlierModel(
        path,
        as_arrays(read_tensors(path)[0]),
        {int(client): tree for client, tree in models.items()},
    )


def newcomers(folder: Path, parties: Sequence[str], clients: Sequence[int]) -> list[str]:
    """Return who takes part now and not in the run of a folder: parties by name if both runs know them, else clients."""
    summary = earlier_record(folder)
    if parties and (before := summary.get("parties")):
        return [name for name in parties if name not in before]
    return [
        f"client {client}"
        for client in clients
        if str(client) not in summary.get("nodes", {str(client): 0})
    ]
