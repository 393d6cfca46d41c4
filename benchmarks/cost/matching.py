"""CPU seconds and bytes of matching records between two parties by private set intersection.

    python -m benchmarks.cost matching [10000 100000 1000000] [--match payments] [--write]

Both parties take turns in one process, on one core. They share four fifths of their records. Then each has a tenth more, and only
those that are not matched are sent (`link --since`). Target: a million records of each in 200 CPU seconds. ``--write`` stores
rows in ``simulations/results/matching.csv``.
"""

import argparse
import csv
import subprocess
import time
from pathlib import Path

import numpy as np
import torch

from fedgraph_flwr.data.graph import ClientGraph, pack_words
from fedgraph_flwr.party.link.ledger import Ledger
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.keyring import Keyring

RESULT = Path(__file__).resolve().parents[2] / "simulations" / "results" / "matching.csv"
NODES = 1000


def party(client: int, records: int, shared: int) -> ClientGraph:
    """Return a party whose first records are also the other's; the source of each is client 0's."""
    rng = np.random.default_rng(7)
    ends = rng.integers(NODES, size=(shared, 2))
    more = np.random.default_rng(client).integers(NODES, size=(records - shared, 2))
    node, other = np.concatenate([ends, more]).T[:: 1 if client == 0 else -1]
    extra = [*map(str, range(shared)), *(f"{client}:{i}" for i in range(records - shared))]
    return ClientGraph(
        x=torch.zeros(NODES, 1),
        edge_index=torch.zeros(2, 0, dtype=torch.int64),
        y=torch.zeros(NODES, dtype=torch.int64),
        train_mask=torch.ones(NODES, dtype=torch.bool),
        val_mask=torch.zeros(NODES, dtype=torch.bool),
        test_mask=torch.zeros(NODES, dtype=torch.bool),
        num_classes=2,
        client=client,
        num_clients=2,
        num_global_nodes=NODES,
        ids=pack_words([f"{'ab'[client]}{i}" for i in range(NODES)]),
        foreign=torch.from_numpy(np.stack([node, np.zeros_like(node)])),
        foreign_out=torch.full((records,), client == 0),
        foreign_id=pack_words([f"{'ba'[client]}{i}" for i in other]),
        foreign_key=pack_words(extra),
        linking={"party": "ab"[client], "parties": ["ba"[client]], "form": "ids text; key text"},
    )


class TimedParty(LinkParty):
    """A party that counts the CPU seconds of its own steps."""

    seconds = 0.0

    def step(self, *given, **more):  # type: ignore[no-untyped-def]
        """As `LinkParty.step`."""
        start = time.process_time()
        envelopes = super().step(*given, **more)
        self.seconds += time.process_time() - start
        return envelopes


def measure(records: int, match: str, ledgers: list[Ledger] | None = None) -> tuple[dict[str, object], list[Ledger]]:
    """Return the cost of one link run between two parties as a row, and their ledgers for an increment."""
    shared, sent = records * 4 // 5, 0

    def relay(phase: str, messages: dict[object, np.ndarray]) -> None:
        nonlocal sent
        sent += 0 if phase == "announce" else sum(envelope.nbytes for envelope in messages.values())

    rules = LinkRules(match=match, max_ids=max(records, 1), increment=ledgers is not None)
    kept = ledgers or [Ledger(), Ledger()]
    parties = [
        TimedParty(party(client, records, shared), rules, Keyring(client), ledger=kept[client]) for client in range(2)
    ]
    start = time.process_time()
    simulate(parties, relay)
    used = time.process_time() - start
    new_ledgers = [party.ledger() for party in parties]
    assert len(new_ledgers[0].peers["b"].keys) == shared, parties[0].report()
    row = {
        **{"records": records, "match": match, "matched_before": len(kept[0].peers["b"].keys) if ledgers else 0},
        "cpu_seconds_of_both": round(used, 1),
        "cpu_seconds_of_a_party": round(max(party.seconds for party in parties), 1),
        "megabytes_sent_by_each": round(sent / 2e6, 1),
    }
    return row, new_ledgers


def main() -> None:
    """Print a line for each number of records, and store the rows."""
    parser = argparse.ArgumentParser(description="Cost of matching records between two parties.")
    parser.add_argument("records", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--match", default="payments", choices=("payments", "routed"))
    parser.add_argument("--write", action="store_true", help=f"put the rows into {RESULT.name}")
    args = parser.parse_args()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=RESULT.parent
    ).stdout.strip()
    for records in args.records:
        row, ledgers = measure(records, args.match)
        for cost in (row, measure(records * 11 // 10, args.match, ledgers)[0]):
            print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in cost.items()), flush=True)
            if args.write:
                fresh = not RESULT.is_file()
                with RESULT.open("a", newline="") as file:
                    writer = csv.DictWriter(file, [*cost, "commit"], lineterminator="\n")
                    if fresh:
                        writer.writeheader()
                    writer.writerow({**cost, "commit": commit})


if __name__ == "__main__":
    main()
