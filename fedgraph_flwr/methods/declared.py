"""What a run declares of its messages: the method's uplink and downlink, with the groups of its parts and of the framework."""

from collections.abc import Mapping
from typing import Any

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.config.lookup import method_params
from fedgraph_flwr.config.parts import parts_of
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.methods.downlink import Downlink, Input, Inputs, Stages
from fedgraph_flwr.methods.labels import CLASS_WEIGHTS, LABELS
from fedgraph_flwr.methods.uplink import Groups, Mean, Once, Public, Reducer, Uplink, sums
from fedgraph_flwr.secure.protection import protection_of
from fedgraph_flwr.wire.messages import DESCRIBE, EVALUATE, MODEL, TRAIN
from fedgraph_flwr.wire.reply_schema import ArrayField, NumberField

_MODEL = Input("the shared parameters")
"""The model itself checks them, since some models accept several shapes."""


def uplink_of(side: Any, cfg: RunConfig) -> dict[str, Groups]:
    """Return the uplink of a method's server or client class, with the framework's own phases.

    Raises:
        FedGraphError: a declared group is not a `Reducer`.
    """
    uplink = dict(side.uplink(cfg, method_params(side, cfg)))
    for phase, groups in uplink.items():
        for group, reducer in groups.items():
            if not isinstance(reducer, Reducer):
                raise FedGraphError(
                    f"uplink of {side.__name__}: phase '{phase}', group '{group}' is {reducer!r}, expected Mean, Sum, LateMean,"
                    " Relay, Individual or Public"
                )
            if phase == DESCRIBE and isinstance(reducer, Public) and not _sizes(reducer):
                raise FedGraphError(
                    f"uplink of {side.__name__}: a client describes itself by Public '{group}', expected whole numbers, which are"
                    " sizes: declare other values as Individual"
                )
    if cfg.train.class_weights == "federated":
        share = {"share": ArrayField(("C",), "float64", low=0, high=1)}
        # they choose items that count in the others' training, never fewer than ``min_nodes``
        uplink[LABELS] = Once({LABELS: Mean(share, weight="train", bounded=True)})
    for part in parts_of(cfg.strategy).values():
        uplink[TRAIN] = {**uplink.get(TRAIN, {}), **part.uplink}
    uplink = protection_of(cfg).uplink(uplink)
    uplink.setdefault(TRAIN, {})
    uplink.setdefault(DESCRIBE, {})
    return uplink


def _sizes(reducer: Reducer) -> bool:
    """Return whether all fields are whole numbers."""
    fields = reducer.fields.values() if isinstance(reducer.fields, Mapping) else [None]
    return all(isinstance(field, NumberField) and field.whole for field in fields)


def downlink_of(kind: Any, cfg: RunConfig, uplink: Uplink) -> Downlink:
    """Return the downlink of a client's class, with the groups of the framework.

    Args:
        kind: the class.
        cfg: the run's configuration.
        uplink: its uplink, with the framework's own phases.
    """
    method_inputs: Mapping[str, Inputs] = kind.downlink(cfg, method_params(kind, cfg))
    scored = {**method_inputs.get(EVALUATE, {}), MODEL: _MODEL}
    phases: dict[str, dict[str, Input]] = {phase: dict(groups) for phase, groups in method_inputs.items()}
    phases |= {DESCRIBE: scored, EVALUATE: dict(scored), TRAIN: {**method_inputs.get(TRAIN, {}), MODEL: _MODEL}}
    for part in parts_of(cfg.strategy).values():
        phases[TRAIN] |= part.downlink
    summed = [phase for phase, groups in uplink.items() if sums(groups)]
    added = protection_of(cfg).downlink(summed)
    weights = {CLASS_WEIGHTS: Input("class weights", {"w": ArrayField(("C",), "float64", 0)})}
    for phase in {**phases, **uplink, **added}:
        weighted = cfg.train.class_weights == "federated" and phase not in (DESCRIBE, EVALUATE, LABELS)
        phases[phase] = {**phases.get(phase, {}), **(weights if weighted else {}), **added.get(phase, {})}
    stages = next((groups.stages for groups in method_inputs.values() if isinstance(groups, Stages)), {"": True})
    return Downlink(phases, kind.declares_inputs(), stages)
