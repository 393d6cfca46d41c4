"""Clients of one process that answer together: what all of them are about to compute is computed as one.

Each client's answer runs as a coroutine of its own, with the code that it has alone. Where it comes to a method marked `jointly`,
it waits until every other answer has come to one, or has ended; then each group of clients that do the same on alike networks
is computed as one, and each goes on with its own result. So no method knows of it. What is computed is the same function on
stacked tensors, under `torch.func.vmap`: equal to rounding, not bit for bit.

A class of clients takes part if it says so: `stacks` names what its objective reads beside the network, the inputs and the
batch. One that overrides `loss`, `logits` or `task_loss` must say so anew.
"""

import functools
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from greenlet import getcurrent, greenlet
from torch import Tensor, nn

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.numerics.optim import step_all
from fedgraph_flwr.numerics.stacked import IGNORED, kinds, padded, rows_of, stack_inputs
from fedgraph_flwr.numerics.streams import Streams, drawing, generators

if TYPE_CHECKING:
    from fedgraph_flwr.clients.base import GraphClient

Result = TypeVar("Result")
Method = TypeVar("Method", bound=Callable[..., Any])

SLACK = 1.25
"""How many times as many nodes as the smallest graph the largest of a computation may have: the rest is padding."""

OBJECTIVE = {"loss", "logits", "task_loss"}
"""The methods of a client that say what its local training minimises."""

_SAME = ("cfg", "params", "device", "dtype", "model", "server_round", "exchange", "stage")


def declared(kind: type) -> tuple[str, ...] | None:
    """What a class of clients says its objective reads; None: it says nothing, or overrides the objective of one that does."""
    for cls in kind.__mro__:
        if "stacks" in vars(cls):
            told: tuple[str, ...] | None = vars(cls)["stacks"]
            return told
        if OBJECTIVE & vars(cls).keys():
            return None
    return None


def refusal(cfg: RunConfig, kind: type["GraphClient"], model: Any) -> str:
    """Why clients cannot be computed as one, in words; empty: they can."""
    if declared(kind) is None:
        return f"strategy={cfg.strategy.name}"
    if not model.stacks:
        return f"model={cfg.model.name}" + (" with model.norm=batch" if getattr(model, "norm", "") == "batch" else "")
    return f"train.loss={cfg.train.loss}" if cfg.train.loss == "focal" else ""


# --- answers on their way -------------------------------------------------------------------------------------------------


class Member(greenlet):
    """One client's answer on its way."""


class Joint:
    """How one method of many clients is computed as one."""

    @staticmethod
    def serves(client: "GraphClient") -> bool:
        """Whether a client can take part."""
        return client.stackable

    @staticmethod
    def size(call: "Call") -> int:
        """By which calls that are computed as one are alike: nodes."""
        return rows_of(call.client.inputs)

    @staticmethod
    def kin(call: "Call") -> Hashable:
        """What calls that can be computed as one have in common."""
        raise NotImplementedError

    @staticmethod
    def compute(calls: Sequence["Call"]) -> None:
        """Leave a result in each call."""
        raise NotImplementedError


class Call:
    """What a client is about to compute, and what came of it."""

    def __init__(self, joint: type["Joint"], alone: Callable[..., Any], client: "GraphClient", args: tuple[Any, ...]):
        self.joint, self.alone, self.client, self.args = joint, alone, client, args
        self.generators = generators(client.device)
        self.states = [generator.get_state() for generator in self.generators]
        self.grad = torch.is_grad_enabled()
        self.result: Any = None
        self.error: Exception | None = None

    def by_itself(self) -> None:
        """Compute it as the client does alone."""
        self.take_up()
        try:
            self.result = self.alone(self.client, *self.args)
        except Exception as error:
            self.error = error
        self.states = [generator.get_state() for generator in self.generators]

    def take_up(self) -> None:
        """Let the process be as the client left it: its random stream, and whether gradients are kept."""
        for generator, state in zip(self.generators, self.states, strict=True):
            generator.set_state(state)
        torch.set_grad_enabled(self.grad)


def jointly(joint: type[Joint]) -> Callable[[Method], Method]:
    """Mark a method of a client as one that all clients on their way compute as one."""

    def mark(alone: Method) -> Method:
        @functools.wraps(alone)
        def method(client: "GraphClient", *args: Any) -> Any:
            member = getcurrent()
            if not isinstance(member, Member) or not joint.serves(client):
                return alone(client, *args)
            call = Call(joint, alone, client, args)
            member.parent.switch(call)
            call.take_up()
            if call.error:
                raise call.error
            return call.result

        return method  # type: ignore[return-value]

    return mark


