"""A client's private state between messages: what a node stores, what a checkpoint stores, and how a client restores it."""

from torch import Tensor

from fedgraph_flwr import models
from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.combined import Parts
from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.optim import make_optimizer
from fedgraph_flwr.secure.secagg import SECAGG
from fedgraph_flwr.wire.trees import Tree, as_arrays, flatten


def files_models(kind: type[GraphClient], cfg: RunConfig, num_features: int, num_classes: int) -> bool:
    """Return whether a simulated client predicts with anything private besides the shared parameters."""
    own_model = kind.build_model is not GraphClient.build_model
    if own_model or kind.predicts_with or Parts(cfg.strategy).predicts_with or cfg.evaluation.select == "own_best_val":
        return True
    model = models.build(cfg.model, num_features, num_classes)
    saved = sum(tensor.is_floating_point() for tensor in model.state_dict().values())
    return len(model.shared(cfg.strategy.shared, cfg.strategy.private)) < saved


def snapshot(client: GraphClient) -> Tree:
    """Return all private state: unshared tensors, optimiser moments, `save()`, saved models and this round's keys."""
    tree: Tree = {"model": {n: t for n, t in client.model.state_dict().items() if n not in client.shared}}
    if client.optimizer is not None and client.cfg.train.keeps_optimizer:
        tree["optimizer"] = client.optimizer.state()
    return {**tree, "method": client.save(), SECAGG: client.member.state, "kept": client.saved_models.state}


def checkpoint(client: GraphClient) -> Tree:
    """Return the part of `snapshot` that a resumed run restores: no round's keys, and none of the client's `secrets`."""
    tree, secrets = snapshot(client), client.secrets
    del tree[SECAGG]
    return {**tree, "method": {key: value for key, value in tree["method"].items() if key not in secrets}}


def restore(client: GraphClient, tree: Tree) -> None:
    """Restore what `snapshot` or `checkpoint` returned.

    Raises:
        FedGraphError: the state belongs to another model, or has another precision.
    """
    found = tree.get("model", {})
    client.model.fit_to(found, "the state")
    own = snapshot(client)["model"]
    for name in sorted(own.keys() | found.keys()):
        expected, got = (_kind(tensors.get(name)) for tensors in (own, found))
        if expected != got:
            raise FedGraphError(f"{name} is {got}, but in the model of this run it is {expected}")
    client.model.load_state_dict(found, strict=False)
    if "optimizer" in tree:
        client.optimizer = make_optimizer(client.parameters(), client.cfg.train)
        client.optimizer.load_state({name: t.to(client.device) for name, t in flatten(tree["optimizer"]).items()})
    client.load(tree.get("method", {}))
    client.saved_models.state = tree.get("kept", {})
    client.member.state = as_arrays(tree.get(SECAGG, {}))


def _kind(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
