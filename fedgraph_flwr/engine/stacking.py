"""Stacked execution: clients of one process compute the same operation in one call on stacked tensors.

Each client's reply runs as a coroutine, with the code of an unstacked client. At a method marked as
a `seam` it waits until every other reply has reached a seam or has finished. Groups of clients with
the same operation on compatible models are then computed in one call, and each client continues
with its own result. Methods need no code for this. Stacked tensors are evaluated under
`torch.func.vmap` or by the model's explicit gradients: equal up to rounding, not bit for bit.

A client class opts in with `stacks`, the attributes that its objective reads in addition to the
model, the inputs and the batch. A subclass that overrides `loss`, `logits` or `task_loss` must
declare `stacks` again.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.chosen_parts import steps_plainly
from fedgraph_flwr.clients.client_part import with_terms
from fedgraph_flwr.clients.combinations import unstacked
from fedgraph_flwr.clients.descent import writes_out
from fedgraph_flwr.clients.seam import handled_by
from fedgraph_flwr.errors import FedGraphError, located
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.batched_metrics import Segments
from fedgraph_flwr.methods.method_half import inherits
from fedgraph_flwr.numerics.losses import shared_grad
from fedgraph_flwr.numerics.optim import step_all
from fedgraph_flwr.numerics.stacked import IGNORED, constants, kinds, padded, rows_of, stack_inputs
from fedgraph_flwr.numerics.stacked import stackable as kinds_stack
from fedgraph_flwr.numerics.streams import Streams, drawing, generators

Result = TypeVar("Result")
Tensors = dict[str, Tensor]

SLACK = 1.25
"""Maximum ratio of the largest to the smallest graph in one stack; smaller graphs are padded."""

_SAME = (
    "cfg",
    "params",
    "device",
    "dtype",
    "model",
    "server_round",
    "exchange",
    "stage",
    "task",
    "chosen_parts",
    "active",
)


def stackable(client: GraphClient) -> bool:
    """Return whether a client can be stacked with others, given its current inputs."""
    return _traits(client)[0] and kinds_stack(client.inputs) and not client.later


def alike(client: GraphClient) -> Hashable:
    """Return the properties that clients of one stack must share."""
    return _traits(client)[1]


def _traits(client: GraphClient) -> tuple[bool, Hashable]:
    """Return whether a client can be stacked, and its class with names, shapes and `requires_grad` of its tensors; cached."""
    if client not in _known:
        shapes = tuple(
            (name, tensor.shape, tensor.requires_grad)
            for name, tensor in client.model.tensors.items()
        )
        _known[client] = (
            not unstacked(client.cfg, type(client), client.model),
            (type(client), shapes),
        )
    return _known[client]


_known: WeakKeyDictionary[GraphClient, tuple[bool, Hashable]] = WeakKeyDictionary()


# --- replies in progress --------------------------------------------------------------------------


class Computation(greenlet):
    """One client's reply in progress."""


class Call:
    """A client's call of a seam, and its result."""

    def __init__(
        self, joint: "Joint", method: Callable[..., Any], client: GraphClient, args: tuple[Any, ...]
    ):
        self.joint = joint
        self.method = method
        self.client = client
        self.args = args
        self.generators = generators(client.device)
        self.states = [generator.get_state() for generator in self.generators]
        self.grad = torch.is_grad_enabled()
        self.result: Any = None
        self.error: Exception | None = None

    def run_unstacked(self) -> None:
        """Compute the result with the client's own method."""
        self.restore()
        try:
            self.result = self.method(self.client, *self.args)
        except Exception as error:
            self.error = error
        self.states = [generator.get_state() for generator in self.generators]

    def restore(self) -> None:
        """Restore the process state of the client: its random streams and whether gradients are recorded."""
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)
        torch.set_grad_enabled(self.grad)


class Joint(NamedTuple):
    """Stacked computation of one method for several clients.

    Attributes:
        compute: sets the result of each call.
        group_key: properties that calls of one stack must share.
        serves: whether a client can be stacked.
        size: size by which calls are grouped; 0: nothing is padded.
    """

    compute: Callable[[Sequence[Call]], None]
    group_key: Callable[[Call], Hashable]
    serves: Callable[[GraphClient], bool] = stackable
    size: Callable[[Call], int] = lambda call: rows_of(call.client.inputs)