def answer_together(answers: Iterable[Callable[[], Result]], most: int) -> list[Result]:
    """Run clients' answers side by side; at most ``most`` of them are computed as one."""
    members = [Member(answer) for answer in answers]
    results: dict[int, Result] = {}
    waiting: dict[int, Call] = {}
    for index, member in enumerate(members):
        _go_on(index, member, results, waiting)
    while waiting:
        calls = dict(waiting)
        waiting.clear()
        _compute(list(calls.values()), most)
        for index in calls:
            _go_on(index, members[index], results, waiting)
    return [results[index] for index in range(len(members))]


def _go_on(index: int, member: Member, results: dict[int, Any], waiting: dict[int, Call]) -> None:
    found = member.switch()
    if member.dead:
        results[index] = found
    else:
        waiting[index] = found


def _compute(calls: list[Call], most: int) -> None:
    groups: defaultdict[tuple[type[Joint], Hashable], list[Call]] = defaultdict(list)
    for call in calls:
        groups[call.joint, call.joint.kin(call)].append(call)
    for (joint, _), group in groups.items():
        for bucket in _buckets(group, most):
            if len(bucket) == 1:
                bucket[0].by_itself()
                continue
            try:
                joint.compute(bucket)
            except Exception as error:  # theirs, not the process's
                for call in bucket:
                    call.error = error


def _buckets(calls: list[Call], most: int) -> Iterator[list[Call]]:
    """Calls of clients whose graphs are of like size."""
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


# --- what is computed as one ----------------------------------------------------------------------------------------------


class Step(Joint):
    """``update(optimizer)``."""

    @staticmethod
    def serves(client: "GraphClient") -> bool:
        """Any."""
        return True

    @staticmethod
    def size(call: Call) -> int:
        """Steps are taken tensor by tensor."""
        return 0

    @staticmethod
    def kin(call: Call) -> Hashable:
        """Optimisers of one kind: those of a run have the same settings."""
        return type(call.args[0]).__name__

    @staticmethod
    def compute(calls: Sequence[Call]) -> None:
        """One step of all."""
        step_all([call.args[0] for call in calls])


class Prediction(Joint):
    """``predict()``."""

    @staticmethod
    def kin(call: Call) -> Hashable:
        """Networks alike."""
        return call.client.alike, kinds(call.client.inputs)

    @staticmethod
    def compute(calls: Sequence[Call]) -> None:
        """Logits without dropout."""
        for call in calls:
            call.client.model.eval()
        stack = Stack([call.client for call in calls], with_batch=False)
        with torch.no_grad():
            logits = stack.run(stack.parameters(), lambda one: one.logits(one.inputs))
        for call, own, size in zip(calls, logits, stack.sizes, strict=True):
            call.result = own[:size]


class Gradient(Joint):
    """``gradient(optimizer)``."""

    @staticmethod
    def kin(call: Call) -> Hashable:
        """Networks alike, in the same mode, whose objectives read trees alike."""
        client = call.client
        trees = [(path, leaf.shape) for path, leaf in _leaves({name: getattr(client, name) for name in _read(client)})]
        return client.alike, kinds(client.batch.inputs), client.model.training, client.batch.nodes is None, tuple(trees)

    @staticmethod
    def compute(calls: Sequence[Call]) -> None:
        """Each one's gradient in each one's parameters."""
        names = [name for name, tensor in calls[0].client.tensors.items() if tensor.requires_grad]
        for call, (loss, slopes) in zip(calls, _slopes(calls, names), strict=True):
            call.args[0].zero_grad()
            for name, slope in slopes.items():
                call.client.tensors[name].grad = slope
            call.result = loss


class Slopes(Joint):
    """``slopes(tensors)``."""

    @staticmethod
    def kin(call: Call) -> Hashable:
        """As for a gradient, and in tensors of the same names."""
        return Gradient.kin(call), tuple(call.args[0])

    @staticmethod
    def compute(calls: Sequence[Call]) -> None:
        """Loss and slopes of each."""
        for call, found in zip(calls, _slopes(calls, list(calls[0].args[0])), strict=True):
            call.result = found


