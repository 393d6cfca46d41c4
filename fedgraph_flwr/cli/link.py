"""Command ``link``: match records of edges between parties, and write client files with cut edges."""

import argparse
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError

_EPILOG = """\
Parties first import their tables with --own-party and --party-columns (`fedgraph-flwr import`).
examples:
  fedgraph-flwr link --simulate a.safetensors b.safetensors c.safetensors --out linked
  fedgraph-flwr run graph=linked strategy=fedgcn
"""


def register(commands: Any) -> None:
    """Add ``link`` to the subparsers."""
    parser = commands.add_parser(
        "link",
        help="match records of edges between parties, without showing the others",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--simulate", nargs="+", type=Path, metavar="FILE", help="client files of all parties, on one machine"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder of --simulate")
    add_rules(parser)
    parser.set_defaults(func=main)


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the options that are rules of the run."""
    parser.add_argument(
        "--match",
        default="payments",
        metavar="payments|routed|ids",
        help="what is matched: records privately, records by hashes, or identities of nodes (default: payments)",
    )
    parser.add_argument(
        "--one-sided",
        default="drop",
        metavar="drop|stub|disclose",
        help="records that only one party has: leave out, keep as nodes without features, or tell the other (default: drop)",
    )
    parser.add_argument(
        "--shared",
        default="edges",
        metavar="edges|overlap",
        help="with --match ids: join two nodes by edges, or make them one node of both clients (default: edges)",
    )
    parser.add_argument(
        "--max-ids", type=float, default=1e6, metavar="N", help="most records for one peer (default: 1e6)"
    )
    parser.add_argument(
        "--min-shared", type=int, default=0, metavar="N", help="refuse pairs that share fewer, unless none (default: 0)"
    )
    parser.add_argument(
        "--max-share", type=float, default=1.0, metavar="S", help="refuse pairs that share more of a set (default: 1)"
    )
    parser.add_argument("--dry-run", action="store_true", help="learn numbers only, and write nothing")


def main(args: argparse.Namespace) -> int:
    """Handle ``link``."""
    from fedgraph_flwr.secure.linking import LinkRules

    if args.max_ids != int(args.max_ids):
        raise FedGraphError(f"--max-ids must be a whole number, got {args.max_ids}")
    names = ("match", "one_sided", "shared", "min_shared", "max_share", "dry_run")
    rules = LinkRules(**{name: getattr(args, name) for name in names}, max_ids=int(args.max_ids))
    if not args.simulate:
        raise FedGraphError("link needs the files of all parties: pass --simulate FILE FILE ... --out DIR")
    if not (args.out or rules.dry_run):
        raise FedGraphError("--simulate needs --out DIR, the folder of the linked files (or --dry-run)")
    return _simulate(args.simulate, args.out, rules)


def _simulate(files: list[Path], out: Path | None, rules: Any) -> int:
    """Link files on this machine, by the messages of a fleet."""
    from fedgraph_flwr import partition
    from fedgraph_flwr.data.graph import ClientGraph
    from fedgraph_flwr.data.schema import check_same
    from fedgraph_flwr.secure.keyring import Keyring
    from fedgraph_flwr.secure.linking import LinkParty, simulate

    found: dict[int, tuple[Path, Any]] = {}
    for path in files:
        graph = partition.load(path)
        if not isinstance(graph, ClientGraph):
            raise FedGraphError(f"{path} holds a heterogeneous graph; link matches edges of graphs with one node type")
        if graph.client in found:
            raise FedGraphError(f"{found[graph.client][0]} and {path} are both client {graph.client}: import one again")
        found[graph.client] = path, graph
    ordered = [found[client] for client in sorted(found)]
    for path, graph in ordered:
        if graph.num_clients != len(files):
            missing = sorted(set(range(graph.num_clients)) - set(found))
            raise FedGraphError(
                f"{path} is client {graph.client} of {graph.num_clients}, got {len(files)} files"
                + (f": add the file of client {missing[0]}" if missing else ": import all with the same --num-clients")
            )
    check_same((str(path), graph.schema) for path, graph in ordered)
    parties = [LinkParty(graph, rules, Keyring(graph.client)) for _, graph in ordered]
    simulate(parties)
    for (path, _), party in zip(ordered, parties, strict=True):
        print(f"{path}:")
        for line in party.report():
            print(f"  {line}")
    if rules.dry_run or out is None:
        return 0
    for party in parties:
        graph = party.result()
        graph.save(out / f"client_{party.client:04d}.safetensors")
        edges = graph.cut_out.size(1), graph.cut_in.size(1)
        print(
            f"client {party.client}: {graph.num_nodes} nodes, {graph.edge_index.size(1)} edges, cut edges: {edges[0]} out,"
            f" {edges[1]} in"
        )
    print(f"wrote {len(parties)} files to {out}; use: fedgraph-flwr run graph={out}")
    return 0
