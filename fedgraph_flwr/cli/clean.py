"""Command ``clean``: list, then delete, old files of runs and of a node's state.

Nothing is deleted without --yes. Ledgers, audit logs, keys, and the records of requests always stay. So do files that the
command does not know, and runs that are in use.

Examples:
  fedgraph-flwr clean runs --older-than 30d              # a list, and what it would free
  fedgraph-flwr clean runs --older-than 30d --keep-best --yes
  fedgraph-flwr clean state --older-than 12w --keep-best --yes    # the folder of `node --state`
"""

import argparse
import contextlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from fedgraph_flwr.data.files import leftovers
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.fleet.run_folders import STATUS
from fedgraph_flwr.party.options import add_options
from fedgraph_flwr.store.folder import CHECKPOINT, INPUT_SPEC, LAUNCHER, MODELS, OPENED_SUMS, SERVER
from fedgraph_flwr.store.results import CONFIG, FAILURE, ROUNDS, SUMMARY

_UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_STATE = "[0-9A-Za-z_]*-*/client_[0-9][0-9][0-9][0-9]*"
"""Folders of clients in a folder of states."""

_LOGS = ("run-config.toml", "flower.log", "superlink.log", "app/pyproject.toml")
_BLEND = "blend.json"

_MOMENT = 60
"""Seconds since its last change within which a run stays, whose command may still write the report."""

_RECORDS = (CONFIG, _BLEND, ROUNDS, SUMMARY, FAILURE, INPUT_SPEC, STATUS, "report.html", *_LOGS)
"""Files of a run besides its models and checkpoints."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``clean``."""
    about = "folders of runs, or states of nodes (default: runs)"
    parser.add_argument("folders", type=Path, nargs="*", default=[Path("runs")], metavar="DIR", help=about)
    add_options(parser, _OPTIONS, older_than={"required": True, "type": age})


_OPTIONS = """
--older-than AGE  only runs whose files are all older, such as 30d, 12h or 8w; at least a minute
--keep-best  keep the models of the best round, and of a run also its records and report
--unfinished  also runs that can still be resumed
--dry-run  only list, as without --yes
--yes  delete
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``clean``."""
    from fedgraph_flwr.report.units import size

    if args.yes and args.dry_run:
        raise FedGraphError("--yes deletes, and --dry-run does not: leave one out")
    now = time.time()
    listed: list[_Item] = []
    for folder in args.folders:
        if not folder.is_dir():
            raise FedGraphError(f"{folder} is not a folder: pass a folder of runs, or the folder of `node --state`")
        listed += _items(folder, args.keep_best)
    if not listed:
        raise FedGraphError(f"no runs and no states of runs in {', '.join(map(str, args.folders))}")
    ages = [max(now - item.changed(), 0.0) for item in listed]
    reasons = [_kept(item, age, args) for item, age in zip(listed, ages, strict=True)]
    starts = {item.start: item for item, kept in zip(listed, reasons, strict=True) if kept and item.start}
    freed = cleaned = denied = 0
    for item, seconds, reason in zip(listed, ages, reasons, strict=True):
        days, kept = seconds / 86400, reason
        if not kept and item.lock and (user := starts.get(item.folder.name)):
            kept = f"{user.folder}, which is unfinished, starts from it (init)"
        elif not kept and not item.files:
            continue
        if kept:
            print(f"kept     {item.folder} ({days:.0f} days): {kept}")
            continue
        try:
            bytes_ = item.size()
            if args.yes and not item.delete():
                print(f"kept     {item.folder}: in use")
                continue
        except PermissionError as error:
            denied += 1
            print(f"kept     {item.folder}: no permission for {error.filename}; run clean as the user who owns it")
            continue
        freed, cleaned = freed + bytes_, cleaned + 1
        about = f"{len(item.files)} files, {size(bytes_)}"
        print(f"{'deleted ' if args.yes else 'old     '} {item.folder} ({days:.0f} days): {about}")
    after = "freed" if args.yes else "can be freed; to delete, add --yes"
    print(f"{size(freed)} of {cleaned} runs {after}")
    return 1 if denied else 0


def _kept(item: "_Item", age: float, args: argparse.Namespace) -> str:
    """Return why an item stays, or ""."""
    if age < max(args.older_than, _MOMENT):
        return "newer"
    return "it can be resumed; --unfinished deletes it, too" if item.resumable and not args.unfinished else ""


def age(text: str) -> float:
    """Convert an age such as ``30d`` to seconds."""
    match = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"expected a number with h, d or w, such as 30d, got '{sanitize(text, 40)}'")
    return int(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True)
