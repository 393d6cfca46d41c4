"""The converter of configuration values against OmegaConf's, and each refusal of keys that do not go together."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedgraph_flwr.config import compose
from fedgraph_flwr.config.schema import MisfitError, Section, convert, instance
from fedgraph_flwr.errors import FedGraphError


@dataclass
class Inner:
    number: float = 0.5


@dataclass
class Keys:
    """One field of each type that a schema has."""

    flag: bool = False
    count: int = 1
    number: float = 1.0
    text: str = ""
    maybe: float | None = None
    counts: list[int] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    norms: dict[str, float] = field(default_factory=dict)
    anything: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)


VALUES = [
    *(True, False, None, 0, 1, 3, -2, 2**40, 1.5, 1e3, float("inf"), "", "a", "3", " 4 ", "1e-3", "true", "No", "0x10"),
    *([], [1], [1, 2.5], ["1"], ["a"], [True], [None], [[1]], {}, {"a": 1}, {"a": "2"}, {"a": "b"}, {"number": 2}),
    *({"number": "x"}, {"wrong": 1}),
]
STRICTER = {
    *(("flag", "' 4 '"), ("flag", "'3'"), ("flag", "3"), ("flag", "-2"), ("flag", str(2**40))),
    *((name, "[[1]]") for name in ("counts", "numbers", "texts")),
}
"""Values that OmegaConf accepts and the schema refuses."""


def by_omegaconf(name, value):
    try:
        return getattr(OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Keys), {name: value})), name)
    except (OmegaConfBaseException, ValueError, TypeError):
        return MisfitError


def by_us(name, value):
    try:
        return getattr(instance(Keys, {name: value}), name)
    except MisfitError:
        return MisfitError


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Keys)])
def test_values_are_converted_as_by_omegaconf(name):
    for value in VALUES:
        expected = by_omegaconf(name, value)
        outcome = by_us(name, value)
        if (name, repr(value)) in STRICTER:
            assert (outcome, expected is MisfitError) == (MisfitError, False), value
        else:
            assert (outcome, type(outcome)) == (expected, type(expected)), (name, value)


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (str | list[str], ["a", "b"], ["a", "b"]),
        (Optional[Union[str, Callable[..., Any]]], "relu", "relu"),  # noqa: UP007, UP045
        (Optional[Union[str, Callable[..., Any]]], None, None),  # noqa: UP007, UP045
        (int | str, 3, 3),
        (int | str, "a", "a"),
        (float | None, 2, 2.0),
        (float | None, "a", MisfitError),
        (tuple[int, ...], [1, 2], [1, 2]),
        (list, [1, "a"], [1, "a"]),
        (dict, {"a": [1]}, {"a": [1]}),
        (Callable[..., Any], "relu", MisfitError),
    ],
)
def test_types_of_a_users_model(hint, value, expected):
    """Keywords of classes that are not ours, such as PyG's."""
    try:
        outcome = convert(hint, value, "key")
    except MisfitError:
        outcome = MisfitError
    assert (outcome, type(outcome)) == (expected, type(expected))


def test_lists_and_dicts_are_copies():
    given: dict[str, Any] = {"counts": [1], "anything": {"a": [1, {"b": 2}]}}
    keys = instance(Keys, given)
    keys.counts.append(2)
    keys.anything["a"][1]["b"] = 3
    assert given == {"counts": [1], "anything": {"a": [1, {"b": 2}]}}


CLIPPED = ["privacy.dp=client_fixed", "privacy.noise_multiplier=1"]
ROW = ["privacy.dp=local", "privacy.noise_multiplier=1", "privacy.unit=row", "privacy.scores=none"]
ROW_REFUSED = [
    ["privacy.scores=exact"],
    [],
    ["privacy.rows=9", "privacy.batch=10", "privacy.delta=0.1"],
    ["privacy.rows=9", "privacy.delta=0.2"],
]
PAYMENT_REFUSED = [
    ["privacy.rows=9", "privacy.delta=0.1", "privacy.look_back=8"],
    ["privacy.rows=500000", "privacy.delta=1e-6", "privacy.batch=9"],
    ["privacy.rows=500000", "privacy.delta=1e-6"],
]

SCORING = ["evaluation.trained=true", "evaluation.confusion=true", "evaluation.patience=3", "strategy.personal=true"]
SCORING += [
    "evaluation.average=test_nodes",
    "evaluation.select=own_best_val",
    "evaluation.monitor=loss",
    "evaluation.clients=2",
]
UNREAD = ["batch_size=2", "fanout=[5]", "fanout_back=[5]", "stable_draws=true", "clusters=3", "clusters_per_batch=1"]