def stack_call(method: Callable[..., Any], client: GraphClient, args: tuple[Any, ...]) -> Any:
    """Compute a call of a seam: stacked with those of other clients if possible, otherwise by the client's own method."""
    computation = getcurrent()
    joint = JOINTS.get(method.__name__)
    if not isinstance(computation, Computation) or joint is None or not joint.serves(client):
        return method(client, *args)
    call = Call(joint, method, client, args)
    computation.parent.switch(call)
    call.restore()
    if call.error:
        raise call.error
    return call.result


def run_stacked(replies: Iterable[Callable[[], Result]], most: int) -> list[Result]:
    """Run clients' replies concurrently and stack up to ``most`` of them in one call."""
    computations = [Computation(reply) for reply in replies]
    results: dict[int, Result] = {}
    waiting: dict[int, Call] = {}
    with handled_by(stack_call):
        for index, computation in enumerate(computations):
            _resume(index, computation, results, waiting)
        while waiting:
            calls = dict(waiting)
            waiting.clear()
            _compute(list(calls.values()), most)
            for index in calls:
                _resume(index, computations[index], results, waiting)
    _cached.turn()
    return [results[index] for index in range(len(computations))]


def _resume(
    index: int, computation: Computation, results: dict[int, Any], waiting: dict[int, Call]
) -> None:
    result = computation.switch()
    if computation.dead:
        results[index] = result
    else:
        waiting[index] = result


def _compute(calls: list[Call], most: int) -> None:
    groups: defaultdict[tuple[Joint, Hashable], list[Call]] = defaultdict(list)
    for call in calls:
        try:
            groups[call.joint, call.joint.group_key(call)].append(call)
        except Exception as error:  # only this client fails
            call.error = error
    for (joint, _), group in groups.items():
        for bucket in _buckets(group, most):
            if len(bucket) == 1:
                bucket[0].run_unstacked()
                continue
            try:
                joint.compute(bucket)
            except Exception as error:  # these clients fail, the process continues
                for call in bucket:
                    call.error = error


def _buckets(calls: list[Call], most: int) -> Iterator[list[Call]]:
    """Yield groups of calls whose graphs have similar sizes."""
    sized = sorted(((call.joint.size(call), call) for call in calls), key=lambda pair: pair[0])
    bucket: list[Call] = []
    smallest = 0
    for rows, call in sized:
        if bucket and (len(bucket) == most or rows > SLACK * smallest):
            yield bucket
            bucket = []
        smallest = smallest if bucket else rows
        bucket.append(call)
    yield bucket


# --- stacked operations ---------------------------------------------------------------------------


def _step(calls: Sequence[Call]) -> None:
    """Take one step for all clients (`update`)."""
    step_all([call.args[0] for call in calls])


def _predict(calls: Sequence[Call]) -> None:
    """Compute logits without dropout (`infer`)."""
    for call in calls:
        call.client.model.eval()
    stack = Stack([call.client for call in calls], with_batch=False)
    with torch.no_grad():
        logits = stack.run(stack.parameters(), lambda one: one.logits(one.inputs))
    for call, rows, size in zip(calls, logits, stack.sizes, strict=True):
        call.result = rows[:size]


def _predicts(client: GraphClient) -> bool:
    """Return whether a client can be stacked for predictions: its logits read nothing but the model and its inputs."""
    return stackable(client) and (not client.capabilities.stacks or inherits(client, ["logits"]))


def _scored_alone(client: GraphClient) -> bool:
    """Return whether scores depend only on the logits, on one graph."""
    scored = client.scorer(client.score_floor)
    plain = not client.cfg.evaluation.own and not client.cfg.evaluation.points
    return plain and isinstance(scored, metrics.Scored) and len(scored.parts) == 1


def _score(calls: Sequence[Call]) -> None:
    """Compute the scores of each client."""
    clients = [call.client for call in calls]
    scorers = [client.scorer(client.score_floor) for client in clients]
    scored = [scorer for scorer in scorers if isinstance(scorer, metrics.Scored)]

    def segments() -> Segments:
        return Segments(scored)

    wanted = metrics.wanted(clients[0].cfg.evaluation, calls[0].args[0].shape[1])
    scores = _cached.of(clients, scored, segments).score([call.args[0] for call in calls], wanted)
    for call, result in zip(calls, scores, strict=True):
        call.result = result


def _descends(client: GraphClient) -> bool:
    """Return whether local training is plain gradient descent on all training nodes, step after step."""
    whole = client.batch.inputs is client.inputs and client.batch.nodes is client.train_nodes
    plain = whole and inherits(client, ("descend", "gradient", "batches")) and steps_plainly(client)
    return plain and client.local_steps > 0 and stackable(client)


