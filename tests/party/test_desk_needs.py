"""What a bank's team needs, one thin test each on two linked banks; `DEPTH` names the test that holds each in depth."""

import csv
import json
import re
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import fedgraph_flwr as fg
from fedgraph_flwr.cli.app import main
from fedgraph_flwr.data.graph import ClientGraph
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.secure.policy import Policy
from tests.nodes import party_nodes
from tests.party.two_banks import ROLES, books, payments

ROOT = Path(__file__).parents[2]

DEPTH = {
    "test_blanks_case_and_column_order_are_read": "party/link/test_linking.py::test_books_of_different_forms",
    "test_the_first_command_needs_no_schema": "party/tables/test_second_day.py::test_the_page_of_parties_runs",
    "test_a_schema_serves_again": "party/tables/test_second_day.py::test_a_schema_that_import_writes",
    "test_a_party_file_shortens_commands": "party/test_party_file.py::",
    "test_cut_edges_are_the_payments_of_both_books": "party/link/test_linking.py::test_linked_files_equal_the_partition",
    "test_one_sided_records_are_counted": "party/link/test_linking.py::test_records_of_a_party_that_is_no_client",
    "test_a_cross_payment_booked_twice_is_one_edge": "party/link/test_linking.py::test_a_payment_that_one_bank_booked_twice",
    "test_an_own_payment_booked_twice_is_one_edge": "party/tables/test_second_day.py::test_own_payments_booked_twice",
    "test_a_misspelt_party_is_found": "party/tables/test_second_day.py::test_another_spelling_of_the_own_bank",
    "test_a_dry_run_counts_and_writes_nothing": "party/link/test_linking.py::test_a_dry_run_learns_numbers_only",
    "test_a_node_links_only_if_its_policy_says_so": "engine/test_between_page.py::test_three_banks_import_link_train",
    "test_nodes_of_a_fleet_train": "engine/test_fleet.py::test_",
    "test_a_party_predicts_from_its_state": "party/use/test_prediction.py::test_a_party_predicts_with_what_its_node",
    "test_bounds_by_one_key": "methods/test_contract.py::test_",
    "test_chance_is_shown": "evaluation/test_metrics.py::test_",
    "test_features_of_payments_for_nodes_too": "party/tables/test_own_features.py::test_columns_of_an_import",
    "test_networks_beat_boosting_on_accounts_where_patterns_cross": "test_readme.py::test_",
    "test_networks_beat_boosting_on_payments": "test_readme.py::test_",
    "test_a_network_and_trees_together_beat_both_on_built_in_payments": "test_readme.py::test_",
    "test_a_boosting_baseline": "party/use/test_trees.py::test_lightgbm_and_numpy",
    "test_the_readme_trains_on_payments": "test_docs.py::test_",
    "test_labelled_edges_come_from_csv": "party/link/test_linking.py::test_the_example_goes_from_tables",
    "test_edges_are_split_by_time": "party/link/test_linking.py::test_cut_edges_follow_the_temporal_split",
    "test_a_new_account_is_scored": "party/use/test_new_nodes.py::test_new_nodes_are_predicted",
    "test_rows_that_name_other_banks_are_scored": "party/use/test_day.py::test_rows_that_name_another_bank",
    "test_the_next_month_starts_from_this_model": "launch/test_next_month.py::test_",
    "test_a_model_is_exported": "party/use/test_export_tasks.py::test_an_exported_folder_predicts",
    "test_the_card_has_calibration_and_alerts": "party/use/test_export.py::test_the_card_tells",
    "test_a_budget_of_alerts_is_kept": "party/use/test_alerts.py::test_a_desk_chooses_once",
    "test_probabilities_are_calibrated": "party/use/test_alerts.py::test_a_calibration_finds",
    "test_a_score_is_explained": "party/use/test_explain.py::test_reasons_of_planted_payments",
    "test_drift_is_reported": "party/use/test_drift.py::test_the_shifted_column_is_named",
    "test_a_bank_is_forgotten": "party/test_forget.py::test_",
    "test_single_rows_are_protected": "secure/test_dp_audit.py::test_",
    "test_an_audit_trail": "safety/test_audit.py::test_a_damaged_line_is_named",
    "test_wrong_input_is_refused_in_one_sentence": "safety/test_policy.py::test_what_a_policy_refuses",
}


