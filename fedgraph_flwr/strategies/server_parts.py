"""Parts of a method on the server: what it makes of the mean of the clients' models, chosen by the configuration.

A part stores its state in the strategy's `memory`, under its own names, so that checkpoints contain
it.
"""

from fedgraph_flwr.config import StrategyConfig
from fedgraph_flwr.strategies.fedavgm import Momentum
from fedgraph_flwr.strategies.feddc import FedDC
from fedgraph_flwr.strategies.feddyn import FedDyn
from fedgraph_flwr.strategies.fedopt import Adagrad, Adam, Yogi
from fedgraph_flwr.strategies.scaffold import Scaffold
from fedgraph_flwr.strategies.server_part import ServerPart

KINDS: dict[str, type[ServerPart]] = {
    **{"scaffold": Scaffold, "feddyn": FedDyn, "feddc": FedDC},
    **{"momentum": Momentum, "adam": Adam, "yogi": Yogi, "adagrad": Adagrad},
}
"""Class of each part, by its name."""


def server_parts(cfg: StrategyConfig) -> list[ServerPart]:
    """The parts of a configuration, in the order in which they change the next parameters."""
    return [KINDS[name]() for name in (cfg.variates, cfg.server_optimizer) if name in KINDS]
