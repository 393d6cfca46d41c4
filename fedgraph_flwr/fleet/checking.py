"""Diagnosis of a node: key, connection, registration, clock, versions and schema."""

import datetime
import socket
import ssl
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from fedgraph_flwr.errors import FedGraphError, first_line, sanitize
from fedgraph_flwr.fleet.certificates import read
from fedgraph_flwr.fleet.flower_patches import TESTED
from fedgraph_flwr.fleet.keys import FLEET, check_key, read_fleet, versions

PATIENCE = 10.0
"""Seconds to wait for the server."""

AHEAD, BEHIND = 5.0, 15.0
"""Tolerated clock difference in seconds: Flower rejects signatures from other times."""

_EXPIRED, _NOT_YET = 10, 9  # OpenSSL's codes

_REGISTERED, _NOT_REGISTERED = 2003, 2004  # Flower's error codes, see `admission`


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        what: name of the check.
        right: whether the check passed; None if unknown.
        explanation: its meaning, with a fix if the check failed.
        days: of a server, until its certificate ends.
        certificate: whether the check failed because of a certificate.
    """

    what: str
    right: bool | None
    explanation: str
    days: int | None = None
    certificate: bool = False


def check(
    server: tuple[str, int], key: Path, authority: Path, graph: Path | None, schema: Path | None
) -> Iterator[Finding]:
    """Yield the results in order; stop if a failure makes the remaining checks pointless.

    Args:
        server: host and port.
        key: the node's private key.
        authority: the server's `ca.crt`, optionally with `fleet.json` next to it.
        graph: the node's client file.
        schema: the parties' schema: a YAML file, or another party's client file.
    """
    host, port = server
    try:
        private = check_key(key)
        yield Finding("key", True, f"{key} is a valid private key, readable only by you")
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
    """Check name resolution, connection, TLS and certificate of a server."""
    where, bare, finding = f"{host}:{port}", host.strip("[]"), partial(Finding, "reachable")
    if not authority.is_file():
        return finding(False, f"{authority}: no such file; ask the operator for ca.crt")
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except ssl.SSLError:
        return finding(False, f"{authority} is not a certificate; ask the operator for ca.crt")
    try:
        with _connection(bare, port) as plain_socket:
            try:
                with context.wrap_socket(plain_socket, server_hostname=bare) as secure:
                    until = ssl.cert_time_to_seconds(str((secure.getpeercert() or {})["notAfter"]))
            except ssl.SSLCertVerificationError as error:
                if error.verify_code in (_EXPIRED, _NOT_YET):
                    return Finding("reachable", False, _outside(where, authority, error.verify_code), certificate=True)
                why = f"{error.verify_message}; check that {authority} is of this server, and {bare} a --host of `fleet init`"
                text = f"{where} responds, but its certificate is not accepted: {why}"
                return Finding("reachable", False, text, certificate=True)
            except (ssl.SSLError, ConnectionError) as error:
                return finding(False, f"{where} responds, but not with TLS ({first_line(error)}): check the port")
    except socket.gaierror:
        return finding(False, f"cannot resolve host {bare}: check the name")
    except ConnectionRefusedError:
        return finding(False, f"nothing listens on {where}: check the port, and that `fedgraph-flwr server` is running")
    except (TimeoutError, OSError) as error:
        why = "no response" if isinstance(error, TimeoutError) else error.strerror or first_line(error)
        return finding(False, f"{where}: {why}; check this machine's network, and for a firewall in between")
    days = int((until - time.time()) / 86400)
    return Finding(
        "reachable",
        True,
        f"{where} responds, with a certificate of {authority} that is valid for {days} more days",
        days,
    )


def _outside(where: str, authority: Path, code: int) -> str:
    """Explain a certificate that is not valid now: the server's, or the node's copy of the authority's."""
    if code == _NOT_YET:
        return (
            f"{where} responds with a certificate that is not valid yet: compare this machine's clock with the server's"
        )
    ends = read(authority).not_valid_after_utc
    if ends < datetime.datetime.now(datetime.UTC):
        return f"{authority} expired on {ends:%Y-%m-%d}: ask the operator for the ca.crt of `fedgraph-flwr fleet renew --also ca`"
    return f"the certificate of {where} has expired: the operator runs `fedgraph-flwr fleet renew`, and nodes then continue"


def _connection(host: str, port: int) -> socket.socket:
    """Connect to a server, through the proxy that ``HTTPS_PROXY`` and ``NO_PROXY`` name for it, as Flower does.

    Raises:
        OSError: the server, or the proxy, does not respond, or the proxy refuses the connection.
    """
    proxy = None if urllib.request.proxy_bypass(f"{host}:{port}") else urllib.request.getproxies().get("https")
    if not proxy:
        return socket.create_connection((host, port), PATIENCE)
    place = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    tunnel = HTTPConnection(place.hostname or "", place.port or 3128, timeout=PATIENCE)
    who = f"{unquote(place.username or '')}:{unquote(place.password or '')}".encode()
    tunnel.set_tunnel(host, port, {"Proxy-Authorization": f"Basic {b64encode(who).decode()}"} if place.username else {})
    try:
        tunnel.connect()
    except OSError as error:
        raise OSError(
            f"the proxy {place.hostname}:{place.port or 3128} gives no connection: {first_line(error)}"
        ) from error
    return tunnel.sock


