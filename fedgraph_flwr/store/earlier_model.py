"""The model of a finished run, with which another starts (``init``) or which it scores (``evaluate``)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.store.folder import INPUT_SPEC
from fedgraph_flwr.store.results import (
    SUMMARY,
    read_summary,
)
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import as_arrays, unflatten


def headline_model(folder: Path, key: str = "evaluate") -> Path:
    """Return the file of a finished run's shared parameters, of the round of its headline score.

    Raises:
        FedGraphError: the folder holds no finished run.
    """
    if not (folder / SUMMARY).is_file():
        raise FedGraphError(
            f"{key}={folder} holds no finished run: expected a folder with {SUMMARY}"
        )
    if members := read_summary(folder, ["headline"]).get("blend"):
        raise FedGraphError(
            f"{key}={folder} is a blend of other runs and holds no model: pass one of {members}"
        )
    return folder / (
        "model_best.safetensors" if metrics.reports_best(folder) else "model_final.safetensors"
    )


class EarlierModel(NamedTuple):
    """Model of a finished run, at the round of its headline score.

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
    personal = folder / path.name.replace("model_", "models_")
    models = as_arrays(unflatten(read_tensors(personal)[0])) if personal.is_file() else {}
    return EarlierModel(
        path,
        as_arrays(read_tensors(path)[0]),
        {int(client): tree for client, tree in models.items()},
    )


def newcomers(folder: Path, parties: Sequence[str], clients: Sequence[int]) -> list[str]:
    """Return who takes part now and not in the run of a folder: parties by name if both runs know them, else clients."""
    summary = read_summary(folder)
    if parties and (before := summary.get("parties")):
        return [name for name in parties if name not in before]
    return [
        f"client {client}"
        for client in clients
        if str(client) not in summary.get("nodes", {str(client): 0})
    ]
