"""Folder of a run: names of its files, locks, and removal of an older run.

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
import os
import platform
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.files import leftovers, write_bytes
from fedgraph_flwr.errors import FedGraphError, system_errors
from fedgraph_flwr.store.results import (
    FAILURE,
    ROUNDS,
    SUMMARY,
)

CHECKPOINT = "checkpoint.safetensors"
INPUT_SPEC = "input_spec.json"
OPENED_SUMS = "opened_sums"
MODELS = [
    f"{name}.safetensors" for name in ("model_final", "model_best", "models_final", "models_best")
]

SERVER = ".run.lock"
LAUNCHER = ".launch.lock"


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
def owned(
    folder: Path, lock: str = SERVER, instead: str = ", or pass another out="
) -> Iterator[None]:
    """Lock a folder, as of a run, and create it if missing; the system releases the lock of a dead process.

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
                f"{folder} is in use by {_owner_text(owner)}: wait, stop it{instead}"
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
