"""The folder of a run: who owns it, what of an older run goes, and what must hold of a checkpoint that a run goes on from.

config.yaml        the resolved configuration, from which the run is repeated (`run config=DIR/config.yaml`)
rounds.jsonl       one JSON object a round (see `Recorder.end_round`)
summary.json       see `Recorder.finish`; written last, so where it is, the rest is whole
failure.json       the sentence with which the run ended, for a launcher in another process
model_final.safetensors, model_best.safetensors     shared parameters after the last and the best validation round
models_final.safetensors, models_best.safetensors   clients' own shared parameters, of methods that give them some
input_spec.json    names of the classes, and the schema by which tables become features
checkpoint.safetensors, state/                      what `resume=DIR` goes on from
.run.lock, .launch.lock (and .owner)                held by the process that serves the run, and by the one that started it
"""

import contextlib
import dataclasses
import json
import math
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.parts import modernise_keys
from fedgraph_flwr.data.graph import leftovers, read_tensors, write_bytes
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.moved import FILES, rename_config
from fedgraph_flwr.wire.trees import Tree, unflatten

CONFIG = "config.yaml"
CHECKPOINT = "checkpoint.safetensors"
ROUNDS = "rounds.jsonl"
SUMMARY = "summary.json"
INPUT_SPEC = "input_spec.json"
FAILURE = "failure.json"
MODELS = (
    "model_final.safetensors",
    "model_best.safetensors",
    "models_final.safetensors",
    "models_best.safetensors",
)

DATA = ("dataset", "split", "partition")
"""Sections that make the clients' graphs, where these are not given."""

SERVER = ".run.lock"
LAUNCHER = ".launch.lock"

FREE = {
    "rounds",
    "checkpoint_every",
    "resume",
    "out",
    "overwrite",
    "attack.name",  # studied at the end
    "engine",  # all give the same parameters
    "client_cpus",
    "client_gpus",
    "ray.address",
    "ray.actors",
    "ray.live_clients",
    "strategy.timeout",  # who is given up, not what is computed
    "strategy.min_clients",
    "strategy.on_failure",
    "graph",  # what lies there is compared, not where
    "dataset.params.path",
    "tracking",  # who is told
    "tracking_clients",
    "tracking_group",
    "device",  # a run may have to go on elsewhere; the last digits of a sum differ
    "threads",
}
"""Keys that may change when a run is resumed. Every other one decides what it computes."""


class InUse(FedGraphError):
    """The folder belongs to another process, or to a finished run."""


