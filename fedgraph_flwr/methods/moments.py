"""Central moments of hidden features held by many clients, and the discrepancy that compares them (FedOMD, CMD).

One array [H, 5, D] holds the moments for H layers of width D: row 0 is the mean, rows 1 to 4 the central moments of orders 2
to 5. Pooling is exact: the moments of a union are means over clients of moments about one point, the pooled mean or any other.

Source: Tang et al., ICPP Workshops 2024, Eq. 10-11; Zellinger et al., ICLR 2017 (CMD).
"""

import itertools
from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

ORDERS = (2, 3, 4, 5)
EPS = 1e-12  # inside a root: the gradient of a norm is undefined at 0, and near 0 it is a unit vector of rounding noise


class _CentralMoments(torch.autograd.Function):
    """Mean and central moments along dim 0, storing one copy of the features instead of all their powers.

    With c = z − m:  ∂C_j/∂z_v = (j/n) (c_v^{j−1} − C_{j−1}),  C_1 = 0.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        mean = z.mean(0)
        centred = z - mean
        moments = torch.stack([mean, *_power_means(centred)], dim=-2)  # [..., 5, D]
        ctx.save_for_backward(centred, moments)
        return moments

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        centred, moments = ctx.saved_tensors
        grad = grads[0].unbind(-2)
        slope = 5 * grad[4] * centred
        for j in (4, 3, 2):  # Horner: Σ_j j g_j c^{j−1}
            slope = (slope + j * grad[j - 1]).mul_(centred)
        centre = sum(j * grad[j - 1] * moments[..., j - 2, :] for j in (3, 4, 5))  # Σ_j j g_j C_{j−1}, C_1 = 0
        return slope.add_(grad[0] - centre).div_(centred.shape[0])


def central_moments(z: Tensor) -> Tensor:
    """Compute the mean and central moments of features z [N, H, D] → [H, 5, D], differentiable."""
    return _CentralMoments.apply(z)


def central_moments_of(z: Tensor, rows: Tensor) -> Tensor:
    """Compute `central_moments` of the rows of z [N, H, D] selected by a mask [N]."""
    chosen = rows.to(z.dtype).view(-1, 1, 1)
    count = chosen.sum()
    mean = (z * chosen).sum(0) / count
    centred = (z - mean) * chosen
    powers = itertools.accumulate([centred] * max(ORDERS), torch.mul)
    return torch.stack([mean, *(power.sum(0) / count for power in itertools.islice(powers, 1, None))], dim=-2)


def moments_about(z: Tensor, mean: Tensor) -> Tensor:
    """Compute S_{i,j}: moments of orders 2 to 5 of z [N, H, D] about a given mean [H, D] → [H, 4, D], not differentiable."""
    return torch.stack(_power_means(z - mean), dim=-2)


def _power_means(centred: Tensor) -> list[Tensor]:
    """Compute the means over dim 0 of the powers 2 to 5, in one buffer: fresh memory costs more than the product."""
    power = centred.clone()
    return [power.mul_(centred).mean(0) for _ in ORDERS]


def powers_about(z: Tensor, point: Tensor) -> Tensor:
    """Compute the means of the powers 1 to 5 of z − point, for z [N, H, D] and a point [H, D] → [H, 5, D], in float64."""
    gap = z.double() - point.double()
    return torch.stack([gap.mean(0), *_power_means(gap)], dim=-2)


def central(powers: NDArray[Any], point: NDArray[Any]) -> NDArray[np.float64]:
    """Convert `powers_about` [H, 5, D] a point [H, D] to mean and central moments [H, 5, D], in float64.

    With P_0 = 1 and δ = P_1, the mean's distance from the point: S_j = Σ_k (j choose k) P_k (−δ)^{j−k}.
    """
    raw = [np.ones_like(powers[:, 0]), *powers.swapaxes(0, 1)]
    delta = powers[:, 0]
    shifted = [sum(comb(j, k) * raw[k] * (-delta) ** (j - k) for k in range(j + 1)) for j in ORDERS]
    return np.stack([point + delta, *map(np.asarray, shifted)], axis=1)


NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda squares: (squares.sum(-1) + EPS).sqrt(),  # ‖·‖₂, as Eq. (11) and CMD print it
    "squared": lambda squares: squares.sum(-1),
    "mean": lambda squares: (squares.mean(-1) + EPS).sqrt(),
    "mean_squared": lambda squares: squares.mean(-1),
}
"""Norms that turn the D entries of a difference of moments into a number, from their squares [..., D]."""


def discrepancy(moments: Tensor, target: Tensor, span: Tensor, norm: str = "norm") -> Tensor:
    """Compute d_CMD (Eq. 11) between ``moments`` and ``target`` [H, 5, D], summed over layers.

    ``span`` [H] holds b − a; ``norm`` is a key of `NORMS`.

    Σ_k ( ‖M_i − M‖₂ / (b−a) + Σ_{j=2}^{5} ‖C_{i,j} − S_j‖₂ / (b−a)^j ), a scalar with the gradient of ``moments``.
    """
    scale = span.unsqueeze(1) ** torch.arange(1, 6, device=span.device)  # [H, 5]
    return NORMS[norm](((moments - target) / scale.unsqueeze(2)).square()).sum()
