"""Keys and certificates of a fleet, and its nginx configurations, created by `fedgraph-flwr fleet init` and `join`.

    fleet.json                          addresses and versions of the server; send it to parties with ca.crt
    ca.crt, server.crt, server.key      the server's certificate, and the authority that verifies it
    node_0, node_0.pub, ...             a SuperNode's key pair
    operators.crt                       authority of the operators, who may start runs; the server requires their certificate
    operator.crt, operator.key          a certificate of an operator
    revoked_operators                   removed certificates of operators, one per line (fleet remove)
    server.conf                         nginx in front of the SuperLink: nodes reach /v1/fleet, operators /v1/control, no one else
    operator.conf                       nginx on an operator's machine; adds the certificate, which `flwr` cannot send

These certificates are for trials; a company's authority works as well. Existing files are kept, except the two configurations
and fleet.json. If the hosts change, the server's certificate is replaced. Each file is written whole or not at all. The command
that was killed between the two of a pair completes it when it runs again.
"""

import datetime
import ipaddress
import json
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from cryptography.x509.oid import NameOID

from fedgraph_flwr.data.files import packaged, writing
from fedgraph_flwr.errors import MALFORMED, FedGraphError
from fedgraph_flwr.version import PROTOCOL, installed

PEM = serialization.Encoding.PEM
FLEET = "fleet.json"
EARLIER = "earlier"
"""Folder of operators' certificates before their renewal, NAME/SERIAL.crt; `fleet remove NAME.crt` removes them, too."""

REVOKED_OPERATORS = "revoked_operators"
"""File of a fleet's folder: certificates of operators that the server's nginx refuses, as lines of its ``map``."""
ROLES = ("read", "run", "admit")
"""Roles of operators: read runs, start and stop them, admit nodes. All may list nodes and runs."""

CONFIGURATIONS = ("server", "operator")
"""Names of the nginx configurations."""

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass
class Places:
    """Addresses of a fleet, each HOST:PORT.

    Attributes:
        server: address by which nodes reach the server.
        listen: address on which the server listens.
        superlink: loopback address of the SuperLink; equal to ``listen`` without nginx.
        operator: address of an operator's nginx, for `flwr`.
    """

    server: str
    listen: str
    superlink: str
    operator: str

    @property
    def guarded(self) -> bool:
        """Whether nginx is in front of the SuperLink."""
        return self.listen != self.superlink


def versions() -> dict[str, str]:
    """Return the versions of Python, of the packages that determine results, and of the messages of server and nodes."""
    return {**installed("fedgraph-flwr", "flwr", "torch"), "protocol": str(PROTOCOL)}


def make_fleet(folder: Path, places: Places, hosts: list[str], nodes: int, days: int) -> None:
    """Create all files of a fleet.

    Args:
        folder: output folder.
        places: addresses.
        hosts: additional names and addresses of the server; the last is the one that nodes use.
        nodes: number of node key pairs.
        days: validity of certificates.
    """
    for name in CONFIGURATIONS:
        packaged(_TEMPLATES / f"{name}.conf")  # a missing one is an error before anything is written
    remove_copies(folder)
    for authority in ("ca", "operators"):
        key, certificate = folder / f"{authority}.key", folder / f"{authority}.crt"
        if not _written(certificate):  # the key may be restored: parties keep their copy of the earlier certificate
            make_ca(folder, authority, days, private_key(key) if _written(key) else None)
        elif not _written(key):
            why = f"{key} is missing or empty, and {certificate} is there"
            raise FedGraphError(f"{why}: restore the key, or remove {certificate}, and send the new one to all parties")
        else:
            private_key(key)
    hosts_named = ["localhost", "127.0.0.1", "::1", *hosts]
    if hosts or not matches(folder, "server"):
        names = x509.SubjectAlternativeName(list(map(_alternative_name, hosts_named)))
        make_certificate(
            folder, "server", "ca", named(hosts_named[-1]), x509.ExtendedKeyUsageOID.SERVER_AUTH, days, names
        )
    if not _written(folder / "operator.crt") or matches(folder, "operator") is False:
        make_certificate(folder, "operator", "operators", named("operator"), x509.ExtendedKeyUsageOID.CLIENT_AUTH, days)
    for node in range(nodes):
        make_node(folder / f"node_{node}")
    for name in CONFIGURATIONS:
        write_configuration(folder, name, places)
    write_fleet(folder, places)


def _written(path: Path) -> bool:
    """Return whether a file has content: a full disk left empty ones before 0.3."""
    return path.is_file() and path.stat().st_size > 0


def private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read the private key of a certificate.

    Raises:
        FedGraphError: it is none of `fedgraph-flwr fleet init`.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FedGraphError(f"{path} is not a private key of `fedgraph-flwr fleet init`: restore it")
    return key


