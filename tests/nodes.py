"""A node of a fleet in this process, which a test's server may ask whatever it likes, and models of a server's choice."""

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto, recorddict_from_proto, recorddict_to_proto

from fedgraph_flwr.config import RunConfig, compose, configuration, to_json
from fedgraph_flwr.engine.grid import get_reply
from fedgraph_flwr.engine.inline import InlineGrid, run_identity
from fedgraph_flwr.fleet.agreements import Agreement, key_text, read, signed_part, write
from fedgraph_flwr.fleet.keys import check_key
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.node import respond
from fedgraph_flwr.node.node import Node as PartyNode
from fedgraph_flwr.node.node import Simulated, node_of
from fedgraph_flwr.partition import resolved
from fedgraph_flwr.secure.policy import Policy
from fedgraph_flwr.wire.messages import PROTOCOL, pack
from tests.conftest import client_graph
from tests.support import Finished, call_fresh


class Node:
    """One node of a fleet, which a server may ask whatever it likes; its processes live for one message."""

    def __init__(self, cfg: RunConfig, **config: str):
        from fedgraph_flwr.client_app import app

        self.grid = InlineGrid(app, 1, {"config": to_json(cfg), "overrides": ""})
        self.context = self.grid.contexts[1]
        self.context.node_config = config
        self.exchanges: dict[tuple[str, int], itertools.count] = {}

    def request(self, phase, server_round=0, groups=None, **config):
        """The reply, or the error message of a refusal. The exchange is counted, as an honest server does."""
        counted = next(self.exchanges.setdefault((phase, server_round), itertools.count()))
        values = {"phase": phase, "round": server_round, "exchange": counted, "protocol": PROTOCOL, **config}
        content = pack(groups or {})
        content["config"] = ConfigRecord({k: v for k, v in values.items() if v is not None})
        kind = {"train": MessageType.TRAIN, "evaluate": MessageType.EVALUATE}.get(phase, MessageType.QUERY)
        with run_identity(self.grid.run_id):
            node_clients.forget(self.grid.run_id)  # another process
            reply = self.grid._call(Message(content, dst_node_id=1, message_type=kind))
        self.code = reply.error.code if reply.has_error() else 0
        return reply.error.reason if reply.has_error() else reply.content

    def restart(self):
        """The SuperNode's process is gone, with what it kept in memory."""
        self.context.state = RecordDict()


def agreed(path: Path, cfg: RunConfig, keys: Path, names: Sequence[str] = (), **values: Any) -> str:
    """Write an agreement of the members whose keys are in a folder, signed by all, on the runs of a configuration; its digest."""
    members = {
        names[client] if names else f"bank_{client}": {
            "client": client,
            "key": key_text(check_key(keys / f"node_{client}").public_key()),
        }
        for client in range(len(list(keys.glob("node_*.pub"))))
    }
    content = {
        **{
            "agreement": 1,
            "name": "rings",
            "version": 1,
            "continues": "",
            "changed": [],
            "accepted": "",
            "purpose": "tests",
        },
        **{"until": "2099-01-01", "runs": 12, "coordinator": cfg.privacy.coordinator},
        **{
            "absent": "forbidden",
            "weights": "uniform",
            "epsilon": None,
            "start": "seed",
            "code": "releases",
            "schema": [],
            "members": members,
        },
        **{"configuration": signed_part(json.loads(to_json(resolved(cfg)))), "signatures": {}, **values},
    }
    if content["changed"] and not content["continues"]:
        content.update(version=2, continues="0" * 64)  # which no node knows
    agreement = Agreement(content, path)
    for client in range(len(members)):
        agreement.sign(check_key(keys / f"node_{client}"))
    write(agreement)
    return read(path).digest


