"""Checks of the parts that a configuration combines, against each other and against both classes of the method."""

from collections.abc import Collection

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.phases import phases
from fedgraph_flwr.config import RunConfig, StrategyConfig, group_names
from fedgraph_flwr.config.composition import group_file
from fedgraph_flwr.config.parts import KEYS, chosen, halves, parts_of, values
from fedgraph_flwr.config.schema import PERSONAL_PREFIXES
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.method_half import TAKING, inherits
from fedgraph_flwr.methods.uplink import LateMean, Mean, Uplink
from fedgraph_flwr.models import Model
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.server_part import ServerPart
from fedgraph_flwr.wire.messages import MODEL, TRAIN

SENDING = ("before_train", "before_evaluate")
"""Members by which a server sends groups with a model."""

TRAINING = ("train", "descend", "gradient")
"""Members of local training in which parts act; a class that overrides one may declare that it calls its base's."""

ORDER = ("objective", "personalization", "variates", "server_optimizer")
"""Keys in the order in which their parts are checked."""


def check_parts(cfg: RunConfig, server: type, client: type[GraphClient], uplink: Uplink) -> None:
    """Refuse parts that the method or another part does not allow, and keys of parts that are not chosen.

    Args:
        cfg: the run's configuration.
        server: class of the method's server.
        client: class of its clients.
        uplink: what leaves a client.

    Raises:
        FedGraphError: naming both, and what is accepted.
    """
    rules = cfg.strategy
    _check_sides(rules, server, client)
    _check_unused(rules)
    parts = parts_of(rules)
    for name, part in sorted(parts.items(), key=lambda item: ORDER.index(item[1].choice)):
        what = f"strategy.{part.choice}={name}"
        values(rules, name)
        if part.shared:
            _need_shared(rules, f"{what} {part.shared}")
        if part.mean:
            _need_mean(rules, what, server, uplink)
        if part.client:
            _need_hooks(rules, what, client, part.hooks)
        if part.step:
            _need_step(rules, f"{what} {part.step}", server, uplink)
    halves(rules, "server", ServerPart)


def check_personal(cfg: RunConfig, model: Model) -> None:
    """Refuse to keep a part of the model that does not travel anyway.

    Args:
        cfg: the run's configuration.
        model: a model of the run.

    Raises:
        FedGraphError: naming the part, and what the method shares.
    """
    rules = cfg.strategy
    part = cfg.strategy.personalization
    kept = PERSONAL_PREFIXES.get(part, [])
    shared = ", ".join(rules.shared) or "no parameters"
    if (
        kept
        and model.names(kept[0])
        and not model.shared(rules.shared).keys() & model.shared(kept).keys()
    ):
        why = f"strategy={rules.name} shares {shared} (strategy.shared), and nothing of the {part} travels"
        raise FedGraphError(f"strategy.personalization={part} has no effect: {why}: leave it out")


def _check_sides(rules: StrategyConfig, server: type, client: type[GraphClient]) -> None:
    """Refuse classes of different methods, and classes of which one sends or awaits groups that the other does not.

    Classes that a file names together are trusted. A client with its own phases may take what it
    needs there.
    """
    sides = (rules.server, rules.client)
    pairs = set[tuple[str, str]]()
    both = f"strategy.server={rules.server} and strategy.client={rules.client}"
    for name in sorted(group_names("strategy"), key=lambda name: name != rules.name):
        body = vars(StrategyConfig()) | group_file("strategy", name)
        if (pair := (body["server"], body["client"])) == sides:
            return
        pairs.add(pair)
    known = {target for pair in pairs for target in pair} - {
        StrategyConfig.server,
        StrategyConfig.client,
    }
    for key, side, other in (("client", 0, 1), ("server", 1, 0)):
        partners = {pair[other] for pair in pairs if pair[side] == sides[side]}
        if (
            partners
            and sides[side] in known
            and sides[other] in known | {getattr(StrategyConfig, key)}
        ):
            wanted = f"strategy.{key}={' or '.join(sorted(partners))}"
            raise FedGraphError(f"{both} are sides of different methods: expected {wanted}")
    sends = [hook for hook in SENDING if getattr(server, hook) is not getattr(GraphStrategy, hook)]
    takes = [hook for hook in TAKING if getattr(client, hook) is not getattr(GraphClient, hook)]
    if sends and not takes and phases(client) == phases(GraphClient):
        why = (
            f"sends groups by `{sends[0]}`, and {client.__name__} takes none: define its `receive`"
        )
    elif "receive" in takes and not sends:
        why = f"sends no groups, and {client.__name__} waits for some in `receive`: define the server's `before_train`"
    else:
        return
    fix = f"or name the two classes together in conf/strategy/{rules.name}.yaml"
    raise FedGraphError(f"{both} do not fit: {server.__name__} {why}, {fix}")


