"""Command ``fleet``: create keys and certificates, admit nodes, show status, diagnose."""

import argparse
import itertools
import re
from functools import partial
from pathlib import Path

from fedgraph_flwr.errors import FedGraphError, system_errors
from fedgraph_flwr.fleet.certificates import (
    REVOKED,
    REVOKED_OPERATORS,
    days_left,
    read,
    read_key,
    renew,
    revoke,
    revoke_operator,
    revoked,
    warnings,
)
from fedgraph_flwr.fleet.checking import Finding, check
from fedgraph_flwr.fleet.flower_commands import (
    Removed,
    admit,
    check_connection,
    connection,
    node_of_key,
    remove,
)
from fedgraph_flwr.fleet.keys import (
    FLEET,
    ROLES,
    Places,
    earlier,
    is_over,
    make_fleet,
    make_node,
    make_operator,
    read_fleet,
)
from fedgraph_flwr.fleet.overview import lines, overview
from fedgraph_flwr.fleet.parties import UNREGISTERED
from fedgraph_flwr.fleet.processes import check_address
from fedgraph_flwr.party.options import add_options
from fedgraph_flwr.report.as_json import as_json

_MARKS = {True: "yes", False: "NO", None: "?"}
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|\[::1\]")


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``fleet``."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    about = "on the server: create keys, certificates and configurations; existing files are kept"
    init = actions.add_parser("init", help=about)
    init.add_argument("folder", type=Path, nargs="?", default=Path("keys"), help="output folder (default: keys)")
    addresses = {"listen": "127.0.0.1:9090", "superlink": None, "operator": "127.0.0.1:9092"}
    defaults = {name: {"default": value} for name, value in addresses.items()}
    add_options(init, _INIT, trial={"default": 0}, days={"default": 365}, **defaults)
    init.set_defaults(func=_init)

    about = "as a party: create a key pair; as the operator: admit a public key FILE.pub"
    join = actions.add_parser("join", help=about)
    join.add_argument("files", type=Path, nargs="+", metavar="FILE")
    about = "name of the admitted party, which the server keeps (default: that of FILE.pub)"
    join.add_argument("--party", metavar="NAME", default="", help=about)
    join.set_defaults(func=_join)

    about = "on the server: create a certificate of another operator, NAME.crt and NAME.key, or sign a request NAME.csr"
    operator = actions.add_parser("operator", help=about)
    operator.add_argument("operators", nargs="+", metavar="NAME or NAME.csr")
    add_options(operator, _OPERATOR, days={"default": 365}, role={"choices": ROLES})
    operator.set_defaults(func=_operator)

    about = "on the server: remove nodes (public key FILE.pub) or operators (certificate FILE.crt) for good"
    removal = actions.add_parser("remove", help=about)
    removal.add_argument("files", type=Path, nargs="+", metavar="FILE")
    removal.set_defaults(func=_remove)

    renewal = actions.add_parser("renew", help="on the server: renew certificates; running runs continue")
    about = "folder of `fleet init` (default: keys)"
    renewal.add_argument("folder", type=Path, nargs="?", default=Path("keys"), help=about)
    add_options(renewal, _RENEW, days={"default": 365}, also={"choices": ("ca", "operator")})
    renewal.set_defaults(func=_renew)

    status = actions.add_parser("status", help="as the operator: list nodes and the progress of runs")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(func=_status)
    for action in (join, removal, operator):
        add_options(action, _KEYS)
    for action in (join, removal, status):
        add_options(action, CONNECTION, name={"default": "fleet"})

    diagnosis = actions.add_parser("check", help="as a party: test whether this node can join")
    add_options(diagnosis, _CHECK, server={"required": True}, key={"required": True})
    diagnosis.set_defaults(func=_check)


_INIT = """
--trial N  also create key pairs of N nodes, for a trial (default: 0)
--host HOST...  name or address of the server; may be repeated
--listen HOST:PORT  address for nodes and operators (default: 127.0.0.1:9090)
--superlink HOST:PORT  loopback address of the SuperLink behind nginx
--operator HOST:PORT  address of an operator's nginx for `flwr` (default: 127.0.0.1:9092)
--days N  validity of certificates in days (default: 365)
"""

