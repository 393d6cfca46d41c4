"""A table of a YAML file: what is run again and what not, and what is written of it."""

import re

import numpy as np
import pytest
import torch
import yaml
from sklearn.metrics import f1_score

from fedgraph_flwr import partition
from fedgraph_flwr.config import compose
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.sweeps import results_index, runs
from fedgraph_flwr.sweeps import rows as results
from fedgraph_flwr.sweeps.results_index import ResultsIndex
from fedgraph_flwr.sweeps.spec import Cell, load
from fedgraph_flwr.sweeps.summary import SweepSummary
from fedgraph_flwr.sweeps.table import markdown
from tests.support import bomb
from tests.sweeps.conftest import SMALL, TOY, rows, sweep


def table(path) -> str:
    """The Markdown of the rows at hand."""
    book = ResultsIndex(load(path))
    book.missing()
    return markdown(SweepSummary(book.sweep, book.finished))


def fill(path, figures, seeds=(0, 1)) -> None:
    """Rows of (setting, row's method) → (values by seed, validation by seed), with the overrides of their cells."""
    asked = load(path)
    written = []
    for cell in asked.cells({}):
        if (cell.setting, cell.method) in figures and cell.seed in seeds:
            value, validation = figures[cell.setting, cell.method]
            result = {"value": value[cell.seed], "validation": validation[cell.seed] if validation else ""}
            result["headline"] = "failed: it diverged" if np.isnan(value[cell.seed]) else "test_accuracy at best_val"
            written.append({**cell.row, **result})
    results.write(asked.results, written)


def test_every_run_once_then_none(toy, ran):
    sweep(toy)
    assert ran == [(s, m, seed) for seed in (0, 1) for s in ("few", "many") for m in ("Majority", "FedAvg", "Local")]
    path = toy.with_suffix(".csv")
    first = path.read_text()
    ran.clear()
    sweep(toy)
    assert ran == []
    assert path.read_text() == first
    assert not toy.with_suffix(".png").exists()


def test_goes_on_where_it_stopped(toy, ran):
    sweep(toy)
    path = toy.with_suffix(".csv")
    whole = {(r["setting"], r["method"], r["seed"]): r["value"] for r in rows(path)}
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:6]) + "\nmany,Fed")  # killed in the middle of a row
    ran.clear()
    sweep(toy)
    assert len(ran) == 12 - 5
    assert {(r["setting"], r["method"], r["seed"]): r["value"] for r in rows(path)} == whole


def test_rows_are_on_disk_while_others_run(toy, ran, monkeypatch):
    """Whoever kills it then loses no row."""
    sweep(toy, "--only", "few")
    path, seen, run_cell = toy.with_suffix(".csv"), [], runs.run_cell
    before = rows(path)

    def spy(cell, keep=None):
        seen.append(rows(path))
        return run_cell(cell, keep)

    monkeypatch.setattr(runs, "run_cell", spy)
    sweep(toy, "--only", "many/Local")
    assert [len(now) for now in seen] == [6, 7]
    assert all(now[:6] == before for now in seen)


def test_only_runs_whose_words_have_changed_run_again_and_nothing_is_lost(toy, ran):
    sweep(toy)
    before = rows(toy.with_suffix(".csv"))
    ran.clear()
    toy.write_text(TOY.replace("Local: [strategy=local]", "Local: [strategy=local, train.lr=0.5]"))
    sweep(toy)
    assert ran == [(s, "Local", seed) for seed in (0, 1) for s in ("few", "many")]
    assert len(rows(toy.with_suffix(".csv"))) == 16
    ran.clear()
    toy.write_text(TOY)  # back again
    sweep(toy)
    assert ran == []
    assert rows(toy.with_suffix(".csv"))[:12] == before


