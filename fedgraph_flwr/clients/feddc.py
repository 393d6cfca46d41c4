"""FedDC at the client (Gao et al., CVPR 2022, arXiv:2203.11751).

    min_θ F_i(θ) + R_i + G_i,   R_i = (α/2) ‖h_i + θ − w‖²,   G_i = ⟨θ, c − c_i⟩                          (1)
    h_i ← h_i + θ_i − w                                                                                   (2)

w is the received model, h_i this client's drift. The paper's G_i is ⟨θ, g_i − g⟩/(η K) with the last local updates g_i and their
mean g. The authors' code uses SCAFFOLD's control variates, option II, instead; they differ by the correction c − c_i in those
updates. We follow the authors' code, with SCAFFOLD's option I where steps are not gradients. ``train.local_steps`` steps from w
approximate the minimum. The reported loss is F_i only.
Leaves the client: what FedAvg sends, and the change of c_i.
"""

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.scaffold import CONTROL, Scaffold
from fedgraph_flwr.clients.variates import Named, own

DRIFT = "drift"


class FedDC(Scaffold):
    """SCAFFOLD's client, held at w − h_i."""

    def correct(self, client: GraphClient, terms: Named) -> None:
        """Add G_i's term, then R_i's, of Eq. (1)."""
        super().correct(client, terms)
        super().correct(client, {name: self.keys.alpha * drift for name, drift in self.drift(client).items()})

    def drift(self, client: GraphClient) -> Named:
        """Return h_i by Eq. (2)."""
        moved = self.moved(client)
        return {name: drift + moved[name] for name, drift in own(client, DRIFT).items()}

    def renewed(self, client: GraphClient) -> dict[str, Named]:
        """Return c_i if G_i is on, and h_i."""
        control = super().renewed(client) if self.keys.gradient_term else {CONTROL: own(client, CONTROL)}
        return {**control, DRIFT: self.drift(client)}