def test_each_need_has_a_test_here_and_one_in_depth():
    here = [name for name in globals() if name.startswith("test_")]
    assert [name for name in here if name != "test_each_need_has_a_test_here_and_one_in_depth"] == list(DEPTH)
    for where in DEPTH.values():
        path, _, name = where.partition("::")
        assert f"def {name}" in (ROOT / "tests" / path).read_text(), where


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """240 payments of two banks in linked files, a model that their nodes trained, and bank A's rows of the next day."""
    folder, rows = tmp_path_factory.mktemp("desk"), payments()
    linked = books(folder / "history", rows[:240])
    graphs = sorted(linked.glob("client_*.safetensors"))
    (folder / "policy.yaml").write_text("tasks: [edges]\nmin_nodes: 0\nmax_share: 1.0\n")
    keys = {"task": "edges", "graph": str(linked), "num_clients": 2, "progress": False, "model.hidden": 8}
    with pytest.MonkeyPatch.context() as patch:
        party_nodes(patch, graphs, folder / "policy.yaml", folder)
        run = fg.run(rounds=2, out=str(folder / "run"), **keys)
    day = rows[240:].drop(columns="fraud")
    day = day[(day[["from_bank", "to_bank"]] == "A").any(axis=1)]
    day.to_csv(folder / "day.csv", index=False)
    bank_rows = rows[:240][(rows[:240][["from_bank", "to_bank"]] == "A").any(axis=1)]
    attributes = {
        "folder": folder,
        "linked": linked,
        "run": run,
        "rows": rows,
        "own": bank_rows,
        "day": day,
        "keys": keys,
    }
    return SimpleNamespace(**attributes, history=folder / "history", state=folder / "state_0")


@pytest.fixture
def say(capsys, caplog):
    """``say("command", ...)`` runs a command and returns its code with all that it said."""

    def call(*words):
        capsys.readouterr()
        caplog.clear()
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err + caplog.text

    return call


def imported(desk, say, folder, table, *more):
    """Bank A's file from another table, and what the import said."""
    table.to_csv(folder / "table.csv", index=False)
    given = ["--nodes", desk.history / "a.csv", "--edges", folder / "table.csv", *ROLES, "--own-party", "A"]
    given += ["edge_classes=no,yes", "--secret-seed", "1"]
    given += [] if "--schema" in more else ["--schema", desk.history / "schema.yaml"]
    given += ["--client", "0", "--num-clients", "2", "--out", folder / "a.safetensors", *more]
    code, text = say("import", *given)
    assert code == 0, text
    return ClientGraph.load(folder / "a.safetensors"), text


def linked_again(desk, say, folder, *more):
    """What a link of a changed file of bank A with bank B's says."""
    out = [] if "--dry-run" in more else ["--out", folder / "linked"]
    return say("link", "--simulate", folder / "a.safetensors", desk.history / "b.safetensors", *out, *more)


def shared_of(text):
    return int(re.search(r"records, (\d+) shared", text)[1])


def between(table):
    return table[table["from_bank"] != table["to_bank"]]


def test_blanks_case_and_column_order_are_read(desk, say, tmp_path):
    odd = desk.own[desk.own.columns[::-1]].copy()
    odd["source"] = " " + odd["source"].str.upper() + " "
    plain, other = (imported(desk, say, tmp_path, table)[0] for table in (desk.own, odd))
    assert plain.edge_index.equal(other.edge_index)
    assert plain.edge_attr.equal(other.edge_attr)
    assert plain.foreign.equal(other.foreign)