def test_the_order_of_words_and_the_names_of_columns_make_no_other_run(toy, ran):
    sweep(toy)
    ran.clear()
    body = yaml.safe_load(TOY)
    body["common"].reverse()
    body["common"].insert(0, "rounds=7")  # the later one holds
    body["methods"] = {"Renamed": ["strategy=fedavg"], "Local": ["strategy=local"], "Majority": []}
    del body["paper"]
    toy.write_text(yaml.safe_dump(body))
    sweep(toy)
    assert ran == []
    assert {row["method"] for row in rows(toy.with_suffix(".csv"))} == {"Renamed", "Local", "Majority"}


def test_majority_is_no_run_of_a_method_with_the_same_words(toy, ran):
    toy.write_text(TOY.replace("FedAvg: [strategy=fedavg]", "FedAvg: []"))  # which is the default
    sweep(toy, "--only", "few")
    assert {method for _, method, _ in ran} == {"Majority", "FedAvg", "Local"}


def test_only_part_of_a_table(toy, ran, capsys):
    sweep(toy, "--only", "few/FedAvg")
    assert ran == [("few", "FedAvg", 0), ("few", "FedAvg", 1)]
    text = toy.with_suffix(".md").read_text()
    assert "| many |  |  |  |  |" in text
    assert "An empty cell has not been run yet." in text
    sweep(toy, "--only", "some/FedAvg", code=2)
    assert "--only some/FedAvg is part of no ROW/COLUMN/SEED, such as few/" in capsys.readouterr().err
    assert len(rows(toy.with_suffix(".csv"))) == 2


def test_a_run_that_another_table_of_the_folder_has_made_is_copied(toy, ran):
    sweep(toy, "--only", "few")
    made = rows(toy.with_suffix(".csv"))
    ran.clear()
    body = yaml.safe_load(TOY)
    body["methods"] = {"Same": ["strategy=local"], "Other": ["strategy=fedavg", "train.lr=0.5"]}
    body["paper"] = {}
    other = toy.with_name("other.yaml")
    other.write_text(yaml.safe_dump(body))
    other.with_name("people.csv").write_text("age,income\n1,2\n")  # somebody's data is none of ours
    sweep(other, "--only", "few")
    assert ran == [("few", "Other", seed) for seed in (0, 1)]
    copied = rows(other.with_suffix(".csv"))
    for seed in ("0", "1"):
        ours, theirs = (
            next(r for r in table if (r["method"], r["seed"]) == (method, seed))
            for table, method in ((copied, "Same"), (made, "Local"))
        )
        assert {**ours, "method": "Local"} == theirs


