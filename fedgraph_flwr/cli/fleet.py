"""The command ``fleet``: keys and certificates, who is admitted, who is there, and what is wrong."""

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

from fedgraph_flwr.cli.node import check_address
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.fleet.checking import check
from fedgraph_flwr.fleet.keys import Places, check_key, make_fleet, make_node
from fedgraph_flwr.fleet.operating import admit, check_connection, nodes, runs

_MARKS = {True: "yes", False: "NO", None: "?"}
_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|\[::1\]")


def register(commands: Any) -> None:
    """Add ``fleet`` to the subparsers."""
    parser = commands.add_parser("fleet", help="keys and certificates, who is admitted, who is there, what is wrong")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    init = actions.add_parser("init", help="on the server: keys, certificates, configurations; what is there stays")
    init.add_argument("folder", type=Path, nargs="?", default=Path("keys"), help="where (default: keys)")
    init.add_argument("--nodes", type=int, default=0, metavar="N", help="make N nodes' key pairs too, for a trial")
    init.add_argument("--host", action="append", default=[], help="a name or address of the server; may be repeated")
    init.add_argument(
        "--listen", default="127.0.0.1:9090", metavar="HOST:PORT", help="where nodes and operators come in"
    )
    init.add_argument("--superlink", metavar="HOST:PORT", help="of loopback: the SuperLink's own, behind nginx")
    init.add_argument(
        "--operator", default="127.0.0.1:9092", metavar="HOST:PORT", help="an operator's nginx, for `flwr`"
    )
    init.add_argument("--days", type=int, default=365, metavar="N", help="how long certificates hold (default: 365)")
    init.set_defaults(func=_init)

    join = actions.add_parser("join", help="a party: make a key pair. The operator: admit a public key, FILE.pub")
    join.add_argument("files", type=Path, nargs="+", metavar="FILE")
    join.add_argument("--name", default="fleet", help="of the connection in Flower's configuration (default: fleet)")
    join.set_defaults(func=_join)

    status = actions.add_parser("status", help="the operator: which nodes and runs there are")
    status.add_argument("--name", default="fleet", help="of the connection in Flower's configuration (default: fleet)")
    status.set_defaults(func=_status)

    diagnosis = actions.add_parser("check", help="a party: could this node take part, and if not, why")
    diagnosis.add_argument("--server", required=True, metavar="HOST:PORT")
    diagnosis.add_argument("--key", required=True, type=Path, metavar="FILE", help="this party's private key")
    diagnosis.add_argument(
        "--ca", type=Path, metavar="FILE", help="the server's authority (default: ca.crt beside the key)"
    )
    diagnosis.add_argument("--graph", type=Path, metavar="FILE", help="this party's client file")
    diagnosis.add_argument(
        "--schema", type=Path, metavar="FILE", help="what the parties agreed on (fedgraph-flwr schema)"
    )
    diagnosis.set_defaults(func=_check)


def _init(args: argparse.Namespace) -> int:
    places = _places(args)
    make_fleet(args.folder, places, args.host, args.nodes, args.days)
    print(
        f"wrote {args.folder}: keys, certificates, fleet.json" + (", server.conf for nginx" if places.guarded else "")
    )
    print(f"the server says: fedgraph-flwr server {args.folder}")
    print(
        f"parties get {args.folder}/ca.crt and {args.folder}/fleet.json, and send a key's .pub (fedgraph-flwr fleet join KEY)"
    )
    return 0


def _places(args: argparse.Namespace) -> Places:
    """Where what listens: on loopback the SuperLink itself, else nginx, and the SuperLink on loopback behind it."""
    host, port = check_address(args.listen, "--listen")
    check_address(args.operator, "--operator")
    behind = args.superlink or (args.listen if _LOOPBACK.fullmatch(host) else "127.0.0.1:9091")
    if not _LOOPBACK.fullmatch(check_address(behind, "--superlink")[0]):
        raise FedGraphError(
            f"--superlink {behind}: a SuperLink listens on loopback alone, and nginx before it (docs/fleet.md)"
        )
    if args.nodes < 0 or args.days < 1:
        raise FedGraphError(f"--nodes {args.nodes} --days {args.days}: expected no negative number, and at least a day")
    address = args.host[-1] if args.host else host
    return Places(f"{address}:{port}", args.listen, behind, args.operator)


def _join(args: argparse.Namespace) -> int:
    for path in args.files:
        if path.suffix == ".pub":
            if not path.is_file():
                raise FedGraphError(f"{path}: there is no such file")
            check_connection(args.name)
            print(admit(path, args.name))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        there = path.exists()
        make_node(path)
        check_key(path)
        print(f"{path} {'was there' if there else 'is a new key'}: keep it; send {path}.pub to the operator, who says")
        print(f"  fedgraph-flwr fleet join {path.name}.pub")
    return 0


def _status(args: argparse.Namespace) -> int:
    check_connection(args.name)
    found, started = nodes(args.name), runs(args.name)
    online = sum(node["status"] == "online" for node in found)
    print(f"{len(found)} nodes are admitted, {online} of them online")
    for node in found:
        when = node["online-at"] if node["status"] == "online" else node["offline-at"]
        since = f" since {when}" if when not in ("", "N/A") else ""
        print(f"  node {node['node-id']}: {node['status'] if node['status'] != 'registered' else 'never came'}{since}")
    told = Counter(run["status"] for run in started)
    print(f"{len(started)} runs" + (f": {', '.join(f'{n} {status}' for status, n in told.items())}" if started else ""))
    return 0


def _check(args: argparse.Namespace) -> int:
    wrong = 0
    authority = args.ca or args.key.parent / "ca.crt"
    for found in check(check_address(args.server, "--server"), args.key, authority, args.graph, args.schema):
        print(f"{found.what:10} {_MARKS[found.right]:4} {found.words}", flush=True)
        wrong += found.right is False
    return 1 if wrong else 0
