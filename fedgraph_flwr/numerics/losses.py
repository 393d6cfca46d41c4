"""The loss of a client's task, for labels in balance and out of it (``train.loss``).

    cross_entropy   (1/n) Σ_v −ln p_v,                       p_v the softmax at v's label
    weighted        Σ_v w_v (−ln p_v) / Σ_v w_v,             w_v = n / (C' n_c) for the n_c nodes of v's class c
    focal           (1/n) Σ_v (1 − p_v)^γ (−ln p_v)          (Lin et al., ICCV 2017, eq. 4; arXiv:1708.02002)

C' is the number of classes that occur. γ = 0, and classes in balance, give cross_entropy.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.config import TrainConfig


def class_weights(y: Tensor, num_classes: int) -> Tensor:
    """Weights [C] by which every class that occurs in ``y`` [n] counts the same; 0 for others."""
    count = torch.bincount(y, minlength=num_classes).to(torch.get_default_dtype())
    return torch.where(count > 0, y.numel() / (count.clamp(min=1) * (count > 0).sum().clamp(min=1)), 0.0)


def task_loss(logits: Tensor, y: Tensor, cfg: TrainConfig, weights: Tensor | None = None) -> Tensor:
    """The loss of predictions on training nodes.

    Args:
        logits: [n, C].
        y: labels [n].
        cfg: names the loss.
        weights: of the classes [C], for ``weighted``; None: those of `class_weights` over ``y``.
    """
    if cfg.loss == "weighted":
        weights = class_weights(y, logits.size(1)) if weights is None else weights
        return F.cross_entropy(logits, y, weights.to(logits))
    if cfg.loss == "focal":
        log_p = F.log_softmax(logits, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)  # [n]
        # 1 − p as −expm1(ln p), clamped: its power's gradient is finite where p rounds to 1, for γ < 1 too.
        miss = (-torch.expm1(log_p)).clamp(min=torch.finfo(logits.dtype).tiny)
        return -(miss**cfg.focal_gamma * log_p).mean()
    return F.cross_entropy(logits, y)


def task_grad(
    logits: Tensor, nodes: Tensor | None, y: Tensor, cfg: TrainConfig, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`task_loss` of ``cross_entropy`` and ``weighted`` on some nodes, and its gradient, bit for bit as autograd's.

    Args:
        logits: of all nodes, [N, C]; the gradient is with respect to them.
        nodes: those that train, [n]; None: all.
        y: their labels [n].
        cfg: names the loss.
        weights: as for `task_loss`.

    ∂/∂z_v = w_v / (Σ_u w_u) (p_v − e_{y_v})
    """
    if cfg.loss == "weighted":
        weights = (class_weights(y, logits.size(1)) if weights is None else weights).to(logits)
    aten = torch.ops.aten
    log_p = torch.log_softmax(logits if nodes is None else logits[nodes], 1)
    mean, ignored = 1, -100  # as `F.cross_entropy` asks for them
    loss, total = aten.nll_loss_forward.default(log_p, y, weights, mean, ignored)
    grad = aten.nll_loss_backward.default(torch.ones_like(loss), log_p, y, weights, mean, ignored, total)
    grad = aten._log_softmax_backward_data.default(grad, log_p, 1, log_p.dtype)
    return loss, grad if nodes is None else torch.zeros_like(logits).index_add_(0, nodes, grad)


def shared_grad(logits: Tensor, y: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """The terms s_v (−ln p_v) [n] of a loss with labels y and shares s [n], and its gradient s_v (p_v − e_{y_v}) [n, C]."""
    labels = y.unsqueeze(1)
    log_p = torch.log_softmax(logits, 1)
    grad = log_p.exp().scatter_add_(1, labels, log_p.new_full(labels.shape, -1))
    return log_p.gather(1, labels).squeeze(1) * -shares, grad * shares.unsqueeze(1)