def test_the_first_command_needs_no_schema(desk):
    assert "amount" in (desk.history / "schema.yaml").read_text(), "the first bank's import wrote it"


def test_a_schema_serves_again(desk, say, tmp_path):
    one, two = (imported(desk, say, tmp_path, desk.own)[0] for _ in range(2))
    assert one.edge_attr.equal(two.edge_attr)


def test_a_party_file_shortens_commands(say, tmp_path):
    code, text = say("init-party", "--help")
    assert code == 0, text


def test_cut_edges_are_the_payments_of_both_books(desk):
    first = ClientGraph.load(sorted(desk.linked.glob("client_*.safetensors"))[0])
    crossing = between(desk.rows[:240])
    assert first.cut_out.size(1) == (crossing["from_bank"] == "A").sum()
    assert first.cut_in.size(1) == (crossing["from_bank"] == "B").sum()


def test_one_sided_records_are_counted(desk, say, tmp_path):
    imported(desk, say, tmp_path, desk.own.drop(index=between(desk.own).index[:3]))
    code, text = linked_again(desk, say, tmp_path)
    assert (code, shared_of(text)) == (0, len(between(desk.own)) - 3), text
    assert "3 one-sided" in text


def test_a_cross_payment_booked_twice_is_one_edge(desk, say, tmp_path):
    imported(desk, say, tmp_path, pd.concat([desk.own, between(desk.own)[:2]]))
    code, text = linked_again(desk, say, tmp_path)
    assert (code, shared_of(text)) == (0, len(between(desk.own))), text


def test_an_own_payment_booked_twice_is_one_edge(desk, say, tmp_path):
    inner_rows = desk.own[desk.own["from_bank"] == desk.own["to_bank"]]
    graph, text = imported(desk, say, tmp_path, pd.concat([desk.own, inner_rows[:4]]))
    assert graph.edge_index.size(1) == len(inner_rows)
    assert "counted once" in text


def test_a_misspelt_party_is_found(desk, say, tmp_path):
    odd = desk.own.copy()
    odd.loc[odd.index[odd["to_bank"] == "A"][:4], "to_bank"] = "Bank A"
    _, text = imported(desk, say, tmp_path, odd)
    assert "are ids of your node table" in text


def test_a_dry_run_counts_and_writes_nothing(desk, say, tmp_path):
    imported(desk, say, tmp_path, desk.own)
    code, text = linked_again(desk, say, tmp_path, "--dry-run")
    assert (code, shared_of(text)) == (0, len(between(desk.own))), text
    assert not (tmp_path / "linked").exists()


def test_a_node_links_only_if_its_policy_says_so():
    with pytest.raises(fg.FedGraphError, match="link"):
        Policy().linking.bounded(LinkRules())
    assert Policy(link={"match": ["payments"]}).linking.bounded(LinkRules()).match == "payments"


def test_nodes_of_a_fleet_train(desk):
    assert desk.run.summary["rounds"] == 2
    assert (desk.state / "audit.jsonl").is_file(), "each message passed a node's own process"


def test_a_party_predicts_from_its_state(desk, say, tmp_path):
    code, text = say("predict", desk.state, "--out", tmp_path / "scored.csv")
    assert code == 0, text
    assert len(pd.read_csv(tmp_path / "scored.csv")) > 0


@pytest.fixture(scope="module")
def baselines(desk):
    """Runs of other methods on the same files, by method."""
    methods = ("local", "central", "boosting")
    more = {"boosting": {"strategy.trees": 5, "strategy.min_data_in_leaf": 3}}
    where = {method: str(desk.folder / method) for method in methods}
    return {m: fg.run(strategy=m, rounds=1, out=where[m], **desk.keys, **more.get(m, {})) for m in methods}


def test_bounds_by_one_key(baselines):
    assert all(np.isfinite(baselines[method].rounds["test_loss"]).all() for method in ("local", "central"))


