"""Client-level differential privacy of the means and sums that a method declares (`fedgraph_flwr.methods.uplink`).

    Δ̄_i = Δ_i min(1, C / ‖Δ_i‖₂),   θ^{t+1} = θ^t + (1/n) Σ_i Δ̄_i + N(0, (z C / n)² I)       McMahan et al., ICLR 2018

for the model, with equal weights. In general, each of the G groups of an exchange is clipped to its
own C_g and gets noise z C_g √G. A client's factor is p_i / max_j p_j, and the sum is divided by a
number that follows from the configuration. An exchange is one release; further computations on
released values cost nothing. z is ``privacy.noise_multiplier``, C is ``privacy.clipping_norm``
(``privacy.clipping_norms`` for single groups), n the number of clients that a round samples. The
number n is fixed before the round. With the number of replies instead, one client more or less
would also change the divisor, and count twice. The server clips (``server_fixed``, it sees
unclipped updates), or each client does and the server refuses longer updates (``client_fixed``).
The server draws the noise from a cryptographic generator (`fedgraph_flwr.secure.noise`), never from
the run's seed. Under ``..._adaptive`` norms follow a quantile of the clients' norms
(`fedgraph_flwr.secure.adaptive`). Under ``distributed`` clients clip and add the noise before a
secure sum (`fedgraph_flwr.secure.distributed`). In both cases values and noise are integers on a
lattice (`fedgraph_flwr.secure.lattice`).

Accounting (`fedgraph_flwr.secure.accounting`) covers the sequence of released models, without
amplification by sampling, for one client whose contribution is replaced by zero. Places of a round
are drawn among all ``num_clients``, whoever is there (`fedgraph_flwr.methods.cohorts`), so an
absent client changes no other contribution. ε does not cover scores and training losses.
``privacy.scores=none`` keeps them at the clients. ``noised`` releases s_i ∈ [0, 1]^2, each client's
``evaluation.metric`` on validation and test nodes, over all K clients of the run,

    (1/K) Σ_i s_i + N(0, (z √2 / K)² I),

as ‖s_i‖₂ ≤ √2. This counts as one release with the models' z; a client without nodes to score adds
0. Scores are clipped to [0, 1] by the client, which sends nothing else of its scores, and again by
the server. A custom metric has no bound and is refused. No client's own scores, no other metric and
no loss are recorded then.

A run on the model of an earlier one (``init``) adds that run's releases, unless they have other
data (`fedgraph_flwr.store.earlier`): Rényi divergences add up.

A run that dies may have released models that no record contains, and a resumed run draws other
noise for the same rounds. So a checkpoint counts in advance every release before the next one, and
a resumed run counts its own before its first.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.evaluation.metrics import SPLITS
from fedgraph_flwr.methods.uplink import Groups, Uplink, released_once, releases, sums
from fedgraph_flwr.secure.accounting import (
    cost,
    divergence,
    epsilon_of,
    least_sensitivity,
    relation,
)
from fedgraph_flwr.secure.adaptive import adapted, bit, count_noise, value_multiplier
from fedgraph_flwr.secure.clipping import SLACK, clipped
from fedgraph_flwr.secure.lattice import noisy_sum
from fedgraph_flwr.secure.spent import divergence_of
from fedgraph_flwr.store.earlier import earlier_privacy
from fedgraph_flwr.wire.messages import CLIPPED, MODEL, Arrays, flat, shaped
from fedgraph_flwr.wire.trees import Tree


@dataclass
class Terms:
    """One group of an exchange, whose clipped sum is released.

    Attributes:
        origin: start of the updates that the values are.
        values: arrays per client that replied.
        factors: weight per client, relative to the largest weight.
        size: divisor of the sum; it follows from the configuration, not from who replied.
    """

    origin: Arrays
    values: list[Arrays]
    factors: list[float]
    size: float


class Privacy:
    """The releases of a run and their cost.

    Args:
        cfg: the run's configuration.

    Attributes:
        norms: C_g by group, the current ones.
        size: n.
        clients: K.
        metric: the score that is released if scores are noised.
        releases: releases of models, and of noised scores, that left the server or may have.
        earlier: releases of earlier runs on the same data, whose model this run starts with.
        starts: whether this run starts with a model (``init``).
    """

    __slots__ = ("cfg", "clients", "earlier", "metric", "norms", "releases", "size", "starts")

    def __init__(self, cfg: RunConfig):
        self.cfg = cfg.privacy
        self.metric = cfg.evaluation.headline
        self.size = cfg.strategy.cohort_size(cfg.num_clients)
        self.clients = cfg.num_clients
        self.releases = 0
        self.norms: dict[str, float] = {}
        self.earlier = earlier_privacy(cfg)
        self.starts = bool(cfg.init)

    def norm(self, group: str) -> float:
        """Return C_g, the largest L2 norm of a client's update of a group."""
        return self.norms.setdefault(group, self.cfg.norm(group))

    def unit(self, group: str) -> float:
        """Return the unit of a group's masked values: its adaptive norm."""
        return self.norms[group] if self.cfg.adaptive and group != CLIPPED else 1.0

    def norms_for(self, declared: Groups) -> Arrays:
        """Return the adaptive norms that clients need to reply to a phase, by group."""
        if CLIPPED not in declared:
            return {}
        return {
            group: np.array([self.norm(group)]) for group in sums(declared) if group != CLIPPED
        }

    def adapt(self, bits: Mapping[str, float], clients: int) -> None:
        """Move norms towards the quantile.

        Args:
            bits: noisy sums by group; empty where norms are fixed.
            clients: that the exchange was meant for.
        """
        for group, total in bits.items():
            self.norms[group] = adapted(
                self.norm(group), self.cfg.norm(group), total, clients, self.cfg
            )

    def verify(self, client: int, group: str, arrays: Arrays, origin: Arrays) -> None:
        """Refuse an update that the client should have clipped.

        Raises:
            FedGraphError: it is longer than the norm.
        """
        if self.cfg.side != "client" or group == CLIPPED:
            return
        norm = np.linalg.norm(flat(arrays) - flat(origin))
        bound = self.norm(group)
        if not norm <= bound * (1 + SLACK):
            key = (
                "privacy.clipping_norms"
                if group in self.cfg.clipping_norms
                else "privacy.clipping_norm"
            )
            of_group = "" if group == MODEL else f" of '{group}'"
            raise FedGraphError(
                f"client {client} replied with an update{of_group} of L2 norm {norm:g}, expected at most {key}={bound:g}"
            )

    def book(self) -> None:
        """Count one release, before any of it is known.

        Raises:
            RunFailed: the budget does not allow it.
        """
        if not self.allows(1):
            raise RunFailed(
                f"one more release would exceed privacy.epsilon_budget={self.cfg.epsilon_budget:g} after {self.releases} releases"
            )
        self.releases += 1

    def release(self, groups: Mapping[str, Terms], clients: int = 0) -> dict[str, Arrays]:
        """Return the noised means and sums of one exchange, which count as one release.

        Each of G groups gets noise z C_g √G, so that together they are one Gaussian release with
        multiplier z. Adaptive norms take a part of it for the bits
        (`fedgraph_flwr.secure.adaptive`).

        Args:
            groups: whose sums are released.
            clients: that the exchange was meant for; default: n.

        Raises:
            RunFailed: the budget does not allow it.
        """
        self.book()
        values = {group: terms for group, terms in groups.items() if group != CLIPPED}
        bits = self._bits(values, groups.get(CLIPPED)) if self.cfg.adaptive else {}
        multiplier = value_multiplier(self.cfg, len(values), self.size)
        noised = {
            group: self._released(group, terms, multiplier * math.sqrt(len(values)))
            for group, terms in values.items()
        }
        self.adapt(bits, clients or self.size)
        return noised

    def _bits(self, groups: Mapping[str, Terms], sent: Terms | None) -> dict[str, float]:
        """Return Σ_i b_i with noise by group, from the bits that clients sent, or from their updates if the server clips."""
        scale = count_noise(self.cfg, len(groups), self.size)
        counts = {}
        for group, terms in groups.items():
            if sent:
                bits = [float(one[group][0]) for one in sent.values]
            else:
                updates = (flat(values) - flat(terms.origin) for values in terms.values)
                bits = [
                    bit(float(np.linalg.norm(update)), self.norm(group)) for update in updates
                ]
            terms_of = (np.array([bit_sent]) for bit_sent in bits)
            counts[group] = float(noisy_sum(terms_of, 0.5, scale, 1)[0]) if scale else sum(bits)
        return counts

    def _released(self, group: str, terms: Terms, multiplier: float) -> Arrays:
        """Return one group, with noise of ``multiplier`` C_g."""
        start = flat(terms.origin)
        bound = self.norm(group)
        updates = (
            weight * clipped(flat(values).astype(np.float64) - start, bound)
            for weight, values in zip(terms.factors, terms.values, strict=True)
        )
        noised = self.cfg.noise_multiplier
        total = (
            noisy_sum(updates, bound, multiplier * bound, start.size)
            if noised
            else sum(updates, np.zeros(start.size))
        )
        return shaped(start + total / terms.size, terms.origin)

    def release_scores(self, scores: Mapping[str, list[float]]) -> dict[str, float]:
        """Return noised means over all clients, from each client's scores by split and metric, clipped to [0, 1]; counts them."""
        released = {
            f"{split}_{self.metric}": scores[f"{split}-{self.metric}"] for split in SPLITS
        }
        bound = math.sqrt(len(released))
        self.releases += 1
        # [K, 2]
        values = np.clip(np.nan_to_num(np.array(list(released.values()), np.float64)), 0, 1).T
        total = (
            noisy_sum(values, bound, self.cfg.noise_multiplier * bound, len(released))
            / self.clients
        )
        return dict(zip(released, total.tolist(), strict=True))

    def next_round(self, pending: bool, releases: int = 1) -> int:
        """Return the releases of the next round: its exchanges and, for noised scores, its scores and the ``pending`` ones."""
        return releases + (self.cfg.scores == "noised") * (1 + pending)

    def spent(self) -> dict[str, Any]:
        """Return the releases so far, and the ε that they and those of earlier runs cost at the run's δ; null without a bound."""
        budget = {"budget": self.cfg.epsilon_budget} if self.cfg.epsilon_budget else {}
        bounded = self.cfg.noise_multiplier and not self.earlier.unbounded
        kind: dict[str, Any] = (
            {"noise": "distributed"} if self.cfg.side == "distributed" else {}
        )
        kind |= {"clipping_norms": dict(self.norms)} if self.cfg.adaptive else {}
        if self.cfg.noise_multiplier and self.starts:
            kind["own_epsilon"] = cost(self.cfg, self.clients, self.releases)
            kind["earlier"] = list(self.earlier.entries)
            kind |= {"unbounded": self.earlier.unbounded} if self.earlier.unbounded else {}
        epsilon = self.epsilon(self.releases) if bounded else None
        common = {"epsilon": epsilon, "delta": self.cfg.delta, "releases": self.releases}
        return {**common, **budget, "relation": relation(self.cfg), **kind}

    def epsilon(self, count: int) -> float:
        """Return ε, at the run's δ, of ``count`` releases of this run and of all of earlier runs on the same data."""
        if not self.earlier.entries:
            return cost(self.cfg, self.clients, count)
        run_divergence = divergence(
            self.cfg.noise_multiplier,
            count,
            least_sensitivity(self.cfg, self.clients),
            self.cfg.sampling_rate,
        )
        return epsilon_of(run_divergence + divergence_of(self.earlier.entries), self.cfg.delta)

    def affordable(self, count: int) -> int:
        """Return how many of ``count`` further releases the budget allows."""
        budget = self.cfg.epsilon_budget
        while budget and count and self.epsilon(self.releases + count) > budget:
            count -= 1
        return count

    def allows(self, count: int) -> bool:
        """Return whether the budget covers ``count`` further releases."""
        return self.affordable(count) == count

    def state(self, ahead: Iterable[int]) -> Tree:
        """Return a checkpoint's part: the noise, and the releases so far and of the rounds before the next checkpoint.

        Args:
            ahead: releases in the exchanges of each of these rounds.
        """
        rounds = sum(self.next_round(False, releases) for releases in ahead)
        coming = self.affordable(rounds + self.next_round(True) - self.next_round(False))
        booked = {
            "releases": self.releases + coming,
            "noise_multiplier": self.cfg.noise_multiplier,
        }
        if self.cfg.adaptive:
            booked |= {f"norm {group}": norm for group, norm in self.norms.items()}
        return {key: torch.tensor(value, dtype=torch.float64) for key, value in booked.items()}

    def load_state(self, state: Tree) -> None:
        """Restore what `state` returned, before anything else is released.

        Raises:
            FedGraphError: the checkpoint's releases had other noise, or none.
        """
        multiplier = float(state.get("noise_multiplier", torch.tensor(0.0)))
        if multiplier != self.cfg.noise_multiplier:
            now = self.cfg.noise_multiplier
            raise FedGraphError(
                f"the checkpoint has privacy.noise_multiplier={multiplier:g}, this run {now:g}, and ε covers one: set the first"
            )
        self.releases += int(state.get("releases", 0))
        if self.cfg.adaptive:
            self.norms |= {
                key[5:]: float(value) for key, value in state.items() if key.startswith("norm ")
            }


