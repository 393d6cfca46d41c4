"""The site's table of methods and tasks is what runs accept."""

import sys
from pathlib import Path

import pytest

from fedgraph_flwr.config import TASKS, compose, group_names
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.checks import check_method
from tests.methods.small_runs import METHODS

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table() -> dict[str, dict[str, bool]]:
    """Whether each method serves each task, by the cells of the page."""
    pytest.importorskip("mkdocs")
    sys.path.insert(0, str(ROOT / "docs" / "hooks"))
    try:
        from methods import tasks_table
    finally:
        sys.path.pop(0)
    head, _, *rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in tasks_table().splitlines()]
    return {row[0].split("`")[1]: {t: c == "yes" for t, c in zip(head[1:], row[1:], strict=True)} for row in rows}


def test_the_table_has_every_method_and_task(table):
    assert set(table) == set(group_names("strategy"))
    assert all(set(row) == set(TASKS) for row in table.values())
    assert all(row["nodes"] for row in table.values())
    assert "<!-- made: tasks -->" in (ROOT / "docs/task-support.md").read_text()


@pytest.mark.parametrize("method", METHODS)
def test_runs_accept_what_the_table_says(method, table):
    for task, serves in table[method].items():
        cfg = compose([f"strategy={method}", f"task={task}"])
        if serves:
            check_method(cfg)
        else:
            with pytest.raises(FedGraphError, match=f"does not serve task={task}"):
                check_method(cfg)
