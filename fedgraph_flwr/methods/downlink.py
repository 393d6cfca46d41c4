"""Downlink of a method: per phase and group, what a message of the server to a client may carry.

A method declares this next to its uplink, in a function that its client names as `downlink`:

    def downlink(cfg, params):
        return {TRAIN: {"target": Input("the pooled moments", {"moments": ArrayField((5, "C"), "float64")})}}

A node reads messages by it, and the method's page shows it. A message need not carry every group. The framework declares its
own: shared parameters, class weights, norms of clipping, inputs of secure sums and of parts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgraph_flwr.wire.messages import ASKS_VERSIONS, STARTED_BY
from fedgraph_flwr.wire.reply_schema import ArrayField

SCALARS: dict[str, type] = {
    **{"phase": str, "round": int, "exchange": int, ASKS_VERSIONS: bool, "resume": int, "run": str, "best": int},
    **dict.fromkeys(("keep", "checkpoint", "evaluate", "keep_model"), bool),
    **{STARTED_BY: str, "stage": str, "scored": int, "protocol": object},
}
"""Scalars of the framework's own, and their types; a message has some of them. Another version may have another ``protocol``."""

REQUIRED = ("phase", "round", "exchange")
"""Those that every message has; without ``exchange`` it is the first."""


@dataclass(frozen=True)
class Input:
    """Group of arrays that a client may receive; under `CONFIG`, further scalars.

    Attributes:
        what: what it is, for the method's page and for errors.
        fields: its arrays, where None is one whose type and shape the client checks, because they follow from earlier
            messages; `ARRAYS`: the names and shapes of the shared parameters; None: names follow from earlier messages, too.
        zero: whether it is zero before any training.
    """

    what: str
    fields: Mapping[str, ArrayField | None] | str | None = None
    zero: bool = False


Inputs = Mapping[str, Input]


class Stages(dict[str, Input]):
    """Groups of a phase, in a run whose rounds have several stages.

    Args:
        groups: inputs by group.
        stages: name of each stage → whether clients send what they trained; the empty name is the ordinary stage.
    """

    def __init__(self, groups: Inputs, stages: Mapping[str, bool]):
        super().__init__(groups)
        self.stages = dict(stages)


@dataclass(frozen=True)
class Downlink:
    """What messages of a run may carry.

    Attributes:
        phases: inputs by phase and group.
        complete: whether the method declares its inputs; otherwise messages may carry others as well.
        stages: name of each stage → whether clients send what they trained.
    """

    phases: Mapping[str, Inputs]
    complete: bool = True
    stages: Mapping[str, bool] = field(default_factory=lambda: {"": True})
