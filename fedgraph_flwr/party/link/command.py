"""Command ``link``: match records of edges between parties, and write client files with cut edges."""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError

_EPILOG = """\
Parties first import their tables with --own-party and --party-columns (`fedgraph-flwr import`).
On a fleet, every node's policy decides about link runs (key link). Ids and disclosed records need a consent of all parties.
examples:
  fedgraph-flwr link --simulate a.safetensors b.safetensors c.safetensors --out linked
  fedgraph-flwr link engine=my-fleet num_clients=3
  fedgraph-flwr link --new-consent consent.json --parties 3 --purpose "fraud model" --expires 2026-12-31 --match ids
  fedgraph-flwr link --sign-consent consent.json --key keys/node_0 --client 0
"""


def register(commands: Any) -> None:
    """Add ``link`` to the subparsers."""
    parser = commands.add_parser(
        "link",
        help="match records that two parties share, to add the edges between them",
        description=(__doc__ or "").split(": ", 1)[1],
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="on a fleet: engine=CONNECTION num_clients=M ..."
    )
    parser.add_argument(
        "--simulate", nargs="+", type=Path, metavar="FILE", help="client files of all parties, on one machine"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder of --simulate")
    parser.add_argument("--quiet", action="store_true", help="on a fleet: print only the result, not the steps")
    add_rules(parser)
    consent = parser.add_argument_group("consent of all parties, for --match ids and --one-sided disclose")
    consent.add_argument(
        "--new-consent", type=Path, metavar="FILE", help="write a consent to these rules, not yet signed"
    )
    consent.add_argument(
        "--parties", type=int, metavar="M", help="number of parties that the consent of --new-consent covers"
    )
    consent.add_argument("--purpose", default="", metavar="TEXT", help="purpose of the link run")
    consent.add_argument("--expires", default="", metavar="DAY", help="last day of the consent, such as 2026-12-31")
    consent.add_argument("--sign-consent", type=Path, metavar="FILE", help="add this party's signature to a consent")
    consent.add_argument("--key", type=Path, metavar="FILE", help="this party's private key, for --sign-consent")
    consent.add_argument("--client", type=int, metavar="I", help="this party's client, for --sign-consent")
    parser.set_defaults(func=main)


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the options that are rules of the run."""
    parser.add_argument(
        "--match",
        default="payments",
        metavar="payments|routed|ids",
        help="match records privately (payments), records by hashes (routed), or identities of nodes (ids) (default: payments)",
    )
    parser.add_argument(
        "--one-sided",
        default="drop",
        metavar="drop|stub|disclose",
        help="treatment of records that only one party has: drop, stub (a node without features) or disclose (default: drop)",
    )
    parser.add_argument(
        "--entities",
        default="edges",
        metavar="edges|overlap",
        help="with --match ids: join two nodes by edges, or make them one node of both clients (default: edges)",
    )
    parser.add_argument(
        "--max-ids", type=float, default=1e6, metavar="N", help="maximum records per peer (default: 1e6)"
    )
    parser.add_argument(
        "--min-shared",
        type=int,
        default=0,
        metavar="N",
        help="minimum shared records of a pair that shares any (default: 0)",
    )
    parser.add_argument(
        "--max-shared",
        type=float,
        default=1.0,
        metavar="S",
        help="maximum share of a set that a pair shares (default: 1)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only count matches and write nothing (not with --match routed)"
    )


def main(args: argparse.Namespace) -> int:
    """Handle ``link``."""
    from fedgraph_flwr.party.link.rules import LinkRules

    if not math.isfinite(args.max_ids) or args.max_ids != int(args.max_ids):
        raise FedGraphError(f"--max-ids must be a whole number, got {args.max_ids}")
    names = ("match", "one_sided", "entities", "min_shared", "max_shared", "dry_run")
    rules = LinkRules(**{name: getattr(args, name) for name in names}, max_ids=int(args.max_ids))
    if args.new_consent or args.sign_consent:
        return _consent(args, rules)
    if args.overrides and not args.simulate:
        return _fleet(args.overrides, rules, args.quiet)
    if not args.simulate:
        raise FedGraphError(
            "link needs the files of all parties (--simulate FILE FILE ... --out DIR) or a fleet (engine=CONNECTION"
            " num_clients=M)"
        )
    if args.overrides:
        raise FedGraphError(f"--simulate takes files and no keys, got {args.overrides[0]}")
    if not (args.out or rules.dry_run):
        raise FedGraphError("--simulate needs --out DIR, the folder of the linked files (or --dry-run)")
    return _simulate(args.simulate, args.out, rules)


def _consent(args: argparse.Namespace, rules: Any) -> int:
    """Write a consent, or sign one."""
    from fedgraph_flwr.fleet.keys import check_key
    from fedgraph_flwr.party.link.policy import Consent, sign_consent, write_consent

    if args.new_consent:
        if args.parties is None:
            raise FedGraphError("--new-consent needs --parties M, --purpose TEXT and --expires DAY")
        kept = {key: getattr(rules, key) for key in ("match", "one_sided", "entities", "max_ids")}
        consent = Consent(parties=args.parties, purpose=args.purpose, expires=args.expires, **kept)
        write_consent(args.new_consent, consent)
        print(f"wrote {args.new_consent}: each party signs it with --sign-consent, then all store the same file")
        return 0
    if args.key is None or args.client is None:
        raise FedGraphError("--sign-consent needs --key FILE and --client I")
    sign_consent(args.sign_consent, args.client, check_key(args.key))
    print(f"signed {args.sign_consent} as client {args.client}")
    return 0


def _fleet(overrides: list[str], rules: Any, quiet: bool) -> int:
    """Run the phases on a fleet; each node writes its own file."""
    from fedgraph_flwr.config import configuration
    from fedgraph_flwr.runs.prepare import with_folder
    from fedgraph_flwr.runs.runner import run

    cfg = with_folder(configuration([*overrides, *link_overrides(rules)]))
    if not cfg.on_fleet:
        raise FedGraphError(
            f"engine={cfg.engine} is not a fleet: pass engine=CONNECTION, or link files with --simulate"
        )
    run(cfg, on_wait=None if quiet else lambda what: print(what, file=sys.stderr, flush=True))
    done = "every node logged its numbers" if rules.dry_run else "every node wrote linked_FILE next to its graph FILE"
    print(f"{done} and its report; the server saw sizes of envelopes only ({cfg.out})")
    return 0


def link_overrides(rules: Any) -> list[str]:
    """Return the keys of a link run: one round without training or scores."""
    from dataclasses import asdict

    from fedgraph_flwr.party.link.policy import LINK_CLIENT
    from fedgraph_flwr.party.link.uplink import SERVER

    values = {
        f"strategy.{key}": str(value).lower() if isinstance(value, bool) else value
        for key, value in asdict(rules).items()
    }
    values |= {"strategy.server": SERVER, "strategy.client": LINK_CLIENT, "strategy.on_failure": "fail"}
    values |= {"rounds": 1, "privacy.scores": "none", "checkpoint_every": 0, "model": "gcn", "model.hidden": 8}
    return [f"{key}={value}" for key, value in values.items()]


def _simulate(files: list[Path], out: Path | None, rules: Any) -> int:
    """Link files on this machine, by the messages of a fleet."""
    from fedgraph_flwr import partition
    from fedgraph_flwr.data.schema import check_same
    from fedgraph_flwr.party.link.protocol import LinkParty, simulate
    from fedgraph_flwr.secure.keyring import Keyring

    found: dict[int, tuple[Path, Any]] = {}
    for path in files:
        graph = partition.load(path)
        if graph.client in found:
            raise FedGraphError(
                f"{found[graph.client][0]} and {path} are both client {graph.client}: import one again with another --client"
            )
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
