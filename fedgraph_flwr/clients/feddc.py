"""FedDC client (Gao et al., CVPR 2022, arXiv:2203.11751).

    min_θ F_i(θ) + R_i + G_i,   R_i = (α/2) ‖h_i + θ − w‖²,   G_i = ⟨θ, c − c_i⟩                          (1)
    h_i ← h_i + θ_i − w                                                                                   (2)

w is the model received, h_i this client's drift. The paper's G_i is ⟨θ, g_i − g⟩/(η K) with the last local updates g_i and
their mean g; the authors' program has in their place SCAFFOLD's control variates, option II, which agree but for the correction
c − c_i that those updates held. Ours is the program's, and as in SCAFFOLD option I where steps are no gradients.
``train.local_steps`` steps from w stand for the minimum. The loss told is F_i alone. Leaves the client: beside what FedAvg
sends, the change of c_i.
"""

from typing import ClassVar

from torch import Tensor

from fedgraph_flwr.clients.scaffold import CONTROL, ScaffoldClient
from fedgraph_flwr.clients.variates import Named
from fedgraph_flwr.config import TASKS
from fedgraph_flwr.methods.variates import FedDCParams
from fedgraph_flwr.numerics.optim import Optimizer

DRIFT = "drift"


class FedDCClient(ScaffoldClient):
    """SCAFFOLD's client, held at w − h_i."""

    Params: ClassVar[type] = FedDCParams
    serves: ClassVar[frozenset[str]] = frozenset(TASKS)

    def gradient(self, optimizer: Optimizer) -> Tensor:
        """Leave the gradient of Eq. (1) in the parameters; returns F_i."""
        loss = super().gradient(optimizer)
        self.correct({name: self.params.alpha * drift for name, drift in self.drift().items()})
        return loss

    def drift(self) -> Named:
        """Eq. (2)."""
        moved = self.moved()
        return {name: drift + moved[name] for name, drift in self.own(DRIFT).items()}

    def renewed(self) -> dict[str, Named]:
        """c_i where G_i is on, and h_i."""
        control = super().renewed() if self.params.gradient_term else {CONTROL: self.own(CONTROL)}
        return {**control, DRIFT: self.drift()}
