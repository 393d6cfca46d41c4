"""Make a CA, the SuperLink's certificate and SuperNode keys for a trial on your own machines.

    python docs/fleet/make_keys.py KEYS --nodes 3 --host fleet.example.org --host 10.0.0.5

writes ``ca.crt``, ``server.crt``, ``server.key`` and ``node_0``, ``node_0.pub``, ... What is there stays: call it again with more
nodes to add some. Only with ``--host`` is the server's certificate made anew, for the hosts of that call. Keep ``ca.key`` and
``server.key`` on the server, and give a node its own private key and ``ca.crt`` only.
"""

import argparse
import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PEM = serialization.Encoding.PEM


def main() -> None:
    """Handle the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3, help="how many SuperNode keys there shall be")
    parser.add_argument(
        "--host", action="append", default=[], help="a name or address of the SuperLink; may be repeated"
    )
    parser.add_argument("--days", type=int, default=365, help="how long the certificates hold")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if not (args.folder / "ca.key").exists():
        make_ca(args.folder, args.days)
    if args.host or not (args.folder / "server.crt").exists():
        make_server(args.folder, ["localhost", "127.0.0.1", "::1", *args.host], args.days)
    for node in range(args.nodes):
        make_node(args.folder / f"node_{node}")
    print(f"{args.folder}: ca.crt, server.crt, server.key, node_0 ... node_{args.nodes - 1} (with .pub)")


def make_ca(folder: Path, days: int) -> None:
    """A self-signed authority: ``ca.key`` and ``ca.crt``."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedgraph trial CA")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and CRLs
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write_private(folder / "ca.key", _pem(key))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(PEM))


def make_server(folder: Path, hosts: list[str], days: int) -> None:
    """The SuperLink's ``server.key`` and ``server.crt``, signed by the CA, for the names and addresses it is reached by."""
    authority = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[-1])])
    certificate = (
        _builder(name, issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative_name, hosts))), critical=False)
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    _write_private(folder / "server.key", _pem(key))
    (folder / "server.crt").write_bytes(certificate.public_bytes(PEM))


def make_node(path: Path) -> None:
    """A SuperNode's key pair in OpenSSH's format: ``path`` and ``path.pub``. A pair that is there stays."""
    if path.exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    _write_private(path, secret)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
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


def _write_private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


if __name__ == "__main__":
    main()