def _descent_key(call: Call) -> Hashable:
    """Return the key of the objective, the number of local steps, and the optimiser's class and progress."""
    return (
        _objective_key(call),
        call.client.local_steps,
        type(call.args[0]).__name__,
        call.args[0].progress,
    )


def _descend(calls: Sequence[Call]) -> None:
    """Compute each client's parameters and moments after the last step, and its last loss.

    Tensors are stacked once before the first step and split after the last.
    """
    leader = calls[0].client
    optimizers = [call.args[0] for call in calls]
    names = [name for name, _ in leader.model.named_parameters()]
    moved = [name for name in names if leader.model.tensors[name].requires_grad]
    stack = Stack([call.client for call in calls])
    streams = Streams([call.states[-1] for call in calls], stack.sizes, leader.device)
    values = stack.parameters()
    stacked = type(optimizers[0]).joined(optimizers, [values[name] for name in names])
    for _ in range(leader.local_steps):
        with drawing(streams):
            losses, grads = stack.grads(values, moved)
        for name in moved:
            values[name].grad = grads[name]
        stacked.step()
    rows = zip(*(values[name].unbind(0) for name in names), strict=True)
    with torch.no_grad():
        parameters = [tensor for optimizer in optimizers for tensor in optimizer.parameters]
        torch._foreach_copy_(parameters, [part for row in rows for part in row])
    if leader.cfg.train.keeps_optimizer:
        stacked.hand_out(optimizers)
    # only methods' own clients read gradients afterwards
    left = moved if type(leader) is not GraphClient else []
    _give_grads(calls, {name: grads[name] for name in left})
    for call, state, loss in zip(calls, streams.states, losses.unbind(0), strict=True):
        call.states[-1] = state
        call.client.steps = leader.local_steps
        call.result = loss


def _give_grads(calls: Sequence[Call], grads: Mapping[str, Tensor | None]) -> None:
    """Write each client's row of stacked gradients to its parameters."""
    for name, parts in zip(grads, _each(list(grads.values()), len(calls)), strict=True):
        for call, grad in zip(calls, parts, strict=True):
            call.client.model.tensors[name].grad = grad


def _objective_key(call: Call) -> Hashable:
    """Return the properties of the model, its mode, its inputs and the trees that the objective reads."""
    client = call.client
    trees = [
        (path, leaf.shape)
        for path, leaf in _leaves({name: getattr(client, name) for name in _read(client)})
    ]
    modes = (
        client.model.training,
        client.batch.nodes is None,
        tuple(type(part) for part in client.active),
    )
    return alike(client), kinds(client.batch.inputs), *modes, tuple(trees)


def _gradient(calls: Sequence[Call]) -> None:
    """Write each client's gradient to its parameters."""
    names = [name for name, tensor in calls[0].client.model.tensors.items() if tensor.requires_grad]
    for call, (loss, grads) in zip(calls, _grads(calls, names), strict=True):
        call.args[0].zero_grad()
        for name, grad in grads.items():
            call.client.model.tensors[name].grad = grad
        call.result = loss


def _losses_and_grads(calls: Sequence[Call]) -> None:
    """Compute the loss and gradients of each client."""
    for call, result in zip(calls, _grads(calls, list(calls[0].args[0])), strict=True):
        call.result = result


JOINTS = {
    "gradient": Joint(_gradient, _objective_key),
    "grads": Joint(_losses_and_grads, lambda call: (_objective_key(call), tuple(call.args[0]))),
    "update": Joint(
        _step, lambda call: type(call.args[0]).__name__, lambda client: True, lambda call: 0
    ),
    "descend": Joint(_descend, _descent_key, _descends),
    "infer": Joint(
        _predict, lambda call: (alike(call.client), kinds(call.client.inputs)), _predicts
    ),
    "score": Joint(_score, lambda call: call.args[0].shape[1], _scored_alone, lambda call: 0),
}
"""Stacked computation of each seam, by the seam's name."""


def _grads(
    calls: Sequence[Call], names: list[str]
) -> Iterator[tuple[Tensor, dict[str, Tensor | None]]]:
    """Yield each client's loss and gradients: those of the sum of all losses with respect to the client's own tensors."""
    stack = Stack([call.client for call in calls])
    streams = Streams([call.states[-1] for call in calls], stack.sizes, calls[0].client.device)
    with drawing(streams):
        losses, grads = stack.grads(stack.parameters(), names)
    parts = _each([grads[name] for name in names], len(calls))
    for call, state, loss, *gradients in zip(
        calls, streams.states, losses.unbind(0), *parts, strict=True
    ):
        call.states[-1] = state
        yield loss, dict(zip(names, gradients, strict=True))


