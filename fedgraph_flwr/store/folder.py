"""Folder of a run: locks, removal of an older run, and checkpoints.

config.yaml        the resolved configuration, to repeat the run (`run config=DIR/config.yaml`)
rounds.jsonl       one JSON object per round (see `Recorder.end_round`)
summary.json       see `Recorder.finish`; written last, so if it exists, the other files are complete
failure.json       the error message of a failed run, for a launcher in another process
model_final.safetensors, model_best.safetensors     shared parameters after the last and the best validation round
models_final.safetensors, models_best.safetensors   personal shared parameters of clients, for methods that have them
input_spec.json    class names, and the schema that converts tables to features
checkpoint.safetensors, state/, opened_sums/        state for `resume=DIR`
.run.lock, .launch.lock (and .owner)                locks of the server process and of the launcher
"""

import contextlib
import dataclasses
import json
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_origin

from filelock import FileLock, Timeout

from fedgraph_flwr.config import RunConfig, to_json
from fedgraph_flwr.config.config_file import flat
from fedgraph_flwr.data.files import leftovers, write_bytes
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.errors import MALFORMED, FedGraphError, first_line, system_errors
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.store.results import (
    FAILURE,
    ROUNDS,
    SUMMARY,
    read_rounds,
    read_summary,
)
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import Tree, as_arrays, unflatten

CHECKPOINT = "checkpoint.safetensors"
INPUT_SPEC = "input_spec.json"
OPENED_SUMS = "opened_sums"
MODELS = [
    f"{name}.safetensors" for name in ("model_final", "model_best", "models_final", "models_best")
]

DATA = ("dataset", "split", "partition")
"""Sections that determine the clients' graphs, unless these are given."""

SERVER = ".run.lock"
LAUNCHER = ".launch.lock"

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


class InUse(FedGraphError):
    """Error: the folder belongs to another process, or to a finished run."""


def make_folder(cfg: RunConfig) -> None:
    """Create the result folder early, before any expensive step.

    Raises:
        FedGraphError: it cannot be created.
    """
    with system_errors(f"cannot create the folder out={cfg.out}"):
        Path(cfg.out).mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def owned(folder: Path, lock: str = SERVER) -> Iterator[None]:
    """Lock a run's folder and create it if missing; the system releases the lock of a dead process.

    Raises:
        InUse: another process holds the lock.
        FedGraphError: the folder is not writable.
    """
    held = FileLock(folder / lock)
    owner = folder / f"{lock}.owner"
    with system_errors(f"cannot write {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            held.acquire(timeout=0)
        except Timeout as error:
            raise InUse(
                f"{folder} is in use by {_owner_text(owner)}: wait, stop it, or pass another out="
            ) from error
    try:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        write_bytes(owner, f"process {os.getpid()} on {platform.node()} since {now}".encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink(missing_ok=True)
        held.release()


def _owner_text(path: Path) -> str:
    with contextlib.suppress(OSError):
        if text := path.read_text(errors="replace"):
            return re.sub(r"[^\w .:-]", "?", text)[:200]
    return "another process"


def clear(folder: Path) -> None:
    """Remove the files of an older run and keep all others.

    Raises:
        FedGraphError: a file cannot be removed.
    """
    names = (CHECKPOINT, SUMMARY, INPUT_SPEC, FAILURE, ROUNDS, *MODELS, "report.html")
    opened = (folder / OPENED_SUMS).glob("*.safetensors")
    with system_errors(f"cannot remove an older run from {folder}"):
        for path in (*(folder / name for name in names), *opened, *leftovers(folder)):
            path.unlink(missing_ok=True)
        for state in (folder / "state").glob("*-" + "[0-9a-f]" * 16):
            shutil.rmtree(state)


# --- checkpoints ----------------------------------------------------------------------------------


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
    return flat(json.loads(to_json(cfg)))


def check_resumable(cfg: RunConfig, checkpoint: Checkpoint, data: list[str] | None) -> None:
    """Check that a configuration gives the same results as that of the resumed run.

    Raises:
        FedGraphError: it does not; the message has the keys and both values.
    """
    now = fingerprint(cfg, data)
    before = checkpoint.fingerprint
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


def headline_model(folder: Path, key: str = "evaluate") -> Path:
    """Return the file of a finished run's shared parameters, of the round of its headline score.

    Raises:
        FedGraphError: the folder holds no finished run.
    """
    if not (folder / SUMMARY).is_file():
        raise FedGraphError(
            f"{key}={folder} holds no finished run: expected a folder with {SUMMARY}"
        )
    read_summary(folder, ["headline"])
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
    own = folder / path.name.replace("model_", "models_")
    models = as_arrays(unflatten(read_tensors(own)[0])) if own.is_file() else {}
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
