"""FedDC: local drift decoupling and correction (Gao et al., CVPR 2022, arXiv:2203.11751).

    w ← (1/|S|) Σ_{i∈S} θ_i + (1/M) Σ_i h_i

over M clients, of whom S answer: the mean model, and the mean of all clients' drifts, as the authors' program adds them (at full
participation the paper's mean of θ_i + h_i). c, the mean of what stands for the clients' gradients, is kept as SCAFFOLD does.
``strategy.weighting`` other than ``uniform`` weighs models, drifts and variates alike (ours; the authors' program scales α).
Without drift (α = 0) it is SCAFFOLD, without the gradient term FedDyn, without both FedAvg.
Leaves the client: beside what FedAvg sends, the change of c_i, as large as the model; the server finds drifts from the models.
"""

from typing import ClassVar

import numpy as np

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.variates import FedDCParams
from fedgraph_flwr.strategies.scaffold import Scaffold
from fedgraph_flwr.wire.messages import Arrays

DRIFT = "drift"


class FedDC(Scaffold):
    """Keeps the mean drift in `memory` beside c."""

    Params: ClassVar[type] = FedDCParams

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """No schedule makes it FedAvg."""
        return ""

    def moved(self, arrays: Arrays, mean: Arrays, share: float) -> Arrays:
        """W from the mean model and the drifts, of which the absent keep theirs."""
        if not self.params.alpha:
            return mean
        former, trained = self.memory.get(DRIFT, {}), arrays.keys() - self.buffers
        drift = {n: former.get(n, np.zeros_like(arrays[n])) + share * (mean[n] - arrays[n]) for n in trained}
        self.memory[DRIFT] = drift
        return mean | {n: mean[n] + drift[n] for n in trained}
