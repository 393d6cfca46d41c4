"""Whether a node could take part, in words: reachable, registered, same versions, same schema, clock."""

import datetime
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, first_line, sanitize
from fedgraph_flwr.fleet.keys import FLEET, check_key, read_fleet, versions

PATIENCE = 10.0
"""Seconds that a server has to answer."""

AHEAD, BEHIND = 5.0, 15.0
"""Seconds that a clock may be wrong: Flower refuses what is signed at other times."""

_REGISTERED, _NOT_REGISTERED = 2003, 2004  # of Flower's errors, see `admission`


@dataclass(frozen=True)
class Finding:
    """What was found of one question.

    Attributes:
        what: the question's word.
        right: whether a node could take part, as far as this goes; None where nobody can tell.
        words: the answer, with what to do where it is wrong.
    """

    what: str
    right: bool | None
    words: str


def check(
    server: tuple[str, int], key: Path, authority: Path, graph: Path | None, schema: Path | None
) -> Iterator[Finding]:
    """All findings, in order; the first that makes the next ones senseless is the last.

    Args:
        server: host and port.
        key: the node's private key.
        authority: the server's, `ca.crt`; `fleet.json` may lie beside it.
        graph: the node's client file.
        schema: what the parties agreed on: a YAML, or another party's client file.
    """
    host, port = server
    try:
        private = check_key(key)
        yield Finding("key", True, f"{key} is a key, and yours alone")
    except FedGraphError as error:
        yield Finding("key", False, str(error))
        return
    reached = reach(host, port, authority)
    yield reached
    if reached.right:
        yield from admission(f"{host}:{port}", private, authority)
    yield same_versions(authority.parent)
    if graph:
        yield same_schema(graph, schema)


