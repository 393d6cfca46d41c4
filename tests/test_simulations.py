"""The runner of the papers' tables: what it runs again and what not, and the table that it writes."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from fedgraph_flwr import partition
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.data.graph import read_tensors
from simulations import budget
from simulations import run as runner
from simulations.run import Table, execute, main, summarise

TOY = """\
title: A toy
source: Nobody, 2026, Table 1
common: [dataset=csbm, dataset.clients=2, dataset.nodes=60, num_clients=2, rounds=2, model.hidden=4]
settings:
  few: [train.local_steps=1]
  many: [train.local_steps=2]
methods:
  FedAvg: [strategy=fedavg]
  Local: [strategy=local]
  Majority: []
seeds: [0, 1]
paper:
  few: {FedAvg: 81.5 (0.3)}
notes: A note.
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of twelve quick runs whose results go to a temporary folder."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(runner, "RESULTS", tmp_path / "results")
    path = tmp_path / "toy.yaml"
    path.write_text(TOY)
    return path


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What is run, in order."""
    seen, one = [], runner.one

    def spy(job):
        seen.append(job[:3])
        return one(job)

    monkeypatch.setattr(runner, "one", spy)
    return seen


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_run_once_then_none(toy, ran):
    path = execute(Table.load(toy), jobs=1)
    table = Table.load(toy)
    assert ran == [(s, m, seed) for seed in (0, 1) for s in ("few", "many") for m in ("FedAvg", "Local", "Majority")]
    first = path.read_text()
    ran.clear()
    execute(table, jobs=1)
    assert ran == []
    assert path.read_text() == first
    assert all(0 <= float(row["value"]) <= 1 for row in rows(path))


def test_goes_on_where_it_stopped(toy, ran):
    table = Table.load(toy)
    path = execute(table, jobs=1)
    whole = {(r["setting"], r["method"], r["seed"]): r["value"] for r in rows(path)}
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:6]) + "\nmany,Fed")  # killed in the middle of a row
    ran.clear()
    execute(table, jobs=1)
    assert len(ran) == 12 - 5
    assert {(r["setting"], r["method"], r["seed"]): r["value"] for r in rows(path)} == whole


def test_rows_are_on_disk_while_others_run(toy, monkeypatch):
    """Whoever kills it then loses no row."""
    path = execute(Table.load(toy), jobs=1, only="few")
    before, seen, one = rows(path), [], runner.one

    def spy(job):
        seen.append(rows(path))
        return one(job)

    monkeypatch.setattr(runner, "one", spy)
    execute(Table.load(toy), jobs=1, only="many/Local")
    assert [len(now) for now in seen] == [6, 7]
    assert all(now[:6] == before for now in seen)


def test_only_runs_whose_words_have_changed_run_again(toy, ran):
    execute(Table.load(toy), jobs=1)
    ran.clear()
    toy.write_text(TOY.replace("Local: [strategy=local]", "Local: [strategy=local, train.lr=0.5]"))
    execute(Table.load(toy), jobs=1)
    assert ran == [(s, "Local", seed) for seed in (0, 1) for s in ("few", "many")]


def test_only_part_of_a_table(toy, ran):
    path = execute(Table.load(toy), jobs=1, only="few/FedAvg")
    assert ran == [("few", "FedAvg", 0), ("few", "FedAvg", 1)]
    text = summarise(Table.load(toy))
    assert "| many |  |  |  |  |" in text
    assert "An empty cell has not been run yet." in text
    assert len(rows(path)) == 2


def test_a_run_that_another_table_has_made_is_copied(toy, ran):
    made = rows(execute(Table.load(toy), jobs=1, only="few"))
    ran.clear()
    body = yaml.safe_load(TOY)
    body["methods"] = {"Same": ["strategy=local"], "Other": ["strategy=local", "train.lr=0.5"], "Majority": []}
    body["common"].reverse()
    other = toy.with_name("other.yaml")
    other.write_text(yaml.safe_dump(body))
    copied = rows(execute(Table.load(other), jobs=1, only="few"))
    assert sorted(ran) == sorted(("few", m, seed) for m in ("Other", "Majority") for seed in (0, 1))
    for seed in ("0", "1"):
        ours, theirs = (
            next(r for r in table if (r["method"], r["seed"]) == (method, seed))
            for table, method in ((copied, "Same"), (made, "Local"))
        )
        assert {**ours, "method": "", "words": ""} == {**theirs, "method": "", "words": ""}
        assert ours["words"].split() == [*body["common"], *body["settings"]["few"], "strategy=local", f"seed={seed}"]


def test_processes_side_by_side_give_the_same_values(toy):
    table = Table.load(toy)
    alone = {r["setting"]: r["value"] for r in rows(execute(table, jobs=1, only="Local/0"))}
    (runner.RESULTS / "toy.csv").unlink()
    assert {r["setting"]: r["value"] for r in rows(execute(table, jobs=2, only="Local/0"))} == alone


def test_a_value_is_that_of_the_run(toy):
    table = Table.load(toy)
    path = execute(table, jobs=1, only="many/FedAvg/1")
    from fedgraph_flwr.runner import run

    words = [*table.common, "train.local_steps=2", "strategy=fedavg", "seed=1", f"out={toy.parent / 'own'}"]
    assert float(rows(path)[0]["value"]) == run(compose(words))["test_accuracy"]


def test_majority_by_hand(toy):
    table = Table.load(toy)
    path = execute(table, jobs=1, only="few/Majority/1")
    cfg = compose([*table.common, "seed=1"])
    graphs = [partition.load_client(cfg, i) for i in range(2)]
    train = torch.cat([g.y[g.train_mask] for g in graphs]).tolist()
    label = max(range(2), key=train.count)
    shares = [np.mean([y == label for y in g.y[g.test_mask].tolist()]) for g in graphs]
    assert float(rows(path)[0]["value"]) == pytest.approx(np.mean(shares))
    assert runner.majority([*table.common, "seed=1", "evaluation.metric=auc"]) == 0.5  # all nodes tie


def test_markdown_against_means_by_hand(toy):
    table = Table.load(toy)
    values = {("few", "FedAvg"): (0.8, 0.9), ("few", "Local"): (0.5, 0.25), ("many", "FedAvg"): (0.123, 0.125)}
    runner.RESULTS.mkdir()
    with (runner.RESULTS / "toy.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, runner.FIELDS)
        writer.writeheader()
        for (setting, method), pair in values.items():
            for seed, value in enumerate(pair):
                writer.writerow({"setting": setting, "method": method, "seed": seed, "value": value})
    lines = summarise(table).splitlines()
    assert lines[0] == "# A toy"
    assert "Nobody, 2026, Table 1" in lines
    assert "| | FedAvg | paper | Local | Majority |" in lines
    # sample standard deviation of two values is |a - b| / sqrt 2: 10 / 1.4142 = 7.07, 25 / 1.4142 = 17.68, 0.2 / 1.4142
    assert "| few | 85.00 (7.07) | 81.5 (0.3) | 37.50 (17.68) |  |" in lines
    assert "| many | 12.40 (0.14) |  |  |  |" in lines
    assert lines[-1] == "A note."
    assert "over 2 of 2 seeds" in summarise(table)


def test_the_choice_of_a_grid_is_the_best_on_validation_nodes(toy, ran):
    toy.write_text(
        TOY + "grid: {slow: [train.lr=1e-9], usual: [train.lr=0.1], wild: [train.lr=1e30, train.optimizer=sgd]}\n"
    )
    table = Table.load(toy)
    path = execute(table, jobs=1, only="few")
    assert len(ran) == 2 * (3 + 3 + 1)  # of Majority there is nothing to choose
    told = rows(path)
    from fedgraph_flwr.runner import run

    words = [
        *table.common,
        "train.local_steps=1",
        "strategy=fedavg",
        "train.lr=0.1",
        "seed=1",
        f"out={toy.parent / 'own'}",
    ]
    own = run(compose(words))["metrics"]["best_val"]
    row = next(r for r in told if (r["method"], r["seed"]) == ("FedAvg, usual", "1"))
    assert (float(row["value"]), float(row["validation"])) == (own["test_accuracy"], own["val_accuracy"])

    # Test figures say the opposite of validation figures; the run that failed has none of the latter.
    figures = {
        "FedAvg, slow": (0.9, 0.1),
        "FedAvg, usual": (0.6, 0.7),
        "FedAvg, wild": (float("nan"), ""),
        "Majority": (0.5, ""),
    }
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, runner.FIELDS)
        writer.writeheader()
        for method, (value, validation) in figures.items():
            for seed in (0, 1):
                row = {"setting": "few", "method": method, "seed": seed, "value": value, "validation": validation}
                writer.writerow(row)
    text = summarise(table)
    assert "| few | 60.00 (0.00) | 81.5 (0.3) |  | 50.00 (0.00) |" in text
    assert "| few, FedAvg | 10.00 / 90.00 | **70.00 / 60.00** | failed |" in text


def test_a_run_that_diverges_is_told_and_the_others_go_on(toy):
    toy.write_text(toy.read_text().replace("few: [train.local_steps=1]", "few: [train.lr=1e30, train.optimizer=sgd]"))
    table = Table.load(toy)
    told = {(r["setting"], r["method"], r["seed"]): r for r in rows(execute(table, jobs=1))}
    assert len(told) == 12
    assert told["few", "FedAvg", "0"]["value"] == "nan"
    assert "not finite" in told["few", "FedAvg", "0"]["headline"]
    assert "| few | 2 of 2 failed | 81.5 (0.3) |" in summarise(table)


def test_command_writes_the_table(toy, capsys):
    assert main([str(toy), "--only", "few/Majority"]) == 0
    assert re.search(r"\| few \|  \| 81\.5 \(0\.3\) \|  \| \d\d\.\d\d", (runner.RESULTS / "toy.md").read_text())
    capsys.readouterr()
    assert main([str(toy), "--list"]) == 0
    assert capsys.readouterr().out.count("strategy=local") == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [(TOY + "settigns: {}\n", "key 'settigns' unknown"), (TOY.replace("fedavg]", "fedavgg]"), "did you mean 'fedavg'")],
)
def test_wrong_tables_end_with_2(toy, text, told, capsys):
    toy.write_text(text)
    assert main([str(toy)]) == 2
    assert told in capsys.readouterr().err
    assert main([str(toy.parent / "none.yaml")]) == 2
    assert "no such table" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted(Path(runner.__file__).parent.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_table_composes(path):
    table = Table.load(path)
    settings, methods = list(table.settings), list(table.methods)
    for setting, method, seed, words in table.jobs():
        if seed == table.seeds[0] and (setting == settings[0] or method == methods[0]) and method != runner.MAJORITY:
            compose(words)
    for setting, cells in table.paper.items():
        assert setting in table.settings
        assert not set(cells) - set(table.methods)


def test_a_table_before_its_first_run(toy):
    assert "over 0 of 2 seeds" in summarise(Table.load(toy))


def test_homophily_is_the_mean_over_clients(toy):
    words = ["dataset=csbm", "dataset.clients=2", "dataset.nodes=60", "num_clients=2"]
    cfg = compose(words)
    means = []
    for index in range(2):
        graph = partition.load_client(cfg, index)
        share = []
        for node in range(graph.num_nodes):
            near = graph.edge_index[0][graph.edge_index[1] == node]
            share += [(graph.y[near] == graph.y[node]).double().mean().item()] if near.numel() else []
        means.append(np.mean(share))
    row = runner.one(("a", runner.HOMOPHILY, 0, words))
    assert row["value"] == pytest.approx(np.mean(means))


def test_a_run_with_an_attack_counts_its_accuracy(toy):
    words = ["dataset=csbm", "dataset.clients=2", "dataset.nodes=60", "num_clients=2", "rounds=1", "strategy=local"]
    row = runner.one(("a", "Local", 0, [*words, "attack=link_inference"]))
    assert (row["value"], row["headline"]) == (0.5, "the attack's accuracy")


def test_what_a_target_needs_by_hand():
    curves = {
        ("a", 0): [0.5, 0.7, 0.6],
        ("a", 1): [0.7, 0.8, 0.9],
        ("b", 0): [0.1, 0.2, 0.3],
        ("b", 1): [0.1, 0.2, 0.65],
    }
    told = [
        {"method": m, "seed": str(s), "round": str(r), "validation": str(value), "bytes": str(1_000_000 * r + 5)}
        for (m, s), values in curves.items()
        for r, value in enumerate(values, start=1)
    ]
    need = budget.needed(told[::-1], 0.65)
    assert {name: set(found) for name, found in need.items()} == {
        "a": {(2, 2_000_005), (1, 1_000_005)},
        "b": {None, (3, 3_000_005)},
    }
    assert budget.ranked(need) == ["a", "b"]
    text = budget.summarise({"fedavg": need["a"], "fedper": need["b"]}, 0.65)
    assert "| fedavg | shared | 2 of 2 | 1.5 | 1.5 |" in text
    assert "| fedper | clients' | 1 of 2 | 3.0 | 3 |" in text


def test_a_curve_ends_with_the_bytes_of_the_run(toy, monkeypatch):
    words = ["dataset=csbm", "dataset.clients=2", "dataset.nodes=60", "num_clients=2", "rounds=3", "checkpoint_every=0"]
    monkeypatch.setattr(budget, "WORDS", words)
    from fedgraph_flwr.runner import run

    own = run(compose([*words, "strategy=fedprox", "seed=1", f"out={toy.parent / 'own'}"]))
    rows = budget.curve("fedprox", 1)
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[-1]["bytes"] == own["bytes_up"] + own["bytes_down"]
    assert max(row["validation"] for row in rows) == own["metrics"]["best_val"]["val_accuracy"]
    parameters = sum(
        tensor.numel() for tensor in read_tensors(toy.parent / "own" / "model_final.safetensors")[0].values()
    )
    steps = np.diff([0, *(row["bytes"] for row in rows)])
    assert (steps >= 2 * 2 * 4 * parameters).all()  # both ways, two clients, four bytes a parameter


def test_the_budget_leaves_out_pooled_data_and_typed_graphs():
    taken = set(budget.methods())
    assert {"fedavg", "local"} <= taken <= set(group_names("strategy"))
    assert not {"central", "fedhgn"} & taken
