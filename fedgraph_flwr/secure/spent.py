"""A node's ledger of the privacy that it has spent, over all runs of a purpose (``max_epsilon`` of its policy).

ε of one run bounds what that run reveals. Releases of several runs on the same data add up, and a server chooses how many runs it
starts, and their noise. The ledger books each release before the node replies: an exchange whose reply the server reduces, and
noised scores. Units (``privacy.unit``) have ledgers of their own, since their ε do not add up. A ledger adds up the releases'
Rényi divergences (`fedgraph_flwr.secure.accounting`) and refuses the one with which ε at δ = `DELTA`, or the least δ of a run,
would exceed the limit. A run without a reply, or repeated after a crash, is booked again; a noised term of an agreed run is not.

Each entry is a run's releases of one price: noise, sensitivity, sampling rate and δ. A run that comes back with another
configuration gets another entry, so that what was booked is never priced again. Where the ledger is missing, or an entry holds
fewer releases than the node's audit log lists of it, the node sends none until the owner confirms.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, FedGraphError, Refusal
from fedgraph_flwr.fleet.audit_chain import entry_name
from fedgraph_flwr.secure.accounting import divergence, epsilon_of, least_sensitivity

DELTA = 1e-5
"""δ of ``max_epsilon``, whatever a run's own is."""


class SpentPrivacy:
    """The ledger of one purpose.

    Args:
        path: its file; None: kept in memory.
        limit: ``max_epsilon``.
        purpose: its name.
        logged: counts the releases of this ledger that the node's audit log lists, by entry.

    Attributes:
        booked: its entries.
        besides: entries of other ledgers that count, too.
    """

    def __init__(self, path: Path | None, limit: float, purpose: str, logged: Callable[[], dict[str, int]] = dict):
        self.path, self.limit, self.purpose, self.logged = path, limit, purpose, logged
        self.booked: dict[str, dict[str, float]] = {}
        self.besides: dict[str, dict[str, float]] = {}

    def book(self, run: str, cfg: RunConfig, releases: int) -> dict[str, float]:
        """Book releases of a run before they leave the node.

        Args:
            run: Flower's run id, or the name of an agreed run.
            cfg: the run's configuration.
            releases: how many; 0: none, as a repeated reply.

        Returns:
            The price, and how many releases of it the audit log must list of this run, with those that the owner forgot.

        Raises:
            FedGraphError: ε would exceed the limit, or the file cannot be read.
        """
        price = booking(cfg, releases)
        name = entry_name(run, price)
        if self.path is None:
            self._add(name, price)
            return price
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            if not self.path.is_file():
                self._check_new(self.path)
            self.booked = _read(self.path)
            forgotten = self._check_age(self.path).get(name, 0)
            if releases:
                self._add(name, price)
                write_bytes(self.path, json.dumps(self.booked).encode())
            return price | {"releases": self._held().get(name, 0) + forgotten}

    def _check_new(self, path: Path) -> None:
        """Refuse to start a ledger next to an audit log that lists releases which it should hold.

        Raises:
            FedGraphError: names both files, and how the owner confirms.
        """
        if count := sum(self.logged().values()):
            raise FedGraphError(
                f"{path} is missing, but this node's audit log lists {count} releases with noise: restore it, or, to forget what"
                " was spent, write {} into it"
            )

    def _check_age(self, path: Path) -> dict[str, int]:
        """Refuse a release by a ledger that lacks some that the audit log lists, such as one of a back-up.

        An empty ledger is the owner's, who forgets what was spent. A file next to it keeps what was forgotten, by entry; the
        owner writes only the number, since a ledger of another back-up may lack as many at a higher price.

        Returns:
            The numbers of releases that the owner forgot, by entry.

        Raises:
            FedGraphError: names both files, and how the owner confirms.
        """
        file, held, listed = path.with_name(f"{path.name}.forgotten"), self._held(), self.logged()
        missing = {name: count - held.get(name, 0) for name, count in listed.items() if count > held.get(name, 0)}
        lost, known = sum(missing.values()), None
        with suppress(OSError, *MALFORMED):
            known = json.loads(file.read_bytes())
        if missing and (not self.booked or (isinstance(known, int) and known >= lost)):
            known = missing
            write_bytes(file, json.dumps(known).encode())
        forgotten: dict[str, int] = known if isinstance(known, dict) else {}
        if any(count > forgotten.get(name, 0) for name, count in missing.items()):
            raise FedGraphError(
                f"{path} lacks {lost} of {sum(listed.values())} releases with noise that this node's audit log lists: it is"
                f" older, as from a back-up; restore the newer one, or, to forget them, write {lost} into {file.name} beside it"
            )
        return forgotten

    def _held(self) -> dict[str, int]:
        """Return the numbers of releases by the entries' names of this version."""
        counts: Counter[str] = Counter()
        for name, entry in self.booked.items():
            counts[entry_name(name, entry)] += int(entry["releases"])
        return counts

    def _add(self, name: str, price: dict[str, float]) -> None:
        before, releases = int(self.booked.get(name, {}).get("releases", 0)), int(price["releases"])
        after = self.booked | {name: price | {"releases": before + releases}}
        if (epsilon := spent(after | self.besides)) > self.limit:
            others = "".join(sorted({f", also in {name.split()[0]}.json" for name in self.besides}))
            raise Refusal(
                f"this node's policy allows ε ≤ {self.limit:g} at δ = {_delta(after):g} over all runs of purpose '{self.purpose}'"
                f" (max_epsilon{others}): now it is {spent(self.booked | self.besides):.3g}, with {releases} more release(s)"
                f" {epsilon:.3g}"
            )
        self.booked = after


