"""FedDC: local drift decoupling and correction (Gao et al., CVPR 2022, arXiv:2203.11751).

    w ← (1/|S|) Σ_{i∈S} θ_i + (1/M) Σ_i h_i

M is the number of clients, S the clients that reply. The model w is the mean model plus the mean of
all clients' drifts, as in the authors' code. With full participation this is the paper's mean of
θ_i + h_i. The mean c of the clients' control variates is kept as in SCAFFOLD. A
``strategy.weighting`` other than ``uniform`` applies to models, drifts and variates (ours; the
authors' code scales α). Without drift (α = 0) it is SCAFFOLD, without the gradient term FedDyn,
without both FedAvg. Leaves the client: FedAvg's uploads, and the change of c_i, as large as the
model; the server finds drifts from the models.
"""

import numpy as np

from fedgraph_flwr.strategies.scaffold import Scaffold
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.wire.messages import Arrays

DRIFT = "drift"


class FedDC(Scaffold):
    """Keeps the mean drift in `memory` next to c."""

    def moved(self, server: Server, arrays: Arrays, mean: Arrays, share: float) -> Arrays:
        """Return w from the mean model and the drifts; absent clients keep theirs."""
        if not self.keys.alpha:
            return mean
        previous = server.memory.get(DRIFT, {})
        trained = arrays.keys() - server.buffers
        drift = {
            n: previous.get(n, np.zeros_like(arrays[n])) + share * (mean[n] - arrays[n])
            for n in trained
        }
        server.memory[DRIFT] = drift
        return mean | {n: mean[n] + drift[n] for n in trained}
