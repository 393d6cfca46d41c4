"""Eligibility of a method for each protection, derived from its uplink (`fedgraph_flwr.methods.uplink`).

The server checks it before any client starts, and each client before it builds its model.
"""

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.schema import FEW_ROWS
from fedgraph_flwr.errors import FedGraphError, check_names
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, LateMean, Mean, Public, Relay, Uplink, named, shown, sums
from fedgraph_flwr.methods.variates import VARIATES
from fedgraph_flwr.secure.accounting import relation
from fedgraph_flwr.secure.adaptive import value_multiplier
from fedgraph_flwr.secure.secagg import MIN_CLIENTS
from fedgraph_flwr.wire.messages import CLIPPED, DESCRIBE, MODEL, TRAIN


def shares_nothing(cfg: RunConfig, uplink: Uplink) -> str:
    """Return why no value of several clients is reduced; empty if one is."""
    rules = cfg.strategy
    if rules.pooled:
        return "has one client"
    groups = [group for _, group, reducer in shown(uplink) if reducer.reduced]
    return "" if [g for g in groups if g != MODEL] or (groups and rules.shared) else "shares nothing"


def not_private(cfg: RunConfig, uplink: Uplink) -> str:
    """Return what differential privacy does not cover; empty: it covers everything that leaves a client."""
    for phase, group, reducer in shown(uplink):
        if not (reducer.early or isinstance(reducer, Public)):
            return f"needs {named(phase, group, reducer)}"
    return shares_nothing(cfg, uplink)


def not_secure(cfg: RunConfig, uplink: Uplink) -> str:
    """Return what secure aggregation does not hide; empty: it hides everything except the groups in ``privacy.reveal``."""
    for phase, group, reducer in shown(uplink):
        sealed = isinstance(reducer, Relay) and reducer.sealed
        revealed = group in cfg.privacy.reveal and not isinstance(reducer, LateMean)
        if not (reducer.early or isinstance(reducer, Public) or sealed or revealed):
            return f"needs {named(phase, group, reducer)}"
    if not any(sums(groups) for groups in uplink.values()):
        return "needs no sum of clients' values"
    return shares_nothing(cfg, uplink)


def not_verified(cfg: RunConfig, uplink: Uplink) -> str:
    """Return what nodes cannot compute for themselves; empty: they open sums alone, which ``max_update`` bounds."""
    for phase, group, reducer in shown(uplink):
        if phase == DESCRIBE and isinstance(reducer, Public):
            continue  # numbers of the agreement
        if not reducer.early:
            return f"needs {named(phase, group, reducer)}"
        if (phase, group) == (TRAIN, VARIATES) and cfg.strategy.variates in ("scaffold", "feddc"):
            if cfg.train.plain_sgd and not cfg.train.local_epochs:
                continue
            return "needs plain SGD (train.optimizer=sgd) without train.local_epochs, where privacy.max_update bounds variates"
        of_model = (phase, group) == (TRAIN, MODEL) and getattr(reducer, "origin", "") == ARRAYS
        if not (of_model or getattr(reducer, "bounded", False)):
            return f"needs the sum of '{group}' in phase '{phase}', by which a member reaches more than by privacy.max_update"
    return shares_nothing(cfg, uplink)


def not_robust(cfg: RunConfig, uplink: Uplink) -> str:
    """Return why a robust rule has no mean of models to replace; empty: it has one."""
    reducer = uplink[TRAIN].get(MODEL)
    if reducer is None or not reducer.reduced:
        why = f" ({reducer.why})" if reducer and reducer.why else ""
        return f"does not average models{why}" if cfg.strategy.shared and not cfg.strategy.pooled else "shares nothing"
    return "has one client" if cfg.strategy.pooled else "" if cfg.strategy.shared else "shares nothing"


def not_added(cfg: RunConfig, uplink: Uplink) -> str:
    """Return why ``ray.aggregate`` cannot sum the training replies; empty: it can."""
    for group, reducer in uplink[TRAIN].items():
        if isinstance(reducer, LateMean):
            return f"needs {named(TRAIN, group, reducer)}"
    if not sums(uplink[TRAIN]):
        individual = [(g, r) for g, r in uplink[TRAIN].items() if isinstance(r, Individual)]
        return f"needs {named(TRAIN, *individual[0])}" if individual else "sends no sum"
    return shares_nothing(cfg, uplink)


