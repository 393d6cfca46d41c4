"""Command ``approve``: sign a run's configuration and code, for nodes that ask for signatures of owners.

The first owner creates the approval, and the next ones add their signatures to the same file. Nodes that were started with
--approvals "2 of [alice.pub, bob.pub]" then accept the run. Keys: ssh-keygen -t ed25519 -f alice

Examples:
  fedgraph-flwr run strategy=fedprox rounds=20 num_clients=3 engine=fleet --dry-run > run.yaml
  fedgraph-flwr approve config=run.yaml --key alice --uses 2 --expires 30d
  fedgraph-flwr approve config=run.yaml --key bob
  fedgraph-flwr run config=run.yaml --approval approval.json
"""

import argparse
import getpass
import json
import secrets
import time
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fedgraph_flwr.cli.clean import age
from fedgraph_flwr.errors import FedGraphError, system_errors
from fedgraph_flwr.fleet.approvals import (
    TIME,
    Refused,
    check_time,
    code_digest,
    config_digest,
    read_approval,
    runs,
    sign,
)
from fedgraph_flwr.party.options import add_options

_OTHER = {
    "config": ("another configuration", "pass the one that the others signed"),
    "code": ("other code", "sign with the version and the installation that they used, pass its bundle (--app)"),
}
"""What an approval may differ in, and what to do about it."""


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``approve``."""
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="the run's configuration, as for run")
    expires: dict[str, Any] = {"default": None, "type": age}
    add_options(parser, _OPTIONS, key={"required": True}, expires=expires, file={"default": Path("approval.json")})


_OPTIONS = """
--key FILE  the owner's private Ed25519 key (ssh-keygen -t ed25519)
--file FILE  the approval to create, or to add a signature to (default: approval.json)
--uses N  most runs that the approval allows; a resumed run counts again (default: 1, or what the others signed)
--expires AGE  longest time until it expires, such as 12h or 30d (default: 30d, or what the others signed)
--app FILE  Flower's bundle of the run, as `flwr build` writes it (default: that of this installation)
"""


def main(args: argparse.Namespace) -> int:
    """Handle ``approve``."""
    from fedgraph_flwr.cli.describe import described
    from fedgraph_flwr.config import configuration, to_json

    cfg, key = configuration(args.overrides), _private_key(args.key)
    if not cfg.on_fleet:  # whose defaults differ
        raise FedGraphError(
            f"engine={cfg.engine}: only a fleet's nodes ask for approvals; pass engine=fleet, or another name"
        )
    digests = {"config": config_digest(to_json(cfg)), "code": code_digest(_bundle(args.app))}
    if args.file.is_file():
        try:
            statement, signatures = read_approval(args.file.read_text())
            check_time(statement, time.time())
        except Refused as error:
            raise FedGraphError(f"{args.file}: {error}") from error
        for what, digest in digests.items():
            if statement[what] != digest:
                about, fix = _OTHER[what]
                raise FedGraphError(f"{args.file} is about {about}: {fix}, or another --file")
        if args.uses is not None and statement["uses"] > args.uses:
            raise FedGraphError(f"--uses {args.uses}: the others signed {args.file} for {runs(statement['uses'])}")
        latest = None if args.expires is None else time.strptime(_time(args.expires), TIME)
        if latest and time.strptime(statement["expires"], TIME) > latest:
            raise FedGraphError(
                f"--expires: the others signed {args.file} until {statement['expires']}, which is later"
            )
        approval = {"statement": statement, "signatures": dict(signatures)}
    else:
        uses = 1 if args.uses is None else args.uses
        if uses < 1:
            raise FedGraphError(f"--uses {uses}: expected at least 1")
        expires = _time(30 * 86400.0 if args.expires is None else args.expires)
        approval = {"statement": {**digests, "nonce": secrets.token_hex(16), "expires": expires, "uses": uses}}
    for line in described(cfg):
        print(line)
    sign(approval, key)
    with system_errors(f"cannot write {args.file}"):
        args.file.write_text(json.dumps(approval, indent=1) + "\n")
    statement = approval["statement"]
    print(f"configuration {digests['config'][:12]}, code {digests['code'][:12]}")
    count = len(approval["signatures"])
    number = f"{count} signature{'s' * (count != 1)}"
    print(f"{args.file} has {number}, for {runs(statement['uses'])} until {statement['expires']}")
    return 0


def _time(seconds: float) -> str:
    """Return the time after so many seconds, as in an approval."""
    return time.strftime(TIME, time.gmtime(time.time() + seconds))


def _private_key(path: Path) -> Ed25519PrivateKey:
    if not path.is_file():
        raise FedGraphError(f"--key {path}: no such file; create a key with ssh-keygen -t ed25519 -f {path}")
    content = path.read_bytes()
    try:
        try:
            key = load_ssh_private_key(content, None)
        except (TypeError, ValueError) as error:
            if "assword" not in str(error) and "passphrase" not in str(error):
                raise
            key = load_ssh_private_key(content, getpass.getpass(f"passphrase of {path}: ").encode())
    except (TypeError, ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise FedGraphError(
            f"--key {path} is not an Ed25519 private key that this passphrase opens: expected OpenSSH format"
        )
    return key


def _bundle(app: Path | None) -> bytes:
    """Return a bundle's content: the file, or what a run of this installation would ship."""
    if app is not None:
        if not app.is_file():
            raise FedGraphError(f"--app {app}: no such file; `flwr build` writes one")
        return app.read_bytes()
    import tempfile

    from flwr.cli.build import build_fab_from_disk

    from fedgraph_flwr.engine.flower import app_folder

    with tempfile.TemporaryDirectory() as folder:
        content: bytes = build_fab_from_disk(app_folder(Path(folder)))
    return content
