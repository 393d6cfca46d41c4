"""Errors of composition and of values that no other test reaches, each with the key, the value and the remedy."""

from dataclasses import dataclass, field

import pytest

from fedgraph_flwr.config import compose, described, from_run_config, to_json
from fedgraph_flwr.config.lookup import function
from fedgraph_flwr.config.schema import typed
from fedgraph_flwr.errors import FedGraphError, counted

NOISED = ["privacy.dp=client_fixed", "privacy.noise_multiplier=1", "privacy.scores=noised"]


@dataclass
class Keys:
    """Keys of a method."""

    size: int = 1
    names: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: compose(["protocol=fedomd"], to_json(compose())), "protocol= cannot be combined with config="),
        (lambda: compose(["dataset.nodes=${"]), "cannot parse the value of 'dataset.nodes=${'"),
        (lambda: compose(["word"]), "'word' is not of the form key=value"),
        (
            lambda: compose(["train.clusters=3"]),
            "train.clusters=3 has no effect with train.sampler=none: set train.sampler=clusters",
        ),
        (lambda: compose(["attack.x=1"]), "attack key 'x' is unknown; expected one of: name"),
        (
            lambda: compose(["privacy.scores=none", "evaluation.patience=3"]),
            "evaluation.patience=3 needs scores, which privacy.scores=none keeps at the clients",
        ),
        (lambda: compose([*NOISED, "evaluation.metric=rmse", "task=nodes-regression"]), "set privacy.scores=none"),
        (
            lambda: compose([*NOISED, "evaluation.monitor=loss"]),
            "evaluation.monitor=loss needs more than the mean scores that privacy.scores=noised releases: set privacy.scores=",
        ),
        (lambda: from_run_config({"config": "{"}), "config= is not valid JSON"),
        (lambda: from_run_config({"overrides": "a='"}), "cannot split overrides into key=value"),
        (lambda: described("seasons"), "group 'seasons' is unknown; expected one of: dataset, model"),
        (lambda: function("math:pi", "partition"), "partition=math:pi is not callable: expected module:function"),
        (
            lambda: typed(Keys, {"sise": 3}, "strategy=mine"),
            "strategy key 'sise' is unknown (strategy=mine); did you mean 'size'?",
        ),
        (
            lambda: typed(Keys, {"size": "x"}, "strategy=mine"),
            "strategy.size (strategy=mine) must be an integer, got 'x'",
        ),
        (lambda: typed(Keys, {"names": [{}]}, "strategy=mine"), "must be a list of strings, got [{}]"),
        (lambda: typed(Keys, 3, "strategy=mine"), "strategy (strategy=mine) must be keys with values, got 3"),
    ],
)
def test_an_error_names_what_is_wrong_and_what_to_do(make, message):
    with pytest.raises(FedGraphError) as refused:
        make()
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_number_has_its_noun_in_the_singular_or_plural():
    assert [
        counted(n, noun)
        for n, noun in ((1, "party"), (2, "party"), (0, "client"), (1_234_567, "row"), (12_345_678, "class"))
    ] == [
        "1 party",
        "2 parties",
        "0 clients",
        "1234567 rows",
        "12345678 classes",
    ]
