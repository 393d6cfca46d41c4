"""A coordinator of agreed runs that may do anything at the level of messages: repeat, drop, swap, invent, and restart nodes."""

from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.config import RunConfig, compose
from fedgraph_flwr.fleet.keys import make_node
from fedgraph_flwr.partition import resolved
from fedgraph_flwr.secure import beginning, secagg
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
            self.import_table(client)
        plain = [f"num_clients={members}", "rounds=5", "model.hidden=8", "model.dropout=0", *words]
        self.cfg: RunConfig = compose([*plain, f"graph={folder / 'graphs'}"])
        self.words = [*plain, f"graph={folder / 'graphs'}"]
        (folder / "policy.yaml").write_text("min_nodes: 0\n")
        self.digest = agreed(folder / "agreement.yaml", self.cfg, folder / "keys", **values)

    def import_table(self, client: int, seed: int = 0) -> None:
        """A member's table, or a new month of it."""
        graph = client_graph(client, 40, seed=seed)
        graph.num_clients = self.members
        graph.save(self.folder / "graphs" / f"client_{client:04d}.safetensors")

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
                **({"agreement": str(folder / "agreement.yaml")} if cfg.agreement else {"peers": str(folder / "keys")}),
            )
            for client in range(owner.members)
        ]
        for node in () if cfg.agreement else self.nodes:  # signatures name the run of Flower
            node.grid.run_id = node.context.run_id = self.nodes[0].context.run_id

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

    def opened_sum(
        self, server_round: int, clients: list[int], groups: Groups | None = None, phase: str = "train", **config: Any
    ) -> Groups | str:
        """Open a secure sum over some members, honestly otherwise; or the first refusal."""
        ask, place = self.ask, np.array(clients, np.int64)

        def each(name: str, down: dict[int, Groups]) -> dict[int, Any]:
            replies = {c: ask(c, name, server_round, down.get(c), **(config if name == phase else {})) for c in clients}
            if refused := [reply for reply in replies.values() if isinstance(reply, str)]:
                raise Refused(f"{name}: {refused[0]}")
            return replies

        try:
            keys = {c: reply[secagg.SECAGG] for c, reply in each(secagg.PUBLISH, {}).items()}
            dealt = {c: r[secagg.SECAGG] for c, r in each(secagg.DEAL, dict.fromkeys(clients, keys_of(keys))).items()}
            envelopes = {c: np.stack([dealt[p][secagg.ENVELOPES][i] for p in clients]) for i, c in enumerate(clients)}
            parts = {c: {secagg.SECAGG: {secagg.MEMBERS: place, secagg.ENVELOPES: envelopes[c]}} for c in clients}
            terms = each(phase, {c: {**(groups or {}), **parts[c]} for c in clients})
            agree = {secagg.SECAGG: {secagg.SURVIVORS: place}}
            signed = {c: r[secagg.SECAGG] for c, r in each(secagg.AGREE, dict.fromkeys(clients, agree)).items()}
            unmask = {secagg.SECAGG: secagg.relayed(signed)}
            shares = {c: r[secagg.SECAGG] for c, r in each(secagg.UNMASK, dict.fromkeys(clients, unmask)).items()}
        except Refused as refusal:
            return str(refusal)
        digests = {c: reply.pop(secagg.SECAGG)[secagg.AGREED].tobytes() for c, reply in terms.items()}
        return secagg.unmasked(
            terms,
            {c: part[secagg.SHARES] for c, part in shares.items()},
            clients,
            {c: published[secagg.KEYS] for c, published in keys.items()},
            secagg.threshold(0.0, len(clients)),
            self.cfg.privacy.secagg_bits,
            server_round,
            digests[clients[0]],
        )


class Refused(Exception):
    """A node refuses a message."""


def keys_of(published: dict[int, Arrays]) -> Groups:
    """The message that relays keys and sizes of a secure sum."""
    group = {name: np.stack([arrays[name] for arrays in published.values()]) for name in (secagg.KEYS, secagg.SIZES)}
    signed = {str(client): arrays[SIGNATURE] for client, arrays in published.items() if SIGNATURE in arrays}
    return {secagg.SECAGG: {secagg.CLIENTS: np.array(list(published), np.int64), **group}, SIGNATURES: signed}


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