def test_chance_is_shown(desk):
    assert "test_chance_average_precision" in desk.run.table().index
    assert 0 < desk.run.summary["chance"] < 1


def test_features_of_payments_for_nodes_too(desk, say, tmp_path):
    graph, _ = imported(desk, say, tmp_path, desk.own, "features=payments", "--schema", tmp_path / "schema.yaml")
    assert graph.own_columns["nodes"] > 20
    assert graph.edge_attr.size(1) > 20


def test_networks_beat_boosting_on_accounts_where_patterns_cross():
    text = (ROOT / "simulations" / "results" / "payments_between.md").read_text()
    means = _means(text, "| 1 |")
    assert means["FedGCN"] > max(means[name] for name in means if name.startswith("Boosting"))


def test_networks_beat_boosting_on_payments():
    means = _means((ROOT / "simulations" / "results" / "payments_edges.md").read_text(), "| all |")
    assert means["FedAvg"] > max(means[name] for name in means if name.startswith("Boosting"))


@pytest.mark.parametrize("columns", ["counts", "recipe"])
def test_a_network_and_trees_together_beat_both_on_built_in_payments(columns):
    with (ROOT / "simulations" / "results" / "payments_worth.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["data"], row["columns"]) == ("payments", columns)]
    scores = {(row["method"], row["seed"]): float(row["test"]) for row in rows}
    seeds = [seed for method, seed in scores if method == "Blend"]
    assert len(seeds) >= 5
    for single in ("FedAvg", "Boosting"):
        pairs = [scores["Blend", seed] - scores[single, seed] for seed in seeds if (single, seed) in scores]
        assert fmean(pairs) > 0


def _means(text, start):
    """Means of a stored table's row, by column, from its first table."""
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("| |"))
    row = next(line for line in lines if line.startswith(start))
    cells = zip(head.split("|")[2:-1], row.split("|")[2:-1], strict=True)
    return {name.strip(): float(cell.split()[0]) for name, cell in cells if cell.strip()}


def test_a_boosting_baseline(baselines):
    assert baselines["boosting"].config.strategy.name == "boosting"
    assert np.isfinite(baselines["boosting"].rounds["test_loss"]).all()


def test_the_readme_trains_on_payments():
    assert "fedgraph-flwr run task=edges dataset=payments" in (ROOT / "README.md").read_text()


def test_labelled_edges_come_from_csv(desk):
    first = ClientGraph.load(desk.history / "a.safetensors")
    inner_rows = desk.own[desk.own["from_bank"] == desk.own["to_bank"]]
    assert sorted(first.edge_y.tolist()) == sorted((inner_rows["fraud"] == "yes").astype(int).tolist())


def test_edges_are_split_by_time(desk):
    graph = ClientGraph.load(desk.history / "a.safetensors")
    times = [graph.edge_time[graph.edge_split == stage] for stage in range(3)]
    assert times[0].max() <= times[1].min()
    assert times[1].max() <= times[2].min()


def test_a_new_account_is_scored(desk, say, tmp_path):
    pd.DataFrame({"id": ["a99", "a1", "a2"], "age": [3, 1, 2]}).to_csv(tmp_path / "nodes.csv", index=False)
    new = desk.day[:1].assign(ref="q", source="a99", target="a1", from_bank="A", to_bank="A")
    new.to_csv(tmp_path / "day.csv", index=False)
    given = ["--nodes", tmp_path / "nodes.csv", "--edges", tmp_path / "day.csv", "--out", tmp_path / "s.csv"]
    code, text = say("predict", desk.state, *given)
    assert code == 0, text
    assert pd.read_csv(tmp_path / "s.csv")["edge"].tolist() == ["q"]


def today(desk):
    return ["--nodes", desk.history / "a.csv", "--edges", desk.folder / "day.csv"]


