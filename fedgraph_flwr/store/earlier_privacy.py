"""What earlier runs revealed of the same data: the runs whose model a run starts with (``init``), under ``privacy.dp``.

ε of the released models is that of all releases on the data, so these runs' releases count, too.
Two runs have the same data unless each names another data set (``dataset``): a server does not see
which rows the files of two months share. A run on another data set does not count, but those before
it may have this run's data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.secure.spent import booking, check_booking
from fedgraph_flwr.store.earlier_model import earlier_record, has_model
from fedgraph_flwr.store.results import CONFIG, SUMMARY


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
    if _names_other_data(cfg, earlier):
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


def _names_other_data(cfg: RunConfig, earlier: RunConfig) -> bool:
    """Return whether both runs name their data set, and not the same."""
    return not (_of_files(cfg) or _of_files(earlier)) and cfg.dataset.name != earlier.dataset.name


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
