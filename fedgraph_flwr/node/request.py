"""A server's message as a node reads it: its scalars, typed once, and its groups of arrays."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.clients.replies import Received, binding, received
from fedgraph_flwr.errors import Refusal, sanitize, unknown
from fedgraph_flwr.methods.downlink import REQUIRED, SCALARS, Downlink, Input
from fedgraph_flwr.secure.keyring import SIGNATURES
from fedgraph_flwr.secure.masked import PEERS, digest
from fedgraph_flwr.secure.policy import file_name
from fedgraph_flwr.secure.secagg import SECAGG
from fedgraph_flwr.wire.messages import (
    CONFIG,
    DESCRIBE,
    EVALUATE,
    MODEL,
    TRAIN,
    Arrays,
    check_arrays,
    groups_of,
)
from fedgraph_flwr.wire.reply_schema import ArrayField, check

RENEWED = ("announced", "envelopes", "keys", PEERS, SIGNATURES)
"""Groups with keys, signatures or envelopes."""


@dataclass(frozen=True)
class Request:
    """A message to a client.

    Attributes:
        phase: what the client is asked to do.
        round: the round of the message.
        exchange: number of earlier exchanges of the phase in the round.
        resume: the last round of the run that is resumed; None: it begins.
        run: the server's name of the run, under which checkpoints are stored.
        keeps_models: whether the client stores the models that it will predict with.
        writes_checkpoint: whether the client stores its state after the reply.
        sends_scores: whether scores travel with the reply.
        scalars: all scalars of the message.
        content: the message's records.
    """

    phase: str
    round: int
    exchange: int
    resume: int | None
    run: str | None
    keeps_models: bool
    writes_checkpoint: bool
    sends_scores: bool
    scalars: dict[str, Any]
    content: RecordDict

    @classmethod
    def read(cls, message: Message) -> Self:
        """Read a message's scalars; its arrays are read when they are needed.

        Raises:
            FedGraphError: a scalar is missing, or has another type.
        """
        record = message.content.get(CONFIG)
        sent = record if isinstance(record, ConfigRecord) else {}
        scalars: dict[str, Any] = {"exchange": 0, **sent}
        needed = {*REQUIRED, *(["best"] if scalars.get("keep") else [])}
        named = needed | scalars.keys()
        kinds = {key: kind for key, kind in SCALARS.items() if key in named}
        if scalars.get("phase") not in (DESCRIBE, TRAIN, EVALUATE):
            kinds.pop("scored", None)  # a method's own
        for key, kind in kinds.items():
            if kind is not object and type(scalars.get(key)) is not kind:
                raise Refusal(
                    f"the server's message has {key}={sanitize(scalars.get(key), 60)},"
                    f" expected {kind.__name__}"
                )
        for key, value in scalars.items():
            for number in value if isinstance(value, list) else (value,):
                if isinstance(number, float) and not math.isfinite(number):
                    raise Refusal(
                        f"the server's message has {sanitize(key, 60)}={sanitize(value, 60)},"
                        " expected finite numbers"
                    )
        for key in ("exchange", "best", "scored"):
            if key in kinds and scalars[key] < 0:
                raise Refusal(
                    f"the server's message has {key}={scalars[key]}, expected no negative number"
                )
        if "run" in scalars:
            file_name(scalars["run"], "the server's name of a run,")
        phase = scalars["phase"]
        if "resume" in scalars and (phase != DESCRIBE or scalars["resume"] < 0):
            raise Refusal(
                f"the server resumes after round {scalars['resume']} in a message of phase"
                f" '{sanitize(phase, 60)}', expected phase '{DESCRIBE}' and no negative round"
            )
        return cls(
            phase=phase,
            round=scalars["round"],
            exchange=scalars["exchange"],
            resume=scalars.get("resume"),
            run=scalars.get("run"),
            keeps_models=scalars.get("keep", False),
            writes_checkpoint=scalars.get("checkpoint", False),
            sends_scores=scalars.get("evaluate", False),
            scalars=Received(scalars, "number", f"of phase '{phase}'"),
            content=message.content,
        )

    def check(self, client: GraphClient) -> None:
        """Refuse what the method's downlink does not declare.

        A client whose class declares no downlink may receive more; what it declares is checked.

        Raises:
            FedGraphError: a group, a scalar or a stage is unknown, or an array is not as declared.
        """
        declared, phase = client.downlink_of, self.phase
        groups = dict(declared.phases.get(phase, {}))
        config = groups.pop(CONFIG, None)
        where = f"in the server's message of phase '{phase}', but not in the client's downlink"
        if declared.complete:
            for kind, names, known in (
                ("group", self.content.keys() - {CONFIG}, groups),
                (
                    "scalar",
                    self.scalars.keys(),
                    [*SCALARS, *(config.fields or () if config else ())],
                ),
            ):
                for name in sorted(names - set(known)):
                    raise unknown(kind, sanitize(name, 60), known or ("none",), where)
            self._check_stage(declared)
        check_types(self.groups.get(MODEL, {}), client.shared, "the server")
        for group, taken in groups.items():
            if taken.fields is not None and group in self.groups:
                who = f"the server sent group '{group}' of phase '{phase}'"
                check_input(client, self.groups[group], taken, who)

    def _check_stage(self, declared: Downlink) -> None:
        """Refuse a stage that the method does not have, and one that keeps models which it sends."""
        if self.phase not in (TRAIN, EVALUATE):
            return
        stage, keeps = self.scalars.get("stage", ""), bool(self.scalars.get("keep_model"))
        if stage not in declared.stages:
            known = " or ".join(f"'{name}'" for name in declared.stages)
            raise Refusal(
                f"the server's message has stage '{sanitize(stage, 60)}', expected {known}: the"
                " client's `downlink` declares stages (docs/extend.md)"
            )
        if keeps == declared.stages[stage]:
            raise Refusal(
                f"the server's message has keep_model={keeps}, but models of stage '{stage}' are"
                f" {'sent' if keeps else 'kept'}: the client's `downlink` declares stages"
                " (docs/extend.md)"
            )

    def check_model(self, client: GraphClient) -> None:
        """Refuse to train without a model for a reply with one; a class that declares no inputs may."""
        sends = client.shared and not self.scalars.get("keep_model")
        declared = client.downlink_of.complete
        if self.phase == TRAIN and MODEL not in self.groups and sends and declared:
            raise Refusal(f"the server requests phase '{TRAIN}' without group '{MODEL}'")

    def digest(self) -> str:
        """Return a digest of what the reply follows from.

        Keys, signatures and envelopes are left out, since another attempt of a run has others.
        """
        arrays = {
            f"{group}/{name}": array
            for group, members in groups_of(self.content).items()
            for name, array in members.items()
            if group != SECAGG and not (group in RENEWED and array.dtype == np.uint8)
        }
        return sha256(digest(arrays) + repr(binding(self.scalars)).encode()).hexdigest()

    @cached_property
    def groups(self) -> dict[str, Arrays]:
        """The groups of arrays, of which a client takes some out."""
        return received(groups_of(self.content), self.phase)


def check_types(arrays: Arrays, expected: Mapping[str, Tensor], sender: str) -> None:
    """Refuse arrays of other types than the tensors of the same names.

    Raises:
        Refusal: names the array, its type and the expected one.
    """
    for name in arrays.keys() & expected.keys():
        wanted = str(expected[name].dtype).removeprefix("torch.")
        if arrays[name].dtype != wanted:
            raise Refusal(
                f"{sender} sent '{sanitize(name, 60)}' of type {arrays[name].dtype}, expected {wanted}"
            )


def check_input(client: GraphClient, arrays: Arrays, taken: Input, who: str) -> None:
    """Refuse arrays that are not as a client's method declares them.

    Raises:
        FedGraphError: names the array, and what is accepted.
    """
    fields = taken.fields
    if isinstance(fields, str) or fields is None:
        shapes = {name: tuple(tensor.shape) for name, tensor in client.shared.items()}
        check_arrays(arrays, shapes, "the server")
        return
    known = {name: _sized(client, wanted) for name, wanted in fields.items() if wanted is not None}
    later = {name for name, wanted in fields.items() if wanted is None}
    check({name: array for name, array in arrays.items() if name not in later}, known, who)


def _sized(client: GraphClient, wanted: ArrayField) -> ArrayField:
    """Return a field with the sizes of a client in the place of letters."""
    sizes = {"C": client.task.width, "F": client.graph.num_features, "N": client.graph.num_nodes}

    def sized(axis: Any) -> Any:
        if not isinstance(axis, str):
            return axis
        return sizes[axis] if axis in sizes else getattr(client, axis)

    return replace(wanted, shape=tuple(map(sized, wanted.shape)))
