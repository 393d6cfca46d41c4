"""FedGCN (Yao et al., NeurIPS 2023, arXiv:2201.12433), server side: sums over neighbours cross clients once, then FedAvg.

    sums      Σ_{u ∈ V_i, u → v} x_u / √d_u, from each client i to the owner of v                      once
    smooth    z_v = (Â X)_v at the owner; with two hops, from it to the clients of v's neighbours      once
    extend    z_u and d_u of the external neighbours arrive                                            once, with two hops
    train     FedAvg

The server relays. It learns how many nodes of two clients are joined by edges, and can read the sums that it relays.
`fedgraph_baselines.clients.fedgcn` documents what they reveal. It learns the owner of each id, and refuses a node of two clients.
Leaves a client: those sums, degrees of nodes at cut edges, ids of its nodes, and FedAvg's uploads.
"""

from collections.abc import Mapping
from logging import WARNING

from fedgraph_baselines.methods import fedgcn
from fedgraph_baselines.methods.fedgcn import DEGREES, OWNED, ROWS, SPANS, SUMS, spans_of
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.logs import log
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.fedgrad import relayed
from fedgraph_flwr.strategies.owners import check_owners
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import LARGEST, ArrayField


class FedGCN(GraphStrategy, method=fedgcn):
    """FedAvg after an exchange of neighbours' sums."""

    @classmethod
    def rebuilds(cls, cfg: RunConfig) -> bool:
        """The sums are exchanged again."""
        return True

    def fields(self, phase: str, group: str, client: int | None) -> Mapping[str, ArrayField]:
        """Return rows for any other client, degrees of as many nodes, or ids of the client's nodes."""
        some = range(1, LARGEST + 1)
        if group == OWNED:
            return {"ids": ArrayField((some,), "int32", 0, LARGEST)}
        rows = ArrayField((some, self.agreed("num_features")), self.cfg.dtype, optional=True)
        degrees = ArrayField((some,), "int64", 0, LARGEST, optional=True)
        return dict.fromkeys((str(k) for k in self.clients if k != client), degrees if group == DEGREES else rows)

    def setup(self) -> None:
        """Relay sums to the owners, and their rows to the neighbours' clients."""
        if not self.params.hops:
            return
        replies = self.request_all("sums")
        spans: Arrays = {}
        if any(reply.groups.get(SUMS) for reply in replies):
            owned = {reply.client: reply.groups[OWNED]["ids"] for reply in replies}
            check_owners(owned)
            spans = spans_of(owned)
        else:
            log(
                WARNING,
                "no client has sums for another, which happens if no edges cross clients: strategy=%s equals FedAvg here",
                self.cfg.strategy.name,
            )
        sums = relayed(replies, SUMS)
        ranges = {SPANS: spans} if spans else {}
        replies = self.request_all("smooth", {client: {**arrays, **ranges} for client, arrays in sums.items()})
        if self.params.hops == 2:
            rows, degrees = (relayed(replies, group) for group in (ROWS, DEGREES))
            self.request_all("extend", {client: {**rows[client], **degrees[client]} for client in rows})