def party_nodes(
    patch: pytest.MonkeyPatch,
    graphs: Sequence[Path],
    policy: Path,
    state: Path | None = None,
    keys: Path | None = None,
    agreement: Path | None = None,
) -> None:
    """Make client i of the in-process runs within a party's own node: the i-th file, a policy, perhaps state, keys, agreement.

    Every message reaches a new process, and passes through Flower's protobuf both ways, as on a fleet.
    """

    def call(self: InlineGrid, message: Message) -> Message:
        node = message.metadata.dst_node_id
        settings = {"graph": graphs[node - 1], "policy": policy}
        settings |= {"state": state / f"state_{node - 1}"} if state else {}
        settings |= {"key": keys / f"node_{node - 1}", "peers": keys} if keys else {}
        settings |= {"agreement": agreement} if agreement else {}
        self.contexts[node].node_config = {key: str(path) for key, path in settings.items()}
        node_clients.forget(self.run_id)
        reply = get_reply(self.app, over_the_wire(message), self.contexts[node])
        return reply if reply.has_error() else over_the_wire(reply)

    patch.setattr(InlineGrid, "_call", call)


def over_the_wire(message: Message) -> Message:
    """The message as its receiver has it."""
    return message_from_proto(type(proto := message_to_proto(message)).FromString(proto.SerializeToString()))


def nodes_with(patch: pytest.MonkeyPatch, policy: Callable[[], Policy], kind: type[PartyNode] = Simulated) -> None:
    """Make every node of this process one of this kind, with a policy of its own."""
    patch.setattr(respond, "node_of", lambda context: kind(context, policy()))


def rebuilt_clients(patch):
    """Every message meets a client rebuilt from ``context.state``; all of it passes through Flower's protobuf, as on a fleet."""

    def call(self: InlineGrid, message: Any) -> Any:
        context = self.contexts[message.metadata.dst_node_id]
        context.state = recorddict_from_proto(recorddict_to_proto(context.state))
        return over_the_wire(call_fresh(self, over_the_wire(message)))

    patch.setattr(InlineGrid, "_call", call)


def model_of(node, scale=1.0):
    """Shared parameters for a node, as a server makes them up."""
    client = node_clients.client_at(node_of(node.context)).client
    return {name: scale * tensor.detach().numpy() for name, tensor in client.shared.items()}


def made(kind, *overrides, graph=None, **policy):
    """A client of a fleet's node."""
    client = kind(
        compose(["num_clients=3", "model.hidden=8", "model.dropout=0", *overrides]),
        client_graph(0, 40) if graph is None else graph,
    )
    client.policy = Policy(**policy)
    return client


def looped(client):
    """A pseudo graph of self-loops, as the group of arrays that comes down."""
    nodes = np.arange(client.graph.num_nodes)
    return {"label": np.full(nodes.size, -1), "row": nodes, "col": nodes, "weight": np.ones(nodes.size)}


SGD = ["model=mlp", "model.dropout=0", "train.optimizer=sgd", "train.lr=1e-3", "train.weight_decay=0", "dtype=float64"]


def binning(model, width, features):
    """A first layer whose units all look one way and open one after the other, so that neighbours differ by few nodes.

    Robbing the Fed (Fowl et al., ICLR 2022). Unit k opens where x·d exceeds the k-th quantile of a normal distribution, which
    is all that the server guesses of the data.
    """
    direction = torch.randn(features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    share = torch.linspace(0.002, 0.998, width, dtype=torch.float64)
    first, bias, second = (
        next(n for n, a in model.items() if a.shape == s) for s in ((features, width), (width,), (width, 3))
    )
    planted = {name: np.zeros_like(array) for name, array in model.items()}
    planted[first] += (direction / direction.norm()).numpy()[:, None]
    planted[bias] -= torch.distributions.Normal(0.4, 1.3).icdf(share).numpy()
    planted[second] += np.array([1, -0.5, -0.5]) * 1e-6
    return planted, first, bias


class Killed(BaseException):
    """A process ends."""


def later(key: str, out: Path) -> Finished:
    """A run that reads an earlier one, as a command line starts it."""
    cfg = with_folder(configuration([f"{key}={out}"]))
    return Finished(cfg, run_inline(cfg))