def _check_unused(rules: StrategyConfig) -> None:
    """Refuse a value for a part that is not chosen."""
    used = chosen(vars(rules))
    for part in KEYS.keys() - set(used):
        for key, default in vars(KEYS[part]()).items():
            if (value := getattr(getattr(rules, part), key)) != default:
                why = f"does not use '{part}'; it uses {', '.join(used) or 'no part with keys'}"
                raise FedGraphError(
                    f"strategy.{part}.{key}={value} has no effect: strategy={rules.name} {why}"
                )


def _need_step(rules: StrategyConfig, what: str, server: type, uplink: Uplink) -> None:
    """Refuse a part where the next model is not the weighted mean of the clients' models."""
    if server.step is not GraphStrategy.step or type(uplink[TRAIN][MODEL]) is not Mean:  # type: ignore[attr-defined]
        why = f"strategy={rules.name} has a server, {server.__name__}, that makes another model of the replies"
        fix = f"expected one with the `step` of {GraphStrategy.__name__}, such as strategy=fedavg"
        raise FedGraphError(f"{what}, and {why}: {fix}")


def _need_shared(rules: StrategyConfig, what: str) -> None:
    """Refuse a part that compares with the shared parameters where there are none."""
    if not rules.shared:
        why = f"strategy={rules.name} has none (strategy.shared=[])"
        raise FedGraphError(
            f"{what} the shared parameters, and {why}: set strategy.shared=[''], or leave the part out"
        )


def _need_hooks(
    rules: StrategyConfig, what: str, client: type[GraphClient], hooks: Collection[str]
) -> None:
    """Refuse a part where the method's client does not train or predict as the part expects."""
    if missing := [hook for hook in hooks if not hasattr(GraphClient, hook)]:
        raise FedGraphError(
            f"{what}: own of the Part names '{missing[0]}', which {GraphClient.__name__} lacks",
            "own-code",
        )
    called = client.capabilities.calls_base
    ignored = [hook for hook in TRAINING if hook not in called and not inherits(client, [hook])]
    ignored += [hook for hook in hooks if getattr(client, hook) is not getattr(GraphClient, hook)]
    if ignored:
        why = f"its client, {client.__name__}, has its own `{ignored[0]}`; expected that of {GraphClient.__name__}"
        raise FedGraphError(
            f"{what} does not go with strategy={rules.name}: {why}, such as strategy=fedavg"
        )


def _need_mean(rules: StrategyConfig, part: str, server: type, uplink: Uplink) -> None:
    """Refuse a part that needs the mean of the clients' models where the method has none."""
    model = uplink[TRAIN].get(MODEL)
    if rules.shared and isinstance(model, Mean | LateMean):
        return
    why = "shares no parameters (strategy.shared=[])"
    if rules.shared:
        why = f"has a server, {server.__name__}, that computes none{f' ({model.why})' if model and model.why else ''}"
    raise FedGraphError(
        f"{part} needs the mean of the clients' models, and strategy={rules.name} {why}: leave it out"
    )
