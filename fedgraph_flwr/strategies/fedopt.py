"""FedAdagrad, FedAdam and FedYogi (Reddi et al., ICLR 2021, arXiv:2003.00295): an adaptive optimiser on the server.

    Δ_t = Σ_i p_i θ_i^t − θ^t,   m_t = β1 m_{t−1} + (1 − β1) Δ_t,   m_{−1} = 0                      Algorithm 2
    FedAdagrad   v_t = v_{t−1} + Δ_t²
    FedAdam      v_t = β2 v_{t−1} + (1 − β2) Δ_t²
    FedYogi      v_t = v_{t−1} − (1 − β2) Δ_t² sign(v_{t−1} − Δ_t²)
    θ^{t+1} = θ^t + η m_t / (√v_t + τ)

The algorithm requires v_{−1} ≥ τ²; here it equals τ². Moments have no bias correction. p_i follows
``strategy.weighting``, while Algorithm 2 uses the plain mean. Running statistics of a model, which
gradients do not train, are averaged: a step along their signs could make a variance negative.
Leaves the client: what FedAvg sends.
"""

from typing import Any

import numpy as np

from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.strategies.server_part import ServerPart
from fedgraph_flwr.wire.messages import Arrays


class Adaptive(ServerPart):
    """Common step of the three optimisers; stores m and v in `memory`, as ``first`` and ``second``."""

    def second_moment(self, keys: Any, previous: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Return v_t from v_{t−1} and Δ_t², elementwise."""
        raise NotImplementedError

    def step(self, server: Server, arrays: Arrays, mean: Arrays, reduced: Reduced) -> Arrays:
        """Take one step of the server's optimiser."""
        p = self.keys
        after = dict(mean)
        first = server.memory.setdefault("first", {})
        second = server.memory.setdefault("second", {})
        for name in arrays.keys() - server.buffers:
            delta = after[name] - arrays[name]
            m = first.get(name, np.zeros_like(delta))
            v = second.get(name, np.full_like(delta, p.tau**2))
            m = p.beta1 * m + (1 - p.beta1) * delta
            v = self.second_moment(p, v, delta**2)
            first[name] = m
            second[name] = v
            after[name] = arrays[name] + p.server_lr * m / (np.sqrt(v) + p.tau)
        return after


class Adagrad(Adaptive):
    """Divides by the sum of all squared updates."""

    def second_moment(self, keys: Any, previous: np.ndarray, square: np.ndarray) -> np.ndarray:
        """The sum of squares."""
        return previous + square


class Adam(Adaptive):
    """Divides by a moving mean of squared updates."""

    def second_moment(self, keys: Any, previous: np.ndarray, square: np.ndarray) -> np.ndarray:
        """The moving mean of squares."""
        return keys.beta2 * previous + (1 - keys.beta2) * square


class Yogi(Adaptive):
    """FedAdam whose v changes by no more than Δ_t², however large v is."""

    def second_moment(self, keys: Any, previous: np.ndarray, square: np.ndarray) -> np.ndarray:
        """v_{t−1} moved towards the square, by a share of the square."""
        return previous - (1 - keys.beta2) * square * np.sign(previous - square)
