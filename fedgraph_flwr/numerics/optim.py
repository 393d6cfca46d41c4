"""Adam, AdamW and SGD with the results of `torch.optim`.

`torch.optim` itself is too slow here: its first optimiser imports TorchDynamo. On a fleet, where each message has a new
process, this costs 1.3 s per message. On small graphs its bookkeeping costs a fifth of a step.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import TrainConfig
from fedgraph_flwr.errors import FedGraphError

COUNT = "count"
"""Name of the number of steps in a slot, which stacked optimisers have in common."""


DEFAULTS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "amsgrad": False, "maximize": False}
"""Adam's settings that no key changes, those of `torch.optim`."""


class Optimizer(ABC):
    """Base of the optimisers.

    Attributes:
        names: names of the tensors in a slot.
        slots: state of each parameter that was updated, by the parameter's index.
    """

    names: ClassVar[tuple[str, ...]]

    def __init__(self, parameters: Iterable[Tensor]):
        self.parameters = list(parameters)
        self.slots: dict[int, tuple[Tensor, ...]] = {}

    def zero_grad(self) -> None:
        """Reset the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def step(self) -> None:
        """Update every parameter that has a gradient."""

    @property
    def progress(self) -> Hashable:
        """Progress; optimisers with different progress cannot be stacked."""
        return tuple(self.slots)

    @classmethod
    def joined(cls, optimizers: Sequence[Self], parameters: Sequence[Tensor]) -> Self:
        """Return one optimiser of the same settings over the stacked tensors, [M, ...] each.

        Args:
            optimizers: M optimisers of the same class, settings and `progress`.
            parameters: stacked parameters, in the order of each optimiser.
        """
        made = copy(optimizers[0])
        made.parameters, made.slots = list(parameters), {}
        for index in optimizers[0].slots:
            slots = zip(cls.names, zip(*(o.slots[index] for o in optimizers), strict=True), strict=True)
            made.slots[index] = tuple(
                tensors[0].clone() if name == COUNT else torch.stack(tensors) for name, tensors in slots
            )
        return made

    def hand_out(self, optimizers: Sequence[Self]) -> None:
        """Copy the state back to the optimisers that were `joined`."""
        for index, slot in self.slots.items():
            parts = [
                [t] * len(optimizers) if n == COUNT else t.unbind(0) for n, t in zip(self.names, slot, strict=True)
            ]
            for optimizer, *tensors in zip(optimizers, *parts, strict=True):
                optimizer.slots[index] = tuple(tensor.clone() for tensor in tensors)

    def state(self) -> dict[str, Tensor]:
        """Return the state that the next step depends on, as ``NAME/INDEX``."""
        return {f"{n}/{i}": t for i, slot in self.slots.items() for n, t in zip(self.names, slot, strict=True)}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Load the result of `state`."""
        _check_fit(tensors, self.parameters)
        indices = [int(name.rpartition("/")[2]) for name in tensors if name.startswith(f"{self.names[-1]}/")]
        self.slots = {
            i: tuple(tensors[f"{name}/{i}"].to(self.parameters[i].device, copy=True) for name in self.names)
            for i in indices
        }


class SGD(Optimizer):
    """Stochastic gradient descent with momentum.

    g ← ∇ + wd · θ,   v ← ρ v + g (first step: v = g),   θ ← θ − η v
    """

    names: ClassVar = ("velocity",)

    def __init__(self, parameters: Iterable[Tensor], lr: float, momentum: float = 0.0, weight_decay: float = 0.0):
        super().__init__(parameters)
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay

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
                if index in self.slots:
                    gradient = self.slots[index][0].mul_(self.momentum).add_(gradient)
                else:
                    gradient = gradient.clone()
                    self.slots[index] = (gradient,)
            parameter.add_(gradient, alpha=-self.lr)


class Adam(Optimizer):
    """Adam (Kingma & Ba, ICLR 2015) with L2 regularisation in the gradient.

        g ← ∇ + wd · θ,   m ← β1 m + (1 − β1) g,   v ← β2 v + (1 − β2) g²
        θ ← θ − η · m/(1 − β1^t) / (√(v/(1 − β2^t)) + ε)

    A parameter without a gradient keeps its moments and its count t. ``decoupled`` is AdamW (Loshchilov & Hutter, ICLR 2019): the
    gradient is unchanged, and θ ← θ − η wd θ precedes the step.
    """

    names: ClassVar = ("mean", "square", COUNT)

    def __init__(self, parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.0, decoupled: bool = False):
        super().__init__(parameters)
        self.kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
        self.settings: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, **DEFAULTS}

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
        grads = [g if g.stride() == p.stride() else torch.empty_like(p).copy_(g) for *_, p, g in active]
        first = optimizers[0]
        first.kernel([p for *_, p, _ in active], grads, means, squares, [], counts, **first.settings)

    @property
    def progress(self) -> Hashable:
        """Number of steps of each parameter."""
        return tuple((index, float(count)) for index, (*_, count) in self.slots.items())


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
