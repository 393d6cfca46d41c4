"""SCAFFOLD at the client (Karimireddy et al., ICML 2020, arXiv:1910.06378).

    y_i ← y_i − η (g_i(y_i) + c − c_i),   K times from y_i = x                                           Eq. (3)
    c_i⁺ = g_i(x)   (option I)   or   c_i − c + (x − y_i)/(K η)   (option II)                            Eq. (4)

g_i includes the weight decay. Option I uses the gradient of the first step, at x and over all training nodes. It is correct for
any optimiser, which receives g_i + c − c_i as its gradient (ours: the paper uses plain SGD). A parameter without a gradient, such
as that of an edge type that the client does not have, stays unchanged, and so does its c_i.
Leaves the client: FedAvg's uploads, and c_i⁺ − c_i.
"""

import torch
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.client_part import Step
from fedgraph_flwr.clients.variates import OFFER, OWN, Named, Variates, own, trained
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.methods.variates import VARIATES, averages_steps, need_plain_sgd
from fedgraph_flwr.models import Model
from fedgraph_flwr.numerics.optim import Optimizer
from fedgraph_flwr.wire.messages import Arrays

CONTROL = "control"


class Scaffold(Variates):
    """Training against the drift; `round_state` also has g_i(x), by the names of the parameters that it reaches."""

    def check(self, cfg: RunConfig, model: Model) -> None:
        """Refuse option II without plain SGD."""
        if self.keys.option == "II":
            need_plain_sgd(f"strategy.{self.name}.option=II", cfg.train, f"strategy.{self.name}.option=I")

    def note(self, cfg: RunConfig) -> str:
        """One plain step of all clients is FedAvg's."""
        rules, several = cfg.strategy, max(cfg.train.steps_of(client) for client in range(cfg.num_clients)) > 1
        if several or not cfg.train.plain_sgd or rules.fraction < 1 or not self.is_alone(rules):
            return ""
        if self.keys.server_lr != 1:
            return ""
        return f"strategy={rules.name} with one local step of SGD a round is FedAvg; take train.local_steps=2 or more"

    def begin(self, client: GraphClient) -> None:
        """Find c − c_i."""
        control, state, common = own(client, CONTROL), self.state(client), self.common(client)
        state["correction"] = {name: common[name] - control[name] for name in control}
        super().begin(client)

    def correction(self, client: GraphClient) -> Named:
        """Return c − c_i."""
        return self.state(client)["correction"]

    def gradient(self, client: GraphClient, inner: Step, optimizer: Optimizer) -> Tensor:
        """Leave g_i + c − c_i in the parameters; returns F_i."""

        def seen(optimizer: Optimizer) -> Tensor:
            loss = inner(optimizer)
            if not client.steps:
                decay, parameters = client.cfg.train.weight_decay, trained(client)
                self.state(client)["first"] = {
                    n: g + decay * p.detach() for n, p in parameters.items() if (g := p.grad) is not None
                }
            return loss

        return super().gradient(client, seen, optimizer)

    def renewed(self, client: GraphClient) -> dict[str, Named]:
        """Return c_i by Eq. (4)."""
        state = self.state(client)
        variates: Named = state["first"]
        if averages_steps(self.keys.option, client.cfg.train):
            way, reach, correction = self.moved(client), client.steps * client.cfg.train.lr, state["correction"]
            variates = {name: -correction[name] - way[name] / reach for name in variates}
        return {CONTROL: own(client, CONTROL) | variates}

    def send(self, client: GraphClient) -> dict[str, Arrays]:
        """Return c_i⁺ − c_i, zero where nothing trained."""
        before = own(client, CONTROL)
        after = client.memory.get(OFFER, {}).get(OWN, {}).get(CONTROL, before)
        change = {n: after[n] - before[n] if n in before else torch.zeros_like(t) for n, t in client.shared.items()}
        return {VARIATES: {name: tensor.detach().cpu().numpy().copy() for name, tensor in change.items()}}
