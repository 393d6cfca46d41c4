"""A coordinator of agreed runs that may do anything at the level of messages: repeat, drop, swap, invent, and restart nodes."""

from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.fleet.keys import make_node
from fedgraph_flwr.partition import resolved
from fedgraph_flwr.secure import beginning
from fedgraph_flwr.secure.keyring import SIGNATURE, SIGNATURES
from fedgraph_flwr.wire.messages import Arrays, groups_of
from tests.conftest import client_graph
from tests.nodes import Node, agreed

Groups = dict[str, Arrays]


class Coordinator:
    """Members of an agreement, each a node with its own key, graph and state.

    Args:
        folder: where their files are.
        words: overrides of the runs' configuration.
        members: their number.
        values: of the agreement.
    """

    def __init__(self, folder: Path, *words: str, members: int = 3, **values: Any):
        self.folder, self.members = folder, members
        (folder / "keys").mkdir(parents=True)
        for client in range(members):
            make_node(folder / "keys" / f"node_{client}")
            graph = client_graph(client, 40)
            graph.num_clients = members
            graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
        plain = [f"num_clients={members}", "rounds=5", "model.hidden=8", "model.dropout=0", *words]
        self.cfg: RunConfig = compose([*plain, f"graph={folder / 'graphs'}"])
        self.words = [*plain, f"graph={folder / 'graphs'}"]
        (folder / "policy.yaml").write_text("min_nodes: 0\n")
        self.digest = agreed(folder / "agreement.yaml", self.cfg, folder / "keys", **values)

    def run(self, number: int = 1, *words: str) -> "Run":
        """A run with a number of the coordinator's choice; nodes keep what is in their state folders."""
        return Run(self, resolved(compose([*self.words, f"agreement={self.digest}/{number}", *words])))


class Run:
    """One of Flower's runs, with messages to single nodes."""

    def __init__(self, owner: Coordinator, cfg: RunConfig):
        self.owner, self.cfg = owner, cfg
        folder = owner.folder
        self.nodes = [
            Node(
                cfg,
                graph=str(folder / "graphs" / f"client_{client:04d}.safetensors"),
                state=str(folder / f"state_{client}"),
                key=str(folder / "keys" / f"node_{client}"),
                policy=str(folder / "policy.yaml"),
                agreement=str(folder / "agreement.yaml"),
            )
            for client in range(owner.members)
        ]

    def ask(self, client: int, phase: str, server_round: int = 0, groups: Groups | None = None, **config: Any) -> Any:
        """The groups of a reply, or the reason of a refusal."""
        reply = self.nodes[client].request(phase, server_round, groups, **config)
        return reply if isinstance(reply, str) else groups_of(reply)

    def commitments(self, clients: range | list[int] | None = None) -> dict[int, Arrays]:
        """Signed commitments."""
        chosen = range(self.owner.members) if clients is None else clients
        return {client: self.ask(client, beginning.COMMIT)[beginning.START] for client in chosen}

    def nonces(self, commits: dict[int, Arrays], clients: list[int] | None = None) -> dict[int, Any]:
        """What members reply to a list of commitments: nonces, or reasons."""
        chosen = list(commits) if clients is None else clients
        replies = {client: self.ask(client, beginning.OPEN, groups=listed(commits)) for client in chosen}
        return {
            c: r if isinstance(r, str) else r[beginning.START][beginning.NONCE].tobytes() for c, r in replies.items()
        }

    def begin(self) -> int:
        """Begin honestly; the seed."""
        nonces = self.nonces(self.commitments())
        for client in nonces:
            assert not isinstance(self.ask(client, beginning.BEGIN, groups=opened(nonces)), str)
        return beginning.seed_of(self.cfg.agreement, nonces)


def listed(commits: dict[int, Arrays]) -> Groups:
    """The message that relays commitments."""
    rows = [arrays[beginning.COMMITMENT] for arrays in commits.values()]
    group = {beginning.CLIENTS: np.array(list(commits), np.int64), beginning.COMMITMENTS: np.stack(rows)}
    signed = {str(client): arrays[SIGNATURE] for client, arrays in commits.items() if SIGNATURE in arrays}
    return {beginning.START: group, SIGNATURES: signed}


def opened(nonces: dict[int, bytes]) -> Groups:
    """The message that relays nonces."""
    rows = [np.frombuffer(nonce, np.uint8) for nonce in nonces.values()]
    return {beginning.START: {beginning.CLIENTS: np.array(list(nonces), np.int64), beginning.NONCES: np.stack(rows)}}
