"""A client's private state between messages, and its files on the node's own disk, which survive its processes.

``ROOT/<strategy>-<run>/client_0000/`` holds:

    last.safetensors               written after each message that changed the state, if the SuperNode has a state folder
    asked.json                     the requests of the server in this run
    fingerprints.txt               fingerprints of the keys that the server relayed (`fedgraph_flwr.secure.keyring`)
    round_000010.safetensors       the last two checkpoints, from which a run resumes
    term_000011_train_0            noised terms of an agreed run's secure sums, by place, which it may repeat
    model_last, model_best         at the end of the run: models for prediction
    verified.json                  of a run that every node computes: what it signed at its place
    verified_000010.bin            the last certified state of that run, and the next
    replies_000011.bin             its replies since the last certified state, which it may repeat, and opened sums
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.chosen_parts import ChosenParts
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.data.files import append_bytes, leftovers, write_bytes
from fedgraph_flwr.data.graph import read_header, read_tensors, write_tensors
from fedgraph_flwr.errors import MALFORMED, FedGraphError, Refusal, first_line, sanitize, system_errors
from fedgraph_flwr.methods.method_half import inherits
from fedgraph_flwr.numerics.optim import make_optimizer
from fedgraph_flwr.secure.policy import Ledger, file_name
from fedgraph_flwr.secure.protection.plain import Place
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import Tree, flatten, unlike

SCHEMA = 1
"""Version of the metadata in a state file."""


class AnotherSum(Refusal):
    """Error: a noised term of this position was made for another request; the reason depends on no data."""


class StateFolder:
    """The state folder of one client in one run of one method.

    Args:
        root: the folder that the node, or the simulation, keeps for all its runs; names cannot point outside of it.
        run: digest and number of an agreed run; otherwise Flower's run id for the last state, and for checkpoints the server's
            name of the run, which a resumed run keeps.
        strategy: name of the method.
        client: index of the client.
        attempt: Flower's run id, which the last state of an agreed run must have.
        durable: whether states and models outlive a power cut.
    """

    def __init__(self, root: Path | str, run: str, strategy: str, client: int, attempt: str = "", durable: bool = True):
        names = file_name(strategy, "strategy"), file_name(run, "the server's name of a run,")
        self.folder = Path(root) / "-".join(names) / f"client_{client:04d}"
        self.owner = {"schema": SCHEMA, "run": run, "strategy": strategy, "client": client}
        self.attempt, self.durable = attempt, durable
        self._header: dict[str, Any] = {}  # of the last state, once it was read

    def check_one_method(self) -> None:
        """Refuse a run id that a run of another method had: its records say what that run may still ask.

        Raises:
            FedGraphError: names the other run's folder.
        """
        folder = self.folder.parent
        root, ending = folder.parent, f"-{self.owner['run']}"
        others = [path.name for path in root.glob(f"*{ending}") if path.name != folder.name] if root.is_dir() else []
        if others:
            raise FedGraphError(
                f"the server uses the number of an earlier run again ({sanitize(others[0], 80)}): a node accepts only the"
                " configuration of a run's first message; start a new run"
            )

    def write_last(self, state: dict[str, Tensor], version: int, record: Mapping[str, Any] | None = None) -> None:
        """Write the current state, for a process that starts without it, and the record that belongs to it."""
        self._header = {}
        attempt = {"attempt": self.attempt} if self.attempt else {}
        self._write("last", state, {"version": version, **attempt} | ({"record": record} if record else {}))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process replies to a message of this run, and let none do so within."""
        with system_errors(f"cannot write {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True)
            held = FileLock(self.folder / ".asked.lock").acquire()
        with held:
            yield

    def last_version(self) -> int:
        """Return the version of the last state; 0 if there is none yet, or one of an earlier attempt."""
        values = self._last_header()
        return self._version(values) if values and values.get("attempt", "") == self.attempt else 0

    def read_last(self) -> tuple[dict[str, Tensor], int] | None:
        """Return the last state and its version; None as for `last_version`."""
        if not self.last_version():
            return None
        state, values = self._read("last")
        return state, self._version(values)

    def last_record(self) -> dict[str, Any]:
        """Return the record that was written with the last state; empty: none."""
        return dict(self._last_header().get("record", {}))

    def _last_header(self) -> dict[str, Any]:
        """Return the values of the last state, which are read once unless this object writes others; empty: there is none."""
        if not self._header:  # another process may write the first
            file = self._file("last")
            self._header = read_header(file)[1] if file.is_file() else {}
        return self._header

    def _version(self, values: Mapping[str, Any]) -> int:
        version = values.get("version")
        if type(version) is not int or version < 0:
            raise FedGraphError(
                f"{self._file('last')} has version {version!r}, expected a whole number from 0: restore the file"
            )
        return version

    def is_booked(self, position: Place) -> bool:
        """Return whether the noised term of a position is booked: it is stored, or its request failed before it was drawn."""
        return self._file(_place("term", position)).is_file() or self._booked(position).is_file()

    def note_booked(self, position: Place) -> None:
        """Note that the noised term of a position is booked, until it is stored."""
        self._booked(position).touch()

    def _booked(self, position: Place) -> Path:
        return self.folder / _place("booked", position)

    def kept_term(self, position: Place, request: bytes, make: Callable[[], NDArray[np.uint64]]) -> NDArray[np.uint64]:
        """Return the noised term of a position [P]: the stored one, or a new one, stored before it leaves.

        Args:
            position: round, phase and exchange.
            request: digest of what was requested.
            make: draws the term.

        Raises:
            FedGraphError: the position had another request.
        """
        name = _place("term", position)
        if self._file(name).is_file():
            parts, values = self._read(name)
            if values.get("request") != request.hex():
                raise AnotherSum(
                    f"the server requests another sum in round {position[0]} of this agreed run than before, of other clients or"
                    " another model: noise is drawn once for each; resume when the same clients are there, or start the next run"
                )
            return parts["term"].numpy().view(np.uint64)
        term, ended = make(), self.ended_round(position[0] - 1)
        self._write(name, {"term": torch.from_numpy(term.view(np.int64))}, {"request": request.hex()})
        self._booked(position).unlink(missing_ok=True)
        for path in self.folder.glob("term_*.safetensors"):  # of rounds that no attempt repeats
            if 0 < int(path.stem[5:11]) < ended:
                path.unlink(missing_ok=True)
        return term

    def write_reply(self, server_round: int, groups: Mapping[str, Arrays], numbers: Mapping[str, Any]) -> list[int]:
        """Append a reply to those of a round; return its first byte and its size, with which `read_reply` returns the same."""
        content = self._packed(groups, numbers)
        return [append_bytes(self._exact("replies", server_round), content), len(content)]

    def read_reply(self, server_round: int, place: Sequence[int]) -> tuple[dict[str, Arrays], dict[str, Any]]:
        """Return what `write_reply` wrote, in its order."""
        return self._unpacked(self._exact("replies", server_round), *place)

    def _packed(self, groups: Mapping[str, Arrays], numbers: Mapping[str, Any]) -> bytes:
        """Return arrays of any types and shapes, and JSON values, as bytes."""
        like, parts = list[list[Any]](), list[bytes]()
        for group, arrays in groups.items():
            for name, array in arrays.items():
                like.append([group, name, array.dtype.str, array.shape])
                parts.append(array.tobytes())
        body = b"".join(parts)
        values = {"like": like, "groups": list(groups), "numbers": numbers, "digest": sha256(body).hexdigest()}
        header = json.dumps(self.owner | values).encode()
        return b"".join((len(header).to_bytes(8, "little"), header, body))

    def _unpacked(self, path: Path, start: int = 0, size: int = -1) -> tuple[dict[str, Arrays], dict[str, Any]]:
        """Return what `_packed` packed in a part of a file.

        Raises:
            FedGraphError: the file is missing or damaged, or another run's.
        """
        try:
            with path.open("rb") as file:
                file.seek(start)
                content = memoryview(file.read(size))
            first = 8 + int.from_bytes(content[:8], "little")
            values, body = json.loads(bytes(content[8:first])), content[first:]
            if values["digest"] != sha256(body).hexdigest():
                raise ValueError("its content does not match its digest")
        except (OSError, *MALFORMED) as error:
            raise FedGraphError(f"cannot read {path}, which this node wrote ({error}): restore it") from error
        self._check_owner(path, values)
        groups: dict[str, Arrays] = {group: {} for group in values["groups"]}
        for group, name, kind, shape in values["like"]:
            array = np.frombuffer(body, kind, math.prod(shape)).reshape(shape)
            groups[group][name], body = array.copy(), body[array.nbytes :]
        return groups, values["numbers"]

    def forget_replies(self) -> None:
        """Delete all replies of `write_reply`."""
        for path in self.folder.glob("replies_*.bin"):
            path.unlink(missing_ok=True)

    def _exact(self, name: str, server_round: int) -> Path:
        return self.folder / f"{name}_{server_round:06d}.bin"

    def ended_round(self, before: int) -> int:
        """Return the first round that an attempt may repeat: that of the oldest checkpoint, or ``before`` if that is earlier."""
        return min([before, *(int(path.stem[6:]) for path in self.folder.glob("round_*.safetensors"))])

    def write_record(self, name: str, values: dict[str, Any]) -> None:
        """Write what a node must not forget in this run."""
        write_bytes(self.folder / f"{name}.json", json.dumps(self.owner | {name: values}).encode())

    def read_record(self, name: str) -> dict[str, Any] | None:
        """Return what `write_record` wrote; None: nothing yet.

        Raises:
            FedGraphError: the file cannot be read, or is another run's.
        """
        path = self.folder / f"{name}.json"
        if not path.is_file():
            return None
        values = json.loads(path.read_bytes())
        if {key: values.get(key) for key in self.owner} != self.owner:
            raise ValueError("it belongs to another run")
        return dict(values[name])

    def write_state(self, name: str, server_round: int, state: Arrays) -> None:
        """Write the state of a server's half after a round; delete those of three rounds before and earlier."""
        write_bytes(self._exact(name, server_round), self._packed({name: state}, {}))
        for old in sorted(self.folder.glob(f"{name}_*.bin"))[:-3]:
            old.unlink(missing_ok=True)

    def read_state(self, name: str, server_round: int) -> Arrays:
        """Return what `write_state` wrote."""
        return self._unpacked(self._exact(name, server_round))[0][name]

    def write_asked(self, record: dict[str, Any]) -> None:
        """Write the record of requests, before the reply to the latest one."""
        self.write_record("asked", record)

    def read_asked(self) -> Ledger:
        """Return the record of requests in this run.

        Raises:
            FedGraphError: the file cannot be read. Without the record the node refuses every request.
        """
        try:
            return Ledger(self.read_record("asked"))
        except (OSError, *MALFORMED) as error:
            raise FedGraphError(
                f"{self.folder / 'asked.json'} does not hold the requests to this node ({error}): remove the file to start"
                " again without them"
            ) from error

    def add_fingerprint(self, exchange: str, digits: str, clients: list[int]) -> None:
        """Append the fingerprint of one key exchange, which parties compare by telephone; the latest comes last."""
        path = self.folder / "fingerprints.txt"
        line = f"{digits}  {exchange}, clients {' '.join(map(str, clients))}\n"
        before = path.read_text() if path.is_file() else ""
        if line not in before:
            write_bytes(path, (before + line).encode())

    def write_checkpoint(self, state: dict[str, Tensor], server_round: int, trained: bool = True) -> None:
        """Write a checkpoint, and delete all but the one before it, which an interrupted server may still need.

        Args:
            state: the client's.
            server_round: the round after which it is.
            trained: whether the client has trained in the run.
        """
        for killed in leftovers(self.folder):
            killed.unlink(missing_ok=True)
        self._write(f"round_{server_round:06d}", state, {"round": server_round, "trained": trained})
        for old in sorted(self.folder.glob("round_*.safetensors"))[:-2]:
            old.unlink(missing_ok=True)

    def stored_round(self, server_round: int, latest: int) -> int:
        """Return the round of the checkpoint with which a run resumes after a round.

        Where the server did not receive the reply to a request to store the state, the first later
        one up to ``latest`` has replaced it.
        """
        later = sorted(int(path.stem[6:]) for path in self.folder.glob("round_*.safetensors"))
        if not later or later[0] <= server_round:
            return server_round
        return later[0] if later[0] <= latest else server_round

    def has_checkpoint(self, server_round: int) -> bool:
        """Return whether this client wrote a checkpoint after a round."""
        return self._file(f"round_{server_round:06d}").is_file()

    def had_trained(self, server_round: int) -> bool:
        """Return whether the client had trained before a checkpoint; one of an older version does not say, and counts."""
        return read_header(self._file(f"round_{server_round:06d}"))[1].get("trained", True) is not False

    def read_checkpoint(self, server_round: int) -> dict[str, Tensor]:
        """Return the state after a round.

        Raises:
            FedGraphError: the checkpoint does not exist.
        """
        return self._read(f"round_{server_round:06d}")[0]

    def write_model(self, name: str, parts: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Write a model for prediction, with its metadata in ``values``."""
        self._write(f"model_{name}", parts, values)

    @classmethod
    def find_model(cls, root: Path, name: str, client: int | None = None) -> Path | None:
        """Return the latest model that `write_model` wrote below a folder; with ``client``, only of that client."""
        owner = "client_*" if client is None else f"client_{client:04d}"
        paths = [*root.rglob(f"{owner}/model_{name}.safetensors"), *root.glob(f"model_{name}.safetensors")]
        return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Turn any error while a client restores the state ``name`` into an error message that names the file."""
        try:
            yield
        except (FedGraphError, RuntimeError, *MALFORMED) as error:
            raise FedGraphError(
                f"{self._file(name)} holds no state of this client in this run ({first_line(error)}): restore it or start anew"
            ) from error

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _write(self, name: str, state: dict[str, Tensor], values: dict[str, Any]) -> None:
        write_tensors(self._file(name), state, self.owner | values, self.durable)

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        state, values = read_tensors(self._file(name))
        self._check_owner(self._file(name), values)
        return state, values

    def _check_owner(self, path: Path, values: Mapping[str, Any]) -> None:
        """Refuse a file of another run, method or client."""
        for key, expected in self.owner.items():
            if values.get(key) != expected:
                raise FedGraphError(
                    f"{path} has {key}={values.get(key)}, expected {expected}: give each node its own folder"
                )


def _place(kind: str, position: Place) -> str:
    return f"{kind}_{position[0]:06d}_{position[1]}_{position[2]}"


def files_models(kind: type[GraphClient], cfg: RunConfig, num_features: int, num_classes: int) -> bool:
    """Return whether a simulated client predicts with anything private besides the shared parameters."""
    own_model = not inherits(kind, ["build_model"])
    if (
        own_model
        or kind.predicts_with
        or ChosenParts(cfg.strategy).predicts_with
        or cfg.evaluation.select == "own_best_val"
    ):
        return True
    model = models.build(cfg.model, num_features, num_classes)
    saved = sum(tensor.is_floating_point() for tensor in model.state_dict().values())
    return len(model.shared(cfg.strategy.shared, cfg.strategy.private)) < saved


def state_of(client: GraphClient, secrets: bool = True) -> Tree:
    """Return all private state: unshared tensors, optimiser moments, `save()`, saved models and, with ``secrets``, round keys."""
    tree: Tree = {"model": {n: t for n, t in client.model.state_dict().items() if n not in client.shared}}
    if client.optimizer is not None and client.cfg.train.keeps_optimizer:
        tree["optimizer"] = client.optimizer.state()
    tree |= {"method": client.save(), **client.protection.save(secrets)}
    return {**tree, "kept": client.saved_models.state}


def checkpointed_state(client: GraphClient) -> Tree:
    """Return the part of `state_of` that a resumed run restores: no round's keys, and none of the client's `secrets`."""
    tree, secrets = state_of(client, secrets=False), client.secrets
    return {**tree, "method": {key: value for key, value in tree["method"].items() if key not in secrets}}


def restore_state(client: GraphClient, tree: Tree) -> None:
    """Restore what `state_of` or `checkpointed_state` returned.

    Raises:
        FedGraphError: the state belongs to another model, or has another precision.
    """
    tensors = tree.get("model", {})
    client.model.fit_to(tensors, "the state")
    if problem := unlike(tensors, state_of(client)["model"]):
        raise FedGraphError(problem)
    client.model.load_state_dict(tensors, strict=False)
    if "optimizer" in tree:
        client.optimizer = make_optimizer(client.parameters(), client.cfg.train)
        client.optimizer.load_state({name: t.to(client.device) for name, t in flatten(tree["optimizer"]).items()})
    client.load(tree.get("method", {}))
    client.saved_models.state = tree.get("kept", {})
    client.protection.load(tree)
