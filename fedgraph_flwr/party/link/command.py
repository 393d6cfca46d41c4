"""Command ``link``: match records of edges between parties, and write client files with cut edges.

Parties first import their tables with --own-party and party_columns (`fedgraph-flwr import`).
On a fleet, every node's policy decides about link runs (key link). Ids and disclosed records need a consent of all parties.

Examples:
  fedgraph-flwr link --simulate a.safetensors b.safetensors c.safetensors --out linked
  fedgraph-flwr link --simulate a2.safetensors b2.safetensors c2.safetensors --since linked --out linked2    # the next month
  fedgraph-flwr link engine=my-fleet num_clients=3
  fedgraph-flwr link --new-consent consent.json --parties 3 --purpose "fraud model" --until 2026-12-31 --match ids
  fedgraph-flwr link --sign-consent consent.json --key keys/node_0 --client 0
"""

import argparse
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedgraph_flwr.errors import FedGraphError, counted
from fedgraph_flwr.party.options import add_options


def register(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``link``."""
    parser.description = (__doc__ or "").partition("\n")[0].partition(": ")[2]
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="on a fleet: engine=CONNECTION num_clients=M ..."
    )
    add_options(parser, _RUN, simulate={"nargs": "+"}, since={"nargs": "?", "const": Path(), "type": Path})
    rules: dict[str, Any] = {"match": "payments", "one_sided": "drop", "entities": "edges"}
    rules |= {"min_shared": 0, "min_records": 1}
    limits: dict[str, Any] = {"max_ids": {"type": float, "default": 1e6}, "max_shared": {"type": float, "default": 1.0}}
    add_options(parser, _RULES, **{name: {"default": value} for name, value in rules.items()}, **limits)
    consent = parser.add_argument_group("consent of all parties, for --match ids, --one-sided disclose and --share")
    add_options(consent, _CONSENT)


_RUN = """
--simulate FILE  client files or party.yaml of the parties that take part, on one machine
--books DIR  folder with the books of the parties that take part, instead of --simulate FILE
--out DIR  output folder of --simulate
--since DIR  send only records that the last link did not match; DIR: with --simulate, its output folder. On a fleet, pass it last
    and without DIR: each node has its own ledger
--quiet  on a fleet: print only the result, not the steps
--write-config FILE  on a fleet: write the configuration, for fedgraph-flwr agree new config=FILE, and exit
--agreement FILE  on a fleet: an agreement on this link, for nodes that ask for one
"""

_RULES = """
--match payments|routed|ids  match records privately (payments), records by hashes (routed), or identities of nodes (ids)
    (default: payments)
--one-sided drop|stub|disclose  treatment of records that only one party has: drop, stub (a node without features) or disclose
    (default: drop)
--entities edges|overlap|columns  with --match ids: join two nodes by edges, or make them one node of both clients; columns, also
    with --match routed: bring columns --share of a party's accounts to the party whose payments name them (default: edges)
--max-ids N  maximum records per peer (default: 1e6)
--min-shared N  minimum shared records of a pair that shares any (default: 0)
--max-shared S  maximum share of a set that a pair shares (default: 1)
--share COLUMNS  columns of own accounts in shared records that the party at the other end may read: NAME or PATTERN, each with
    :buckets (default), :exact or :eps=E, separated by commas (default: none)
--min-records N  with --share: minimum records of an account (default: 1)
--dry-run  only count matches and write nothing (not with --match routed)
"""

_CONSENT = """
--new-consent FILE  write a consent to these rules, not yet signed
--parties M  number of parties that the consent of --new-consent covers
--purpose TEXT  purpose of the link run
--until DAY  last day of the consent, such as 2026-12-31
--sign-consent FILE  add this party's signature to a consent
--key FILE  this party's private key, for --sign-consent
--client I  this party's client, for --sign-consent
"""


_OF_SCORES = ("test_accuracy", "headline", "chance", "metrics", "best_round")
"""Entries of a run's summary that a link run, which trains nothing, does not have."""


def main(args: argparse.Namespace) -> int:
    """Handle ``link``."""
    from fedgraph_flwr.data.far_ends import parse_share
    from fedgraph_flwr.party.link.rules import LinkRules

    if args.books is not None:
        from fedgraph_flwr.party.book.rows import books_in

        if args.simulate:
            raise FedGraphError(f"--books {args.books} names the parties: leave --simulate out")
        args.simulate = [folder / "party.yaml" for folder in books_in(args.books)]
    if not math.isfinite(args.max_ids) or args.max_ids != int(args.max_ids):
        raise FedGraphError(f"--max-ids must be a whole number, got {args.max_ids}")
    names = ("match", "one_sided", "entities", "min_shared", "min_records", "max_shared", "dry_run")
    share = [str(entry) for entry in parse_share(args.share or _share_of(args.simulate or []))]
    given = {name: getattr(args, name) for name in names}
    rules = LinkRules(**given, max_ids=int(args.max_ids), share=share, increment=args.since is not None)
    if args.new_consent or args.sign_consent:
        return _consent(args, rules)
    if args.since is not None and (args.since == Path()) == bool(args.simulate):
        raise FedGraphError(
            "--since takes the folder of the last link's files with --simulate; on a fleet, pass it last and without a folder"
        )
    if args.overrides and not args.simulate and "=" in args.overrides[0]:
        return _fleet(args, rules)
    for option in ("write_config", "agreement"):
        if getattr(args, option):
            raise FedGraphError(
                f"--{option.replace('_', '-')} is for a link on a fleet: pass engine=CONNECTION num_clients=M"
            )
    if not args.simulate:
        raise FedGraphError(
            "link needs the files of all parties (--simulate FILE FILE ... --out DIR) or a fleet (engine=CONNECTION"
            " num_clients=M)"
        )
    if args.overrides:
        raise FedGraphError(f"--simulate takes files and no keys, got {args.overrides[0]}")
    if not (args.out or rules.dry_run):
        raise FedGraphError("--simulate needs --out DIR, the folder of the linked files (or --dry-run)")
    return _simulate(args.simulate, args.out, rules, args.since)


def _consent(args: argparse.Namespace, rules: Any) -> int:
    """Write a consent, or sign one."""
    from fedgraph_flwr.fleet.keys import check_key
    from fedgraph_flwr.party.link.policy import Consent, agreed_rules, sign_consent, write_consent

    if args.new_consent:
        if args.parties is None:
            raise FedGraphError("--new-consent needs --parties M, --purpose TEXT and --until DAY")
        given = {"parties": args.parties, "purpose": args.purpose, "expires": args.until}
        consent = Consent(**given, **agreed_rules(rules))
        write_consent(args.new_consent, consent)
        print("\n".join(consent.in_words()))
        print(f"wrote {args.new_consent}: each party signs it with --sign-consent, then all store the same file")
        return 0
    if args.key is None or args.client is None:
        raise FedGraphError("--sign-consent needs --key FILE and --client I")
    print("\n".join(sign_consent(args.sign_consent, args.client, check_key(args.key)).in_words()))
    print(f"signed {args.sign_consent} as client {args.client}")
    return 0


def _fleet(args: argparse.Namespace, rules: Any) -> int:
    """Run the phases on a fleet; each node writes its own file."""
    from fedgraph_flwr.config import configuration, to_yaml
    from fedgraph_flwr.data.files import write_bytes
    from fedgraph_flwr.launch.agreed import agreed_run
    from fedgraph_flwr.launch.prepare import with_folder
    from fedgraph_flwr.launch.runner import run
    from fedgraph_flwr.store.results import SUMMARY

    cfg = configuration([*args.overrides, *link_overrides(rules)])
    if not cfg.on_fleet:
        raise FedGraphError(
            f"engine={cfg.engine} is not a fleet: pass engine=CONNECTION, or link files with --simulate"
        )
    if args.write_config:
        write_bytes(args.write_config, to_yaml(cfg).encode())
        print(f"wrote {args.write_config}; members agree on it: fedgraph-flwr agree new config={args.write_config}")
        return 0
    if args.agreement:
        cfg = agreed_run(args.agreement, cfg, None)
    cfg = with_folder(cfg)
    summary = run(cfg, on_wait=None if args.quiet else lambda what: print(what, file=sys.stderr, flush=True))
    kept = {key: value for key, value in summary.items() if key not in _OF_SCORES}
    write_bytes(Path(cfg.out) / SUMMARY, json.dumps(kept, indent=1).encode())
    done = "every node logged its numbers" if rules.dry_run else "every node wrote linked_FILE next to its graph FILE"
    print(f"{done} and its report; the server saw sizes of envelopes only ({cfg.out})")
    return 0


def link_overrides(rules: Any) -> list[str]:
    """Return the keys of a link run: one round without training or scores."""
    from dataclasses import asdict

    from fedgraph_flwr.party.link.policy import LINK_CLIENT
    from fedgraph_flwr.party.link.uplink import SERVER

    values = {
        f"strategy.{key}": json.dumps(value) if isinstance(value, bool | list) else value
        for key, value in asdict(rules).items()
    }
    values |= {"strategy.name": "link", "strategy.server": SERVER, "strategy.client": LINK_CLIENT}
    values |= {"strategy.on_failure": "fail"}
    values |= {"rounds": 1, "privacy.scores": "none", "checkpoint_every": 0, "model": "gcn", "model.hidden": 8}
    return [f"{key}={value}" for key, value in values.items()]


def _share_of(files: list[Path]) -> list[str]:
    """Return ``share`` of parties' files.

    Raises:
        FedGraphError: two differ.
    """
    from fedgraph_flwr.party.party_file import read_party

    shares = {path: read_party(path).share for path in files if path.suffix in (".yaml", ".yml")}
    for path, share in shares.items():
        if share != (first := next(iter(shares.values()))):
            raise FedGraphError(
                f"{path} has share {share}, another party's file {first}: agree on one, or pass --share COLUMNS"
            )
    return next(iter(shares.values()), [])


def _simulate(files: list[Path], out: Path | None, rules: Any, since: Path | None) -> int:
    """Link files on this machine, by the messages of a fleet."""
    from fedgraph_flwr import partition
    from fedgraph_flwr.data.files import leftovers
    from fedgraph_flwr.data.schema import check_same
    from fedgraph_flwr.party.link.join import party_of
    from fedgraph_flwr.party.link.ledger import SUFFIX, Ledger
    from fedgraph_flwr.party.link.protocol import simulate
    from fedgraph_flwr.party.party_file import client_file
    from fedgraph_flwr.secure.keyring import Keyring

    graphs = [(path, partition.load(path)) for path in map(client_file, files)]
    ordered = sorted(graphs, key=lambda file: file[1].client)
    for (one, first), (other, second) in pairwise(ordered):
        if (number := first.client) == second.client:
            raise FedGraphError(f"{one} and {other} are both client {number}: import one again with another --client")
    if len(ordered) < 2:
        raise FedGraphError(f"link needs the files of two parties or more, got {ordered[0][0]}")
    for client, (path, graph) in enumerate(ordered):
        if graph.client != client:
            print(f"{path}: client {graph.client} is client {client} of the {len(ordered)} present")
        graph.client, graph.num_clients = client, len(ordered)
    check_same((str(path), graph.schema) for path, graph in ordered)
    kept = [Ledger.load(path) for path in sorted(since.glob(f"*{SUFFIX}"))] if since else []
    if since and not kept:
        raise FedGraphError(f"{since} holds no ledger of a link (*{SUFFIX}): pass the folder that `link --out` wrote")
    ledgers, parties = {ledger.party: ledger for ledger in kept}, []
    for _, graph in ordered:
        before = ledgers.get(getattr(graph, "linking", {}).get("party", ""))
        parties.append(party_of(rules)(graph, rules, Keyring(graph.client), ledger=before, repeatable=True))
    for half in leftovers(out) if out else ():  # of a killed link
        half.unlink(missing_ok=True)
    simulate(parties)
    for (path, _), party in zip(ordered, parties, strict=True):
        print(f"{path}:")
        for line in party.report():
            print(f"  {line}")
    code = _mismatches(parties)
    if rules.dry_run or out is None:
        return code
    if code:
        print(
            f"error: nothing was written to {out}: correct that import, or leave the party out, and link again",
            file=sys.stderr,
        )
        return code
    for party in parties:
        graph = party.result()
        graph.save(out / f"client_{party.client:04d}.safetensors")
        party.ledger().save(out / f"client_{party.client:04d}{SUFFIX}")
        edges = graph.cut_out.size(1), graph.cut_in.size(1)
        print(
            f"client {party.client}: {counted(graph.num_nodes, 'node')}, {counted(graph.num_edges, 'edge')}, cut edges:"
            f" {edges[0]} out, {edges[1]} in"
        )
    print(f"wrote {len(parties)} files to {out}; use: fedgraph-flwr run graph={out}")
    return 0


def _mismatches(parties: list[Any]) -> int:
    """Print why parties share nothing; return the exit code: 3 if one shares nothing with any other."""
    from fedgraph_flwr.party.link.rules import NOTHING

    alone = [party for party in parties if party.shares_nothing]
    for party in alone:
        print(f"error: client {party.client} {NOTHING}:", file=sys.stderr)
        others = [None] if party.rules.identities else [p for p in parties if p is not party]
        for line in dict.fromkeys(line for other in others for line in party.mismatch(other)):
            print(f"  {line}", file=sys.stderr)
    return 3 if alone else 0