def make_folder(cfg: RunConfig) -> None:
    """Make the result folder, before anything is started that takes time.

    Raises:
        FedGraphError: it cannot be made.
    """
    try:
        Path(cfg.out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedGraphError(f"cannot make the folder out={cfg.out}: {error.strerror or error}") from error


@contextlib.contextmanager
def owned(folder: Path, lock: str = SERVER) -> Iterator[None]:
    """Own a run's folder, which is made where it is not there; the system takes the lock from a process that dies.

    Raises:
        InUse: another process owns it.
        FedGraphError: it cannot be written.
    """
    held = FileLock(folder / lock)
    owner = folder / f"{lock}.owner"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held.acquire(timeout=0)
    except Timeout as error:
        raise InUse(
            f"{folder} is in use by {_words(owner) or 'another process'}: wait for it, stop it, or give another out="
        ) from error
    except (OSError, NotImplementedError) as error:
        raise FedGraphError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from error
    try:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        write_bytes(owner, f"process {os.getpid()} on {platform.node()} since {now}".encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            owner.unlink(missing_ok=True)
        held.release()


def _words(path: Path) -> str:
    try:
        return re.sub(r"[^\w .:-]", "?", path.read_text(errors="replace"))[:200]
    except OSError:
        return ""


def headline_score(summary: Mapping[str, Any]) -> float:
    """The headline's value; NaN where the run has none. Summaries of older versions call it ``test_accuracy``."""
    key = str(summary.get("headline", "")).partition(" at ")[0]
    value = summary.get(key, summary.get("test_accuracy"))
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def clear(folder: Path) -> None:
    """Remove what an older run left, so that nobody takes it for this one's; what is not a run's stays.

    Raises:
        FedGraphError: something cannot be removed.
    """
    try:
        for name in (CHECKPOINT, SUMMARY, INPUT_SPEC, *FILES.values(), FAILURE, ROUNDS, *MODELS, "report.html"):
            (folder / name).unlink(missing_ok=True)
        for state in (folder / "state").glob("*-" + "[0-9a-f]" * 16):
            shutil.rmtree(state)
        for path in leftovers(folder):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise FedGraphError(f"cannot clear {folder} of an older run: {error.strerror or error}") from error


def read_rounds(path: Path, skip: int = 0) -> list[dict[str, Any]]:
    """The records of the rounds, without the first ``skip``; none where there is no file.

    A last line without its end is of a process that died, or is being written, and is left out.

    Raises:
        FedGraphError: another line is no record.
    """
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        if number <= skip:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or type(record.get("round")) is not int:
            raise FedGraphError(f"{path}: line {number} is no record of a round")
        records.append(record)
    return records


# --- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass
class Checkpoint:
    """What a run goes on from.

    Attributes:
        round: the last one it knows.
        run: the server's name of the run, under which clients file their state.
        best_round: of the best validation figure so far, which is ``best_score``.
        pending: the record of ``round``, which lacks its scores.
        fingerprint: of the configuration and, where the files were at hand, of the data.
        told: what the clients told, by index.
        nodes: the node that each client was, by index.
        tree: ``arrays`` (shared parameters), ``best``, and what the strategy keeps.
        rounds: the records of the rounds before.
    """

    round: int
    run: str
    best_round: int
    best_score: float
    pending: dict[str, Any]
    fingerprint: dict[str, Any]
    told: dict[str, Any]
    nodes: dict[str, Any]
    tree: Tree = dataclasses.field(default_factory=dict)
    rounds: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def values(self) -> dict[str, Any]:
        """What the file's header says."""
        return {key: getattr(self, key) for key in _TYPES}

    def of_clients(self) -> dict[int, int]:
        """The node that each client was."""
        return {int(client): node for client, node in self.nodes.items()}


_TYPES: dict[str, tuple[type, ...]] = {
    "round": (int,),
    "run": (str,),
    "best_round": (int,),
    "best_score": (int, float),
    "pending": (dict,),
    "fingerprint": (dict,),
    "told": (dict,),
    "nodes": (dict,),
}


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint of a run's folder, with the records that it stands on.

    Raises:
        FedGraphError: there is none, it is damaged or another program's, or records are missing.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise FedGraphError(f"resume={folder} holds no {CHECKPOINT}; set checkpoint_every to write one every n rounds")
    tensors, values = read_tensors(path)
    for key, types in _TYPES.items():
        if not isinstance(values.get(key), types) or isinstance(values[key], bool):
            raise FedGraphError(f"{path} is no checkpoint that this version wrote: it has {key} {values.get(key)!r}")
    found = Checkpoint(**{key: values[key] for key in _TYPES}, tree=unflatten(tensors))
    if (
        not re.fullmatch(r"[0-9a-f]{16}", found.run)  # it becomes part of a path
        or not 0 <= found.best_round <= found.round
        or found.pending.get("round") != found.round
        or not all(isinstance(branch, dict) for branch in found.tree.values())
        or not all(client.isdecimal() and type(node) is int for client, node in found.nodes.items())
    ):
        raise FedGraphError(f"{path} is no checkpoint that this version wrote: its parts do not fit together")
    found.rounds = [record for record in read_rounds(folder / ROUNDS) if record["round"] < found.round]
    if [record["round"] for record in found.rounds] != list(range(1, found.round)):
        raise FedGraphError(f"{folder / ROUNDS} lacks records of rounds before {found.round}, that of {path.name}")
    return found


def fingerprint(cfg: RunConfig, data: list[str] | None) -> dict[str, Any]:
    """What a run's results are a function of: keys with their values, and under ``data`` hashes of files that are at hand."""
    whole = dataclasses.asdict(cfg)
    if cfg.graph or cfg.on_fleet:  # then these made nothing
        whole = {key: value for key, value in whole.items() if key not in DATA}
    keys = {key: value for key, value in _flat(whole).items() if key not in FREE}
    return keys | ({} if data is None else {"data": data})


def flat_keys(cfg: RunConfig) -> dict[str, Any]:
    """Every key of a configuration, dotted, with its value."""
    return _flat(dataclasses.asdict(cfg))


def check_resumable(cfg: RunConfig, found: Checkpoint, data: list[str] | None) -> None:
    """Check that a configuration gives the same results as that of the run which it is to go on with.

    Raises:
        FedGraphError: it does not; the sentence has the keys and both values.
    """
    now, before = fingerprint(cfg, data), modernise_keys(rename_config(found.fingerprint, warn=False))
    usual = _flat(dataclasses.asdict(RunConfig()))  # of keys that were not there yet
    keys = (now.keys() | before.keys()) - FREE - {"data"}
    if cfg.on_fleet:
        keys = {key for key in keys if key.partition(".")[0] not in DATA}
    differ = [key for key in sorted(keys) if now.get(key) != before.get(key, usual.get(key))]
    if differ:
        differ.sort(key=lambda key: not key.endswith(".name"))  # what others follow from
        told = ", ".join(f"{key}={now.get(key)} (it has {before.get(key, usual.get(key))})" for key in differ[:3])
        raise FedGraphError(
            f"resume={cfg.resume} goes on with the run as it began, not with {told}: for other results begin another run"
        )
    if "data" in now and "data" in before and now["data"] != before["data"]:
        raise FedGraphError(
            f"resume={cfg.resume}: the data of that run had other content: {cfg.graph or cfg.dataset.name}"
        )
    if found.round > cfg.rounds:
        raise FedGraphError(
            f"rounds={cfg.rounds} lies before round {found.round}, which resume={cfg.resume} has reached"
        )


def check_told(told: Mapping[str, Any], found: Checkpoint, folder: str) -> None:
    """Check that clients tell of themselves what they told the run that is to go on.

    Raises:
        FedGraphError: another graph is behind a client, or another number of clients.
    """
    for client in sorted(told.keys() | found.told.keys(), key=str):
        now, before = told.get(client, {}), found.told.get(client)
        before = before if isinstance(before, dict) else {}
        for key in sorted(now.keys() | before.keys()):
            if key == "num_train" and key not in now:  # older versions reported it under differential privacy, too
                continue
            if now.get(key) != before.get(key):
                raise FedGraphError(
                    f"resume={folder}: client {client} has {key} {now.get(key)}, in that run it had {before.get(key)}:"
                    " is it another graph?"
                )


def _flat(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Values of a nested dict by their paths, as JSON gives them back."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{key}.")
        else:
            flat[f"{above}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat
