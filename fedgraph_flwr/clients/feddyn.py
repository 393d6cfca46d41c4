"""FedDyn at the client (Acar et al., ICLR 2021, arXiv:2111.04263).

    θ_i = argmin_θ F_i(θ) − ⟨g_i, θ⟩ + (α/2) ‖θ − x‖²                                                     Eq. (1)
    g_i ← g_i − α (θ_i − x),   which is ∇F_i(θ_i) at the minimum                                          Eq. (2)

x is the received model. ``train.local_steps`` steps from x approximate the minimum. Far from the minimum, α must be large enough
for the server's sum of θ_i − x to decay. The reported loss is F_i only.
Leaves the client: what FedAvg sends.
"""

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.variates import Named, Variates, own

DUAL = "dual"


class FedDyn(Variates):
    """A loss that the client's own g_i tilts and x holds."""

    def correction(self, client: GraphClient) -> Named:
        """Return what Eq. (1) adds to the gradient of F_i."""
        return {name: -dual for name, dual in self.renewed(client)[DUAL].items()}

    def renewed(self, client: GraphClient) -> dict[str, Named]:
        """Return g_i by Eq. (2)."""
        moved = self.moved(client)
        return {DUAL: {name: dual - self.keys.alpha * moved[name] for name, dual in own(client, DUAL).items()}}
