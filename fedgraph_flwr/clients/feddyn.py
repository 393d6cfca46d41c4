"""FedDyn client (Acar et al., ICLR 2021, arXiv:2111.04263).

    θ_i = argmin_θ F_i(θ) − ⟨g_i, θ⟩ + (α/2) ‖θ − x‖²                                                     Eq. (1)
    g_i ← g_i − α (θ_i − x),   which is ∇F_i(θ_i) at the minimum                                          Eq. (2)

in place of the minimum, ``train.local_steps`` steps from x, the model received: far from the minimum, α must be large enough
for the server's sum of θ_i − x to die out. The loss told is F_i alone. Leaves the client: what FedAvg sends.
"""

from typing import ClassVar

from torch import Tensor

from fedgraph_flwr.clients.variates import Named, VariateClient
from fedgraph_flwr.config import TASKS
from fedgraph_flwr.methods.variates import FedDynParams
from fedgraph_flwr.numerics.optim import Optimizer

DUAL = "dual"


class FedDynClient(VariateClient):
    """Trains on a loss that its own g_i tilts and x holds."""

    Params: ClassVar[type] = FedDynParams
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)

    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave the gradient of Eq. (1) in the parameters; returns F_i."""
        loss = super().gradient(optimizer)
        self.correct({name: -dual for name, dual in self.renewed()[DUAL].items()})
        return loss

    def renewed(self) -> dict[str, Named]:
        """Eq. (2)."""
        moved = self.moved()
        return {DUAL: {name: dual - self.params.alpha * moved[name] for name, dual in self.own(DUAL).items()}}
