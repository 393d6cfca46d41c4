"""The schema of each phase of a method, derived from its uplink and the clients' descriptions."""

from dataclasses import replace
from typing import Any

from fedgraph_flwr import models
from fedgraph_flwr.evaluation.metrics import CONFUSION, released
from fedgraph_flwr.methods.uplink import ARRAYS, Reducer
from fedgraph_flwr.secure import beginning
from fedgraph_flwr.secure.beginning import BEGINNING
from fedgraph_flwr.strategies.scoring import score_fields
from fedgraph_flwr.strategies.server import Server
from fedgraph_flwr.tasks import reads_edges
from fedgraph_flwr.wire.messages import (
    DESCRIBE,
    EVALUATE,
    METRICS,
    SPEAKS,
    TRAIN,
    Arrays,
)
from fedgraph_flwr.wire.reply_schema import (
    LARGEST,
    ArrayField,
    Axis,
    NumberField,
    ReplySchema,
    like,
    up_to,
)

_SIZES = {"C": "num_classes", "F": "num_features"}
"""Letter of an axis → the number's name in a client's description."""


class Schemas:
    """The schema of each phase of a strategy, from its uplink and the clients' descriptions.

    Args:
        method: the strategy.
    """

    def __init__(self, method: Server):
        self.method = method
        self.cfg = method.cfg
        self._scores: dict[tuple[str, int], dict[str, NumberField]] = {}
        self._resolved: dict[tuple[str, str], dict[str, Any]] = {}
        # fields of the current shared parameters
        self._model: tuple[Arrays, dict[str, ArrayField]] | None = None

    def forget(self) -> None:
        """Forget what depends on the clients' descriptions."""
        self._scores.clear()
        self._resolved.clear()

    def of(self, phase: str, client: int | None) -> ReplySchema:
        """Return the schema of a reply to a phase.

        Raises:
            NotImplementedError: the method declares no such phase.
        """
        if phase in BEGINNING:
            return beginning.schema(phase)
        declared = self.method.uplink_of.get(phase)
        if phase == EVALUATE:
            return ReplySchema(numbers=self._score_fields(client))
        if declared is None:
            raise NotImplementedError(
                f"{type(self.method).__name__} declares no uplink for its phase '{phase}'"
            )
        numbers = (
            self._fields(phase, METRICS, declared[METRICS], client)
            if METRICS in declared
            else {}
        )
        if phase == DESCRIBE:
            return ReplySchema(numbers={**self._description(), **numbers})
        if phase == TRAIN:
            numbers = {**self._training(client), **numbers}
            if not self.method.stage().up:
                return ReplySchema(numbers=numbers)
        groups = {
            g: self._fields(phase, g, reducer, client)
            for g, reducer in declared.items()
            if g != METRICS
        }
        return ReplySchema(
            {group: fields for group, fields in groups.items() if fields is not None}, numbers
        )

    def _fields(self, phase: str, group: str, reducer: Reducer, client: int | None) -> Any:
        """Return the fields of a group, with axes resolved to numbers."""
        if reducer.fields == ARRAYS:
            return self._model_fields()
        if reducer.fields is None:
            return self.method.fields(phase, group, client)
        assert not isinstance(reducer.fields, str)
        if (key := (phase, group)) not in self._resolved:
            self._resolved[key] = {name: self._sized(f) for name, f in reducer.fields.items()}
        return self._resolved[key]

    def _sized(self, field: ArrayField | NumberField) -> ArrayField | NumberField:
        if isinstance(field, NumberField) or not any(
            isinstance(axis, str) for axis in field.shape
        ):
            return field
        shape = [
            self.method.agreed(_SIZES.get(a, a)) if isinstance(a, str) else a
            for a in field.shape
        ]
        return replace(field, shape=tuple(shape))

    def _training(self, client: int | None) -> dict[str, NumberField]:
        """Return the number fields of a reply to ``train``."""
        numbers: dict[str, NumberField] = {}
        if not self.method.counting.private:
            whole = NumberField(0, LARGEST, whole=True)
            known = None if client is None else self.method.clients[client].description
            numbers["num_train"] = (
                whole if known is None else exactly(known.get("num_train", 0))
            )
        if self.method.counting.protection.scores == "exact":
            numbers["train-loss"] = NumberField(optional=True)
        if self.method.scores_due:
            numbers |= self._score_fields(client)
        if self.cfg.evaluation.trained:
            numbers |= self._score_fields_of("trained-", client)
        return numbers

    def _score_fields(self, client: int | None) -> dict[str, NumberField]:
        fields = self._score_fields_of("", client)
        fields |= self._score_fields_of("global-", client) if self.cfg.strategy.personal else {}
        if self.cfg.evaluation.confusion:
            fields[CONFUSION] = NumberField(
                -LARGEST, LARGEST, length=self.method.agreed("num_classes") ** 2
            )
        return fields

    def _score_fields_of(self, prefix: str, client: int | None) -> dict[str, NumberField]:
        classes, *more = self.method.described.class_counts
        if more and client is not None:
            classes = self.method.clients[client].description["num_classes"]
        if (key := (prefix, classes)) not in self._scores:
            # of the pooled graph one for each client
            parts: Axis = range(1, self.cfg.num_clients + 1) if self.cfg.strategy.pooled else 1
            self._scores[key] = (
                dict.fromkeys(released(self.cfg.evaluation), NumberField(0, 1, length=parts))
                if self.method.counting.protection.scores == "noised"
                else score_fields(self.cfg, classes, prefix, parts)
            )
        return self._scores[key]

    def _model_fields(self) -> dict[str, ArrayField]:
        """Return the fields of the shared parameters."""
        if self._model is None or self._model[0] is not self.method.arrays:
            self._model = self.method.arrays, like(self.method.arrays)
        return self._model[1]

    def _description(self) -> dict[str, NumberField]:
        """Return the fields of a client's description, without its number of training nodes under differential privacy."""
        whole = NumberField(0, LARGEST, whole=True)
        many = NumberField(0, LARGEST, whole=True, length=up_to(4096))
        network = models.network(self.cfg.model)
        fields = {
            "num_features": many if network.capabilities.heterogeneous else whole,
            "num_classes": whole,
            SPEAKS: whole,
        }
        if reads_edges(self.cfg):
            fields["num_edge_features"] = whole
        if self.cfg.strategy.private_schema:
            fields["num_features"] = replace(fields["num_features"], optional=True)
        if not self.method.counting.private:
            fields["num_train"] = whole
        fields["min_nodes"] = NumberField(0, LARGEST, whole=True, optional=True)
        fields["link"] = NumberField(0, 2**48 - 1, whole=True, optional=True)
        fields["schema"] = NumberField(
            0, 2**48 - 1, whole=True, length=up_to(2**16), optional=True
        )
        if self.cfg.strategy.weighting == "nodes" or self.cfg.evaluation.average == "nodes":
            fields["num_nodes"] = many if self.cfg.strategy.pooled else whole
        return fields


def exactly(value: int) -> NumberField:
    """Return the field of a number that is known in advance."""
    return NumberField(value, value, whole=True)
