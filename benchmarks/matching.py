"""Seconds and bytes of matching records between two parties by private set intersection.

    python benchmarks/matching.py [10000 100000 1000000] [--match payments]

Both parties take turns in one process, so that seconds are CPU seconds of both together on one core. They share four fifths of
their records. Target: 100,000 records of each in two minutes.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedgraph_flwr.data.graph import ClientGraph, pack_words
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.keyring import Keyring

NODES = 1000


def party(client: int, records: int, shared: int) -> ClientGraph:
    """Return a party whose first records are also the other's; the source of each is client 0's."""
    rng = np.random.default_rng(7)
    ends = rng.integers(NODES, size=(2, shared))
    more = np.random.default_rng(client).integers(NODES, size=(2, records - shared))
    node, other = np.concatenate([ends, more], axis=1)[:: 1 if client == 0 else -1]
    extra = [f"{i}" if i < shared else f"{client}:{i}" for i in range(records)]
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


def measure(records: int, match: str) -> str:
    """Return the cost of one link run between two parties."""
    shared, sent = records * 4 // 5, 0

    def relay(phase: str, messages: dict[object, np.ndarray]) -> None:
        nonlocal sent
        sent += 0 if phase == "announce" else sum(envelope.nbytes for envelope in messages.values())

    rules = LinkRules(match=match, max_ids=max(records, 1))
    parties = [LinkParty(party(client, records, shared), rules, Keyring(client)) for client in range(2)]
    start = time.process_time()
    simulate(parties, relay)
    used = time.process_time() - start
    assert parties[0].report()[0].startswith(f"client 1 ('b'): {records} records, {shared} shared"), parties[0].report()
    return f"{records:9,} records, {match}: {used:7.1f} s CPU of both parties, {sent / 2e6:7.1f} MB sent by each"


def main() -> None:
    """Print a line for each number of records."""
    parser = argparse.ArgumentParser(description="Cost of matching records between two parties.")
    parser.add_argument("records", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--match", default="payments", choices=("payments", "routed"))
    args = parser.parse_args()
    for records in args.records:
        print(measure(records, args.match), flush=True)


if __name__ == "__main__":
    main()
