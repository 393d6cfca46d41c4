"""The checkpoint from which a run resumes, and what may differ in the run that resumes."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from fedgraph_flwr.config import RunConfig, to_json
from fedgraph_flwr.config.composition import nested_keys, present
from fedgraph_flwr.config.config_file import dotted_keys
from fedgraph_flwr.config.schema import DATA
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.store.folder import CHECKPOINT
from fedgraph_flwr.store.results import (
    ROUNDS,
    read_rounds,
)
from fedgraph_flwr.wire.trees import Tree, unflatten

FREE = {
    "rounds",
    "checkpoint_every",
    "resume",
    "init",  # the checkpoint holds what it became
    "out",
    "overwrite",
    "attack.name",  # studied at the end
    "engine",  # all engines give the same parameters
    "client_cpus",
    "client_gpus",
    "ray.address",
    "ray.actors",
    "ray.live_clients",
    "strategy.timeout",  # affects who is dropped, not what is computed
    "strategy.min_clients",
    "strategy.on_failure",
    "graph",  # the content is compared, not the path
    "dataset.params.path",
    "tracking",  # recipients of scores
    "tracking_clients",
    "tracking_group",
    "device",  # a run may resume on other hardware; the last digits of a sum differ
    "threads",
}
"""Keys that may change when a run is resumed; all others determine its results."""


@dataclass
class Checkpoint:
    """State from which a run resumes.

    Attributes:
        round: last finished round.
        run: the server's name of the run, under which clients store their state.
        best_round: round of the best validation score so far, ``best_score``.
        pending: record of ``round`` without its scores.
        fingerprint: fingerprint of the configuration and, if the files were available, of the data.
        descriptions: reply of each client to phase ``describe``, by index; ``told`` in the file.
        nodes: node id of each client, by index.
        seconds: duration of the run so far; 0 in files of older versions.
        start: run, digest and scores of the model in ``init``.
        tree: ``arrays`` (shared parameters), ``best``, and the strategy's state.
        rounds: records of the previous rounds.
    """

    round: int
    run: str
    best_round: int
    best_score: float
    pending: dict[str, Any]
    fingerprint: dict[str, Any]
    descriptions: dict[str, Any]
    nodes: dict[str, Any]
    seconds: float = 0.0
    start: dict[str, Any] = dataclasses.field(default_factory=dict)
    tree: Tree = dataclasses.field(default_factory=dict)
    rounds: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """Return the values of the file's header."""
        return {key: getattr(self, f.name) for key, f in _HEADER.items()}

    def of_clients(self) -> dict[int, int]:
        """Return the node id of each client."""
        return {int(client): node for client, node in self.nodes.items()}


_NAMES = {"descriptions": "told"}
"""Field of `Checkpoint` → its name in the file, where they differ."""

_HEADER = {
    _NAMES.get(f.name, f.name): f
    for f in dataclasses.fields(Checkpoint)
    if f.name not in ("tree", "rounds")
}
"""Values of the file's header, by name."""


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read the checkpoint of a run's folder and the records before it.

    Raises:
        FedGraphError: the checkpoint is missing, damaged or foreign, or records are missing.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise FedGraphError(
            f"resume={folder} has no {CHECKPOINT}; set checkpoint_every=N to write one every N rounds"
        )
    tensors, values = read_tensors(path)
    values.setdefault("seconds", 0.0)  # missing in files of older versions
    values.setdefault("start", {})
    wrong = f"{path} is not a checkpoint of this version, start a new run: it has"
    for key, f in _HEADER.items():
        kind: Any = (int, float) if f.type is float else get_origin(f.type) or f.type
        if not isinstance(values.get(key), kind) or isinstance(values[key], bool):
            raise FedGraphError(f"{wrong} {key} {values.get(key)!r}")
    checkpoint = Checkpoint(
        **{f.name: values[key] for key, f in _HEADER.items()}, tree=unflatten(tensors)
    )
    if (
        not re.fullmatch(r"[0-9a-f]{16}", checkpoint.run)  # it becomes part of a path
        or not 0 <= checkpoint.best_round <= checkpoint.round
        or checkpoint.pending.get("round") != checkpoint.round
        or not all(isinstance(branch, dict) for branch in checkpoint.tree.values())
        or not all(
            client.isdecimal() and type(node) is int for client, node in checkpoint.nodes.items()
        )
    ):
        raise FedGraphError(f"{wrong} parts that do not fit together")
    checkpoint.rounds = [
        record for record in read_rounds(folder / ROUNDS) if record["round"] < checkpoint.round
    ]
    if [record["round"] for record in checkpoint.rounds] != list(range(1, checkpoint.round)):
        what = f"{folder / ROUNDS} has no records of some rounds before {checkpoint.round}, the round of {path.name}"
        raise FedGraphError(f"{what}: restore the file, or start a new run")
    return checkpoint