_RENEW = """
--also ca|operator...  also renew ca.crt, which parties and operators must get before the old one ends, or operators.crt and
    operator.crt; may be repeated
--days N  validity of the new certificates in days (default: 365)
"""

_KEYS = "--keys DIR  folder of `fleet init` (default: that of the connection's ca.crt, else keys)"

_OPERATOR = """
--days N  validity of the certificate in days (default: 365)
--role read|run|admit...  allow reading runs, starting and stopping them, or admitting nodes; may be repeated (default: all)
"""

CONNECTION = "--name NAME  name of the connection in Flower's configuration (default: fleet)"

_CHECK = """
--server HOST:PORT  address of the fleet's server
--key FILE  this party's private key
--ca FILE  certificate authority of the server (default: ca.crt next to the key)
--graph FILE  this party's client file or party.yaml
--schema FILE  schema shared by the parties (fedgraph-flwr schema)
--policy FILE  this party's policy, to see whether it accepts a run of default keys
"""


def _init(args: argparse.Namespace) -> int:
    places = _places(args)
    make_fleet(args.folder, places, args.host, args.trial, args.days)
    print(f"wrote {args.folder}: keys, certificates, fleet.json{', server.conf for nginx' if places.guarded else ''}")
    print(f"start the server with: fedgraph-flwr server {args.folder}")
    files = f"{args.folder}/ca.crt and {args.folder}/fleet.json"
    print(f"send each party {files}; each sends its KEY.pub (fedgraph-flwr fleet join KEY)")
    return 0


def _places(args: argparse.Namespace) -> Places:
    """Return the addresses: the SuperLink on loopback, behind nginx if --listen is another address."""
    host, port = check_address(args.listen, "--listen")
    check_address(args.operator, "--operator")
    behind = args.superlink or (args.listen if _LOOPBACK.fullmatch(host) else "127.0.0.1:9091")
    if not _LOOPBACK.fullmatch(check_address(behind, "--superlink")[0]):
        raise FedGraphError(f"--superlink {behind}: expected a loopback address behind nginx (docs/fleet.md)")
    if args.trial < 0 or args.days < 1:
        raise FedGraphError(f"--trial {args.trial} --days {args.days}: expected at least 0 nodes and 1 day")
    address = args.host[-1] if args.host else host
    return Places(f"{address}:{port}", args.listen, behind, args.operator)


def _join(args: argparse.Namespace) -> int:
    if args.party and (len(args.files) > 1 or args.files[0].suffix != ".pub"):
        raise FedGraphError(f"--party {args.party} names the party of one FILE.pub: admit one key at a time")
    keys = _keys_of(args)
    for path in args.files:
        if path.suffix == ".pub":
            if not path.is_file():
                raise FedGraphError(f"{path}: no such file; expected a public key of `fedgraph-flwr fleet join`")
            if read_key(path) in revoked(keys):
                raise Removed(path)
            check_connection(args.name)
            print(admit(path, args.name, args.party))
            _keep(path, keys, args.party or path.stem)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        state = "exists" if path.is_file() and path.stat().st_size else "created"
        make_node(path)
        print(f"{path} {state}: keep it private and send {path}.pub to the operator, who runs")
        print(f"  fedgraph-flwr fleet join {path.name}.pub")
    return 0


def _keep(public: Path, keys: Path, party: str) -> None:
    """Copy an admitted key to the server's folder, which admits it again if the server loses its database."""
    if not (keys / FLEET).is_file():  # an operator's machine
        return
    key = read_key(public)
    present = sorted(keys.glob("*.pub"))
    if any(read_key(path) == key for path in present):
        return
    name, names = re.sub(r"[^A-Za-z0-9._-]", "_", party), {path.name for path in present}
    numbers = (f"{name}{suffix}.pub" for suffix in ("", *(f"_{number}" for number in range(2, 10**4))))
    copy = keys / next(file for file in numbers if file not in names)
    with system_errors(f"the key is admitted, but cannot be copied to {copy}"):
        copy.write_text(public.read_text())
    print(f"copied to {copy}: the server admits it again if it loses its database")


def _keys_of(args: argparse.Namespace) -> Path:
    """Return the folder of `fleet init`: that of the server on this machine, wherever the command runs."""
    if args.keys:
        return Path(args.keys)
    folder = Path(str(connection(getattr(args, "name", "fleet")).get("root-certificates", "keys/ca.crt"))).parent
    return folder if (folder / FLEET).is_file() else Path("keys")


