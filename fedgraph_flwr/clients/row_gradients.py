"""Sums of clipped gradients of single training rows, for models that read no neighbours.

A row is a node's features and label, or a payment's columns, those of its two ends, and its label. For a layer a W + b with
inputs a_j and gradients d_j of its outputs, a row's gradient of W is Σ_u a_ju ⊗ d_ju over the U places where the row passes the
layer (two for the ends of an edge). With one place, its squared norm follows from those of a and d (Goodfellow,
arXiv:1510.01799):

    ‖g_j‖² = Σ_layers (‖a_j‖² + 1) ‖d_j‖²

With two places, the terms of both ends can cancel: their inner products, or two terms that are added one after the other, then
hold nothing but rounding errors, which parameters chosen by a server make as large as it likes. Therefore such a row's gradient
is computed once, its norm is that of this very array, and this array, clipped, is what is added.

All is computed in float64, in blocks of one size, so that a row's gradient has the same bits whatever other rows there are
(`fedgraph_flwr.secure.rows`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.schema import LEAST_PAYMENTS
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.data.own_columns import recipe_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.models import Model
from fedgraph_flwr.models.readout import READOUT, OfItems
from fedgraph_flwr.secure import noise, rows
from fedgraph_flwr.wire.messages import MODEL

BLOCK = 1 << 10
"""Largest number of rows whose gradients are computed at once, a power of two."""

HELD = 1 << 24
"""Largest number of values of single rows' gradients that are held at once."""


def check_rows(cfg: RunConfig, model: Model) -> None:
    """Refuse a model or keys for which a row's gradient would not be its own.

    Raises:
        FedGraphError: names the key and what is accepted.
    """
    what = f"privacy.unit={cfg.privacy.unit}"
    if not model.capabilities.row_wise:
        raise FedGraphError(
            f"{what} needs a model whose rows read no other row, which model={cfg.model.name} does: set model=mlp, or model=sign"
            " with model.hops=0"
        )
    names = {name for name, _ in model.named_parameters()}
    shares = names == model.shared(cfg.strategy.shared, cfg.strategy.private).keys()
    keys = {
        f"train.loss={cfg.train.loss}": (cfg.train.loss != "cross_entropy", "train.loss=cross_entropy"),
        f"model.dropout={cfg.model.dropout:g}": (cfg.model.dropout, "model.dropout=0"),
        f"model.norm={getattr(model, 'norm', 'none')}": (len(getattr(model, "norms", ())), "model.norm=none"),
        "model.input_norm=true": (any(n.startswith("input_norm") for n in names), "model.input_norm=false"),
        "strategy.double_softmax=true": (cfg.strategy.params.get("double_softmax"), "strategy.double_softmax=false"),
        f"strategy.shared={cfg.strategy.shared}": (not shares, "strategy.shared=[''] and strategy.private=[]"),
    }
    for key, (wrong, accepted) in keys.items():
        if wrong:
            raise FedGraphError(f"{what} computes gradients of single rows without {key}: set {accepted}")


