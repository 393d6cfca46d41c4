"""FedProto (Tan et al., AAAI 2022, arXiv:2105.00243), server side.

    C̄^j = Σ_{i ∈ N_j} |D_ij| C_i^j / Σ_{i ∈ N_j} |D_ij|                        Eq. (6), N_j the cohort's clients with class j

As printed, Eq. (6) divides by |N_j| once more, which would shrink a prototype that many clients have. Its proof (appendix B)
does not, and the authors' code takes the plain mean. A class that no client of the cohort has keeps its prototype (ours). No
model travels.
Leaves a client: see `fedgraph_baselines.clients.fedproto`.
"""

import numpy as np

from fedgraph_baselines.methods import prototypes
from fedgraph_baselines.methods.prototypes import PROTOTYPES, WIDTH
from fedgraph_baselines.strategies.remembered import RememberedGroup
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import Arrays


class FedProto(RememberedGroup, method=prototypes):
    """Pools prototypes, stored in `memory`."""

    remembered = PROTOTYPES

    def setup(self) -> None:
        """Determine the shape of the prototypes."""
        self.shape = self.agreed("num_classes"), self.agreed(WIDTH)

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Compute Eq. (6); no parameters are shared. A class with a noised count below 1/2 keeps its prototype."""
        total, count = reduced[PROTOTYPES]["sum"], reduced[PROTOTYPES]["count"]
        known = count > 0.5
        if known.any():
            self.keep(np.where(known[:, None], total / np.maximum(count, 1)[:, None], 0), known)
        return arrays

    def keep(self, pooled: np.ndarray, known: np.ndarray) -> None:
        """Store prototypes [C, D] of the classes that a client has [C] in `memory`."""
        previous = self.memory.get(PROTOTYPES, {"mean": np.zeros(self.shape), "known": np.zeros(self.shape[:1], bool)})
        mean = np.where(known[:, None], pooled, previous["mean"]).astype(self.cfg.dtype)
        self.memory[PROTOTYPES] = {"mean": mean, "known": previous["known"] | known}
