"""Adam, AdamW and SGD with the results of `torch.optim`.

`torch.optim` itself is too slow here: its first optimiser imports TorchDynamo. On a fleet, where each message has a new
process, this costs 1.3 s per message. On small graphs its bookkeeping costs a fifth of a step.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import TrainConfig
from fedgraph_flwr.errors import FedGraphError


class Optimizer(Protocol):
    """Interface of an optimiser for training."""

    def zero_grad(self) -> None:
        """Reset the gradients."""

    def step(self) -> None:
        """Update every parameter that has a gradient."""

    def state(self) -> dict[str, Tensor]:
        """Return the state that the next step depends on, by name."""

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of `state`."""

    @property
    def progress(self) -> Hashable:
        """Progress; optimisers with different progress cannot be stacked."""

    @classmethod
    def joined(cls, optimizers: "Sequence[Any]", parameters: Sequence[Tensor]) -> "Optimizer":
        """Return one optimiser of the same settings over the stacked tensors, [M, ...] each.

        Args:
            optimizers: M optimisers of the same class, settings and `progress`.
            parameters: stacked parameters, in the order of each optimiser.
        """

    def hand_out(self, optimizers: "Sequence[Any]") -> None:
        """Copy the state back to the optimisers that were `joined`."""


class SGD:
    """Stochastic gradient descent with momentum.

    g ← ∇ + wd · θ,   v ← ρ v + g (first step: v = g),   θ ← θ − η v
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0):
        self.parameters = list(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self.velocity: dict[int, Tensor] = {}

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take one step."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:
                continue
            gradient = parameter.grad
            if self.weight_decay:
                gradient = gradient.add(parameter, alpha=self.weight_decay)
            if self.momentum:
                if index in self.velocity:
                    gradient = self.velocity[index].mul_(self.momentum).add_(gradient)
                else:
                    gradient = self.velocity[index] = gradient.clone()
            parameter.add_(gradient, alpha=-self.lr)

    @property
    def progress(self) -> Hashable:
        """Indices of the parameters with a velocity."""
        return tuple(self.velocity)

    @classmethod
    def joined(cls, optimizers: "Sequence[SGD]", parameters: Sequence[Tensor]) -> "SGD":
        """As `Optimizer.joined`."""
        first = optimizers[0]
        made = cls(parameters, first.lr, first.momentum, first.weight_decay)
        made.velocity = {index: torch.stack([o.velocity[index] for o in optimizers]) for index in first.velocity}
        return made

    def hand_out(self, optimizers: "Sequence[SGD]") -> None:
        """As `Optimizer.hand_out`."""
        for index, velocity in self.velocity.items():
            for optimizer, own in zip(optimizers, velocity.unbind(0), strict=True):
                optimizer.velocity[index] = own.clone()

    def state(self) -> dict[str, Tensor]:
        """Return the velocities."""
        return {f"velocity/{index}": tensor for index, tensor in self.velocity.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of `state`."""
        _check_fit(tensors, self.parameters)
        self.velocity = {int(name.rpartition("/")[2]): tensor.clone() for name, tensor in tensors.items()}


