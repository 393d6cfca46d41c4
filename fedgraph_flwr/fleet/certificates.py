"""Renewal of a fleet's certificates, and warnings before they end.

A renewed authority has the same key as before. So certificates that it signed stay valid, and old and new copies of ``ca.crt``
accept the same servers until the old one ends: parties can replace theirs at any time before.
"""

import contextlib
import datetime
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedgraph_flwr.data.files import write_bytes
from fedgraph_flwr.errors import FedGraphError, first_line
from fedgraph_flwr.fleet.keys import (
    REVOKED_OPERATORS,
    is_revoked,
    keep_earlier,
    make_ca,
    make_certificate,
    private_key,
    remove_copies,
    revocation,
)

WARNED = 30
"""Days before its end from which a certificate is named in warnings."""

LOOK = 5.0
"""Seconds between looks at the files."""

_DAY = 86400.0
_SIGNED_BY = {"server": "ca", "operator": "operators"}
_FIX = {
    "server.crt": "run `fedgraph-flwr fleet renew`",
    "ca.crt": "run `fedgraph-flwr fleet renew --also ca`, and send ca.crt to all parties and operators",
    "operators.crt": "run `fedgraph-flwr fleet renew --also operator`",
    "operator.crt": "run `fedgraph-flwr fleet renew --also operator`, and send operator.crt and operator.key to the operators",
}


def read(path: Path) -> x509.Certificate:
    """Read a certificate; of several in a file, the first.

    Raises:
        FedGraphError: it cannot be read.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FedGraphError(
            f"{path} is not a certificate ({first_line(error)}): run `fedgraph-flwr fleet init`"
        ) from error


def days_left(path: Path, now: datetime.datetime | None = None) -> float:
    """Return the days until a certificate ends; negative if it has ended."""
    return (read(path).not_valid_after_utc - (now or datetime.datetime.now(datetime.UTC))).total_seconds() / _DAY


def warnings(folder: Path, now: datetime.datetime | None = None) -> Iterator[str]:
    """Yield a warning for each certificate of a fleet that ends within `WARNED` days."""
    for name, fix in _FIX.items():
        path = folder / name
        if path.is_file() and (days := days_left(path, now)) < WARNED:
            yield f"{path} {'has ended' if days < 0 else f'ends in {days:.0f} days'}: {fix}"
    for path in in_use(folder):  # of the other operators; not those that left, or renew short-lived ones as they end
        lifetime = (read(path).not_valid_after_utc - read(path).not_valid_before_utc).total_seconds() / _DAY
        if path.name not in _FIX and 0 <= (days := days_left(path, now)) < min(WARNED, lifetime / 3):
            yield f"{path} ends in {days:.0f} days: that operator can renew it (fleet operator {path.stem}.csr)"


def in_use(folder: Path) -> Iterator[Path]:
    """Yield the certificates of a fleet's folder, without those of removed operators."""
    for path in sorted(folder.glob("*.crt")):
        with contextlib.suppress(FedGraphError):  # a person is replacing it
            if not is_revoked(folder, read(path)):
                yield path


def renew(folder: Path, name: str, days: int) -> Path:
    """Replace a certificate by one with the same names, and return its path.

    ``server`` and ``operator`` get new keys. The authorities ``ca`` and ``operators`` keep theirs. A kill between key and
    certificate leaves two that do not belong together (`check_pairs`); the next renewal replaces both.

    Raises:
        FedGraphError: a key or certificate is missing, as with another authority than this project's.
    """
    if not (key := folder / f"{_SIGNED_BY.get(name, name)}.key").is_file():
        raise FedGraphError(
            f"{key} is missing: renew {name}.crt with the authority that signed it, and replace the file"
        )
    remove_copies(folder)
    if name not in _SIGNED_BY:
        make_ca(folder, name, days, private_key(key))
        return folder / f"{name}.crt"
    old = read(folder / f"{name}.crt")
    names = [
        extension.value for extension in old.extensions if isinstance(extension.value, x509.SubjectAlternativeName)
    ]
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if name == "server" else ExtendedKeyUsageOID.CLIENT_AUTH
    if name == "operator":
        keep_earlier(folder / "operator.crt", old)
    make_certificate(folder, name, _SIGNED_BY[name], old.subject, purpose, days, *names)
    return folder / f"{name}.crt"