def _slopes(calls: Sequence[Call], names: list[str]) -> Iterator[tuple[Tensor, dict[str, Tensor | None]]]:
    """Each client's loss, and its slopes: those of the sum of all losses in that client's own tensors."""
    stack = Stack([call.client for call in calls])
    values = stack.parameters()
    for name in names:
        values[name].requires_grad_()
    streams = Streams([call.states[-1] for call in calls], stack.sizes, calls[0].client.device)
    with torch.enable_grad(), drawing(streams):
        losses = stack.run(values, lambda one: one.loss())
    slopes = torch.autograd.grad(losses.sum(), [values[name] for name in names], allow_unused=True)
    parts = [[None] * len(calls) if slope is None else slope.unbind(0) for slope in slopes]
    for call, state, loss, *own in zip(calls, streams.states, losses.detach().unbind(0), *parts, strict=True):
        call.states[-1] = state
        yield loss, dict(zip(names, own, strict=True))


def _read(client: "GraphClient") -> tuple[str, ...]:
    return ("class_weights", *(declared(type(client)) or ()))


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested dicts, by their paths; None is a leaf that is not there."""
    if isinstance(tree, Tensor):
        yield path, tree
    elif tree is not None:
        for key, value in tree.items():
            yield from _leaves(value, f"{path}/{key}")


def _filled(tree: Any, leaves: dict[str, Tensor], path: str = "") -> Any:
    """The same tree of other tensors."""
    if isinstance(tree, Tensor):
        return leaves[path]
    return None if tree is None else {key: _filled(value, leaves, f"{path}/{key}") for key, value in tree.items()}


class Stack:
    """Clients whose networks are alike, as one of their class whose tensors are all of theirs.

    Args:
        clients: M of them.
        with_batch: whether each one's batch is stacked, or its inputs alone.
    """

    def __init__(self, clients: Sequence["GraphClient"], with_batch: bool = True):
        self.clients = clients
        batches = [client.batch for client in clients]
        inputs = [batch.inputs if with_batch else client.inputs for client, batch in zip(clients, batches, strict=True)]
        self.sizes = [rows_of(own) for own in inputs]
        rows = max(self.sizes)
        self.inputs, self.dense = stack_inputs(inputs, self.sizes, rows)
        self.given: dict[str, Tensor] = {"real": padded([self._all(size) for size in self.sizes], rows)}
        if with_batch:
            most = max(batch.y.numel() for batch in batches)
            self.given["y"] = padded([batch.y for batch in batches], most, IGNORED)
            if batches[0].nodes is not None:
                self.given["nodes"] = padded([batch.nodes for batch in batches if batch.nodes is not None], most)
        self.trees = {name: getattr(clients[0], name) for name in _read(clients[0])} if with_batch else {}
        each = [dict(_leaves({name: getattr(client, name) for name in self.trees})) for client in clients]
        self.leaves = {path: torch.stack([own[path] for own in each]) for path in each[0]}

    def _all(self, size: int) -> Tensor:
        return torch.ones(size, dtype=torch.bool, device=self.clients[0].device)

    def parameters(self) -> dict[str, Tensor]:
        """Values of the networks' tensors by name, [M, ...] each."""
        each = [client.tensors.values() for client in self.clients]
        return {name: torch.stack(own).detach() for name, own in zip(self.clients[0].tensors, zip(*each, strict=True), strict=True)}

    def run(self, values: dict[str, Tensor], function: Callable[["GraphClient"], Tensor]) -> Tensor:
        """What a function of a client gives for each of them, stacked.

        Args:
            values: of `parameters`.
            function: reads what the class declares; what else it reads is not there.
        """
        leader = self.clients[0]
        one: Any = object.__new__(type(leader))
        vars(one).update({name: vars(leader)[name] for name in _SAME})
        swap = _Swap(leader.model, lambda: function(one))

        def of_one(
            values: dict[str, Tensor], dense: dict[str, Tensor], given: dict[str, Tensor], leaves: dict[str, Tensor]
        ) -> Tensor:
            one.inputs = self.inputs(dense)
            one.real = given["real"]
            if "y" in given:
                one.batch = leader.batch._replace(inputs=one.inputs, nodes=given.get("nodes"), y=given["y"])
            vars(one).update(_filled(self.trees, leaves))
            return torch.func.functional_call(swap, values, ())

        named = {f"model.{name}": value for name, value in values.items()}
        try:
            return torch.func.vmap(of_one)(named, self.dense, self.given, self.leaves)
        except AttributeError as error:
            raise FedGraphError(f"`stacks` of a client's class must name all that its objective reads: {error}") from error


class _Swap(nn.Module):
    """Runs a function while the network's tensors are others."""

    def __init__(self, model: nn.Module, function: Callable[[], Tensor]):
        super().__init__()
        self.model, self.function = model, function

    def forward(self) -> Tensor:
        return self.function()
