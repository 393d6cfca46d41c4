"""FedAvg with local fine-tuning (Wang et al., 2019, arXiv:1910.10252; Yu, Bagdasaryan & Shmatikov, 2020, arXiv:2002.04758).

    v_i ← w^t,   v_i ← v_i − η ∇F_i(v_i),  E times                                          fine-tuning, Section 2 of the former

When it is scored, the client tunes a copy of the received model on all its training nodes, with a new optimiser, is scored with
it, and discards it. Training is FedAvg's bit for bit. E = 0 is FedAvg. Leaves the client: FedAvg's uploads.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedgraph_flwr.clients.personal import PersonalClient, copied


@dataclass
class Params:
    """Keys of fine-tuning."""

    steps: int = 3  # (ours) E, the default number of steps per round; 0 is FedAvg


class FineTunedClient(PersonalClient):
    """FedAvg's client, scored with a tuned copy."""

    Params: ClassVar[type] = Params
    tunes: ClassVar[bool] = True

    def personal_parameters(self) -> dict[str, Tensor]:
        """Return v_i."""
        with self.with_parameters({}):
            optimizer = self.begin_training()
            for _ in range(self.params.steps if self.num_train else 0):
                self.gradient(optimizer)
                self.update(optimizer)
            return copied(self.model.state_dict())
