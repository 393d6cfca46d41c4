"""Checks of the parts that a configuration combines, against each other and against both classes of the method."""

from fedgraph_flwr.config import RunConfig, StrategyConfig
from fedgraph_flwr.config.parts import KEYS, chosen
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.uplink import LateMean, Mean, Uplink
from fedgraph_flwr.wire.messages import MODEL, TRAIN


def check_parts(cfg: RunConfig, server: type, uplink: Uplink) -> None:
    """Refuse parts that the method or another part does not allow, and keys of parts that are not chosen.

    Args:
        cfg: the run's configuration.
        server: class of the method's server.
        uplink: what leaves a client.

    Raises:
        FedGraphError: naming both, and what is accepted.
    """
    rules = cfg.strategy
    _check_unused(rules)
    if rules.server_optimizer != "average":
        _need_mean(rules, f"strategy.server_optimizer={rules.server_optimizer}", server, uplink)


def _check_unused(rules: StrategyConfig) -> None:
    """Refuse a value for a part that is not chosen."""
    for part in KEYS.keys() - set(chosen(vars(rules))):
        for key, default in vars(KEYS[part]()).items():
            if (value := getattr(getattr(rules, part), key)) != default:
                raise FedGraphError(
                    f"strategy.{part}.{key}={value} does nothing: strategy={rules.name} does not use '{part}'; it uses"
                    f" {', '.join(chosen(vars(rules))) or 'no part with keys'}"
                )


def _need_mean(rules: StrategyConfig, part: str, server: type, uplink: Uplink) -> None:
    """Refuse a part that needs the mean of the clients' models where the method has none."""
    model = uplink[TRAIN].get(MODEL)
    if not rules.shared:
        why = "shares no parameters (strategy.shared=[])"
    elif isinstance(model, Mean | LateMean):
        return
    else:
        why = f"has a server, {server.__name__}, that computes none" + (
            f" ({model.why})" if model and model.why else ""
        )
    raise FedGraphError(f"{part} needs the mean of the clients' models, and strategy={rules.name} {why}: leave it out")