class _Item:
    """A run's folder, or the states of a node's clients in one run.

    Attributes:
        folder: the folder.
        files: files that may be deleted.
        resumable: whether ``resume`` continues the run from them.
        lock: lock of the processes that write to it; None: there is none.
        start: last name of the folder in ``init``, of an unfinished run; "": there is none.
    """

    folder: Path
    files: list[Path]
    resumable: bool
    lock: Path | None = None
    start: str = ""

    def changed(self) -> float:
        """Return the time of the last change, in seconds."""
        paths = [path for path in self.folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
        times = [stat.st_mtime for path in paths if (stat := _stat(path))]
        return max(times, default=self.folder.stat().st_mtime)

    def size(self) -> int:
        """Return the bytes of the files; a live run replaces some meanwhile."""
        return sum(stat.st_size for path in self.files if (stat := _stat(path)))

    def delete(self) -> bool:
        """Delete the files, and folders that are empty then; return False if a process uses them.

        The configuration, by which the next `clean` knows a run, goes last.
        """
        config = self.folder / CONFIG
        inner = [path for path in self.files if path != config]
        with contextlib.ExitStack() as stack:
            for name in (SERVER, LAUNCHER) if self.lock else ():
                try:
                    stack.enter_context(FileLock(self.folder / name).acquire(timeout=0))
                except Timeout:
                    return False
            for path in inner:
                path.unlink(missing_ok=True)
            self._remove_empty(path for path in self.folder.rglob("*") if path.is_dir() and not path.is_symlink())
            if config in self.files:
                config.unlink(missing_ok=True)
        if self.lock and not config.exists():
            for name in (SERVER, LAUNCHER):
                (self.folder / name).unlink(missing_ok=True)
        self._remove_empty([self.folder])
        return True

    def _remove_empty(self, folders: Iterable[Path]) -> None:
        for path in sorted(folders, reverse=True):
            with contextlib.suppress(OSError):  # it has other files
                path.rmdir()


def _stat(path: Path) -> os.stat_result | None:
    """Return a file's size and time; None if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return path.lstat()
    return None


def _halves(folder: Path) -> list[Path]:
    """Return what killed writers left in a folder: the names of a live one's files change within the hour."""
    before = time.time() - 3600
    return [path for path in leftovers(folder) if (stat := _stat(path)) and stat.st_mtime < before]


def _items(folder: Path, keep_best: bool) -> Iterator[_Item]:
    """Yield what a folder holds: it may be a run or a state itself, or hold runs (also of kept sweeps)."""
    runs = sorted({path.parent for deep in ("", "*/", "*/*/") for path in folder.glob(f"{deep}{CONFIG}")})
    for run in runs:
        if not _linked(run, folder):
            yield _run(run, keep_best)
    for path in [path for deep in ("", "*/", "*/*/") for path in folder.glob(f"{deep}{SERVER}")]:
        if not {held.name for held in path.parent.iterdir()} - {SERVER, LAUNCHER}:  # of a killed `clean`
            yield _Item(path.parent, [*path.parent.iterdir()], resumable=False)
    if not runs:
        for state in sorted({path.parent for path in folder.glob(_STATE) if not _linked(path, folder)}):
            yield _state(state, keep_best)


def _linked(path: Path, folder: Path) -> bool:
    """Return whether a link leads from a folder to a path in it, which may lie elsewhere then."""
    return any(part.is_symlink() for part in (path, *path.parents) if part != folder and part.is_relative_to(folder))


def _run(folder: Path, keep_best: bool) -> _Item:
    finished, checkpoint = (folder / SUMMARY).is_file(), folder / CHECKPOINT
    files = [checkpoint, *(folder / OPENED_SUMS).glob("*.safetensors")]
    models = [folder / name for name in MODELS]
    states = [path for path in (folder / "state").glob(_STATE) if path.is_dir() and not path.is_symlink()]
    best = _reports_best(folder)
    if keep_best:
        models = [path for path in models if not path.stem.endswith("best" if best else "final")]
    else:
        models += [folder / name for name in _RECORDS]
    files += [*models, *_halves(folder)]
    for state in states:
        files += _tensors(state, keep_best, ("best", "last") if best else ("last",))
        files += [] if keep_best else [path for path in state.iterdir() if path.suffix in (".json", ".txt")]
    paths = [path for path in files if path.is_file() and not _linked(path, folder)]
    resumable = not finished and checkpoint.is_file()
    return _Item(folder, paths, resumable, folder / SERVER, "" if finished else _start(folder))


def _start(folder: Path) -> str:
    """Return the last name of the folder that a run starts from, as far as a damaged run tells."""
    from fedgraph_flwr.config.config_file import load

    try:
        return Path(str(load(folder / CONFIG).get("init") or "")).name
    except (OSError, FedGraphError, AttributeError):
        return ""


def _reports_best(folder: Path) -> bool:
    """Return whether the models of the best round give the headline score, as far as a damaged run tells."""
    from fedgraph_flwr.evaluation.metrics import reports_best

    try:
        return reports_best(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return (folder / "model_best.safetensors").is_file()


def _state(folder: Path, keep_best: bool) -> _Item:
    """Return the tensors of a node's clients in one run; the records of requests are no part of it."""
    clients = [path for path in folder.glob("client_*") if path.is_dir() and not path.is_symlink()]
    files = [path for client in clients for path in _tensors(client, keep_best)]
    finished = all((client / "model_last.safetensors").is_file() for client in clients)
    resumable = not finished and any(path.name.startswith("round_") for path in files)
    return _Item(folder, files, resumable)


def _tensors(client: Path, keep_best: bool, preferred: Sequence[str] = ("best", "last")) -> list[Path]:
    """Return a client's states and models, except the first preferred model that there is, if it is to be kept."""
    models = [client / f"model_{name}.safetensors" for name in preferred]
    kept = next((path for path in models if path.is_file()), None) if keep_best else None
    names = ("last", "round_*", "model_*", "term_*")
    paths = [path for name in names for path in sorted(client.glob(f"{name}.safetensors")) if path != kept]
    return [*paths, *_halves(client)]