def matches(folder: Path, name: str) -> bool | None:
    """Return whether ``NAME.key`` belongs to ``NAME.crt``; None if the key is elsewhere, or a file is missing."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    if not key.is_file() or not certificate.is_file():
        return None
    try:
        public: Any = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
        return bool(serialization.load_pem_private_key(key.read_bytes(), None).public_key() == public)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def check_pairs(folder: Path) -> None:
    """Check that keys and certificates of a server belong together, and remove copies that earlier renewals left.

    Raises:
        FedGraphError: two do not, as after a renewal that was killed.
    """
    remove_copies(folder)
    for name, option in (("server", ""), ("ca", " --ca"), ("operators", " --operator"), ("operator", " --operator")):
        if matches(folder, name) is False:
            fix = f"run `fedgraph-flwr fleet renew {folder}{option}`"
            raise FedGraphError(f"{folder / name}.key does not belong to {folder / name}.crt, or one is damaged: {fix}")


def remove_copies(folder: Path) -> None:
    """Remove folders that renewals killed before 0.3 left, with a copy of an authority's key."""
    for left in folder.glob(".renew-*"):
        shutil.rmtree(left)


def write_fleet(folder: Path, places: Places) -> bool:
    """Write `fleet.json`, and return whether its content changed."""
    path = folder / FLEET
    text = json.dumps({**asdict(places), "versions": versions()}, indent=1) + "\n"
    if path.is_file() and path.read_text() == text:
        return False
    path.write_text(text)
    return True


def write_configuration(folder: Path, name: str, places: Places) -> Path:
    """Write the nginx configuration ``server`` or ``operator`` for this folder and return its path.

    Raises:
        FedGraphError: nginx cannot read the folder's name.
    """
    values, path = {"keys": folder.absolute(), **asdict(places)}, (folder / f"{name}.conf").absolute()
    if strange := set(str(folder.absolute())) & set('$"\\\n'):
        raise FedGraphError(
            f"nginx cannot read files in {folder.absolute()}, whose name has {min(strange)!r}: rename it"
        )
    template = packaged(_TEMPLATES / f"{name}.conf")
    if name == "server":
        (folder / REVOKED_OPERATORS).touch()  # nginx includes it
    path.write_text(re.sub(r"@(\w+)@", lambda match: str(values[match[1]]), template))
    return path


def read_fleet(folder: Path) -> tuple[Places, dict[str, str]]:
    """Read `fleet.json`: the addresses and the server's versions.

    Raises:
        FedGraphError: the file is missing or invalid.
    """
    path = folder / FLEET
    try:
        content = json.loads(path.read_text())
        places = Places(*(str(content[name]) for name in ("server", "listen", "superlink", "operator")))
        return places, dict(content["versions"])
    except FileNotFoundError as error:
        raise FedGraphError(f"{path}: no such file; create it with `fedgraph-flwr fleet init {folder}`") from error
    except MALFORMED as error:
        raise FedGraphError(f"{path} is invalid: create it again with `fedgraph-flwr fleet init`") from error


def check_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Read a node's private key.

    Raises:
        FedGraphError: the file is missing, holds another kind of key, or is readable by others.
    """
    if not path.is_file():
        raise FedGraphError(f"--key {path}: no such file; create a key with `fedgraph-flwr fleet join {path}`")
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a passphrase
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != "secp384r1":
        what = "expected an EC P-384 OpenSSH key without passphrase"
        raise FedGraphError(f"--key {path}: {what}; create one with fleet join")
    if path.stat().st_mode & 0o077:
        raise FedGraphError(f"--key {path} is readable by other users; run chmod 600 {path}")
    return key


def make_ca(folder: Path, authority: str, days: int, key: ec.EllipticCurvePrivateKey | None = None) -> None:
    """Create a self-signed authority: its certificate, and its key if none is passed."""
    new, key = key is None, key or ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedgraph trial {authority}")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and CRLs
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    if new:
        _write(folder / f"{authority}.key", _pem(key), private=True)
    _write(folder / f"{authority}.crt", certificate.public_bytes(PEM))


def make_certificate(
    folder: Path,
    name: str,
    authority: str,
    subject: x509.Name,
    purpose: x509.ObjectIdentifier,
    days: int,
    *extensions: x509.ExtensionType,
    public: Any = None,
) -> None:
    """Create a certificate signed by an authority, valid for one purpose only, and its key unless its public key is passed."""
    signer = private_key(folder / f"{authority}.key")
    issuer = x509.load_pem_x509_certificate((folder / f"{authority}.crt").read_bytes())
    key = None if public else ec.generate_private_key(ec.SECP384R1())
    builder = (
        _builder(subject, issuer.subject, key.public_key() if key else public, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(signer, hashes.SHA384()).public_bytes(PEM)
    if key:
        _write(folder / f"{name}.key", _pem(key), private=True)
    _write(folder / f"{name}.crt", certificate)


def named(name: str, roles: Collection[str] = ()) -> x509.Name:
    """Return the subject of a certificate; the server's nginx reads its roles, of which none means all."""
    words = [*((NameOID.ORGANIZATIONAL_UNIT_NAME, role) for role in roles), (NameOID.COMMON_NAME, name)]
    return x509.Name([x509.NameAttribute(kind, word) for kind, word in words])