def watch(folder: Path, changed: Callable[[], object], warn: Callable[[str], object]) -> threading.Thread:
    """Watch a fleet's folder in a thread.

    Args:
        folder: the folder of `fleet init`.
        changed: called after a certificate was replaced or an operator removed.
        warn: called with each of `warnings`, now and each day.
    """

    def state() -> list[int]:
        return [_changed(folder / name) for name in (*_FIX, REVOKED_OPERATORS)]

    def look() -> None:
        before, warned = state(), -_DAY
        while True:
            if time.monotonic() - warned >= _DAY:
                warned = time.monotonic()
                try:
                    for text in warnings(folder):
                        warn(text)
                except FedGraphError as error:  # a file that a person is replacing
                    warn(str(error))
            time.sleep(LOOK)
            if (now := state()) != before:
                before, warned = now, -_DAY
                changed()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    return thread


def _changed(path: Path) -> int:
    """Return the time of a file's last change in ns; 0 if it is missing."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def reload_in_uvicorn() -> None:
    """Let servers of uvicorn in this process use a replaced certificate for new connections, without a restart."""
    import ssl

    import uvicorn.config

    create = uvicorn.config.create_ssl_context

    def create_and_watch(certfile: str, keyfile: str | None, *args: object, **kwargs: object) -> ssl.SSLContext:
        context: ssl.SSLContext = create(certfile, keyfile, *args, **kwargs)  # type: ignore[arg-type]

        def look() -> None:
            loaded = Path(certfile).read_bytes()
            while True:
                time.sleep(LOOK)
                try:
                    if (content := Path(certfile).read_bytes()) != loaded:
                        context.load_cert_chain(certfile, keyfile)
                        loaded = content
                except (OSError, ssl.SSLError):  # in the middle of a replacement
                    continue

        threading.Thread(target=look, daemon=True).start()
        return context

    uvicorn.config.create_ssl_context = create_and_watch  # type: ignore[assignment]


# --- keys that were removed -------------------------------------------------------------------------------------------

REVOKED = "revoked"
"""File of a fleet's folder: public keys that the server admits no more, also after it lost its database."""

_KEY = re.compile(r"(ecdsa-sha2-nistp\d+ [A-Za-z0-9+/=]+)(?: .*)?")


def key_of(text: str, what: str) -> str:
    """Return the one text of a public key in OpenSSH format, without its comment; files may spell its base64 in several ways.

    Raises:
        FedGraphError: it is none.
    """
    match = _KEY.fullmatch(text.strip())
    try:
        key = serialization.load_ssh_public_key(match[1].encode()) if match else None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if key is None:
        raise FedGraphError(
            f"{what} is not a public key of `fedgraph-flwr fleet join`: expected ecdsa-sha2-nistp384 ..."
        )
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def read_key(path: Path) -> str:
    """Return the text of a public key's file, see `key_of`."""
    return key_of(path.read_text(errors="replace"), str(path))


def revoked(folder: Path) -> set[str]:
    """Return the keys that the server admits no more.

    Raises:
        FedGraphError: the file cannot be read; the server must not start then.
    """
    path = folder / REVOKED
    if not path.is_file():
        return set()
    lines = [
        line for line in path.read_text(errors="replace").splitlines() if line.strip() and not line.startswith("#")
    ]
    return {key_of(line, f"a line of {path}") for line in lines}


def revoke(folder: Path, key: str, name: str) -> bool:
    """Add a key to the list; return False if it was there."""
    if key in revoked(folder):
        return False
    date, path = datetime.datetime.now(datetime.UTC).date(), folder / REVOKED
    cut = path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")  # a person may have cut the last line
    begin = "\n" if cut else ""
    with path.open("a") as file:
        file.write(f"{begin}{key} {re.sub(r'[^ -~]', '?', name)} removed {date}\n")
        file.flush()
        os.fsync(file.fileno())
    return True


def revoke_operator(folder: Path, certificate: Path) -> bool:
    """Let the server refuse an operator's certificate; return False if it does already.

    Raises:
        FedGraphError: the file is no certificate, or none of an operator of this fleet.
    """
    document, path = read(certificate), folder / REVOKED_OPERATORS
    try:
        document.verify_directly_issued_by(read(folder / "operators.crt"))
    except (ValueError, TypeError, InvalidSignature) as error:
        raise FedGraphError(
            f"{certificate} is not signed by {folder / 'operators.crt'}: expected an operator's"
        ) from error
    name = re.sub(r"[^\w .=,-]", "?", document.subject.rfc4514_string(), flags=re.ASCII)
    date = datetime.datetime.now(datetime.UTC).date()
    if is_revoked(folder, document):
        return False
    before = path.read_bytes() if path.is_file() else b""
    write_bytes(path, before + f"{revocation(document)} # {name} removed {date}\n".encode())
    return True
