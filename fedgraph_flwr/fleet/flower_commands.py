"""Operator actions through Flower's commands: add a connection, register keys, list nodes and runs."""

import contextlib
import io
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line, sanitize, unknown
from fedgraph_flwr.fleet.certificates import REVOKED, read_key, revoked
from fedgraph_flwr.fleet.parties import UNREGISTERED, party_names
from fedgraph_flwr.fleet.processes import environment, say, tool, unproxied, without_box

REMOVED = "it was removed from this fleet"
"""Part of the server's answer to who registers a key that its list of removed keys has."""


def connect(name: str, address: str, authority: Path) -> None:
    """Add a connection to Flower's configuration.

    Raises:
        FedGraphError: the name is taken by another fleet, or the configuration cannot be read.
    """
    path, lines = _configuration(), {"address": address, "root-certificates": str(authority.absolute())}
    existing = _connections().get(name)
    if existing == lines:
        return
    text = path.read_text().rstrip() + "\n\n" if path.is_file() else ""
    if existing is not None and "address" in existing and existing | {"address": address} == lines:
        path.write_text(re.sub(rf'(\[superlink\.{re.escape(name)}\]\naddress = )"[^"\n]*"', rf'\1"{address}"', text))
        return  # same fleet at a previous address
    if existing is not None and existing.keys() == lines.keys() and _same_authority(existing, authority):
        old = json.dumps(existing["root-certificates"])
        text = path.read_text()
        if text.count(old) == 1:
            path.write_text(text.replace(old, json.dumps(lines["root-certificates"])))
            return connect(name, address, authority)  # same fleet in another folder
    if existing is not None:
        other = f"another connection '{name}' (to {existing.get('address')})"
        raise FedGraphError(f"{path} has {other}: pass another --name, or remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    body = "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())
    path.write_text(f"{text}[superlink.{name}]\n{body}\n")
    say(f"wrote the connection '{name}' to {path}")


def _same_authority(connection: dict[str, Any], authority: Path) -> bool:
    """Return whether a connection's certificate is the same file's content, or is gone with a folder that was moved."""
    earlier = Path(str(connection["root-certificates"]))
    return not earlier.exists() or earlier.read_bytes() == authority.read_bytes()


def _configuration() -> Path:
    return Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").expanduser() / "config.toml"