def make_operator(folder: Path, name: str, days: int, roles: Collection[str] = ()) -> Path:
    """Create the certificate of an operator, and its key unless a request is signed, and return the certificate's path.

    A request with the key of the certificate that it replaces renews it at any time, with its roles unless others are passed. The
    earlier certificate, which is kept in `EARLIER`, is valid until its end.

    Args:
        folder: keys and certificates.
        name: name of the operator, or a file NAME.csr, whose public key the certificate gets.
        days: validity.
        roles: of `ROLES`; none: all, or those of the certificate that is renewed.

    Raises:
        FedGraphError: the name is that of another operator, or wrong; the request is damaged; the authority's key is elsewhere.
    """
    request, public = Path(name), None
    if request.suffix == ".csr":
        try:
            document = x509.load_pem_x509_csr(request.read_bytes())
            name, public = request.stem, document.public_key()
            if not document.is_signature_valid:
                raise ValueError("its signature is wrong")
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise FedGraphError(f"{request} is not a certificate request (openssl req -new): {error}") from error
    certificate = folder / f"{name}.crt"
    reserved = name in ("ca", "operators", "server")
    taken = _written(certificate) and not is_over(folder, certificate)
    before = x509.load_pem_x509_certificate(certificate.read_bytes()) if taken and public and not reserved else None
    renewed = before is not None and before.public_key() == public
    taken = taken and not renewed
    if reserved or taken or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", name):
        free = f": `fleet remove {certificate}` frees this one" if taken and not reserved else ""
        raise FedGraphError(f"operator {name!r}: expected a new name of letters, digits, '.', '_' and '-'{free}")
    if not (folder / "operators.key").is_file():
        raise FedGraphError(
            f"{folder / 'operators.key'} is missing: create the certificate where its authority's key is"
        )
    client = x509.ExtendedKeyUsageOID.CLIENT_AUTH
    if renewed and before is not None:
        units = before.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
        roles = roles or [str(unit.value) for unit in units]
        keep_earlier(certificate, before)
    make_certificate(folder, name, "operators", named(name, roles), client, days, public=public)
    return certificate


def revocation(certificate: x509.Certificate) -> str:
    """Return the line of `REVOKED_OPERATORS` for a certificate, without its comment."""
    serial = f"{certificate.serial_number:X}"
    return f'"{serial.zfill(len(serial) + len(serial) % 2)}" 1;'  # whole bytes, as nginx writes it


def keep_earlier(certificate: Path, document: x509.Certificate) -> None:
    """Keep a copy of an operator's certificate that is replaced: it is valid until its end, and can be removed until then."""
    kept = certificate.parent / EARLIER / certificate.stem / f"{document.serial_number:X}.crt"
    kept.parent.mkdir(parents=True, exist_ok=True)
    _write(kept, document.public_bytes(PEM))


def earlier(certificate: Path) -> list[Path]:
    """Return the certificates that an operator's certificate replaced before their end."""
    return sorted((certificate.parent / EARLIER / certificate.stem).glob("*.crt"))


def is_revoked(folder: Path, certificate: x509.Certificate) -> bool:
    """Return whether the certificate of an operator was removed."""
    path = folder / REVOKED_OPERATORS
    return path.is_file() and revocation(certificate) in path.read_text()


def is_over(folder: Path, certificate: Path) -> bool:
    """Return whether the certificate of an operator was removed, or has ended."""
    document = x509.load_pem_x509_certificate(certificate.read_bytes())
    return is_revoked(folder, document) or document.not_valid_after_utc < datetime.datetime.now(datetime.UTC)


def make_node(path: Path) -> None:
    """Create a SuperNode's key pair in OpenSSH format, ``path`` and ``path.pub``, or what is missing of it.

    Raises:
        FedGraphError: ``path`` is no such key, or ``path.pub`` is another's.
    """
    beside = path.with_name(f"{path.name}.pub")
    if not _written(path):
        key = ec.generate_private_key(ec.SECP384R1())
        secret = key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
        beside.unlink(missing_ok=True)
        _write(path, secret, private=True)
    public = check_key(path).public_key()
    text = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    if not _written(beside):
        _write(beside, text + b"\n")
    elif beside.read_bytes().split()[:2] != text.split():
        raise FedGraphError(f"{beside} is not the public key of {path}: remove it, and run fleet join again")


def _builder(subject: x509.Name, issuer: x509.Name, public: Any, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _write(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file whole or not at all, and remove what earlier attempts left."""
    for left in path.parent.glob(f".{path.name}.????????"):
        left.unlink()
    with writing(path, 0) as file:
        file.write(content)
        os.fchmod(file.fileno(), 0o600 if private else 0o644)
