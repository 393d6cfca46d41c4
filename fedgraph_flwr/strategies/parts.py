"""Parts of a method on the server: what it makes of the mean of the clients' models, chosen by the configuration.

A part keeps its state in the strategy's `memory`, below names of its own, so that checkpoints hold it.
"""

from fedgraph_flwr.config import StrategyConfig
from fedgraph_flwr.strategies.contract import ServerPart
from fedgraph_flwr.strategies.fedavgm import Momentum
from fedgraph_flwr.strategies.fedopt import Adagrad, Adam, Yogi

OPTIMIZERS: dict[str, type[ServerPart]] = {"momentum": Momentum, "adam": Adam, "yogi": Yogi, "adagrad": Adagrad}
"""By ``strategy.server_optimizer``; ``average`` takes the mean as it is."""


def server_parts(cfg: StrategyConfig) -> list[ServerPart]:
    """The parts of a configuration, in the order in which they change the next parameters."""
    return [OPTIMIZERS[name]() for name in (cfg.server_optimizer,) if name in OPTIMIZERS]
