"""Values of a configuration that were a traceback: each is one sentence that names the key or the file."""

import pytest

from fedgraph_flwr.config import compose, configuration, from_run_config
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.store.checkpoint import Checkpoint, check_descriptions, check_resumable, fingerprint

REFERENCES = [
    "train.lr=${seed}",
    "out=${nothing}",
    "seed=${seed}",
    "train=${strategy}",
    "model.hidden=${a.b}",
    "strategy.mu=${seed}",
]
BINARY = ["train.lr=!!binary aGVsbG8=", "out=!!binary aGVsbG8=", "train.fanout=[1,!!binary aGVsbG8=]"]


def sentence(make, *starts):
    with pytest.raises(FedGraphError) as refused:
        make()
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith(starts), text
    return text


@pytest.mark.parametrize("override", REFERENCES)
def test_a_reference_that_leads_nowhere(override):
    key = override.partition("=")[0]
    assert "cannot resolve its '${...}'" in sentence(lambda: configuration([override]), f"{key}: ")


@pytest.mark.parametrize("override", BINARY)
def test_bytes_are_no_value(override):
    key = override.partition("=")[0]
    assert "expected a" in sentence(lambda: configuration([override]), f"{key}=")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rounds: !!binary aGVsbG8=\n", "rounds=b'hello' ({path}, line 1): expected an integer"),
        ("dataset: {name: csbm, classes: !!binary aGVsbG8=}\n", "dataset.params.classes=b'hello'"),
        ("extends: 3\n", "{path}, line 1: extends: must be a file or a list of files, got 3"),
        ("extends: !!binary aGVsbG8=\n", "{path}, line 1: extends: must be a file or a list of files"),
        ('seed: 1\ntrain: {lr: "${no.such}"}\n', "{path}: "),
        ("train: !!set {a, b}\n", "{path} is not valid YAML"),
        ("? [a, b]\n: 3\n", "{path}, line 1, column 3: invalid YAML"),
    ],
)
def test_files_with_odd_values(tmp_path, text, message):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    sentence(lambda: compose([], path), message.replace("{path}", str(path)))


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ('{"strategy": {"personalization": [{}]}}', "strategy.personalization"),
        ('{"strategy": {"objective": [[1]]}}', "strategy.objective"),
        ('{"strategy": {"objective": 3}}', "strategy.objective"),
        ('{"strategy": {"params": {"mu": 1}, "objective": {"prox": 1}}}', "strategy.objective"),
        ('{"strategy": {"params": {"mu": {"a": 1}}, "objective": ["prox"]}}', "strategy.prox.mu"),
        ('{"strategy": {"variates": {"a": 1}}}', "strategy.variates"),
        ('{"strategy": {"params": 3}}', "strategy.params"),
        ('{"strategy": 3}', "strategy"),
        ('{"split": {"until": [[1]]}}', "split.until"),
        ('{"train": null}', "train"),
    ],
)
def test_a_forged_configuration_of_a_server(config, key):
    sentence(lambda: from_run_config({"config": config}, foreign=True), key)


@pytest.mark.parametrize(
    "forged",
    [
        {"strategy.personalization": [{}]},
        {"strategy.objective": {"prox": 1}},
        {"strategy.params.mu": {"a": 1}},
        {"strategy.variates": [["scaffold"]]},
        {"strategy": 3},
        {"strategy.name": None},
    ],
)
def test_a_forged_checkpoint(forged):
    cfg = compose(["resume=runs/mine"])
    checkpoint = Checkpoint(1, "0" * 16, 1, 0.5, {"round": 1}, fingerprint(cfg, None) | forged, {}, {})
    assert "remove these overrides, or start a new run" in sentence(
        lambda: check_resumable(cfg, checkpoint, None), "resume=runs/mine cannot change strategy"
    )


@pytest.mark.parametrize("forged", [{"0": 3}, {"0": None}, {"0": [1]}, {"0": {"num_train": [1]}}, {}])
def test_a_checkpoint_of_forged_clients(forged):
    checkpoint = Checkpoint(1, "0" * 16, 1, 0.5, {"round": 1}, {}, forged, {})
    sentence(
        lambda: check_descriptions({"0": {"num_train": 3}}, checkpoint, "runs/mine"),
        "resume=runs/mine: client 0 has num_train 3",
    )
