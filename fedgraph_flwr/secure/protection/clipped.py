"""Clipping at the client: the update of each group that is summed has a norm of at most C_g.

With distributed noise only the update leaves, in float64. Adaptive norms (`fedgraph_flwr.secure.adaptive`) arrive as group
`CLIPPING`, the clients' bits leave as group `CLIPPED`, and distributed updates are in units of their norm.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.downlink import Input
from fedgraph_flwr.methods.uplink import ARRAYS, Exchanges, Groups, Sum, sums
from fedgraph_flwr.secure.adaptive import bit, received_norms
from fedgraph_flwr.secure.clipping import clipped, clipped_model
from fedgraph_flwr.secure.protection.plain import Leaving, Protection, Taken
from fedgraph_flwr.wire.messages import CLIPPED, CLIPPING, Arrays, flat, shaped
from fedgraph_flwr.wire.reply_schema import ArrayField


class Clipped(Protection):
    """Each client bounds the norm of what it sends (``privacy.dp=client_...`` and ``distributed_...``)."""

    inner: Protection

    def uplink(self, phases: Mapping[str, Groups]) -> dict[str, Groups]:
        """Add the bits of adaptive norms to phases with a sum."""
        declaration = self.inner.uplink(phases)
        return (
            {phase: _with_bits(groups) for phase, groups in declaration.items()}
            if self.cfg.privacy.adaptive
            else declaration
        )

    def downlink(self, summed: Collection[str]) -> dict[str, dict[str, Input]]:
        """Add adaptive norms to phases with a sum."""
        if not self.cfg.privacy.adaptive:
            return {}
        return {phase: {CLIPPING: Input("the clipping norms of this exchange")} for phase in summed}

    def take(self, phase: str, groups: dict[str, Arrays], client_groups: Collection[str]) -> Taken:
        """Take adaptive norms."""
        return replace(self.inner.take(phase, groups, client_groups), groups={CLIPPING: groups.pop(CLIPPING, {})})

    def leave(self, leaving: Leaving) -> dict[str, Arrays]:
        """Clip each group that is summed.

        Raises:
            FedGraphError: the request had no origin of the update, or no norm.
        """
        sent, rules, declared = self.inner.leave(leaving), self.cfg.privacy, leaving.declared
        summed = [group for group in sums(declared) if group in sent]
        norms: Mapping[str, float] = {group: rules.norm(group) for group in summed}
        if rules.adaptive:
            norms = received_norms(leaving.taken.groups[CLIPPING], summed, rules)
        bounded: dict[str, Arrays] = {}
        bits: Arrays = {group: np.zeros(1) for group in sums(declared) if group != CLIPPED}
        for group in summed:
            arrays, norm = sent[group], norms[group]
            origin = {name: np.zeros_like(array) for name, array in arrays.items()}
            if getattr(declared[group], "origin", "") == ARRAYS:
                origin = self._origin(group, arrays, leaving.taken.model)
            update = flat(arrays) - flat(origin)
            bits[group] = np.array([bit(float(np.linalg.norm(update)), norm)])
            if rules.side == "distributed":
                update = clipped(update, norm) / (norm if rules.adaptive else 1.0)
                wide: Arrays = {name: array.astype(np.float64) for name, array in arrays.items()}
                bounded[group] = shaped(update, wide)
            else:
                bounded[group] = clipped_model(arrays, origin, norm)
        more = {CLIPPED: bits} if CLIPPED in declared and summed else {}
        return {**sent, **bounded, **more}

    def _origin(self, group: str, arrays: Arrays, model: Arrays) -> Arrays:
        """Return the shared parameters that came with the request, in the order of a group's arrays."""
        if {name: array.shape for name, array in model.items()} != {n: array.shape for n, array in arrays.items()}:
            raise FedGraphError(
                f"the server's message has no model with the arrays of '{group}', whose update privacy.dp={self.cfg.privacy.dp}"
                " clips"
            )
        return {name: model[name] for name in arrays}


def _with_bits(groups: Groups) -> Groups:
    """Groups of a phase, with the bits of adaptive clipping norms if some are added up."""
    if not (summed := sums(groups)):
        return groups
    bits = {group: ArrayField((1,), "float64", low=-0.5, high=0.5) for group in summed}
    more = {CLIPPED: Sum(bits)}
    return groups.also(more) if isinstance(groups, Exchanges) else {**groups, **more}
