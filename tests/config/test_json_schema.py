"""The JSON Schema of the configuration: what it accepts and refuses, against composition."""

import json

import pytest
import yaml

from fedgraph_flwr.cli.app import main
from fedgraph_flwr.config import compose, to_yaml
from fedgraph_flwr.errors import FedGraphError

jsonschema = pytest.importorskip("jsonschema")

FILES = [
    "rounds: 20\ntrain: {lr: 0.05, optimizer: sgd}\n",
    "strategy: fedprox\nstrategy.mu: 0.1\n",
    "strategy: {name: fedspa, folds: 2}\ndataset: cora\nmodel: {name: gcn, hidden: 32}\n",
    "strategy: {name: fedadam, adam: {tau: 0.01}}\n",
    "evaluation: {metrics: [], clients: 3}\nadversary: {strength: null}\n",
    "split: {until: [1, 2]}\nprivacy: {clipping_norms: {variates: 0.1}}\n",
    "protocol: fedomd\n",
    "rounds: ten\n",
    "rounds: 0\n",
    "train: {lr: 0}\n",
    "train: {lr: 0.1, lrr: 2}\n",
    "train: {optimizer: adan}\n",
    "strategy: {name: fedadam, adam: {tua: 0.01}}\n",
    "split: {until: [a]}\n",
    "ruonds: 3\n",
    "seed: 1.5\n",
    "model: {dropout: 1}\n",
    "evaluation: 3\n",
]


@pytest.fixture(scope="module")
def schema():
    """As the command prints it."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["keys", "--schema"]) == 0
    found = json.loads(printed.getvalue())
    jsonschema.Draft202012Validator.check_schema(found)
    return jsonschema.Draft202012Validator(found)


@pytest.mark.parametrize("text", FILES)
def test_an_editor_accepts_what_composition_accepts(schema, tmp_path, text):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    try:
        compose([], path)
        accepted = True
    except FedGraphError:
        accepted = False
    assert schema.is_valid(yaml.safe_load(text)) == accepted


@pytest.mark.parametrize("overrides", [[], ["strategy=fedadam"], ["dataset=cora", "protocol=fedomd"], ["model=gat"]])
def test_a_runs_own_configuration_is_valid(schema, overrides):
    assert list(schema.iter_errors(yaml.safe_load(to_yaml(compose(overrides))))) == []


def test_an_editor_shows_the_meaning_and_the_keys_of_a_method(schema):
    train, strategy = (schema.schema["properties"][section] for section in ("train", "strategy"))
    assert train["properties"]["lr"] == {
        "type": "number",
        "exclusiveMinimum": 0,
        "default": 0.01,
        "description": "step size",
    }
    (_, keys) = strategy["anyOf"]
    assert keys["properties"]["folds"]["description"].startswith("fedspa: ")
    assert "fedspa" in strategy["anyOf"][0]["anyOf"][0]["enum"]