def fingerprint(cfg: RunConfig, data: list[str] | None) -> dict[str, Any]:
    """Return all keys that determine a run's results, and under ``data`` hashes of the available files."""
    unused = DATA if cfg.graph or cfg.on_fleet else ()
    keys = {
        key: v
        for key, v in flat_keys(cfg).items()
        if key not in FREE and key.partition(".")[0] not in unused
    }
    return keys | ({} if data is None else {"data": data})


def flat_keys(cfg: RunConfig) -> dict[str, Any]:
    """Return every key of a configuration, dotted, with its JSON value."""
    return dotted_keys(json.loads(to_json(cfg)))


def check_resumable(cfg: RunConfig, checkpoint: Checkpoint, data: list[str] | None) -> None:
    """Check that a configuration gives the same results as that of the resumed run.

    Raises:
        FedGraphError: it does not; the message has the keys and both values.
    """
    now = fingerprint(cfg, data)
    before = dotted_keys(present(nested_keys(checkpoint.fingerprint)))
    usual = flat_keys(RunConfig())  # for keys that did not exist then
    keys = (now.keys() | before.keys()) - FREE - {"data"}
    if cfg.on_fleet:
        keys = {key for key in keys if key.partition(".")[0] not in DATA}
    differ = [key for key in sorted(keys) if now.get(key) != before.get(key, usual.get(key))]
    if differ:
        differ.sort(key=lambda key: not key.endswith(".name"))  # other keys follow from it
        changes = ", ".join(
            f"{key}={now.get(key)} (it has {before.get(key, usual.get(key))})" for key in differ[:3]
        )
        raise FedGraphError(
            f"resume={cfg.resume} cannot change {changes}: remove these overrides, or start a new run"
        )
    if "data" in now and "data" in before and now["data"] != before["data"]:
        data_name = cfg.graph or cfg.dataset.name
        raise FedGraphError(
            f"resume={cfg.resume}: the data has changed since that run: {data_name}; start a new run"
        )
    if checkpoint.round > cfg.rounds:
        raise FedGraphError(
            f"rounds={cfg.rounds} is less than round {checkpoint.round} of resume={cfg.resume}: set more"
        )


def check_descriptions(
    descriptions: Mapping[str, Any], checkpoint: Checkpoint, folder: str
) -> None:
    """Check that the clients' descriptions are those of the resumed run.

    Raises:
        FedGraphError: a client has another graph, or the number of clients changed.
    """
    for client in sorted(descriptions.keys() | checkpoint.descriptions.keys(), key=str):
        now = descriptions.get(client, {})
        before = checkpoint.descriptions.get(client)
        before = before if isinstance(before, dict) else {}
        for key in sorted(now.keys() | before.keys()):
            if key == "min_nodes":  # a party may change its policy
                continue
            # older versions reported it under differential privacy, too
            if key == "num_train" and key not in now:
                continue
            if now.get(key) != before.get(key):
                what = f"{key} {now.get(key)}, in that run it had {before.get(key)}: check that it has the same graph"
                if key == "link":
                    what = "the file of another link run, with other ids: restore the file, or start a new run"
                raise FedGraphError(f"resume={folder}: client {client} has {what}")
