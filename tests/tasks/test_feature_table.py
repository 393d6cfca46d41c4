"""The table of tasks and features in docs/task-support.md: each 'yes' names the test that shows it, each 'no' is refused."""

import re
from pathlib import Path

import pytest

from fedgraph_flwr.config import TASKS, compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.use.predict import Predictor
from fedgraph_flwr.party.use.prediction_input import InputSpec

ROOT = Path(__file__).parents[2]

BY_TASK = {
    "nodes-regression": "test_targets",
    "nodes-multilabel": "test_targets",
    "edges": "test_edges",
    "links": "test_links",
    "triples": "test_triples",
    "graphs": "test_graphs",
    "graphs-regression": "test_graphs",
}
"""Files of tests/tasks in which these names are of every task."""

COMMON = {
    "resume": "test_a_resumed_run_gives_the_same_bits",
    "DP, secure sums": r"test_\w+_run_under_protections_and_references",
    "report": r"test_(the_report|predictions_of_stored_graphs)\w+",
}

STORED = "test_predictions_of_stored_graphs_are_those_that_were_scored"

SHOWN = (
    {
        ("nodes", "Ray"): "engine/test_ray.py::test_ray_gives_the_parameters_of_the_inline_engine",
        (
            "nodes",
            "Flower's simulation",
        ): "engine/test_flower.py::test_the_simulation_gives_the_parameters_of_the_inline_engine",
        ("nodes", "fleet"): "engine/test_fleet.py::test_parties_nodes_give_the_parameters_of_the_inline_engine",
        ("nodes", "resume"): "launch/test_interrupt.py::test_a_run_that_is_asked_to_stop_goes_on_to_the_same_result",
        ("nodes", "DP, secure sums"): "methods/test_protections.py::test_",
        ("nodes", "report"): "report/test_contents.py::test_",
        ("nodes", "own tables"): "party/use/test_prediction.py::test_tables_become_what_the_client_file_holds",
        (
            "nodes",
            "predict, stored",
        ): "party/use/test_prediction.py::test_every_method_predicts_its_own_nodes_as_they_were_scored",
        ("nodes", "predict, new"): "party/use/test_new_nodes.py::test_new_nodes_are_predicted_in_the_stored_graph",
        ("nodes", "export"): "party/use/test_export.py::test_the_folders_give_our_logits_without_our_package",
        (
            "nodes-regression",
            "own tables",
        ): "tasks/test_targets.py::test_tables_with_targets_become_predictions_in_their_unit",
        (
            "nodes-regression",
            "predict, stored",
        ): "tasks/test_targets.py::test_tables_with_targets_become_predictions_in_their_unit",
        (
            "nodes-regression",
            "predict, new",
        ): "tasks/test_targets.py::test_tables_with_targets_become_predictions_in_their_unit",
        **{
            (
                "nodes-multilabel",
                feature,
            ): "tasks/test_targets.py::test_tables_with_yes_and_no_become_probabilities"
            for feature in ("own tables", "predict, stored", "predict, new")
        },
        **{
            ("links", feature): "tasks/test_links.py::test_links_of_tables_are_trained_and_pairs_of_new_tables_scored"
            for feature in ("own tables", "predict, new")
        },
        ("triples", "own tables"): "tasks/test_triples.py::test_the_labels_of_an_edge_table_are_relations",
        **{
            (task, "fleet"): "engine/test_tasks.py::test_parties_nodes_give_the_parameters_of_the_inline_engine"
            for task in ("nodes-regression", "nodes-multilabel", "links")
        },
        **{
            (
                task,
                "fleet",
            ): "engine/test_tasks.py::test_parties_nodes_give_the_parameters_of_the_inline_engine"
            for task in ("triples", "graphs", "graphs-regression")
        },
        (
            "edges",
            "fleet",
        ): "tasks/test_edges_tables.py::test_three_banks_score_new_payments_and_a_fleet_trains_the_same_bits",
        ("edges", "own tables"): "tasks/test_edges_tables.py::test_an_import_keeps_labels_stages_and_counts_of_edges",
        ("edges", "predict, stored"): "tasks/test_edges.py::test_predictions_list_edges_as_they_were_scored",
        (
            "edges",
            "predict, new",
        ): "tasks/test_edges_tables.py::test_new_payments_are_scored_by_their_ids_in_the_order_of_the_table",
        ("links", "predict, stored"): "tasks/test_links.py::test_pairs_are_scored_once_the_run_is_over",
        ("graphs", "own tables"): "party/tables/test_graph_tables.py::test_from_tables_to_predicted_new_graphs",
        ("graphs", "predict, stored"): f"tasks/test_graphs.py::{STORED}",
        ("graphs", "predict, new"): "party/tables/test_graph_tables.py::test_from_tables_to_predicted_new_graphs",
        ("graphs-regression", "own tables"): "party/tables/test_graph_tables.py::test_numbers_of_graphs_are_targets",
        (
            "graphs-regression",
            "predict, stored",
        ): "tasks/test_graphs.py::test_predictions_of_stored_graphs_are_those_that_were_scored",
        ("graphs-regression", "predict, new"): "tasks/test_graphs.py::test_one_new_graph_is_predicted",
    }
    | {
        (task, "export"): "party/use/test_export_tasks.py::test_an_exported_folder_predicts_as_the_run"
        for task in ("nodes-regression", "nodes-multilabel", "edges", "links", "graphs", "graphs-regression")
    }
    | {
        (task, feature): f"tasks/{file}.py::{name}"
        for task, file in BY_TASK.items()
        for feature, name in COMMON.items()
    }
    | {(task, "Ray"): "tasks/test_engines.py::test_ray_gives_the_same_bits" for task in BY_TASK}
    | {
        (task, "Flower's simulation"): f"tasks/test_engines.py::test_{name}_the_same_bits"
        for task in BY_TASK
        for name in ("flowers_simulation_gives", "rebuilt_clients_that_are_asked_over_the_wire_give")
    }
)


def table() -> dict[tuple[str, str], str]:
    """The cells of the page."""
    text = (ROOT / "docs/task-support.md").read_text().partition("# What works for which task")[2]
    head, _, *rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"
    ]
    return {
        (row[0], column): cell for row in rows[: len(TASKS)] for column, cell in zip(head[1:], row[1:], strict=True)
    }


def test_a_cell_says_yes_where_a_test_shows_it():
    cells = table()
    assert {task for task, _ in cells} == set(TASKS)
    assert set(cells.values()) == {"yes", "no", "–"}
    assert {cell for cell, word in cells.items() if word == "yes"} == set(SHOWN)
    for place in set(SHOWN.values()):
        file, _, name = place.partition("::")
        assert re.search(rf"^def {name}", (ROOT / "tests" / file).read_text(), re.MULTILINE), place


@pytest.mark.parametrize("task", sorted(TASKS))
def test_what_is_refused_is_one_error(task):
    """Predictions and exports of triples."""
    refused = {feature for (name, feature), word in table().items() if name == task and word == "no"}
    assert refused == ({"export", "predict, stored", "predict, new"} if task == "triples" else set())
    if task == "triples":
        predictor = Predictor(compose([f"task={task}"]), None, {}, {}, 0, InputSpec(("0", "1"), 3))
        for call in (predictor.plain, lambda: predictor.predict(None), lambda: predictor.predict_pairs(None, [])):
            with pytest.raises(FedGraphError, match=r"task=triples: its model predicts nothing.*ranks of triples"):
                call()
