"""FedNova: averages updates per local step (Wang et al., NeurIPS 2020, arXiv:2007.07481, Section 5).

    d_i = (x − y_i) / (η ‖a_i‖₁),   x ← x − τ_eff Σ_i p_i η d_i                                           (1)
    τ_eff = Σ_i p_i ‖a_i‖₁,   or Σ_i p_i K_i in the proximal variant                                      (2)

p_i by ``strategy.weighting`` over the cohort. With S = Σ_i p_i/‖a_i‖₁ it is one average with other
weights, ȳ = Σ_i (p_i/‖a_i‖₁) y_i / S:

    x ← x + τ_eff S (ȳ − x)                                                                               (1')

A robust rule R takes updates per step, with τ_eff and ‖a_i‖₁ from the configuration:

    x ← x + τ_eff R((y_1 − x)/‖a_1‖₁, ..., (y_n − x)/‖a_n‖₁)

Running statistics are ȳ, or the rule's. With equal ‖a_i‖₁ FedNova equals FedAvg (τ_eff S = 1),
except in the proximal variant. A client without steps counts only in τ_eff. Server momentum, which
the authors implement but do not use, is left out. K_i and ‖a_i‖₁ follow from the configuration.
Under differential privacy τ_eff counts the sampled clients, S all clients, and a lost reply moves
nothing, so that no factor depends on who replied. Leaves the client: what FedAvg sends.
"""

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods import fednova
from fedgraph_flwr.methods.fednova import work
from fedgraph_flwr.models import Model
from fedgraph_flwr.strategies.base import GraphStrategy, Groups
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, TRAIN, Arrays


class FedNova(GraphStrategy, method=fednova):
    """FedAvg with updates normalised by the number of local steps."""

    @classmethod
    def check(cls, cfg: RunConfig, model: Model) -> None:
        """Refuse settings with unknown ‖a_i‖₁."""
        fednova.check(cfg)

    @classmethod
    def startup_note(cls, cfg: RunConfig) -> str:
        """Equal steps of all clients are FedAvg's."""
        steps = {cfg.train.steps_of(client) for client in range(cfg.num_clients)}
        if fednova.proximal(cfg) or len(steps) > 1:
            return ""
        return (
            f"strategy={cfg.strategy.name} with as many local steps for every client is FedAvg; "
            "take train.local_steps_by_client=[2,5], say"
        )

    def before_train(self, arrays: Arrays) -> Groups:
        """Remember the sampled clients, of which later exchanges may drop some."""
        self.sampled = self.cohort
        return {}

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """Eq. (1')."""
        mean = reduced[MODEL]
        train = self.cfg.train
        mu = fednova.proximal(self.cfg)
        clients = self.counting.counted(self.sampled, reduced.clients)
        weights = self.weights(clients)
        items = self.counting.sizes("num_train", clients)  # a client without any takes no step
        steps = [
            train.steps_of(client) if count else 0
            for client, count in zip(clients, items, strict=True)
        ]
        length = [work(count, train, mu) for count in steps]
        total = sum(weights)
        taken = steps if mu else length
        effective = sum(p * t / total for p, t in zip(weights, taken, strict=True))
        if self.cfg.strategy.aggregator != "mean":  # the rule took updates over ‖a_i‖₁
            return self._moved(arrays, mean, effective)
        # over which a mean divides by the mean weight
        everyone = self.counting.counted(sorted(self.clients), clients)
        divided = self.counting.weights_of(self.uplink_of[TRAIN][MODEL], everyone)
        worth = sum(divided) / sum(self.weights(everyone))
        return self._moved(arrays, mean, worth * effective)

    def _moved(self, arrays: Arrays, mean: Arrays, stretch: float) -> Arrays:
        """The next parameters; running statistics are those of the mean."""
        after = dict(mean)
        for name in arrays.keys() - self.buffers:
            after[name] = arrays[name] + stretch * (mean[name] - arrays[name])
        return {name: after[name].astype(array.dtype) for name, array in arrays.items()}
