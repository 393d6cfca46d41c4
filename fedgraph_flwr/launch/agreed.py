"""Runs of an agreement (`fedgraph_flwr.fleet.agreements`), as an operator starts them."""

import contextlib
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import RunConfig, compose, to_json
from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import MALFORMED, FedGraphError
from fedgraph_flwr.fleet import agreements
from fedgraph_flwr.fleet.agreements import Agreement, Refused


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn what an agreement refuses into an error for the user."""
    try:
        yield
    except Refused as error:
        raise FedGraphError(str(error)) from error


def opened(path: Path) -> Agreement:
    """Read an agreement.

    Raises:
        FedGraphError: it is missing or damaged.
    """
    with refusals():
        return agreements.read(path)


def accepted(place: Path, records: Mapping[str, Any] | None) -> tuple[list[Agreement], list[str]]:
    """Return the signed agreements of a file, or of a folder in the order of their versions, and why its other files are ignored.

    An ignored file may be a later version, which replaces others. So only what the node knows is accepted beside it, and
    `Agreement.check_version` refuses the replaced ones of these.

    Args:
        place: the file or folder.
        records: what the node remembers of agreements (`agreements.remembered`); None: unknown.

    Raises:
        FedGraphError: nothing is accepted; says why.
    """
    versions, ignored, later = list[Agreement](), list[str](), dict[str, Agreement | None]()
    for path in agreements.files_of(place):
        agreement = None
        try:
            agreement = agreements.read(path)
            agreement.check_signed()
            versions.append(agreement)
        except Refused as error:
            ignored.append(str(error))
            later[path.name] = None if agreement and agreement.forged else agreement
    new = {
        one.path: _doubt(one, later)
        for one in versions
        if records is not None and one.digest not in records
    }
    ignored += [
        f"{path} is new here, and {doubt} may be a later version: restore that file, or move it away"
        for path, doubt in new.items()
        if doubt
    ]
    versions = [one for one in versions if not new.get(one.path)]
    if not versions:
        raise FedGraphError(
            "; ".join(ignored) or f"--agreement {place}: the folder has no .yaml file"
        )
    return sorted(versions, key=lambda one: one.values["version"]), ignored


def _doubt(agreement: Agreement, others: Mapping[str, Agreement | None]) -> str:
    """Return which ignored file may be a later version of an agreement; None: a damaged one."""
    values = agreement.values
    return next(
        (
            name
            for name, one in others.items()
            if one is None
            or (one.values["name"] == values["name"] and one.values["version"] > values["version"])
        ),
        "",
    )


def agreed_run(path: Path, cfg: RunConfig, number: int | None) -> RunConfig:
    """Return the configuration of the next run of an agreement, or of a given number, whose nodes would accept it.

    The operator keeps the last number next to the file (``.runs``). Nodes count for themselves.

    Raises:
        FedGraphError: the configuration is not the agreed one, or a signature or a run is missing.
    """
    agreement = opened(path)
    members = agreement.values["members"]
    if cfg.parties and {*cfg.parties} != members.keys():
        raise FedGraphError(
            f"parties={cfg.parties}: {path} is of {', '.join(members)}: name them all, or leave it out"
        )
    with refusals():
        agreement.check_signed()
        agreement.check_time(time.time())
        agreement.check_configuration(to_json(cfg))
    kept = path.with_name(f"{path.name}.runs")
    try:
        before = int(json.loads(kept.read_text()).get(agreement.digest, 0)) if kept.is_file() else 0
    except (OSError, *MALFORMED) as error:
        raise FedGraphError(
            f"{kept} does not hold the last run of {path}: remove it, and pass --number, above the last run that"
            " fedgraph-flwr agree status --state DIR prints at a node"
        ) from error
    run = before + 1 if number is None else number
    if not 1 <= run <= agreement.values["runs"]:
        raise FedGraphError(
            f"{path} allows {agreement.values['runs']} runs, and this would be run {run}: agree on a new version"
        )
    write_bytes(kept, json.dumps({agreement.digest: max(run, before)}).encode())
    weights = list(agreement.counted.values())
    return dataclasses.replace(cfg, agreement=f"{agreement.digest}/{run}", weights=weights)


def configured(path: Path, overrides: Sequence[str]) -> RunConfig:
    """Return the configuration of an agreement's runs, with the operator's own keys."""
    return compose(overrides, json.dumps(opened(path).values["configuration"]))
