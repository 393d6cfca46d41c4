"""The optimiser that the configuration names: over a model's parameters, or over named tensors that a server keeps."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from fedgraph_flwr.config import TrainConfig


def make(parameters: Iterable[nn.Parameter], train: TrainConfig) -> torch.optim.Optimizer:
    """Adam or SGD of ``train`` over some parameters."""
    if train.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=train.lr, momentum=train.momentum, weight_decay=train.weight_decay)
    return torch.optim.Adam(parameters, lr=train.lr, weight_decay=train.weight_decay, fused=True)


class NamedOptimizer:
    """An optimiser whose gradients come from elsewhere: tensors and gradients in, updated tensors out, moments kept."""

    def __init__(self, train: TrainConfig):
        self._train = train
        self._parameters: dict[str, nn.Parameter] = {}
        self._optimizer: torch.optim.Optimizer | None = None

    def step(self, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One step from ``values``; both mappings have the same names, and the same ones in every call."""
        optimizer = self._begin(values)
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(values[name])
                parameter.grad = gradients[name].to(parameter.dtype)
        optimizer.step()
        return {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def state(self) -> dict[str, Tensor]:
        """The moments, as ``name/slot``, with the tensors they belong to as ``name/value``."""
        if self._optimizer is None:
            return {}
        tensors = {f"{name}/value": parameter.detach() for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            tensors |= {f"{name}/{slot}": value for slot, value in self._optimizer.state[parameter].items()}
        return tensors

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take back what `state` gave."""
        slots: dict[str, dict[str, Tensor]] = {}
        for key, tensor in state.items():
            name, _, slot = key.rpartition("/")
            slots.setdefault(name, {})[slot] = tensor.clone()
        if slots:
            optimizer = self._begin({name: own.pop("value") for name, own in slots.items()})
            for name, own in slots.items():
                optimizer.state[self._parameters[name]] = own

    def _begin(self, values: Mapping[str, Tensor]) -> torch.optim.Optimizer:
        if self._optimizer is None:
            self._parameters = {name: nn.Parameter(value.detach().clone()) for name, value in values.items()}
            self._optimizer = make(self._parameters.values(), self._train)
        return self._optimizer