def check_clients(cfg: RunConfig, uplink: Uplink) -> None:
    """Refuse a δ that protects no client, and a budget that the first release would exceed.

    Raises:
        FedGraphError: names the key, its value and the bound.
    """
    privacy = cfg.privacy
    if privacy.dp == "none":
        return
    if cfg.resume and Path(cfg.resume).resolve() != Path(cfg.out).resolve():
        raise FedGraphError(
            f"a run with privacy.dp resumes only in its own folder: set out={cfg.resume}, not {cfg.out}"
        )
    if privacy.delta > (most := 1 / cfg.num_clients):
        raise FedGraphError(
            f"privacy.delta={privacy.delta:g} would allow publishing all data of one client: expected at most {most:g}"
        )
    least = released_once(uplink) + releases(uplink) + (privacy.scores == "noised")
    budget = privacy.epsilon_budget
    if not budget:
        return
    account = Privacy(cfg)
    if account.earlier.unbounded:
        raise FedGraphError(
            f"privacy.epsilon_budget={budget:g} cannot hold: {account.earlier.unbounded}; start without init, or without a budget"
        )
    if (first := account.epsilon(least)) > budget:
        after = (
            f" after init={cfg.init}, whose ε together"
            if account.earlier.entries
            else ", whose ε"
        )
        raise FedGraphError(
            f"privacy.epsilon_budget={budget:g} does not allow one round{after} is {first:.3g}: raise the budget or the noise"
        )