class Adam:
    """Adam (Kingma & Ba, ICLR 2015) with L2 regularisation in the gradient.

        g ← ∇ + wd · θ,   m ← β1 m + (1 − β1) g,   v ← β2 v + (1 − β2) g²
        θ ← θ − η · m/(1 − β1^t) / (√(v/(1 − β2^t)) + ε)

    A parameter without a gradient keeps its moments and its count t. ``decoupled`` is AdamW (Loshchilov & Hutter, ICLR 2019): the
    gradient is unchanged, and θ ← θ − η wd θ precedes the step.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decoupled: bool = False,
    ):
        self.parameters = list(parameters)
        self.kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self.lr, self.weight_decay, self.betas, self.eps = lr, weight_decay, betas, eps
        self.slots: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # m, v, t by parameter

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Take one step."""
        self.step_all([self])

    @staticmethod
    @torch.no_grad()
    def step_all(optimizers: "Sequence[Adam]") -> None:
        """Take one step of each optimiser in one call; their settings are equal."""
        active = [(o, i, p, p.grad) for o in optimizers for i, p in enumerate(o.parameters) if p.grad is not None]
        if not active:
            return
        for optimizer, index, parameter, _ in active:
            if index not in optimizer.slots:
                zeros = torch.zeros_like(parameter), torch.zeros_like(parameter)
                optimizer.slots[index] = (*zeros, torch.zeros((), device=parameter.device))
        means, squares, counts = (list(slot) for slot in zip(*(o.slots[i] for o, i, *_ in active), strict=True))
        # The kernel behind `torch.optim.Adam(fused=True)`, a third of the time of the formula in tensor operations.
        # It iterates over memory, so a gradient must have the layout of its parameter.
        torch._foreach_add_(counts, 1)
        first = optimizers[0]
        first.kernel(
            [p for *_, p, _ in active],
            [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for *_, p, g in active],
            means,
            squares,
            [],
            counts,
            lr=first.lr,
            beta1=first.betas[0],
            beta2=first.betas[1],
            weight_decay=first.weight_decay,
            eps=first.eps,
            amsgrad=False,
            maximize=False,
        )

    @property
    def progress(self) -> Hashable:
        """Number of steps of each parameter."""
        return tuple((index, float(count)) for index, (*_, count) in self.slots.items())

    @classmethod
    def joined(cls, optimizers: "Sequence[Adam]", parameters: Sequence[Tensor]) -> "Adam":
        """As `Optimizer.joined`."""
        made = copy(optimizers[0])
        made.parameters, made.slots = list(parameters), {}
        for index, (*_, count) in optimizers[0].slots.items():
            means, squares = (torch.stack([o.slots[index][i] for o in optimizers]) for i in (0, 1))
            made.slots[index] = means, squares, count.clone()
        return made

    def hand_out(self, optimizers: "Sequence[Adam]") -> None:
        """As `Optimizer.hand_out`."""
        for index, (means, squares, count) in self.slots.items():
            for optimizer, mean, square in zip(optimizers, means.unbind(0), squares.unbind(0), strict=True):
                optimizer.slots[index] = mean.clone(), square.clone(), count.clone()

    def state(self) -> dict[str, Tensor]:
        """Return the moments and the counts."""
        names = "mean", "square", "count"
        return {f"{n}/{i}": t for i, slot in self.slots.items() for n, t in zip(names, slot, strict=True)}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of `state`."""
        _check_fit(tensors, self.parameters)
        self.slots = {}
        for name in tensors:
            slot, _, index = name.rpartition("/")
            if slot == "count":
                i, device = int(index), self.parameters[int(index)].device
                mean, square, count = (tensors[f"{n}/{i}"].to(device, copy=True) for n in ("mean", "square", "count"))
                self.slots[i] = mean, square, count


def step_all(optimizers: Sequence[Optimizer]) -> None:
    """Take one step of optimisers of the same class and settings, with the bits of separate steps."""
    kind = type(optimizers[0])
    if issubclass(kind, Adam):
        kind.step_all(optimizers)  # type: ignore[arg-type]
        return
    for optimizer in optimizers:
        optimizer.step()


def _check_fit(tensors: Mapping[str, Tensor], parameters: list[Tensor]) -> None:
    """Check that every tensor belongs to a parameter, by the index of its slot: equal shape, or a scalar."""
    for name, tensor in tensors.items():
        number = name.rpartition("/")[2]
        of = parameters[int(number)] if number.isdecimal() and int(number) < len(parameters) else None
        if of is None or (tensor.shape != of.shape and tensor.numel() != 1) or not tensor.is_floating_point():
            raise FedGraphError(
                f"'{name}' of the optimiser's state, of shape {list(tensor.shape)}, matches no parameter of this run's model"
            )


def make_optimizer(parameters: Iterable[nn.Parameter], train: TrainConfig) -> Optimizer:
    """Return the optimiser of a configuration."""
    if train.optimizer == "sgd":
        return SGD(parameters, train.lr, train.momentum, train.weight_decay)
    return Adam(parameters, train.lr, train.weight_decay, decoupled=train.optimizer == "adamw")


class NamedOptimizer:
    """Functional optimiser: takes tensors and gradients, returns updated tensors, and keeps the moments."""

    def __init__(self, train: TrainConfig):
        self._train = train
        self._parameters: dict[str, nn.Parameter] = {}
        self._optimizer: Optimizer = make_optimizer([], train)

    def step(self, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Take one step from ``values``; both mappings have the same names in every call."""
        self._begin(values)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(values[name])
                parameter.grad = gradients[name].to(parameter.dtype)
        self._optimizer.step()
        return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def state(self) -> dict[str, Tensor]:
        """Return the moments as ``slot/...`` and their tensors as ``value/NAME``."""
        values = {f"value/{name}": parameter.detach() for name, parameter in self._parameters.items()}
        return values | {f"slot/{name}": tensor for name, tensor in self._optimizer.state().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load the result of `state`."""
        self._begin({name.removeprefix("value/"): t for name, t in state.items() if name.startswith("value/")})
        self._optimizer.load_state({n.removeprefix("slot/"): t for n, t in state.items() if n.startswith("slot/")})

    def _begin(self, values: Mapping[str, Tensor]) -> None:
        if not self._parameters:
            # By name, because a checkpoint may list tensors in another order.
            self._parameters = {name: nn.Parameter(values[name].detach().clone()) for name in sorted(values)}
            self._optimizer = make_optimizer(self._parameters.values(), self._train)