class RowGradients:
    """The training rows of a client.

    Args:
        client: whose rows they are.

    Raises:
        FedGraphError: the model or the rows are not supported.
    """

    def __init__(self, client: GraphClient):
        check_rows(client.cfg, client.model)
        self.rules, self.model, self.y = client.cfg.privacy, client.model, client.batch.y.cpu()
        if self.rules.unit == "payment":
            _check_payments(client.graph, self.y.numel(), self.rules.look_back)
        self.x, self.attr, self.ends = client.graph.x, None, client.train_nodes.cpu()[None]
        if client.task.ITEMS == "edges":
            places, attr = client.task.train_items  # type: ignore[attr-defined]
            self.ends = client.graph.edge_index[:, places]
            self.attr = attr if attr.size(1) else None
        if self.y.numel() and self.rules.delta > 1 / self.y.numel():
            raise FedGraphError(
                f"privacy.delta={self.rules.delta:g} would allow publishing one of this party's {self.y.numel()} training rows:"
                f" expected at most {1 / self.y.numel():.3g}"
            )

    def released(self, shared: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
        """Return the sum of clipped gradients of a fresh batch by parameter; with ``dp=local`` noised, in the parameters' dtypes.

        Under ``dp=distributed`` it is exact: noise joins it in the secure sum, before it leaves the client.
        """
        bound = self.rules.norm(MODEL)
        chosen = torch.from_numpy(rows.drawn(self.y.numel(), self.rules.sampling_rate))
        sums = self.clipped_sums(chosen, bound)
        if self.rules.side == "distributed":
            return {name: sums[name].numpy() for name in shared}
        flat = np.concatenate([sums[name].numpy().ravel() for name in shared])
        flat = rows.released(flat, bound, self.rules, noise.source())
        parts = np.split(flat, np.cumsum([t.numel() for t in shared.values()])[:-1])
        pairs = zip(shared.items(), parts, strict=True)
        return {n: torch.from_numpy(part).reshape(t.shape).to(t.dtype).numpy() for (n, t), part in pairs}

    def clipped_sums(self, chosen: Tensor, bound: float) -> dict[str, Tensor]:
        """Return Σ_j g_j min(1, C / ‖g_j‖₂) over some rows by parameter, in float64 on the CPU.

        Args:
            chosen: places of the rows.
            bound: C.
        """
        values = {name: t.detach().to("cpu", torch.float64) for name, t in self.model.named_parameters()}
        sums = {name: torch.zeros_like(value) for name, value in values.items()}
        for part in chosen.split(self._block(values)) if chosen.numel() else ():
            taps = self._taps(values, part)
            norms = _lengths(torch.stack([tap.norms() for tap in taps], dim=1))
            factor = torch.where(norms > bound, bound / norms, torch.ones(()))
            factor = torch.where(norms.isfinite(), factor, 0.0)
            for tap in taps:
                tap.add(sums, factor)
        return sums

    def _block(self, values: Mapping[str, Tensor]) -> int:
        """Return the number of rows that are computed at once: it follows from the model, not from the rows."""
        if len(self.ends) == 1:
            return BLOCK
        size = sum(value.numel() for value in values.values())
        return max(1, min(BLOCK, 1 << max(HELD // size, 1).bit_length() - 1))

    def _taps(self, values: Mapping[str, Tensor], part: Tensor) -> "list[_Tap]":
        """Return the layers that some rows pass, with the gradients of their outputs.

        Matrix products of another height round a row in another way. Rows are therefore filled up to a whole block.
        """
        taps: list[_Tap] = []
        size = part.numel()
        part = F.pad(part, (0, self._block(values) - size), value=int(part[0]))

        def layer(a: Tensor, name: str) -> Tensor:
            weight, bias = (f"{name}.weight", f"{name}.bias") if f"{name}.weight" in values else (name, "")
            bias = bias if bias in values else ""
            out = a @ values[weight] + values[bias] if bias else a @ values[weight]
            out = out if out.requires_grad else out.requires_grad_()
            taps.append(_Tap(a.detach(), out, weight, bias))
            return out

        h = _rows_of(self.x, self.ends[:, part])  # [U, B, F]
        for index in range(len(self.model.layers)):  # type: ignore[arg-type]
            h = layer(h, f"layers.{index}").relu()
        h = layer(h, "head")
        if isinstance(self.model, OfItems):
            both = layer(h[:1], f"{READOUT}source") + layer(h[1:], f"{READOUT}target")
            if self.attr is not None:
                both = both + layer(_rows_of(self.attr, part[None]), f"{READOUT}edge")
            h = layer(both.relu(), f"{READOUT}last")
        loss = F.cross_entropy(h[0], self.y[part], reduction="sum")
        grads = torch.autograd.grad(loss, [tap.out for tap in taps])
        for tap, grad in zip(taps, grads, strict=True):
            tap.a, tap.grad = tap.a[:, :size], grad[:, :size]
        finite = torch.stack([t.isfinite().all(2).all(0) for tap in taps for t in (tap.a, tap.grad)]).all(0)
        for tap in taps if not bool(finite.all()) else ():  # of parameters that a server chose: these rows count as 0
            tap.a, tap.grad = (torch.where(finite[None, :, None], t, 0.0) for t in (tap.a, tap.grad))
        return taps


def _check_payments(graph: ClientGraph, payments: int, last: int) -> None:
    """Refuse a party whose rows may read a payment more often than ε counts, or with too few payments.

    Raises:
        FedGraphError: with what is accepted.
    """
    recipe = recipe_of(graph)
    if recipe is not None and recipe.whole:
        raise FedGraphError(
            "privacy.unit=payment needs columns that read few payments, but with day=whole every payment of a day is read by all"
            f" others of its accounts: import with day=before features=payments,last={last}"
        )
    if recipe is None or not 0 < recipe.last <= last:
        setting = f"last={recipe.last}" if recipe else "no recipe"
        raise FedGraphError(
            f"privacy.unit=payment needs columns that read at most the last privacy.look_back={last} payments at each end, but"
            f" this party's file has {setting}: import it with features=payments,last={last}, or set dataset.last={last}"
        )
    if graph.far_x.numel():
        raise FedGraphError(
            "privacy.unit=payment counts rows of one party, but this party's file has columns of others: link it without --share"
        )
    if payments < LEAST_PAYMENTS:
        raise FedGraphError(
            f"privacy.unit=payment needs at least {LEAST_PAYMENTS} training payments per party, but this party has {payments}"
        )


class _Tap:
    """A layer that rows pass: inputs [U, B, a], outputs [U, B, b], the gradient of these, and the names of W and b."""

    def __init__(self, a: Tensor, out: Tensor, weight: str, bias: str):
        self.a, self.out, self.weight, self.bias = a, out, weight, bias
        self.grad = out.detach()
        self.of_rows: dict[str, Tensor] = {}

    def norms(self) -> Tensor:
        """Return the norm of each row's gradient of W and b [B]; not finite where it, or a part of it, overflows."""
        if len(self.a) == 1:
            inputs = _lengths(self.a[0])
            return (inputs.hypot(torch.ones(())) if self.bias else inputs) * _lengths(self.grad[0])
        self.of_rows = {self.weight: torch.einsum("ubi,ubj->bij", self.a, self.grad)}  # [B, a, b]
        if self.bias:
            self.of_rows[self.bias] = self.grad.sum(0)  # [B, b]
        return _lengths(torch.stack([_lengths(gradient.flatten(1)) for gradient in self.of_rows.values()], dim=1))

    def add(self, sums: Mapping[str, Tensor], factor: Tensor) -> None:
        """Add the sum of the rows' gradients, each times its factor [B]; a row whose factor is 0 adds 0."""
        if len(self.a) == 1:
            scaled = self.grad[0] * factor[:, None]
            sums[self.weight].add_(self.a[0].T @ scaled)
            if self.bias:
                sums[self.bias].add_(scaled.sum(0))
            return
        for name, gradient in self.of_rows.items():
            kept = torch.where((factor > 0).view(-1, *[1] * (gradient.dim() - 1)), gradient, 0.0)
            sums[name].add_(torch.tensordot(factor, kept, dims=1))
        self.of_rows = {}


def _lengths(values: Tensor) -> Tensor:
    """Return the L2 norm of each row [B, n] → [B], also where squares would overflow, or vanish next to a tiny bound."""
    most = F.pad(values, (0, 1)).abs().amax(1, keepdim=True)
    unit = torch.where(most > 0, most, 1.0)
    return most[:, 0] * (values / unit).square().sum(1).sqrt()


def _rows_of(values: Tensor, places: Tensor) -> Tensor:
    """Return rows of a matrix in float64, 0 where they are not finite."""
    return torch.nan_to_num(values[places].double(), posinf=0.0, neginf=0.0)