def reach(host: str, port: int, authority: Path) -> Finding:
    """Name, connection, TLS and certificate of a server."""
    where = f"{host}:{port}"
    if not authority.is_file():
        return Finding("reachable", False, f"{authority}: there is no such file; the operator hands out ca.crt")
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except ssl.SSLError:
        return Finding("reachable", False, f"{authority} is no certificate; the operator hands out ca.crt")
    bare = host.strip("[]")
    try:
        with socket.create_connection((bare, port), PATIENCE) as plain_socket:
            try:
                with context.wrap_socket(plain_socket, server_hostname=bare) as secure:
                    until = ssl.cert_time_to_seconds(str((secure.getpeercert() or {})["notAfter"]))
            except ssl.SSLCertVerificationError as error:
                why = f"{error.verify_message}: is {authority} this server's, and {bare} among the --host of `fleet init`?"
                return Finding("reachable", False, f"{where} answers, but its certificate does not hold here: {why}")
            except (ssl.SSLError, ConnectionError) as error:
                return Finding(
                    "reachable", False, f"{where} answers, but speaks no TLS ({first_line(error)}): is it the port?"
                )
    except socket.gaierror:
        return Finding("reachable", False, f"nobody knows the name {bare}")
    except ConnectionRefusedError:
        return Finding(
            "reachable", False, f"nothing listens on {where}: is `fedgraph-flwr server` up, and is it the port?"
        )
    except (TimeoutError, OSError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else first_line(error)
        return Finding("reachable", False, f"{where}: {why}; a firewall may be between")
    days = int((until - time.time()) / 86400)
    return Finding(
        "reachable", True, f"{where} answers, with a certificate of {authority} that holds for {days} days more"
    )


def admission(address: str, private: Any, authority: Path) -> Iterator[Finding]:
    """The clock, and whether the server admits a key.

    The key is shown to the SuperLink with a heartbeat that no node may have: of a key that it knows, it refuses the heartbeat, of
    another one the key. Nothing is changed by it.
    """
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import FlowerError
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    question = ActivateNodeRequest(public_key=public_key_to_bytes(private.public_key()), heartbeat_interval=1.0)
    seen: list[httpx.Response] = []

    class Keep:
        def intercept(self, context: Any, call_next: Any) -> httpx.Response:
            seen.append(call_next(context))
            return seen[-1]

    signer = NodeAuthHttpInterceptor(private, private.public_key())
    began = time.time()
    try:
        with FleetHttpClient.from_server_address(
            address, False, str(authority), interceptors=[Keep(), signer]
        ) as client:
            client.ActivateNode(question)
    except (httpx.HTTPError, RuntimeError) as error:
        if not seen:
            yield Finding("registered", False, f"{address} did not answer a signed question ({first_line(error)})")
            return
    answer, now = seen[-1], (began + time.time()) / 2
    fast = clock(answer.headers.get("date", ""), now)
    yield fast
    told = FlowerError.from_json(answer.text)
    code = told.code if told else 0
    if code == _REGISTERED:
        yield Finding("registered", True, "the server knows this key")
    elif code == _NOT_REGISTERED:
        yield Finding("registered", False, "the server does not know this key: the operator says `fleet join FILE.pub`")
    elif answer.status_code == 401:
        why = "" if fast.right is False else "; it may be another server than a SuperLink with --enable-supernode-auth"
        yield Finding("registered", None, f"the server refused the signature{why}")
    else:
        yield Finding(
            "registered", None, f"the server answered with status {answer.status_code}: {sanitize(answer.text, 100)}"
        )


def clock(date: str, now: float) -> Finding:
    """This machine's clock against a server's, from the date of an answer (whole seconds).

    Args:
        date: the header.
        now: seconds since 1970, here, when it was written.
    """
    try:
        there = parsedate_to_datetime(date).timestamp() + 0.5
    except (TypeError, ValueError):
        return Finding("clock", None, "the server told no time")
    ahead = now - there
    if abs(ahead) < 2.0:
        return Finding("clock", True, "the same as the server's, to a second or two")
    words = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's ({_time(now)} here, {_time(there)} there)"
    if -BEHIND < ahead < AHEAD:
        return Finding("clock", True, words)
    return Finding(
        "clock", False, f"{words}: set it (timedatectl set-ntp true), or the server refuses what is signed here"
    )


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def same_versions(folder: Path) -> Finding:
    """This machine's versions against those in a fleet's `fleet.json`."""
    ours = versions()
    line = ", ".join(f"{name} {number}" for name, number in ours.items())
    if not (folder / FLEET).is_file():
        return Finding("versions", None, f"{line}; there is no {folder / FLEET} to compare with: the operator has it")
    theirs = read_fleet(folder)[1]
    differ = {name: number for name, number in theirs.items() if ours.get(name) != number}
    if not differ:
        return Finding("versions", True, f"the server's: {line}")
    words = ", ".join(
        f"{name} {ours.get(name, 'not installed')} (there {sanitize(differ[name], 40)})" for name in differ
    )
    must = bool(differ.keys() & {"flwr", "fedgraph-flwr"})
    why = "install the server's" if must else "this may do, though equal parameters bit for bit need equal versions"
    return Finding("versions", not must, f"here {words}: {why}")


def same_schema(graph: Path, agreed: Path | None) -> Finding:
    """What a graph's features and classes are, against what was agreed on."""
    from fedgraph_flwr.data.graph import read_header
    from fedgraph_flwr.data.schema import Schema, agreed_schema

    def read(path: Path) -> Schema | None:
        if path.suffix != ".safetensors":
            return Schema.load(path)
        return agreed_schema(read_header(path)[1].get("schema", {}), str(path))

    try:
        _, meta = read_header(graph)
        own, other = read(graph), read(agreed) if agreed else None
    except FedGraphError as error:
        return Finding("schema", False, str(error))
    words = f"{graph}: client {meta.get('client', '?')}, {meta.get('num_classes', '?')} classes"
    if agreed is None:
        return Finding("schema", None, f"{words}; say --schema FILE to compare with what the parties agreed on")
    if own is None and other is None:
        return Finding("schema", None, f"{words}; neither it nor {agreed} was imported by a schema")
    if own == other:
        return Finding("schema", True, f"{words}, as {agreed} says")
    return Finding(
        "schema", False, f"{graph} has other columns or classes than {agreed}: import it again with --schema {agreed}"
    )
