"""Coefficients alignment (FedHGN, Fu & King, IJCAI 2023, section 4.2): keys, wire names and mathematics, for both sides.

    L_align = Σ_{a ∈ A} min_{b ∈ other clients' node types} ‖β_a − b‖² + Σ_{r ∈ R} min_{b ∈ ... edge types} ‖β_r − b‖²  Eq. (3)

A *name* is that of a declared weight, such as ``edge_1``: one kind of type in one layer. Only vectors of one name are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph_flwr.config import RunConfig, choice
from fedgraph_flwr.methods.downlink import Input, Inputs
from fedgraph_flwr.methods.uplink import ARRAYS, Individual, Mean, Once, Relay, Uplink
from fedgraph_flwr.wire.messages import MODEL, TRAIN

COEFFICIENTS = "coefficients"
"""Group of arrays that a client sends: β [T, B] by name, one row for each of its types."""

POOL = "pool"
"""Group that a client receives: the others' vectors [P, B] by name, as an unordered set."""

ROWS = "rows"
"""Group that a client sends once if the schema is shared: the numbers of its types, [T] by name."""

TELL = "tell_coefficients"
"""The phase before round 1 in which clients send β, and the rows if the schema is shared."""


@dataclass
class Params:
    """Keys of FedHGN."""

    align: float = 0.5  # λ of the local objective, section 5.1; 0: no pools are sent
    # round 1 aligns with: initial coefficients | empty: nothing | zeros, as in the authors' code
    first_pool: str = choice("initial", ("initial", "empty", "zeros"))


def alignment(beta: Tensor, pool: Tensor) -> Tensor:
    """Compute Eq. (3) for one name: Σ_t min_p ‖β_t − pool_p‖², gradient 2 (β_t − nearest); 0 for an empty pool.

    Shapes: beta [T, B], pool [P, B], a constant.
    """
    if not pool.size(0) or not beta.size(0):
        return beta.sum() * 0.0
    # The other mode loses digits.
    distance = torch.cdist(beta.detach(), pool, compute_mode="donot_use_mm_for_euclid_dist")
    return (beta - pool[distance.argmin(1)]).pow(2).sum()


def shuffled_pool(
    coefficients: Mapping[int, Mapping[str, np.ndarray]], receiver: int, name: str, rng: np.random.Generator
) -> np.ndarray:
    """Return the vectors [P, B] of all clients but the receiver in random order, which hides whose they are."""
    others: Sequence[np.ndarray] = [known[name] for client, known in coefficients.items() if client != receiver]
    pool = np.concatenate(others) if others else np.zeros((0, 0), dtype=np.float32)
    return np.ascontiguousarray(pool[rng.permutation(len(pool))])


def uplink(cfg: RunConfig, params: Any) -> Uplink:
    """Declare the uplink: shared tensors without types are averaged, coefficients are relayed to the other clients."""
    averaged = any(f"{COEFFICIENTS}.".startswith(prefix) for prefix in cfg.strategy.shared)
    shared = Individual(ARRAYS, why="coefficients are averaged over the clients that hold a type") if averaged else None
    pooled = Relay(why="each client aligns its coefficients with those of the others")
    rows = {} if cfg.strategy.private_schema else {ROWS: Individual(why="the server must know who holds a type")}
    return {
        TELL: Once({COEFFICIENTS: pooled, **rows}),
        TRAIN: {MODEL: shared or Mean(ARRAYS, origin=ARRAYS), COEFFICIENTS: pooled},
    }


def downlink(cfg: RunConfig, params: Any) -> Mapping[str, Inputs]:
    """Declare each client's pools."""
    return {TRAIN: {POOL: Input("the other clients' coefficients in a random order, by name")}}