def _connections() -> dict[str, dict[str, Any]]:
    """Read the connections of Flower's configuration.

    Raises:
        FedGraphError: the file cannot be read.
    """
    path = _configuration()
    try:
        known = tomllib.loads(path.read_text()).get("superlink", {}) if path.is_file() else {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise FedGraphError(f"cannot read {path} ({error})") from error
    return {key: value for key, value in known.items() if isinstance(value, dict)}


def connection(name: str) -> dict[str, Any]:
    """Return the values of a connection of Flower's configuration; none if it is missing."""
    return _connections().get(name, {})


def check_connection(name: str, kind: str = "--name", others: Iterable[str] = ()) -> None:
    """Check that Flower's configuration has a connection of this name.

    Args:
        name: name of the connection.
        kind: option or key that names it, for errors.
        others: additional accepted names.

    Raises:
        FedGraphError: the connection is missing.
    """
    known, writes = _connections().keys() | set(others), "`fedgraph-flwr server` writes one on the server's machine"
    if not known:
        raise FedGraphError(f"{kind} {name}: {_configuration()} has no connections; {writes}")
    if name not in known:
        raise unknown(kind, name, known, f"connections of {_configuration()}; {writes}")


class Removed(FedGraphError):
    """Error: a key was removed from the fleet."""

    def __init__(self, public: Path):
        fix = f"the party creates another key (`fedgraph-flwr fleet join NEW`) and sends its .pub, not {public.name} again"
        super().__init__(f"{public} was removed from this fleet, and no removed key is admitted again: {fix}")


def admit(public: Path, name: str, party: str = "") -> str:
    """Register a node's public key and return a message.

    Args:
        public: the key.
        name: name of the connection.
        party: name of the party, which the server keeps; default: that of the file.

    Raises:
        Removed: it was registered and removed.
        RunFailed: Flower's command failed, except for an already registered key.
    """
    register = ("supernode", "register", str(public), name)
    done = _flwr(*register, "--name", party or public.stem)
    if "No such option" in done.stderr:  # of Flower 1.41, which keeps no names
        done = _flwr(*register)
    if not done.returncode:
        return f"{public} is registered"
    if REMOVED in without_box(done.stdout + done.stderr):
        raise Removed(public)
    if "already in use" in done.stdout + done.stderr:
        if node_of_key(name, public)[1] == UNREGISTERED:
            raise Removed(public)
        return f"{public} is already registered"
    raise _failure(done, name)


def node_infos(name: str) -> list[dict[str, Any]]:
    """Return the admitted nodes of a server, see `node_values`.

    Raises:
        RunFailed: the server does not respond.
    """
    from flwr.proto.control_pb2 import ListNodesRequest

    with _control(name) as client:
        reply = client.ListNodes(ListNodesRequest())
    return node_values(reply.nodes_info, reply.now)


def node_values(listed: Iterable[Any], now: str) -> list[dict[str, Any]]:
    """Return admitted nodes as Flower lists them, oldest first.

    Each has ``node`` (Flower's number), ``party`` (its name, kept when it was admitted, or ""), ``status`` (``registered``,
    ``online`` or ``offline``), ``online_since``, ``offline_since`` and ``last_seen`` (UTC, or ""). Parties of one name have their
    numbers in it.
    """
    nodes = [node for node in listed if node.status != UNREGISTERED]
    names = party_names(nodes)
    return [
        {
            "node": str(node.node_id),
            "party": names[str(node.node_id)],
            "status": str(node.status),
            "online_since": _utc(node.last_activated_at),
            "offline_since": _utc(node.last_deactivated_at) if node.status == "offline" else "",
            "last_seen": _utc(now if node.status == "online" else node.last_deactivated_at),
        }
        for node in sorted(nodes, key=lambda node: str(node.registered_at))
    ]


def _utc(text: str) -> str:
    """Return a time of Flower in UTC to the second; "" if there is none."""
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ") if text else ""


def remove(number: str, name: str) -> None:
    """Unregister a node, which then takes part in no run.

    Raises:
        RunFailed: Flower's command failed.
    """
    done = _flwr("supernode", "unregister", number, name)
    if done.returncode:
        raise _failure(done, name)


def node_of_key(name: str, public: Path) -> tuple[str, str]:
    """Return the number and status of the node with a public key; both are empty if the server does not know it.

    Raises:
        RunFailed: the server does not respond.
    """
    with _control(name) as client:
        return _node_keys(client).get(read_key(public), ("", ""))


def admit_all(folder: Path, name: str, join: bool) -> Iterator[str]:
    """Register the public keys of a fleet's folder, remove nodes with a removed key, and yield what was done.

    Args:
        folder: the folder of `fleet init`.
        name: name of the connection.
        join: whether to register keys.

    Raises:
        FedGraphError: a key, or the list of removed keys, cannot be read.
        RunFailed: the server does not respond.
    """
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    removed = revoked(folder)
    with _control(name) as client:
        known = _node_keys(client)
        for key in sorted(removed & known.keys()):
            if known[key][1] != UNREGISTERED:
                remove(known[key][0], name)
                yield f"node {known[key][0]} was unregistered: {folder / REVOKED} lists its key"
        for path in sorted(folder.glob("*.pub")) if join else ():
            key = read_key(path)
            if key in removed or known.get(key, ("", ""))[1] == UNREGISTERED:
                yield f"{path} was removed, and is not registered again"
            elif key in known:
                yield f"{path} is already registered"
            else:
                public: Any = load_ssh_public_key(path.read_bytes())
                client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public), name=path.stem))
                yield f"{path} is registered"


