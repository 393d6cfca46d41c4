"""`docs/run-folder.md` says what `rounds.jsonl` and `summary.json` hold; runs hold that, of those types, and nothing else."""

import json
import re
from pathlib import Path

import pytest

from fedgraph_flwr.api import run

PAGE = (Path(__file__).parents[1] / "docs" / "run-folder.md").read_text()
TYPES = {"int": int, "float": float, "str": str, "list": list, "dict": dict}
TINY = {"num_clients": 2, "rounds": 2, "checkpoint_every": 0, "progress": False, "model": {"hidden": 4}}
NOISE = {"dp": "server_fixed", "noise_multiplier": 1.0, "delta": 0.1}

VARIANTS = {
    "plain": {},
    "private": {"privacy": NOISE, "strategy.weighting": "uniform"},
    "untold": {"privacy": NOISE | {"scores": "none"}, "strategy.weighting": "uniform"},
    "personal": {"strategy": "ditto", "evaluation.average": "nodes", "evaluation.confusion": True},
    "attacked": {"attack": "link_inference"},
    "backdoor": {"adversary.kind": "backdoor_central", "adversary.clients": [0]},
}


def documented(heading: str) -> dict[str, tuple[type, bool]]:
    """By key, its type and whether it is always there."""
    section = PAGE.partition(f"## The schema of `{heading}`")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+)(.*?) \|", section, re.M)
    return {key: (TYPES[kind], not when) for key, kind, when in rows}


@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_hold_what_is_documented(variant, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    done = run("dataset.params.nodes=120", **TINY, **VARIANTS[variant], out=str(tmp_path / "run"))
    records = [json.loads(line) for line in (done.path / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((done.path / "summary.json").read_text())
    assert len(records) == 2
    summary["test_accuracy"] = summary.pop(summary["headline"].partition(" at ")[0])  # the page's example of the key
    for optional, keys in [(summary, documented("summary.json")), *((r, documented("rounds.jsonl")) for r in records)]:
        assert optional.keys() <= keys.keys()
        for key, (kind, always) in keys.items():
            assert key in optional or not always, key
            assert type(optional.get(key, kind())) is kind, key
    phases = [entry for record in records for entry in record["phases"].values()]
    assert all(
        entry.keys() == {"exchanges", "bytes_down", "bytes_up", "bytes_up_by_group", "seconds"} for entry in phases
    )
    optional = [key for key in ("privacy", "attack", "adversary") if key in summary]
    assert optional == {
        "private": ["privacy"],
        "untold": ["privacy"],
        "attacked": ["attack"],
        "backdoor": ["adversary"],
    }.get(variant, [])
    assert ("metrics" in records[0]) == (variant != "untold")
    if variant == "personal":
        assert {"global_test_accuracy", "test_accuracy_by_nodes"} <= records[0]["metrics"].keys()


def test_the_page_names_every_file_of_a_run():
    from fedgraph_flwr.store import folder, results

    written = [results.CONFIG, results.ROUNDS, results.SUMMARY, folder.INPUT_SPEC, results.FAILURE]
    for name in [*written, folder.CHECKPOINT, *folder.MODELS, "report.html"]:
        assert f"`{name}`" in PAGE, name


def test_the_page_says_the_size_of_the_library():
    library = Path(__file__).parents[1] / "fedgraph_flwr" / "report" / "assets" / "echarts.min.js"
    assert f"{library.stat().st_size / 1000:.0f} kB of each file" in PAGE