def booking(cfg: RunConfig, releases: int) -> dict[str, float]:
    """Return the entry of a run's releases."""
    return {
        "noise_multiplier": cfg.privacy.noise_multiplier,
        "sensitivity": least_sensitivity(cfg.privacy, cfg.num_clients),
        "sampling_rate": cfg.privacy.sampling_rate,
        "delta": cfg.privacy.delta,
        "releases": releases,
    }


def check_booking(entry: Mapping[str, Any]) -> None:
    """Check an entry that was stored.

    Raises:
        One of `MALFORMED`: it is none.
    """
    rate, delta = entry.get("sampling_rate", 1.0), entry.get("delta", DELTA)
    releases = int(entry["releases"])
    positive = (
        0 < entry["noise_multiplier"] < math.inf and 0 < entry["sensitivity"] < math.inf and 0 <= releases < 2**53
    )
    if not (positive and 0 < rate <= 1 and 0 < delta < 1):
        raise ValueError("values")


def spent(booked: dict[str, dict[str, float]]) -> float:
    """Return ε of all booked releases at `DELTA`, or the least δ of a run for rows or payments; 0 without one."""
    return epsilon_of(divergence_of(booked.values()), _delta(booked)) if booked else 0.0


def divergence_of(entries: Iterable[Mapping[str, float]]) -> NDArray[np.float64]:
    """Return the Rényi divergences of the releases of some entries, for each of `ORDERS`; at least one."""
    total = [
        divergence(e["noise_multiplier"], int(e["releases"]), e["sensitivity"], e.get("sampling_rate", 1.0))
        for e in entries
    ]
    return np.asarray(np.sum(total, axis=0))


def _delta(booked: dict[str, dict[str, float]]) -> float:
    """Return δ: a run for rows has at most 1 / rows, which may be less than `DELTA`."""
    return min([DELTA, *(e.get("delta", DELTA) for e in booked.values())])


def ledgers(state: Path, unit: str) -> list[Path]:
    """Return the ledgers of a state folder for a ``privacy.unit``."""
    known = {path: path.stem.rpartition("_")[2] for path in sorted(state.glob("privacy_*.json"))}
    return [path for path, ending in known.items() if (ending if ending in ("row", "payment") else "client") == unit]


def runs_in(path: Path, digests: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the entries of a ledger that belong to runs of agreements, by the ledger's and their names."""
    known = tuple(f"{digest[32:]}-" for digest in digests)
    return {f"{path.stem} {name}": entry for name, entry in _read(path).items() if name.startswith(known)}


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Return the booked releases by run; empty without a file.

    Raises:
        FedGraphError: the file is damaged. Without it the node sends no release.
    """
    if not path.is_file():
        return {}
    try:
        booked: dict[str, Any] = json.loads(path.read_bytes())
        for entry in booked.values():
            check_booking(entry)
    except MALFORMED as error:
        raise FedGraphError(
            f"{path} is not the ledger of this node's privacy: restore it, or remove it to forget what was spent"
        ) from error
    return booked
