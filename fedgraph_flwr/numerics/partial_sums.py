"""Sums of clients' arrays that are taken in parts, and have the same bits in whatever order and however many parts that is.

Floating-point addition depends on its order; that of whole numbers does not. Each term is therefore split into two whole
numbers, hi of 2^-30 and lo of 2^-70. It loses what is below half of that, 4e-22. A float64 of the size of a model's weights
loses 1e-18.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.wire.messages import Arrays, positive
from fedgraph_flwr.wire.reply_schema import ArrayField, ReplySchema

HI, LO = 30, 70
"""Bits after the point of the two parts. 2^24 terms of lo, each of at most 2^39, fit into an int64."""

MOST = 2.0**32
"""Values that a sum takes: smaller than this. Weights are shares, so no sum is larger."""


@dataclass(frozen=True)
class Plan:
    """Arrays of an exchange's replies that are summed where they are computed.

    Attributes:
        groups: groups of arrays that each reply must hold.
        shares: share of each client in the sum of each group, by node and group; they sum to 1.
    """

    groups: Mapping[str, Mapping[str, ArrayField]]
    shares: Mapping[int, Mapping[str, float]]

    @property
    def schema(self) -> ReplySchema:
        """Schema of the summed part of a reply."""
        return ReplySchema(self.groups)


@dataclass
class PartialSum:
    """Σ_i s_i y_i over some clients.

    Attributes:
        parts: hi and lo, int64 of an array's shape, by group and name.
        nodes: whose arrays are in it.
        bytes: size of their arrays, by group.
    """

    parts: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)
    nodes: list[int] = field(default_factory=list)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, node: int, groups: Mapping[str, Arrays], shares: Mapping[str, float]) -> None:
        """Add one client with its share in the sum of each group.

        Raises:
            FedGraphError: a value is too large; nothing was added then.
        """
        for arrays in groups.values():
            for name, array in arrays.items():
                if array.size and not np.abs(array).max() < MOST:
                    raise FedGraphError(
                        f"'{name}' has values of 2^32 or more, which ray.aggregate=true cannot add: lower train.lr, or set false"
                    )
        terms = {
            g: {name: _split(shares[g] * array.astype(np.float64)) for name, array in a.items()}
            for g, a in groups.items()
        }
        self._take(terms)
        self.nodes.append(node)
        self.bytes.update({group: sum(a.nbytes for a in arrays.values()) for group, arrays in groups.items()})

    def merge(self, other: "PartialSum") -> None:
        """The clients of another part."""
        self._take(other.parts)
        self.nodes += other.nodes
        self.bytes.update(other.bytes)

    def means(
        self,
        shares: Mapping[int, Mapping[str, float]],
        groups: Mapping[str, Mapping[str, ArrayField]],
        added: Mapping[str, int] | None = None,
    ) -> dict[str, Arrays]:
        """The weighted means over the clients that are in it, of the types that their replies had.

        Args:
            shares: by node and group.
            groups: the fields of each.
            added: groups of which the sum is wanted, in float64, and the clients of which each share was one part.

        Raises:
            FedGraphError: their shares sum to 0.
        """
        means: dict[str, Arrays] = {}
        for group, parts in self.parts.items():
            totals = {name: np.asarray(hi * 2.0**-HI + lo * 2.0**-LO) for name, (hi, lo) in parts.items()}
            if added and group in added:
                means[group] = {name: np.asarray(total * added[group]) for name, total in totals.items()}
                continue
            weight = positive(sum(shares[node][group] for node in sorted(self.nodes)))
            means[group] = {
                name: np.asarray(total / weight).astype(groups[group][name].dtype) for name, total in totals.items()
            }
        return means

    def _take(self, terms: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]) -> None:
        for group, arrays in terms.items():
            sums = self.parts.setdefault(group, {})
            for name, (hi, lo) in arrays.items():
                sums[name] = (sums[name][0] + hi, sums[name][1] + lo) if name in sums else (hi, lo)


def _split(term: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A float64 array as whole numbers of 2^-30 and, for the rest, of 2^-70."""
    hi = np.rint(term * 2.0**HI)
    lo = np.rint((term - hi * 2.0**-HI) * 2.0**LO)
    return np.asarray(hi, np.int64), np.asarray(lo, np.int64)