def test_a_cell_that_stands_twice_is_run_once(toy, ran):
    toy.write_text(TOY.replace("FedAvg: [strategy=fedavg]", "FedAvg: &a [strategy=fedavg]\n  Again: *a"))
    sweep(toy, "--only", "few")
    assert ran.count(("few", "FedAvg", 0)) + ran.count(("few", "Again", 0)) == 1
    line = next(line for line in toy.with_suffix(".md").read_text().splitlines() if line.startswith("| few"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[3] == cells[5]  # behind Majority, FedAvg and the paper's


def test_another_graph_of_the_same_name_is_another_run(place, ran, client_files):
    table = place / "own.yaml"
    overrides = client_files((12, 16))
    body = f"common: [{overrides}, num_clients=2, rounds=1, model.hidden=4]\nmethods: [fedavg]\nbaselines: false\n"
    table.write_text(body)
    sweep(table)
    sweep(table)
    assert len(ran) == 1
    client_files((12, 16), seed=1)
    folder = place / "clients-12-16-1"
    for file in folder.iterdir():
        file.replace(place / "clients-12-16-0" / file.name)

    results_index._digest.cache_clear()  # as in another process
    sweep(table)
    assert len(ran) == 2


def test_a_value_is_that_of_the_run(toy):
    sweep(toy, "--only", "many/FedAvg/1")
    overrides = [*SMALL, "train.local_steps=2", "strategy=fedavg", "seed=1", f"out={toy.parent / 'own'}"]
    assert float(rows(toy.with_suffix(".csv"))[0]["value"]) == run(compose(overrides))["test_accuracy"]


def test_runs_keep_their_rounds_and_all_or_nothing_if_asked(toy):
    sweep(toy, "--only", "few/FedAvg/0", "--keep", "checkpoint_every=1")
    [folder] = (toy.parent / "toy-runs").iterdir()
    assert folder.name == "few-FedAvg-0"
    assert (folder / "summary.json").is_file()
    assert (folder / "checkpoint.safetensors").is_file()
    sweep(toy, "--only", "few/FedAvg/1", "--keep")
    assert not (toy.parent / "toy-runs" / "few-FedAvg-1" / "checkpoint.safetensors").exists()
    sweep(toy, "--only", "few/Local/1", "--keep", "none")
    assert len(list((toy.parent / "toy-runs").iterdir())) == 2
    sweep(toy, "--only", "few/Local/0")
    kept = toy.parent / "toy-runs" / "few-Local-0"
    assert {path.name for path in kept.iterdir()} == {"config.yaml", "rounds.jsonl", "summary.json", "report.html"}
    assert 'href="toy-runs/few-Local-0/report.html"' in toy.with_suffix(".html").read_text()
    small = (toy.parent / "toy-runs" / "few-Local-0" / "report.html").read_text()
    assert "Local reaches" in small
    assert "checkpoint_every: " in small  # its configuration
    assert len(small) < 100_000


def test_majority_by_hand(toy):
    sweep(toy, "--only", "few/Majority/1")
    cfg = compose([*SMALL, "seed=1"])
    graphs = [partition.load_client(cfg, i) for i in range(2)]
    train = torch.cat([g.y[g.train_mask] for g in graphs]).tolist()
    label = max(range(2), key=train.count)
    shares = [np.mean([y == label for y in g.y[g.test_mask].tolist()]) for g in graphs]
    assert float(rows(toy.with_suffix(".csv"))[0]["value"]) == pytest.approx(np.mean(shares))
    assert runs.majority([*SMALL, "seed=1", "evaluation.metric=auc"]) == 0.5  # all nodes tie
    parts = [[y == 1 for y in g.y[g.test_mask].tolist()] for g in graphs]
    shares = [np.mean(part) for part in parts]
    score = runs.majority([*SMALL, "seed=1", "evaluation.metric=average_precision"])
    assert score == pytest.approx(np.mean(shares))
    best = [max(f1_score(part, [c] * len(part), average="macro") for c in (False, True)) for part in parts]
    assert runs.majority([*SMALL, "seed=1", "evaluation.metric=macro_f1"]) == pytest.approx(np.mean(best))


def test_homophily_is_the_mean_over_clients(place):
    means = []
    for index in range(2):
        graph = partition.load_client(compose(SMALL), index)
        share = []
        for node in range(graph.num_nodes):
            near = graph.edge_index[0][graph.edge_index[1] == node]
            share += [(graph.y[near] == graph.y[node]).double().mean().item()] if near.numel() else []
        means.append(np.mean(share))
    row = runs.run_cell(Cell("a", results.HOMOPHILY, 0, tuple(SMALL)))
    assert row["value"] == pytest.approx(np.mean(means))


def test_a_run_with_an_attack_counts_its_accuracy(place):
    row = runs.run_cell(Cell("a", "Local", 0, (*SMALL, "rounds=1", "strategy=local", "attack=link_inference")))
    assert (row["value"], row["headline"]) == (0.5, "the attack's accuracy")


def test_markdown_against_means_by_hand(toy):
    known = {("few", "FedAvg"): (0.8, 0.9), ("few", "Local"): (0.5, 0.25), ("many", "FedAvg"): (0.123, 0.125)}
    fill(toy, {key: (value, None) for key, value in known.items()})
    toy.write_text(TOY + "beside: {cost: {Local: none}}\n")
    lines = table(toy).splitlines()
    assert "| cost |  |  |  | none |" in lines
    assert lines[:4] == ["# A toy", "", "Nobody, 2026, Table 1", ""]
    assert "| | Majority | FedAvg | paper | Local |" in lines
    # sample standard deviation of two values is |a - b| / sqrt 2: 10 / 1.4142 = 7.07, 25 / 1.4142 = 17.68, 0.2 / 1.4142
    assert "| few |  | 85.00 (7.07) | 81.5 (0.3) | 37.50 (17.68) |" in lines
    assert "| many |  | 12.40 (0.14) |  |  |" in lines
    assert lines[-1] == "A note."
    assert "Mean (standard deviation) of test_accuracy at best_val in % over 2 of 2 seeds. Made by" in table(toy)


def test_the_choice_of_a_grid_is_the_best_on_validation_nodes(toy):
    toy.write_text(
        TOY + "grid: {slow: [train.lr=1e-9], usual: [train.lr=0.1], wild: [train.lr=1e30, train.optimizer=sgd]}\n"
    )
    assert len(list(load(toy).cells({}))) == 2 * 2 * (3 + 3 + 1)  # of Majority there is nothing to choose
    sweep(toy, "--only", "few/FedAvg, usual/1")
    overrides = [
        *SMALL,
        "train.local_steps=1",
        "strategy=fedavg",
        "train.lr=0.1",
        "seed=1",
        f"out={toy.parent / 'own'}",
    ]
    scores = run(compose(overrides))["metrics"]["best_val"]
    row = next(r for r in rows(toy.with_suffix(".csv")) if (r["method"], r["seed"]) == ("FedAvg, usual", "1"))
    assert (float(row["value"]), float(row["validation"])) == (scores["test_accuracy"], scores["val_accuracy"])

    # Test figures say the opposite of validation figures; the run that failed has none of the latter.
    nan = float("nan")
    figures = {
        ("few", "FedAvg, slow"): ((0.9, 0.9), (0.1, 0.1)),
        ("few", "FedAvg, usual"): ((0.6, 0.6), (0.7, 0.7)),
        ("few", "FedAvg, wild"): ((nan, nan), None),
        ("few", "Majority"): ((0.5, 0.5), None),
    }
    fill(toy, figures)
    text = table(toy)
    assert "| few | 50.00 (0.00) | 60.00 (0.00) | 81.5 (0.3) |  |" in text
    assert "| few, FedAvg | 10.00 / 90.00 | **70.00 / 60.00** | failed |" in text
    assert "- few, FedAvg, wild, seed 0, 1: failed: it diverged" in text


def test_a_choice_of_a_methods_own_key_is_for_the_methods_that_know_it(toy):
    toy.write_text(
        TOY.replace("FedAvg: [", "FedProx: [strategy=fedprox]\n  FedAvg: [")
        + "grid: {a: [strategy.mu=0.1], b: [strategy.mu=1]}\n"
    )
    asked = load(toy)
    assert list(asked.choices("few", "FedProx", {})) == ["FedProx, a", "FedProx, b"]
    assert list(asked.choices("few", "FedAvg", {})) == ["FedAvg"]
    assert len(list(asked.cells({}))) == 2 * 2 * (1 + 2 + 1 + 1)


def test_a_choice_of_a_networks_own_key_is_for_the_columns_that_have_it(toy):
    """FedLIT's network counts types; a GCN knows no such key, and a key of every network is for all."""
    toy.write_text(
        TOY.replace("FedAvg: [", "FedLIT: [strategy=fedlit]\n  FedAvg: [")
        + "grid: {a: [model.types=2], b: [model.types=3], c: [model.hidden=4]}\n"
    )
    asked = load(toy)
    of = {method: asked.choices("few", method, {}) for method in ("FedLIT", "FedAvg")}
    assert [overrides[-1] for overrides in of["FedLIT"].values()] == [
        "model.types=2",
        "model.types=3",
        "model.hidden=4",
    ]
    assert list(of["FedAvg"]) == ["FedAvg, a", "FedAvg, c"]  # a: as it is
    assert not any(word.startswith("model.types") for overrides in of["FedAvg"].values() for word in overrides)


def test_a_run_that_diverges_is_told_and_the_others_go_on(toy, capsys):
    toy.write_text(TOY.replace("few: [train.local_steps=1]", "few: [train.lr=1e30, train.optimizer=sgd]"))
    sweep(toy, "--only", "few", code=1)
    stored = {(r["setting"], r["method"], r["seed"]): r for r in rows(toy.with_suffix(".csv"))}
    assert len(stored) == 6
    assert stored["few", "FedAvg", "0"]["value"] == "nan"
    text = toy.with_suffix(".md").read_text()
    assert "| 2 of 2 failed | 81.5 (0.3) |" in text
    assert re.search(r"- few, FedAvg, seed 0, 1: failed: .*not finite", text)
    assert "not finite" in capsys.readouterr().err
    assert len(ResultsIndex(load(toy)).missing("few")) == 0  # it would end alike
    assert [cell.label for cell in ResultsIndex(load(toy), retry=True).missing("few/FedAvg")] == [
        "few/FedAvg/0",
        "few/FedAvg/1",
    ]
    sweep(toy, "--table-only")


def test_a_run_that_went_on_without_a_client_says_so(toy, capsys):
    toy.write_text(
        TOY.replace(
            "FedAvg: [", "Odd: [strategy=fedavg, strategy.client=tests.engine.misbehaving:Falling]\n  FedAvg: ["
        )
    )
    sweep(toy, "rounds=2", "--only", "few")
    missed = {(r["method"], r["seed"]): r["missed"] for r in rows(toy.with_suffix(".csv"))}
    assert missed["Odd", "0"] == missed["Odd", "1"] == "client 1 (train): the power is out"
    assert not missed["FedAvg", "0"]
    line = "few, Odd, seed 0, 1: client 1 (train): the power is out"
    assert f"with the first reason:\n\n- {line}\n" in toy.with_suffix(".md").read_text()
    assert line in capsys.readouterr().err


def test_a_method_that_refuses_is_told_and_tried_again(toy):
    toy.write_text(
        TOY.replace("Local: [strategy=local]", "Odd: [strategy=fedomd, model=gcn]\n  Local: [strategy=local]")
    )
    sweep(toy, "--only", "few/Odd", code=1)
    assert (
        "- few, Odd, seed 0, 1: refused: strategy=fedomd needs model=fedomd, got model=gcn: set model=fedomd"
        in toy.with_suffix(".md").read_text()
    )
    assert [cell.label for cell in ResultsIndex(load(toy)).missing("few/Odd")] == ["few/Odd/0", "few/Odd/1"]


def test_a_table_before_its_first_run(toy):
    assert "over 0 of 2 seeds" in table(toy)


def test_baselines_stand_beside_unless_said_otherwise(toy):
    body = yaml.safe_load(TOY)
    body["methods"], body["paper"] = {"FedProx": ["strategy=fedprox", "strategy.mu=1"]}, {}
    body["settings"] = {"few": ["strategy.mu=2", "strategy=fedprox"]}
    toy.write_text(yaml.safe_dump(body))
    asked = load(toy)
    assert list(asked.methods) == ["Majority", "Local", "FedProx"]
    local = next(cell for cell in asked.cells({}) if cell.method == "Local")
    assert local.overrides == (*SMALL, "strategy=local", "seed=0")  # nothing of what another method was given
    toy.write_text(yaml.safe_dump(body | {"baselines": False}))
    assert list(load(toy).methods) == ["FedProx"]


def test_words_beside_a_file_go_over_its_own(toy, ran):
    sweep(toy, "--only", "FedAvg/5", "train.local_steps=3", "seed=4..5")
    assert ran == [("few", "FedAvg", 5)]  # the row of many is the same run now
    assert "fedgraph-flwr sweep toy.yaml train.local_steps=3 seed=4..5`" in toy.with_suffix(".md").read_text()
    sweep(toy, "train.lr=0.1,0.2", code=2)


def test_entries_are_lists_lines_or_keys(toy):
    body = yaml.safe_load(TOY)
    body["settings"]["few"] = {"train": {"local_steps": 1, "lr": 0.1}, "strategy.shared": ["a", "b"], "device": "cpu"}
    body["settings"]["many"] = "train.local_steps=1 dataset.name='a b'"
    body["seeds"] = "3..5"
    toy.write_text(yaml.safe_dump(body))
    asked = load(toy)
    assert asked.settings["few"] == ["device=cpu", 'strategy.shared=["a","b"]', "train.local_steps=1", "train.lr=0.1"]
    assert asked.settings["many"] == ["train.local_steps=1", "dataset.name=a b"]
    assert asked.seeds == [3, 4, 5]


def test_a_file_extends_another(toy):
    (toy.parent / "base").mkdir()
    (toy.parent / "base" / "all.yaml").write_text("out: results\nfigure: rounds\nseeds: [7]\n")
    toy.write_text("extends: base/all.yaml\n" + TOY)
    asked = load(toy)
    assert (asked.figure, asked.seeds, asked.results) == (False, [0, 1], toy.parent / "results" / "toy.csv")
    assert load(toy, toy.parent / "else").results == toy.parent / "else" / "toy.csv"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TOY + "settigns: {}\n", "key 'settigns' is unknown (toy.yaml, line 16); did you mean 'settings'"),
        (TOY.replace("fedavg]", "fedavgg]"), "toy.yaml, line 8: strategy=fedavgg: strategy 'fedavgg' is unknown"),
        (TOY.replace("few: [train", "few: [trian"), "toy.yaml, line 5: trian.local_steps=1: key 'trian'"),
        (TOY.replace("[strategy=local]", "[local]"), "toy.yaml, line 9: 'local' is not of the form key=value"),
        (TOY.replace("Majority: []", "Majority: []\n  - x"), "toy.yaml, line 11, column 3: invalid YAML"),
        (TOY.replace("seeds: [0, 1]", "seeds: [0, 0]"), "toy.yaml, line 11: seeds must be distinct integers"),
        (TOY.replace("seeds: [0, 1]", "seeds: 3..1"), "'3..1' must be a range"),
        (
            TOY + "baseline: FedAvgg\n",
            "baseline: column 'FedAvgg' is unknown (toy.yaml, line 16); did you mean 'FedAvg'",
        ),
        (TOY + "extends: none.yaml\n", "toy.yaml, line 16: extends: none.yaml, but none.yaml does not exist"),
        (TOY + "extends: toy.yaml\n", "toy.yaml, line 16: extends: toy.yaml is circular"),
        (TOY.replace("[strategy=local]", "[strategy=local, out=x]"), "toy.yaml, line 9: out=x, but each run"),
        ("methods: [fedavg]\nsettings: [few]\n", "toy.yaml, line 2: settings must map names"),
        ("- a\n", "toy.yaml must contain keys"),
        ("", "toy.yaml must contain keys"),
        (bomb(), "toy.yaml: invalid YAML (its aliases stand for more than 100,000 values: write them out)"),
        ("methods: &a [*a]\n", "toy.yaml: invalid YAML (its aliases stand for more than 100,000 values"),
    ],
)
def test_wrong_tables_end_with_2_and_name_the_line(toy, text, message, capsys):
    toy.write_text(text)
    sweep("toy.yaml", code=2)
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_missing_file_and_those_of_others_are_refused(toy, capsys):
    sweep("none.yaml", code=2)
    assert "none.yaml does not exist; available: toy.yaml" in capsys.readouterr().err
    toy.with_suffix(".md").write_text("# My notes\n")
    sweep(toy, code=2)
    assert "toy.md is not a sweep's table" in capsys.readouterr().err
    assert toy.with_suffix(".md").read_text() == "# My notes\n"
    toy.with_suffix(".md").unlink()
    toy.with_suffix(".csv").write_text("age,income\n1,2\n")
    sweep(toy, code=2)
    assert "toy.csv does not contain results of a sweep" in capsys.readouterr().err
    assert toy.with_suffix(".csv").read_text() == "age,income\n1,2\n"