def check(cfg: RunConfig, uplink: Uplink) -> None:
    """Refuse a protection that would not cover what a client sends.

    Raises:
        FedGraphError: names the protection, and what it does not cover.
    """
    rules, privacy, method = cfg.strategy, cfg.privacy, f"strategy={cfg.strategy.name}"
    late = [group for _, group, reducer in shown(uplink) if not reducer.early]
    check_names(privacy.reveal, {*late}, f"privacy.reveal: group of {method}")
    single = [g for _, g, r in shown(uplink) if isinstance(r, Individual) or (isinstance(r, Relay) and not r.sealed)]
    revealing = f", or accept that the server sees them: privacy.reveal=[{','.join(dict.fromkeys(single))}]"
    seen = not_secure(cfg, uplink)
    if privacy.dp != "none":
        promise = f"privacy.dp={privacy.dp} covers means and sums of clipped values"
        _require_all(not_private(cfg, uplink), promise, method, "another strategy, or privacy.dp=none")
    if privacy.secagg:
        promise = "privacy.secagg=true shows the server only sums of clients' values"
        _require_all(seen, promise, method, f"privacy.secagg=false{revealing if 'values of' in seen else ''}")
    if privacy.coordinator == "verified":
        promise = "privacy.coordinator=verified lets nodes compute rounds from sums that it bounds"
        _require_all(not_verified(cfg, uplink), promise, method, "another strategy, or privacy.coordinator=curious")
    if cfg.ray.aggregate:
        promise = "ray.aggregate=true sums training replies before the server sees them"
        _require_all(not_added(cfg, uplink), promise, method, "ray.aggregate=false")
    if rules.aggregator != "mean":
        promise = f"strategy.aggregator={rules.aggregator} combines clients' models"
        _require_all(not_robust(cfg, uplink), promise, method, "strategy.aggregator=mean")
    if privacy.dp != "none":
        _check_privacy(cfg, uplink)
    if privacy.secagg and (size := rules.cohort_size(cfg.num_clients)) < MIN_CLIENTS:
        sizes = f"this run has {size} (num_clients={cfg.num_clients}, strategy.fraction={rules.fraction:g})"
        raise FedGraphError(f"privacy.secagg=true requires at least {MIN_CLIENTS} clients per round, but {sizes}")
    mean = uplink[TRAIN].get(MODEL)
    averaged = isinstance(mean, LateMean) or (isinstance(mean, Mean) and mean.weight == "weighting")
    if rules.max_share < 1 and (rules.aggregator != "mean" or not averaged):
        what = f"aggregator={rules.aggregator} uses no weights" if averaged else f"{method} has no weighted mean"
        raise FedGraphError(
            f"strategy.max_share={rules.max_share:g} caps a weight, but {what}: set strategy.max_share=1"
        )


def _require_all(needs: str, promise: str, method: str, advice: str) -> None:
    if needs:
        raise FedGraphError(f"{promise}, but {method} {needs}; set {advice}")


def _check_privacy(cfg: RunConfig, uplink: Uplink) -> None:
    rules, privacy = cfg.strategy, cfg.privacy
    weighted = any(isinstance(r, Mean) and r.weight in ("weighting", "shares") for _, _, r in shown(uplink))
    if rules.weighting == "nodes" or (weighted and rules.weighting != "uniform"):
        nodes = " uploads each client's number of nodes and" if rules.weighting == "nodes" else ""
        raise FedGraphError(
            f"strategy.weighting={rules.weighting}{nodes} gives clients shares above 1/n, which privacy.dp={privacy.dp} does not"
            " cover: set strategy.weighting=uniform, or privacy.dp=none"
        )
    for groups in uplink.values():
        if count := len(set(sums(groups)) - {CLIPPED}):
            value_multiplier(privacy, count, rules.cohort_size(cfg.num_clients))
    known = sorted({g for _, g, r in shown(uplink) if r.early} - {CLIPPED})
    check_names(sorted(privacy.clipping_norms), known, f"privacy.clipping_norms: group of strategy={rules.name}")


def notes(cfg: RunConfig, uplink: Uplink) -> list[str]:
    """Return notes for the user at the start, on what a run's protections do not cover."""
    rules, texts = cfg.privacy, list[str]()
    if groups := ", ".join(rules.reveal):
        texts.append(f"privacy.secagg=true masks averages; privacy.reveal shows the server each client's {groups}")
    if rules.secagg and rules.side != "distributed":
        texts.append(
            "privacy.secagg=true without privacy.dp=distributed hides single updates in each sum, but sums of several rounds add"
            " up: only noise bounds what they reveal of a client (SECURITY.md)"
        )
    if rules.unit == "row" and rules.rows < FEW_ROWS:
        texts.append(
            f"privacy.unit=row with privacy.rows={rules.rows}: with 10000 rows per party, a model under this noise was not better"
            f" than a party's own without privacy; expect a gain from {FEW_ROWS} rows (docs/privacy.md)"
        )
    if rules.unit != "client":
        texts.append(f"privacy.unit={rules.unit} protects: {relation(rules)}")
    means = [(group, mean) for _, group, mean in shown(uplink) if isinstance(mean, Mean)]
    equal = ", ".join(group for group, mean in means if mean.weight in ("train", "nodes"))
    if rules.dp != "none" and equal:
        texts.append(f"privacy.dp={rules.dp}: clients count the same in {equal}, whose weights are private")
    return texts