def _operator(args: argparse.Namespace) -> int:
    keys = _keys_of(args)
    read_fleet(keys)
    for name in args.operators:
        before = keys / f"{Path(name).stem if name.endswith('.csr') else name}.crt"
        ends = (
            read(before).not_valid_after_utc
            if before.is_file() and before.stat().st_size and not is_over(keys, before)
            else None
        )
        certificate = make_operator(keys, name, args.days, args.role)
        files = f"{certificate} and {certificate.with_suffix('.key')}" if name == certificate.stem else f"{certificate}"
        print(f"wrote {files}: send this to the operator, named operator.crt{' and operator.key' * (' ' in files)}")
        if ends:
            until = f"{ends:%Y-%m-%d %H:%M}Z"
            print(f"the earlier one is valid until {until}; `fleet remove {certificate}` removes both")
    return 0


def _remove(args: argparse.Namespace) -> int:
    keys = _keys_of(args)
    read_fleet(keys)  # else the list would be where no server reads it
    for path in args.files:
        if not path.is_file():
            raise FedGraphError(f"{path}: no such file; expected a node's public key or an operator's certificate")
    for path in [path for path in args.files if path.suffix == ".crt"]:
        fresh = [revoke_operator(keys, certificate) for certificate in (path, *earlier(path))]
        done = "removed" if any(fresh) else "was already removed"
        print(f"{path} {done}; {keys / REVOKED_OPERATORS} keeps it out. Requests in progress end first")
    nodes = [path for path in args.files if path.suffix != ".crt"]
    if nodes:
        check_connection(args.name)
    for path in nodes:
        new = revoke(keys, read_key(path), path.name)
        number, status = node_of_key(args.name, path)
        if number and status != UNREGISTERED:
            remove(number, args.name)
        done = (
            "removed" if number and status != UNREGISTERED else "was not registered" if new else "was already removed"
        )
        print(f"{path} {done}; {keys / REVOKED} keeps it out, also if the server loses its database")
    return 0


def _renew(args: argparse.Namespace) -> int:
    if args.days < 1:
        raise FedGraphError(f"--days {args.days}: expected at least 1 day")
    read_fleet(args.folder)
    names = [
        *(["ca"] if "ca" in args.also else []),
        "server",
        *(["operators", "operator"] if "operator" in args.also else []),
    ]
    for name in names:
        path = renew(args.folder, name, args.days)
        print(f"{path} is valid for {days_left(path):.0f} days; a running server uses it within seconds")
    if "ca" in args.also:
        print(f"send {args.folder}/ca.crt to all parties and operators: it also accepts the certificates before")
    if "operator" in args.also:
        print(f"send {args.folder}/operator.crt and {args.folder}/operator.key to the operators")
    for text in warnings(args.folder):
        print(f"warning: {text}")
    return 0


def _status(args: argparse.Namespace) -> int:
    check_connection(args.name)
    content = overview(args.name)
    print(as_json(content) if args.json else "\n".join(lines(content)))
    return 0


def accepts_defaults(policy: Path) -> Finding:
    """Check whether a policy accepts a run that sets no key; one that bounds `min_clients`, for example, does not."""
    from fedgraph_flwr.config import compose
    from fedgraph_flwr.secure.policy import read_policy

    finding = partial(Finding, "policy")
    try:
        rules = read_policy(str(policy))
    except FedGraphError as error:
        return finding(False, str(error))
    try:
        rules.check_run(compose(["engine=fleet"]))
    except FedGraphError as error:
        return finding(None, f"runs must set what differs from their defaults: {error}")
    return finding(True, f"{policy} accepts a run of default keys")


def _check(args: argparse.Namespace) -> int:
    from fedgraph_flwr.party.party_file import client_file

    wrong = 0
    authority, graph = args.ca or args.key.parent / "ca.crt", client_file(args.graph) if args.graph else None
    findings = check(check_address(args.server, "--server"), args.key, authority, graph, args.schema)
    for finding in itertools.chain(findings, [accepts_defaults(args.policy)] if args.policy else []):
        print(f"{finding.what:10} {_MARKS[finding.right]:4} {finding.explanation}", flush=True)
        wrong += finding.right is False
    return 1 if wrong else 0