def test_rows_that_name_other_banks_are_scored(desk, say, tmp_path):
    code, text = say("predict", desk.state, *today(desk), "--out", tmp_path / "s.csv")
    assert code == 0, text
    assert pd.read_csv(tmp_path / "s.csv")["edge"].tolist() == desk.day["ref"].tolist()


def test_the_next_month_starts_from_this_model(desk, tmp_path):
    later = fg.run(init=str(desk.run.path), rounds=1, out=str(tmp_path / "run"), **desk.keys)
    assert later.summary["start"]


def test_a_model_is_exported(desk, tmp_path):
    folder = fg.load_run(desk.run.path).export(tmp_path / "model", client=0)
    assert (folder / "model.py").is_file()


def test_the_card_has_calibration_and_alerts(desk, say, tmp_path):
    _budget(desk, say)
    card = (fg.load_run(desk.run.path).export(tmp_path / "model", client=0) / "MODEL_CARD.md").read_text()
    assert "alerts per day" in card
    assert "Brier score" in card


def _budget(desk, say):
    code, text = say("alerts", desk.run.path, "--client", 0, "--budget", 5)
    assert code == 0, text
    return json.loads((desk.run.path / "alerts_0.json").read_text())


def test_a_budget_of_alerts_is_kept(desk, say):
    assert _budget(desk, say)["validation"]["alerts_per_day"][0] <= 5


def test_probabilities_are_calibrated(desk, say):
    assert _budget(desk, say)["calibration"]["temperature"] > 0


def test_a_score_is_explained(desk, say, tmp_path):
    item = desk.day["ref"].iloc[0]
    code, text = say("explain", desk.state, *today(desk), "--items", item, "--out", tmp_path / "r.csv")
    assert code == 0, text
    assert pd.read_csv(tmp_path / "r.csv")["item"].unique().tolist() == [item]


def test_drift_is_reported(desk, say, tmp_path):
    desk.day.assign(amount=1e6).to_csv(tmp_path / "day.csv", index=False)
    code, text = say("drift", desk.state, "--nodes", desk.history / "a.csv", "--edges", tmp_path / "day.csv")
    assert code == 3, text
    assert "edges amount" in text


def test_a_bank_is_forgotten(client_files, say, tmp_path):
    run = fg.run(client_files((30, 30, 30)), num_clients=3, rounds=1, out=str(tmp_path / "run"), progress=False)
    code, text = say("forget", run.path, "--party", "2", "--out", tmp_path / "without")
    assert code == 0, text
    assert fg.load_run(tmp_path / "without").config.num_clients == 2


def test_single_rows_are_protected(desk, tmp_path):
    privacy = {"privacy.unit": "row", "privacy.dp": "local", "privacy.rows": 200, "privacy.noise_multiplier": 1.0}
    privacy |= {"privacy.clipping_norm": 1.0, "privacy.scores": "none", "privacy.batch": 50, "privacy.delta": 1e-3}
    keys = desk.keys | {"model": "mlp", "model.dropout": 0, "strategy": "fedgrad"}
    run = fg.run(rounds=1, out=str(tmp_path / "run"), **keys, **privacy)
    assert 0 < run.summary["privacy"]["epsilon"] < 100


def test_an_audit_trail(desk, say):
    code, text = say("audit", desk.state)
    assert (code, "lines is intact" in text) == (0, True), text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["alerts", "RUN", "--budget", "5"], "a threshold belongs to a party"),
        (["predict", "RUN", "--client", "7"], "has no client 7: expected 0..1"),
        (["link", "--simulate", "A", "--dry-run"], "link needs the files of two parties or more"),
        (["explain", "RUN", "--client", "0", "--items", "nothing"], "--items names 'nothing'"),
    ],
)
def test_wrong_input_is_refused_in_one_sentence(words, says, desk, say):
    places = {"RUN": desk.run.path, "A": desk.history / "a.safetensors"}
    code, text = say(*(places.get(word, word) for word in words))
    assert code == 2
    assert says in text
    assert text.count("error: ") == 1
