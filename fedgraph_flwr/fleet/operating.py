"""What an operator does by Flower's own commands: name a connection, register keys, look who is there."""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, RunFailed, sanitize, unknown
from fedgraph_flwr.fleet.processes import environment, say, tool


def connect(name: str, address: str, authority: Path) -> None:
    """Give Flower's configuration a connection of this name.

    Raises:
        FedGraphError: it has another fleet's of this name, or cannot be read.
    """
    path, lines = _configuration(), {"address": address, "root-certificates": str(authority.absolute())}
    there = _connections().get(name)
    if there == lines:
        return
    text = path.read_text().rstrip() + "\n\n" if path.is_file() else ""
    if there is not None and there.keys() == lines.keys() and there["root-certificates"] == lines["root-certificates"]:
        path.write_text(re.sub(rf'(\[superlink\.{re.escape(name)}\]\naddress = )"[^"\n]*"', rf'\1"{address}"', text))
        return  # this fleet's, from when its server listened elsewhere
    if there is not None:
        raise FedGraphError(
            f"{path} has another connection '{name}' (to {there.get('address')}): say --name, or remove it"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())
    path.write_text(f"{text}[superlink.{name}]\n{body}\n")
    say(f"wrote the connection '{name}' into {path}")


def _configuration() -> Path:
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").expanduser() / "config.toml"


def _connections() -> dict[str, dict[str, Any]]:
    """The connections that Flower's configuration names.

    Raises:
        FedGraphError: it cannot be read.
    """
    path = _configuration()
    try:
        known = tomllib.loads(path.read_text()).get("superlink", {}) if path.is_file() else {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FedGraphError(f"{path} cannot be read ({error})") from error
    return {key: value for key, value in known.items() if isinstance(value, dict)}


def check_connection(name: str, kind: str = "--name", others: Iterable[str] = ()) -> None:
    """Check that Flower's configuration has a connection of this name.

    Args:
        name: which.
        kind: what the user calls it.
        others: further names that are accepted.

    Raises:
        FedGraphError: it has not.
    """
    known = _connections().keys() | set(others)
    if not known:
        raise FedGraphError(
            f"{kind} {name}: {_configuration()} names no connection; `fedgraph-flwr server` writes one on the server's machine"
        )
    if name not in known:
        raise unknown(kind, name, known, f"connections of {_configuration()}; `fedgraph-flwr server` writes one")


def admit(public: Path, name: str) -> str:
    """Let a node's public key in; returns what there is to say.

    Raises:
        RunFailed: Flower's command failed otherwise than for a key that it has already.
    """
    done = _flwr("supernode", "register", str(public), name)
    if not done.returncode:
        return f"{public} is registered"
    if "already in use" in done.stdout + done.stderr:
        return f"{public} was registered before"
    raise _failure(done, name)


def nodes(name: str) -> list[dict[str, Any]]:
    """The nodes that the server knows: ``node-id``, ``status``, and when that changed."""
    return [node for node in _told(name, "supernode", "list", name)["nodes"] if node["status"] != "unregistered"]


def runs(name: str) -> list[dict[str, Any]]:
    """The runs that the server knows."""
    found: list[dict[str, Any]] = _told(name, "list", name)["runs"]
    return found


def _told(name: str, *words: str) -> dict[str, Any]:
    done = _flwr(*words, "--format", "json")
    try:
        told: dict[str, Any] = json.loads(done.stdout)
        if told["success"]:
            return told
    except (ValueError, KeyError):
        pass
    raise _failure(done, name)


def _flwr(*words: str) -> subprocess.CompletedProcess[str]:
    more = {"FLWR_DISABLE_UPDATE_CHECK": "1", "COLUMNS": "200"}
    return subprocess.run([tool("flwr"), *words], env=environment() | more, capture_output=True, text=True, check=False)


def _failure(done: subprocess.CompletedProcess[str], name: str) -> RunFailed:
    if "SuperLink is unavailable" in done.stdout + done.stderr:
        address = _connections().get(name, {}).get("address", "?")
        return RunFailed(
            f"no SuperLink answers at {address}, the address of connection '{name}' in {_configuration()}: is"
            " `fedgraph-flwr server` running there?"
        )
    lines = [line.strip("\u2500\u2502\u256d\u256e\u2570\u256f ") for line in (done.stdout + done.stderr).splitlines()]
    return RunFailed(f"{' '.join(['flwr', *done.args[1:]])} failed: {sanitize(' '.join(filter(None, lines)), 600)}")