def _each(stacked: Iterable[Tensor | None], count: int) -> list[Sequence[Tensor | None]]:
    """Split each tensor [M, ...] into its M parts; None gives M times None."""
    return [[None] * count if tensor is None else tensor.unbind(0) for tensor in stacked]


def _read(client: GraphClient) -> tuple[str, ...]:
    return ("class_weights", "term_state", *(client.capabilities.stacks or ()))


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested dicts with their paths; None is a missing leaf."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif tree is not None:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}/{key}")


def _filled(tree: Any, leaves: dict[str, Tensor], path: str = "") -> Any:
    """Return a tree of the same structure with other tensors."""
    if isinstance(tree, Tensor):
        return leaves[path]
    return (
        None
        if tree is None
        else {key: _filled(value, leaves, f"{path}/{key}") for key, value in tree.items()}
    )


class StackCache:
    """Stacked tensors of the last exchange, by the clients they belong to, reused while their parts are unchanged.

    A tensor's content may change only together with its `_version`. Parts that are not tensors must
    not change.
    """

    def __init__(self) -> None:
        self.previous: dict[Hashable, tuple[list[Any], list[Any], Any]] = {}
        self.current: dict[Hashable, tuple[list[Any], list[Any], Any]] = {}

    def of(
        self, clients: Sequence[GraphClient], parts: list[Any], make: Callable[[], Result]
    ) -> Result:
        """Return the result of ``make`` for these clients, cached while the parts are unchanged."""
        slot = make.__qualname__, *map(id, clients)
        marks = [(id(part), getattr(part, "_version", 0)) for part in parts]
        held = self.current.get(slot) or self.previous.pop(slot, None)
        if held is None or held[0] != marks:
            # keep the parts alive, so that no later object reuses one of their ids
            held = marks, parts, make()
        self.current[slot] = held
        return held[2]

    def turn(self) -> None:
        """Drop what the finished exchange did not use."""
        if self.current:
            self.previous = self.current
            self.current = {}

    def forget(self) -> None:
        """Drop everything at the end of a run."""
        self.previous = {}
        self.current = {}


_cached = StackCache()
forget = _cached.forget