def admission(address: str, private: Any, authority: Path) -> Iterator[Finding]:
    """Check the clock, and whether the server admits a key.

    The request has an invalid heartbeat interval: the SuperLink rejects the interval if it knows the key, else the key. It
    changes no state.
    """
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest
    from flwr.supercore.error import FlowerError
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    request = ActivateNodeRequest(public_key=public_key_to_bytes(private.public_key()), heartbeat_interval=1.0)
    seen: list[httpx.Response] = []

    class Keep:
        def intercept(self, context: Any, call_next: Any) -> httpx.Response:
            seen.append(call_next(context))
            return seen[-1]

    finding = partial(Finding, "registered")
    hooks: list[Any] = [Keep(), NodeAuthHttpInterceptor(private, private.public_key())]
    began = time.time()
    try:
        with FleetHttpClient.from_server_address(address, False, str(authority), interceptors=hooks) as client:
            client.ActivateNode(request)
    except (httpx.HTTPError, RuntimeError) as error:
        if not seen:
            yield finding(False, f"{address} did not respond to a signed request ({first_line(error)})")
            return
    reply, now = seen[-1], (began + time.time()) / 2
    fast = clock(reply.headers.get("date", ""), now)
    yield fast
    error_info = FlowerError.from_json(reply.text)
    code = error_info.code if error_info else 0
    if code == _REGISTERED:
        yield finding(True, "the server knows this key")
    elif code == _NOT_REGISTERED:
        why = "the server does not know this key, or removed it: ask the operator to run `fleet join FILE.pub`"
        yield finding(False, f"{why}, which tells a removed key from a new one")
    elif reply.status_code == 401:
        why = "" if fast.right is False else "; it may not be a SuperLink with --enable-supernode-auth"
        yield finding(None, f"the server rejected the signature{why}")
    else:
        yield finding(None, f"the server replied with status {reply.status_code}: {sanitize(reply.text, 100)}")


def clock(date: str, now: float) -> Finding:
    """Compare this machine's clock with a server's, from the date header of a reply (whole seconds).

    Args:
        date: the header.
        now: local time of the reply, in seconds since 1970.
    """
    try:
        there = parsedate_to_datetime(date).timestamp() + 0.5
    except (TypeError, ValueError):
        return Finding("clock", None, "the server sent no time")
    ahead = now - there
    if abs(ahead) < 2.0:
        return Finding("clock", True, "equal to the server's within two seconds")
    offset = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's ({_time(now)} here, {_time(there)} there)"
    if -BEHIND < ahead < AHEAD:
        return Finding("clock", True, offset)
    fix = "set it (run timedatectl set-ntp true), or the server rejects this node's signatures"
    return Finding("clock", False, f"{offset}: {fix}")


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def same_versions(folder: Path) -> Finding:
    """Compare this machine's versions with those in a fleet's `fleet.json`."""
    local = versions()
    line = ", ".join(f"{name} {number}" for name, number in local.items())
    if not (folder / FLEET).is_file():
        return Finding("versions", None, f"{line}; not compared: ask the operator for the missing {folder / FLEET}")
    remote = read_fleet(folder)[1]
    differ = {name: number for name, number in remote.items() if local.get(name) != number}
    if not differ:
        return Finding("versions", True, f"equal to the server's: {line}")
    pairs = {name: (local.get(name, "not installed"), sanitize(number, 40)) for name, number in differ.items()}
    compared = ", ".join(f"{name} {version} (server: {server})" for name, (version, server) in pairs.items())
    decisive = {"protocol" if "protocol" in remote else "fedgraph-flwr"}  # earlier servers name no protocol
    if not {_minor(local["flwr"]), _minor(str(remote.get("flwr")))} <= set(map(_minor, TESTED)):
        decisive.add("flwr")
    must = bool(differ.keys() & decisive)
    why = (
        "install the server's version"
        if must
        else "they work together, but bit-identical parameters need equal versions"
    )
    return Finding("versions", not must, f"{compared}: {why}")


def _minor(number: str) -> str:
    """Return a version without its last part."""
    return number.rpartition(".")[0]


def same_schema(graph: Path, agreed: Path | None) -> Finding:
    """Compare a graph's features and classes with the agreed schema."""
    finding = partial(Finding, "schema")
    from fedgraph_flwr.data.graph import read_header
    from fedgraph_flwr.data.schema import Schema, agreed_schema

    def read(path: Path) -> Schema | None:
        if path.suffix != ".safetensors":
            return Schema.load(path)
        return agreed_schema(read_header(path)[1].get("schema", {}), str(path))

    try:
        _, meta = read_header(graph)
        schema, other = read(graph), read(agreed) if agreed else None
    except FedGraphError as error:
        return finding(False, str(error))
    contents = f"{graph}: client {meta.get('client', '?')}, {meta.get('num_classes', '?')} classes"
    if agreed is None:
        return finding(None, f"{contents}; pass --schema FILE to compare it with the parties' schema")
    if schema is None and other is None:
        return finding(None, f"{contents}; neither it nor {agreed} has a schema")
    if schema == other:
        return finding(True, f"{contents}, equal to {agreed}")
    return finding(False, f"{graph} has other columns or classes than {agreed}: import it again with --schema {agreed}")
