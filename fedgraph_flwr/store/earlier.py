"""An earlier run with which another starts (``init``) or which it scores (``evaluate``): its model, and what it released.

A run that did not finish has the model of its last checkpoint, with which another may start.

ε of the released models under ``privacy.dp`` is that of all releases on the data, so those of earlier runs count, too.
Two runs have the same data unless each names another data set (``dataset``): a server does not see
which rows the files of two months share. A run on another data set does not count, but those before
it may have this run's data.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.data.graph import read_header, read_tensors
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line, sanitize
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.secure.spent import booking, check_booking
from fedgraph_flwr.store.checkpoint import read_checkpoint
from fedgraph_flwr.store.folder import CHECKPOINT, INPUT_SPEC
from fedgraph_flwr.store.results import CONFIG, SUMMARY, read_summary
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
    for client, fingerprint in schemas.items():
        if known and list(fingerprint) != known:
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


@dataclass(frozen=True)
class EarlierPrivacy:
    """Releases of earlier runs on the same data.

    Attributes:
        entries: releases by price, as in a node's ledger (`fedgraph_flwr.secure.spent.booking`).
        unbounded: why no ε covers these runs and this one; empty: one does.
    """

    entries: tuple[dict[str, float], ...] = ()
    unbounded: str = ""


def earlier_privacy(cfg: RunConfig, later: tuple[Path, ...] = ()) -> EarlierPrivacy:
    """Return what the runs before one released of its data.

    Args:
        cfg: the run's configuration; a folder in ``init`` without a model is refused elsewhere.
        later: folders of runs between those and this one.

    Raises:
        FedGraphError: the folder's files are damaged.
    """
    folder = Path(cfg.init)
    if not cfg.init or not has_model(folder):
        return EarlierPrivacy()
    summary = earlier_record(folder)
    earlier = compose([], folder / CONFIG)
    if not (_of_files(cfg) or _of_files(earlier)) and cfg.dataset.name != earlier.dataset.name:
        return _before(cfg, earlier, folder, later)
    spent = summary.get("privacy")
    if not isinstance(spent, dict) or spent.get("epsilon") is None:
        before = (
            sanitize(spent["unbounded"], 300)
            if isinstance(spent, dict) and "unbounded" in spent
            else ""
        )
        return EarlierPrivacy(
            unbounded=before or f"init={cfg.init} was trained on these data without noise"
        )
    if earlier.privacy.unit != cfg.privacy.unit:
        units = f"privacy.unit={earlier.privacy.unit}, this run {cfg.privacy.unit}"
        return EarlierPrivacy(unbounded=f"init={cfg.init} has {units}, whose ε do not add up")
    if earlier.init and "earlier" not in spent:
        what = f"init={cfg.init} does not record what the runs before it released"
        return EarlierPrivacy(unbounded=f"{what}: its version did not")
    entries = _entries(folder, spent, earlier)
    # it left out data that this run's files may have
    if earlier.init and _of_files(cfg) and not _of_files(earlier):
        others = _before(cfg, earlier, folder, later)
        return replace(others, entries=(*others.entries, entries[-1]))
    return EarlierPrivacy(tuple(entries))


def _before(
    cfg: RunConfig, other: RunConfig, folder: Path, later: tuple[Path, ...]
) -> EarlierPrivacy:
    """Return what the runs before one on another data set released of a run's data.

    Args:
        cfg: the run's configuration.
        other: that of the run on another data set.
        folder: folder of that run.
        later: folders of runs between that and this one.
    """
    if not other.init:
        return EarlierPrivacy()
    later = (*later, folder.resolve())
    first = Path(other.init)
    if first.resolve() in later or not has_model(first):
        why = f"init={folder} started from a run in {other.init}, which is no longer there and may have these data"
        return EarlierPrivacy(unbounded=sanitize(why, 300))
    return earlier_privacy(replace(cfg, init=other.init), later)


def earlier_spent(folder: Path) -> dict[str, Any]:
    """Return ε, δ and the number of releases that an earlier run states; empty without differential privacy."""
    spent = earlier_record(folder).get("privacy")
    keys = ("epsilon", "delta", "releases")
    return {key: spent[key] for key in keys if key in spent} if isinstance(spent, dict) else {}


def _of_files(cfg: RunConfig) -> bool:
    """Return whether a run reads files of parties, of which nothing says what data they share with others."""
    return bool(cfg.graph or cfg.on_fleet)


def _entries(folder: Path, spent: Mapping[str, Any], earlier: RunConfig) -> list[dict[str, float]]:
    """Return the releases of an earlier run, and of the runs before it.

    Raises:
        FedGraphError: they are none.
    """
    try:
        entries = [*spent.get("earlier", []), booking(earlier, spent["releases"])]
        for entry in entries:
            check_booking(entry)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FedGraphError(
            f"{folder / SUMMARY} has invalid releases under 'privacy': restore it, or repeat the run"
        ) from error
    return entries