class Stack:
    """Clients with compatible models as one client whose tensors are stacked.

    Args:
        clients: M clients.
        with_batch: stack each client's batch as well as its inputs.
    """

    def __init__(self, clients: Sequence[GraphClient], with_batch: bool = True):
        self.clients = clients
        self.batches = [client.batch for client in clients] if with_batch else []
        self.members = [batch.inputs for batch in self.batches] or [
            client.inputs for client in clients
        ]
        self.sizes = [rows_of(inputs) for inputs in self.members]
        self.rows = max(self.sizes)
        self.parts = [part for inputs in self.members for part in constants(inputs)]
        self.inputs, self.dense, self.given = _cached.of(clients, self.parts, self._stacked_inputs)
        if with_batch:
            parts = [part for batch in self.batches for part in (batch.nodes, batch.y)]
            self.given = self.given | _cached.of(clients, parts, self._stacked_batches)
        self.trees = (
            {name: getattr(clients[0], name) for name in _read(clients[0])} if with_batch else {}
        )
        leaves = [
            dict(_leaves({name: getattr(client, name) for name in self.trees}))
            for client in clients
        ]
        self.leaves = {path: torch.stack([tree[path] for tree in leaves]) for path in leaves[0]}

    def _stacked_inputs(
        self,
    ) -> tuple[Callable[[dict[str, Tensor]], Any], dict[str, Tensor], dict[str, Tensor]]:
        """Return the result of `stack_inputs` and a mask of the rows that are nodes.

        Inputs are first settled if only the model reads them.
        """
        leader = self.clients[0]
        members = (
            [leader.model.settled(inputs) for inputs in self.members]
            if writes_out(leader)
            else self.members
        )
        real = [
            torch.ones(size, dtype=torch.bool, device=self.clients[0].device) for size in self.sizes
        ]
        return *stack_inputs(members, self.sizes, self.rows), {"real": padded(real, self.rows)}

    def _stacked_batches(self) -> dict[str, Tensor]:
        """Return labels and the rows that they belong to."""
        most = max(batch.y.numel() for batch in self.batches)
        given = {"y": padded([batch.y for batch in self.batches], most, IGNORED)}
        if self.batches[0].nodes is not None:
            given["nodes"] = padded(
                [batch.nodes for batch in self.batches if batch.nodes is not None], most
            )
        return given

    def _targets(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return, for each label in all batches: client, row among all rows, label, and weight in that client's loss."""
        y = torch.cat([batch.y for batch in self.batches])
        owner = torch.repeat_interleave(
            torch.tensor([batch.y.numel() for batch in self.batches], device=y.device)
        )
        nodes = [
            torch.arange(len(b.y), device=y.device) if b.nodes is None else b.nodes
            for b in self.batches
        ]
        weights = self.leaves.get("/class_weights")
        weight = torch.ones(len(y), device=y.device) if weights is None else weights[owner, y]
        weight = weight.to(self.clients[0].dtype)
        total = weight.new_zeros(len(self.batches)).index_add_(0, owner, weight)
        return owner, owner * self.rows + torch.cat(nodes), y, weight / total[owner]

    def _costs(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return each client's task loss [M] and its gradient with respect to the client's logits [M, N, C]."""
        parts = [
            part
            for client in self.clients
            for part in (client.batch.nodes, client.batch.y, client.class_weights)
        ]
        owner, at, y, shares = _cached.of(self.clients, self.parts + parts, self._targets)
        flat = logits.flatten(0, 1)
        terms, grad = shared_grad(flat[at], y, shares)
        losses = terms.new_zeros(len(self.clients)).index_add_(0, owner, terms)
        return losses, torch.zeros_like(flat).index_add_(0, at, grad).view_as(logits)

    def grads(
        self, values: dict[str, Tensor], names: list[str]
    ) -> tuple[Tensor, Mapping[str, Tensor | None]]:
        """Return losses [M] and their gradients [M, ...] with respect to the named tensors; None for an unused tensor.

        Args:
            values: stacked tensors, as `parameters` returns them.
            names: names among them.
        """
        return self._without_autograd(values) or self._by_autograd(values, names)

    def _without_autograd(
        self, values: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Return losses and gradients from the model's explicit formulas; None if the objective has other terms."""
        leader = self.clients[0]
        if not writes_out(leader):
            return None
        with torch.no_grad():
            return leader.model.grads(self.inputs(self.dense), values, self._costs)

    def _by_autograd(
        self, values: dict[str, Tensor], names: list[str]
    ) -> tuple[Tensor, dict[str, Tensor | None]]:
        """Return losses and gradients by automatic differentiation."""
        for name in names:
            values[name].requires_grad_()
        with torch.enable_grad():
            losses = self.run(values, lambda one: with_terms(one, one.loss()))
        gradients = torch.autograd.grad(
            losses.sum(), [values[name] for name in names], allow_unused=True
        )
        return losses.detach(), dict(zip(names, gradients, strict=True))

    def parameters(self) -> dict[str, Tensor]:
        """Return the stacked tensors of the models by name, [M, ...] each."""
        models = [client.model.tensors for client in self.clients]
        return {
            name: torch.stack([tensors[name] for tensors in models]).detach() for name in models[0]
        }

    def run(self, values: dict[str, Tensor], function: Callable[[GraphClient], Tensor]) -> Tensor:
        """Return the results of a function of a client for all clients, stacked.

        Args:
            values: stacked tensors, as `parameters` returns them.
            function: reads only the attributes that the class declares; others are missing.
        """
        leader = self.clients[0]
        one: Any = object.__new__(type(leader))
        vars(one).update({name: vars(leader)[name] for name in _SAME})
        swap = _Swap(leader.model, lambda: function(one))

        def of_one(values: Tensors, dense: Tensors, given: Tensors, leaves: Tensors) -> Tensor:
            one.inputs = self.inputs(dense)
            one.real = given["real"]
            if "y" in given:
                one.batch = leader.batch._replace(
                    inputs=one.inputs, nodes=given.get("nodes"), y=given["y"]
                )
            vars(one).update(_filled(self.trees, leaves))
            return torch.func.functional_call(swap, values, ())

        named = {f"model.{name}": value for name, value in values.items()}
        try:
            return torch.func.vmap(of_one)(named, self.dense, self.given, self.leaves)
        except AttributeError as error:
            what = "`stacks` of a client's class must name all that its objective reads"
            raise FedGraphError(f"{what}: {located(error)}") from error


class _Swap(nn.Module):
    """Runs a function while the model's tensors are replaced."""

    def __init__(self, model: nn.Module, function: Callable[[], Tensor]):
        super().__init__()
        self.model = model
        self.function = function

    def forward(self) -> Tensor:
        return self.function()