@contextlib.contextmanager
def _control(name: str) -> Iterator[Any]:
    """Yield Flower's client for the server of a connection; each of its commands would start another Python."""
    import click
    import httpx
    from flwr.cli.flower_config import read_superlink_connection
    from flwr.cli.utils import init_http_client_from_connection

    os.environ |= unproxied()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            client = init_http_client_from_connection(read_superlink_connection(name))
        try:
            yield client
        finally:
            client.close()
    except (httpx.HTTPError, click.ClickException, OSError) as error:
        if isinstance(error, (httpx.ConnectError, ConnectionError)) and "SSL" not in str(error):
            raise no_superlink(name) from error
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 403:
            why = sanitize(error.response.text.strip())
            raise Refused(f"the server of '{name}' refuses this: {why}") from error
        raise RunFailed(
            f"the server of connection '{name}' does not respond as expected ({first_line(error)})"
        ) from error


def _node_keys(client: Any) -> dict[str, tuple[str, str]]:
    """Return the number and status of each node, also of removed ones, by public key in OpenSSH format."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
    from flwr.proto.control_pb2 import ListNodesRequest

    keys = {}
    listed = client.ListNodes(ListNodesRequest()).nodes_info
    for node in sorted(listed, key=lambda node: bool(node.status != UNREGISTERED)):
        text = load_pem_public_key(node.public_key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
        keys[text] = (str(node.node_id), str(node.status))
    return keys


def runs(name: str, run_id: str = "") -> list[dict[str, str]]:
    """Return the server's newest runs, or one.

    Each has ``run-id``, ``status`` such as ``finished:stopped``, and ``details`` of a failure.

    Raises:
        RunFailed: the server does not respond, or does not know the run.
    """
    from flwr.proto.control_pb2 import ListRunsRequest

    request = ListRunsRequest(run_id=int(run_id)) if run_id else ListRunsRequest()
    with _control(name) as client:
        return run_values(client.ListRuns(request).run_dict.values())


def run_values(listed: Iterable[Any]) -> list[dict[str, str]]:
    """Return runs as Flower lists them, newest first, see `runs`."""
    return [
        {
            "run-id": str(run.run_id),
            "status": ":".join(filter(None, (run.status.status, run.status.sub_status))),
            "details": str(run.status.details),
        }
        for run in sorted(listed, key=lambda run: str(run.pending_at), reverse=True)
    ]


def run_state(name: str, run_id: str) -> tuple[str, str]:
    """Return Flower's state of a run, such as ``finished:stopped``, and its details; both are empty if unknown."""
    try:
        (run,) = runs(name, run_id)
    except (FedGraphError, ValueError):
        return "", ""
    return run["status"], run["details"]


def _flwr(*args: str) -> subprocess.CompletedProcess[str]:
    more = {"FLWR_DISABLE_UPDATE_CHECK": "1", "COLUMNS": "200"}
    return subprocess.run([tool("flwr"), *args], env=environment() | more, capture_output=True, text=True, check=False)


def no_superlink(name: str) -> RunFailed:
    """Return the error for a connection at whose address nothing answers."""
    address = _connections().get(name, {}).get("address", "?")
    return RunFailed(
        f"no SuperLink responds at {address}, the address of connection '{name}' in {_configuration()}: check that"
        " `fedgraph-flwr server` is running there"
    )


def _failure(done: subprocess.CompletedProcess[str], name: str) -> RunFailed:
    if "SuperLink is unavailable" in done.stdout + done.stderr:
        return no_superlink(name)
    why = sanitize(without_box(done.stdout + done.stderr), 600)
    if "403 Forbidden" in why:  # Flower's command does not print why
        why = refusal(name) or why
    return RunFailed(f"{' '.join(['flwr', *done.args[1:]])} failed: {why}")


def refusal(name: str) -> str:
    """Return why the server of a connection refuses a request of this operator; Flower's commands print its status only."""
    from flwr.proto.control_pb2 import ListFederationsRequest

    try:
        with _control(name) as client:
            client.ListFederations(ListFederationsRequest())  # needs the role of starting runs, and changes nothing
    except Refused as error:
        return str(error)
    except FedGraphError:
        return ""
    return f"the server of '{name}' refuses this: the roles of this certificate do not allow this request (fleet operator --role)"


class Refused(RunFailed):
    """Error: the server refuses this operator's certificate, or has another role for it."""
