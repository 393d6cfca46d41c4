"""FedAvg with local fine-tuning (Wang et al., 2019, arXiv:1910.10252; Yu, Bagdasaryan & Shmatikov, 2020, arXiv:2002.04758).

    v_i ← w^t,   v_i ← v_i − η ∇F_i(v_i),  E times                                          fine-tuning, Section 2 of the former

For each scoring, the client tunes a copy of the received model on all its training nodes, with a new optimiser. It discards the
copy afterwards. Training is FedAvg's bit for bit. E = 0 is FedAvg. Leaves the client: FedAvg's uploads.
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import ClientPart, copied, with_parameters
from fedgraph_flwr.clients.descent import begin_training, update


class Finetune(ClientPart):
    """A tuned copy of the received model."""

    serves: ClassVar[frozenset[str]] = frozenset({"nodes"})
    samples: ClassVar[bool] = False
    tunes: ClassVar[bool] = True
    of_nodes: ClassVar[bool] = True

    def parameters(self, client: GraphClient) -> Mapping[str, Tensor]:
        """v_i."""
        with with_parameters(client, {}):
            optimizer = begin_training(client)
            for _ in range(self.keys.steps if client.num_train else 0):
                client.gradient(optimizer)
                update(client, optimizer)
            return copied(client.model.state_dict())