REFUSED = [
    ["split.train=0.9"],
    ["split.kind=kfold", "split.folds=2"],
    ["split.until=[2,1]"],
    ["train.sampler=neighbors", "train.fanout=[0]"],
    ["train.sampler=neighbors", "train.fanout_back=[0]"],
    ["split.step=0d"],
    ["train.sampler=saint"],
    ["train.sampler=saint", "train.batch_size=3", "train.loss=weighted", "train.class_weights=federated"],
    ["train.sampler=clusters", "train.clusters=2", "train.clusters_per_batch=3"],
    ["train.sampler=clusters", "train.local_epochs=1", "train.local_steps_by_client=[1]"],
    ["train.class_weights=federated"],
    ["evaluation.clients=0"],
    ["evaluation.clients=cohort", "evaluation.select=own_best_val"],
    ["privacy.noise_multiplier=1"],
    ["privacy.dp=server_fixed", "privacy.noise_multiplier=1e-4"],
    ["privacy.dp=server_fixed"],
    ["privacy.dp=client_fixed", "privacy.clipping_norms={model: 0}"],
    ["privacy.epsilon_budget=1"],
    ["privacy.scores=noised"],
    ["privacy.secagg=true", "privacy.dp=client_fixed"],
    ["privacy.dp=distributed", "privacy.noise_multiplier=1"],
    ["privacy.dp=distributed", "privacy.noise_multiplier=1", "privacy.secagg=true", "privacy.scores=noised"],
    ["privacy.dp=distributed", "privacy.noise_multiplier=1", "privacy.secagg=true"],
    ["privacy.clipping_count_noise=1"],
    ["adversary.clients=[1,1]"],
    ["adversary.kind=backdoor_distributed", "adversary.trigger=1", "adversary.clients=[0,1]"],
    ["ray.address=host"],
    ["stack=-1"],
    ["parties=[a,a]"],
    ["parties=[a,b]", "num_clients=3"],
    ["evaluation.metric=mrr"],
    ["ray.aggregate=true"],
    ["engine=ray", "ray.aggregate=true", "privacy.secagg=true"],
    ["engine=ray", "ray.aggregate=true", *CLIPPED],
    [*CLIPPED, "train.loss=weighted", "train.class_weights=federated"],
    [*CLIPPED, "evaluation.average=nodes"],
    ["strategy.aggregator=median", "privacy.secagg=true"],
    ["strategy.aggregator=median", "engine=ray", "ray.aggregate=true"],
    ["strategy.aggregator=median", *CLIPPED],
    ["privacy.reveal=[model]"],
    ["strategy.variates=feddyn", "strategy.server_optimizer=adam"],
    ["privacy.unit=row"],
    ["privacy.dp=local"],
    ["privacy.dp=client_adaptive", "privacy.clipping_count_noise=1"],
    *([f"train.{key}"] for key in UNREAD),
    *(["privacy.scores=none", term] for term in SCORING[:3]),
    *(["privacy.scores=noised", *CLIPPED, term] for term in SCORING if "patience" not in term),
    ["privacy.rows=9"],
    ["privacy.look_back=8"],
    *([*ROW, *more] for more in ROW_REFUSED),
    *([*ROW, "privacy.unit=payment", *more] for more in PAYMENT_REFUSED),
    ["privacy.coordinator=verified"],
    ["privacy.coordinator=verified", "privacy.secagg=true"],
    ["privacy.coordinator=verified", "privacy.secagg=true", "privacy.scores=none"],
    ["privacy.coordinator=verified", "privacy.secagg=true", "privacy.reveal=[x]"],
    [
        "privacy.coordinator=verified",
        "privacy.secagg=true",
        "privacy.dp=distributed_adaptive",
        "privacy.noise_multiplier=1",
    ],
    ["privacy.max_update=1"],
    *(
        ["privacy.coordinator=verified", "privacy.secagg=true", "privacy.scores=none", "privacy.max_update=1", *words]
        for words in (
            ["strategy.fraction=0.5"],
            ["evaluate=run"],
        )
    ),
]


def test_each_refusal_is_reached_and_fills_in_its_values():
    sections = [section for section in Section.__subclasses__() if section.__module__ == Section.__module__]
    rows = {
        re.sub(r"\\\{c\\\.[^}]*\\\}", "(.+)", re.escape(message))
        for section in sections
        for _, message in section.refusals
    }
    for section in sections:
        for key, _, expected in section.limits:
            expected = re.sub(r"\\\{c\\\.[^}]*\\\}", "(.+)", re.escape(expected))
            rows.add(rf"{'.'.join(filter(None, [section.group, key]))} must be {expected}, got .+")
        for *terms, why in section.clashes:
            first, second = (re.escape(".".join(filter(None, [section.group, re.split("!?=", t)[0]]))) for t in terms)
            rows.add(f"{first}=.+ {why.format(f'{second}=.+')}: set .*{second}.*, or .*{first}.*")
    reached = set()
    for overrides in REFUSED:
        with pytest.raises(FedGraphError) as refused:
            compose(overrides)
        matches = [row for row in rows if re.fullmatch(row, str(refused.value))]
        assert matches, (overrides, str(refused.value))
        reached |= set(matches)
    assert rows == reached
