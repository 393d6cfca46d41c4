"""FedAdagrad, FedAdam and FedYogi (Reddi et al., ICLR 2021, arXiv:2003.00295): an adaptive optimiser on the server.

    Δ_t = Σ_i p_i θ_i^t − θ^t,   m_t = β1 m_{t−1} + (1 − β1) Δ_t,   m_{−1} = 0                      Algorithm 2
    FedAdagrad   v_t = v_{t−1} + Δ_t²
    FedAdam      v_t = β2 v_{t−1} + (1 − β2) Δ_t²
    FedYogi      v_t = v_{t−1} − (1 − β2) Δ_t² sign(v_{t−1} − Δ_t²)
    θ^{t+1} = θ^t + η m_t / (√v_t + τ)

The algorithm asks for v_{−1} ≥ τ²; it is τ² here. Nothing is corrected for bias. p_i by ``strategy.weighting``, where Algorithm 2
has the plain mean. Running statistics of a network, which no gradient trains, are averaged: a step along their signs could make
a variance negative.
Leaves the client: what FedAvg sends.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedgraph_flwr.config import number
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.wire.messages import MODEL, Arrays


@dataclass
class Params:
    """Keys of the three, and all of FedAdagrad."""

    beta1: float = number(0.0, high=1, without_high=True)  # β1 of Algorithm 2
    tau: float = number(1e-3, without_low=True)  # τ; a parameter that never moved would be divided by 0 without it
    server_lr: float = 0.03  # (ours) η; the paper tunes it for every task


@dataclass
class DecayParams(Params):
    """Keys of FedAdam and FedYogi."""

    beta1: float = number(0.9, high=1, without_high=True)  # β1 of Algorithm 2
    beta2: float = number(0.99, high=1, without_high=True)  # β2 of Algorithm 2
    server_lr: float = 0.01  # (ours) η; the paper tunes it for every task


class FedOpt(GraphStrategy):
    """What the three share; keeps m and v in `memory`, as ``first`` and ``second``."""

    def second_moment(self, former: np.ndarray, square: np.ndarray) -> np.ndarray:
        """v_t from v_{t−1} and Δ_t², elementwise."""
        raise NotImplementedError

    def step(self, arrays: Arrays, reduced: Reduced) -> Arrays:
        """One step of the server's optimiser."""
        p, after = self.params, dict(reduced[MODEL])
        first, second = self.memory.setdefault("first", {}), self.memory.setdefault("second", {})
        for name in arrays.keys() - self.buffers:
            delta = after[name] - arrays[name]
            former = first.get(name, np.zeros_like(delta)), second.get(name, np.full_like(delta, p.tau**2))
            first[name] = p.beta1 * former[0] + (1 - p.beta1) * delta
            second[name] = self.second_moment(former[1], delta**2)
            after[name] = arrays[name] + p.server_lr * first[name] / (np.sqrt(second[name]) + p.tau)
        return after


class FedAdagrad(FedOpt):
    """Steps shrink with all that a parameter has moved."""

    Params: ClassVar[type] = Params

    def second_moment(self, former: np.ndarray, square: np.ndarray) -> np.ndarray:
        """The sum of squares."""
        return former + square


class FedAdam(FedOpt):
    """Steps shrink with what a parameter has moved of late."""

    Params: ClassVar[type] = DecayParams

    def second_moment(self, former: np.ndarray, square: np.ndarray) -> np.ndarray:
        """The mean of squares, fading."""
        return self.params.beta2 * former + (1 - self.params.beta2) * square


class FedYogi(FedOpt):
    """FedAdam whose v changes by no more than Δ_t², however large v is."""

    Params: ClassVar[type] = DecayParams

    def second_moment(self, former: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Towards the square, by a share of the square."""
        return former - (1 - self.params.beta2) * square * np.sign(former - square)
