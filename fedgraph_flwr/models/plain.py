"""Description of a model for `export`: the module of plain PyG that computes the same, and the weights in its layout."""

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedgraph_flwr.models.layers import Linear


@dataclass(frozen=True)
class Plain:
    """A model as ``Net(**arguments)`` of a file of `fedgraph_flwr.party.use.plain`, or as a custom ``module:Class``.

    Attributes:
        module: the file's name, or ``module:Class`` of a file that imports torch and PyG only; the export contains a copy of it.
        arguments: as JSON holds them.
        weights: of that module, by name; with a readout, of `party.use.plain.items.Items` around it.
        labels: whether it also reads the labels of nodes for which they are known.
        reads_edges: whether it also reads edge features.
        readout: name and arguments of a readout of `party.use.plain.items`; "" for a model that predicts nodes.
    """

    module: str
    arguments: dict[str, Any]
    weights: dict[str, Tensor]
    labels: bool = False
    reads_edges: bool = False
    readout: tuple[str, dict[str, Any]] = ("", {})

    def with_readout(self, name: str, arguments: dict[str, Any], weights: dict[str, Tensor]) -> "Plain":
        """Return it with a readout of its outputs; ``weights`` are those of the readout."""
        net_weights = {f"net.{key}": tensor for key, tensor in self.weights.items()}
        return replace(
            self,
            readout=(name, arguments),
            weights=net_weights | {f"readout.{key}": tensor for key, tensor in weights.items()},
        )


PlainLayer = tuple[str, dict[str, Any], dict[str, Tensor]]
"""Kind, arguments and weights of a layer of ``stack``."""


def plain_linear(layer: Any) -> PlainLayer:
    """Convert a linear layer of weight [F, H] to torch's, whose weight is [H, F]."""
    return _plain_product(layer, "linear", "features", "")


def plain_gcn(layer: Any) -> PlainLayer:
    """Convert a linear layer followed by Â to PyG's GCNConv."""
    return _plain_product(layer, "gcn", "channels", "lin.")


def _plain_product(layer: Any, kind: str, sizes: str, prefix: str) -> PlainLayer:
    num_in, num_out = layer.weight.shape
    weights = {f"{prefix}weight": layer.weight.T} | ({} if layer.bias is None else {"bias": layer.bias})
    return kind, {f"in_{sizes}": num_in, f"out_{sizes}": num_out, "bias": layer.bias is not None}, weights


def of_modules(name: str, modules: Any) -> dict[str, Tensor]:
    """Return the state of a module under ``name``."""
    return {f"{name}.{key}": tensor for key, tensor in modules.state_dict().items()}


def torch_layout(model: Any) -> dict[str, Tensor]:
    """Return a module's state, by name, with the weights [F, H] of each `Linear` as torch has them, [H, F]."""
    turned = {f"{name}.weight" for name, part in model.named_modules() if isinstance(part, Linear)}
    return {name: tensor.T if name in turned else tensor for name, tensor in model.state_dict().items()}
