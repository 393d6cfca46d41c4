"""Make certificates, SuperNode keys and the two nginx configurations of a fleet, for a trial on your own machines.

    python docs/fleet/make_keys.py KEYS --nodes 3 --host fleet.example.org --host 10.0.0.5

writes, into KEYS:

    ca.crt, server.crt, server.key      what the server shows nodes and operators, and the CA by which they know it
    node_0, node_0.pub, ...             a SuperNode's key pair
    operators.crt                       the CA of those who may start runs; the server asks for a certificate of it
    operator.crt, operator.key          such a certificate
    server.conf                         nginx before the SuperLink: nodes reach /v1/fleet, operators /v1/control, nobody more
    operator.conf                       nginx on an operator's machine, which adds the certificate that `flwr` cannot show

What is there stays: call it again with more nodes to add some. With ``--host`` the server's certificate is made anew, for the
hosts of that call; the configurations are written anew in every call, with this folder's path in them. Keep ``ca.key``,
``operators.key`` and ``server.key`` on the server; a node gets its own private key and ``ca.crt``, an operator ``ca.crt``,
``operator.crt``, ``operator.key`` and ``operator.conf``.
"""

import argparse
import datetime
import ipaddress
import re
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
    parser.add_argument("--listen", default="127.0.0.1:9090", help="where nginx listens for nodes and operators")
    parser.add_argument("--superlink", default="127.0.0.1:9091", help="where the SuperLink listens, for nginx alone")
    parser.add_argument("--operator", default="127.0.0.1:9092", help="where an operator's nginx listens, for `flwr`")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for authority in ("ca", "operators"):
        if not (args.folder / f"{authority}.key").exists():
            make_ca(args.folder, authority, args.days)
    hosts = ["localhost", "127.0.0.1", "::1", *args.host]
    if args.host or not (args.folder / "server.crt").exists():
        names = x509.SubjectAlternativeName(list(map(_alternative_name, hosts)))
        make_certificate(args.folder, "server", "ca", hosts[-1], x509.ExtendedKeyUsageOID.SERVER_AUTH, args.days, names)
    if not (args.folder / "operator.crt").exists():
        make_certificate(
            args.folder, "operator", "operators", "operator", x509.ExtendedKeyUsageOID.CLIENT_AUTH, args.days
        )
    for node in range(args.nodes):
        make_node(args.folder / f"node_{node}")
    places = {"keys": args.folder.absolute(), "listen": args.listen, "superlink": args.superlink}
    address = args.host[-1] if args.host else args.listen.rpartition(":")[0]
    places |= {"operator": args.operator, "server": f"{address}:{args.listen.rpartition(':')[2]}"}
    for name in ("server", "operator"):
        template = (Path(__file__).parent / f"{name}.conf").read_text()
        (args.folder / f"{name}.conf").write_text(re.sub(r"@(\w+)@", lambda found: str(places[found[1]]), template))
    print(f"{args.folder}: ca, operators, server, operator (.crt, .key), node_0 ... node_{args.nodes - 1}, *.conf")


def make_ca(folder: Path, authority: str, days: int) -> None:
    """A self-signed authority: its key and certificate."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedgraph trial {authority}")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and CRLs
    certificate = (
        _builder(name, name, key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write_private(folder / f"{authority}.key", _pem(key))
    (folder / f"{authority}.crt").write_bytes(certificate.public_bytes(PEM))


def make_certificate(
    folder: Path,
    name: str,
    authority: str,
    subject: str,
    purpose: x509.ObjectIdentifier,
    days: int,
    *extensions: x509.ExtensionType,
) -> None:
    """A key and a certificate of an authority, good for one purpose alone."""
    signer = serialization.load_pem_private_key((folder / f"{authority}.key").read_bytes(), None)
    issuer = x509.load_pem_x509_certificate((folder / f"{authority}.crt").read_bytes())
    key = ec.generate_private_key(ec.SECP384R1())
    builder = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]), issuer.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    _write_private(folder / f"{name}.key", _pem(key))
    (folder / f"{name}.crt").write_bytes(builder.sign(signer, hashes.SHA384()).public_bytes(PEM))


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
