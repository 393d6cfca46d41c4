"""Loss of a client's task, for balanced and imbalanced labels (``train.loss``).

    cross_entropy   (1/n) Σ_v −ln p_v,                       p_v the softmax at v's label
    weighted        Σ_v w_v (−ln p_v) / Σ_v w_v,             w_v = n / (C' n_c) for the n_c nodes of v's class c
    focal           (1/n) Σ_v (1 − p_v)^γ (−ln p_v)          (Lin et al., ICCV 2017, eq. 4; arXiv:1708.02002)

C' is the number of classes that occur. γ = 0, or balanced classes, give cross_entropy.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedgraph_flwr.config import TrainConfig


def class_weights(y: Tensor, num_classes: int) -> Tensor:
    """Return weights [C] that give every class in ``y`` [n] the same influence; 0 for other classes."""
    count = torch.bincount(y, minlength=num_classes).to(torch.get_default_dtype())
    return torch.where(count > 0, y.numel() / (count.clamp(min=1) * (count > 0).sum().clamp(min=1)), 0.0)


def task_loss(
    logits: Tensor, y: Tensor, cfg: TrainConfig, weights: Tensor | None = None, shares: Tensor | None = None
) -> Tensor:
    """Return the loss of predictions on training nodes.

    Args:
        logits: [n, C].
        y: labels [n].
        cfg: selects the loss.
        weights: class weights [C] for ``weighted``; None: `class_weights` of ``y``.
        shares: factor of each node's term, instead of a mean over the nodes, [n].
    """
    if cfg.loss == "weighted":
        weights = class_weights(y, logits.size(1)) if weights is None else weights
        if shares is None:
            return F.cross_entropy(logits, y, weights.to(logits))
    if cfg.loss == "focal":
        log_p = F.log_softmax(logits, dim=1).gather(1, y.unsqueeze(1)).squeeze(1)  # [n]
        # 1 − p as −expm1(ln p), clamped: its power's gradient is finite where p rounds to 1, for γ < 1 too.
        miss = (-torch.expm1(log_p)).clamp(min=torch.finfo(logits.dtype).tiny)
        terms = -(miss**cfg.focal_gamma * log_p)
        return terms.mean() if shares is None else terms @ shares
    if shares is None:
        return F.cross_entropy(logits, y)
    weights = weights.to(logits) if weights is not None and cfg.loss == "weighted" else None
    return F.cross_entropy(logits, y, weights, reduction="none") @ shares


def task_grad(
    logits: Tensor, nodes: Tensor | None, y: Tensor, cfg: TrainConfig, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return `task_loss` of ``cross_entropy`` and ``weighted`` on some nodes, and its gradient, with autograd's bits.

    Args:
        logits: logits of all nodes, [N, C]; the gradient is with respect to them.
        nodes: training nodes, [n]; None: all.
        y: their labels [n].
        cfg: selects the loss.
        weights: as for `task_loss`.

    ∂/∂z_v = w_v / (Σ_u w_u) (p_v − e_{y_v})
    """
    if cfg.loss == "weighted":
        weights = (class_weights(y, logits.size(1)) if weights is None else weights).to(logits)
    aten = torch.ops.aten
    log_p = torch.log_softmax(logits if nodes is None else logits[nodes], 1)
    mean, ignored = 1, -100  # arguments of `F.cross_entropy`
    loss, total = aten.nll_loss_forward.default(log_p, y, weights, mean, ignored)
    grad = aten.nll_loss_backward.default(torch.ones_like(loss), log_p, y, weights, mean, ignored, total)
    grad = aten._log_softmax_backward_data.default(grad, log_p, 1, log_p.dtype)
    return loss, grad if nodes is None else torch.zeros_like(logits).index_add_(0, nodes, grad)


def shared_grad(logits: Tensor, y: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    """Compute terms s_v (−ln p_v) [n] of a loss with labels y and shares s [n], and the gradient s_v (p_v − e_{y_v}) [n, C]."""
    labels = y.unsqueeze(1)
    log_p = torch.log_softmax(logits, 1)
    grad = log_p.exp().scatter_add_(1, labels, log_p.new_full(labels.shape, -1))
    return log_p.gather(1, labels).squeeze(1) * -shares, grad * shares.unsqueeze(1)
