"""`benchmarks/sizes.py`: what counts as a line of code, and its stored baseline."""

import ast
import json

import pytest

from benchmarks import sizes

PYTHON = '''"""Module.

More.
"""

import os  # used


def f():
    """Doc."""
    # comment
    return """two

# lines""", "#"
'''


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", PYTHON, 5),
        ("a.yaml", "# title\n\nname: x   # why\n  # more\nlist: [1]\n", 2),
        ("a.css", "/* one\n two */\n\na { b: c }\n", 1),
        ("a.js", "// why\nlet a = 1;\n\n/* x */ let b;\n", 2),
        ("a.html", "<!-- x\n -->\n<p>{{ a }}</p>\n{# no #}\n", 1),
        ("a.min.js", "let a;\n", 0),
        ("a.md", "text\n", 0),
    ],
)
def test_lines_of_code(path, text, expected):
    assert sum(sizes.count({path: text}).values()) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("fedgraph_flwr/api.py", "fedgraph_flwr"),
        ("fedgraph_flwr/data/graph.py", "fedgraph_flwr/data"),
        ("fedgraph_flwr/report/assets/page.css", "fedgraph_flwr/report"),
        ("tests/party/banks.py", "tests"),
        ("mkdocs.yml", "(top)"),
    ],
)
def test_rooms(path, expected):
    assert sizes.room(path) == expected


def test_the_table_sums_rooms_kinds_the_package_and_all():
    before = {"fedgraph_flwr/wire/trees.py": 10, "tests/a.py": 5}
    now = {"fedgraph_flwr/wire/trees.py": 7, "tests/a.py": 5, "conf/a.yaml": 3}
    rows = {line[:30].strip(): line[30:].split() for line in sizes.table(before, now)}
    assert rows["fedgraph_flwr/wire"] == ["10", "7", "-3", "(-30%)"]
    assert rows["conf"] == ["0", "3", "+3"]
    assert rows["Python"] == ["15", "12", "-3", "(-20%)"]
    assert rows["both packages"] == ["10", "7", "-3", "(-30%)"]
    assert rows["all"] == ["15", "15", "+0", "(+0%)"]


CHECKED = '''
def _check_shape(a):
    """Only checks: this line is no code."""
    if a:
        raise ValueError(
            "a"
        )


class Net:
    def refuse(self): print(1)

    def load(self, a):
        for each in a:
            if each and a or each:
                raise ValueError("each")
        return a
'''


def test_lines_of_checks():
    """Five of `_check_shape`, one of `refuse`, one `raise` of `load`."""
    assert sizes.check_lines(CHECKED) == (12, 7)


def test_complexity_is_that_of_the_most_complex_function():
    """Of `load`: 1, one loop, one `if`, one `and` and one `or`; a class is not a function."""
    assert sizes.complexity(ast.parse(CHECKED)) == 5
    assert sizes.complexity(ast.parse("a = 1\n")) == 0


def test_names_that_a_base_adds():
    from flwr.serverapp.strategy import FedAvg

    class Base(FedAvg):
        extra, _private = 1, 2

        def more(self): ...

    assert sizes.added_names(type("Side", (Base,), {"start": 1})) == {"extra", "more"}


def test_the_files_that_flower_hub_counts_are_those_that_its_command_would_send():
    from flwr.cli.app_cmd.publish import _collect_file_paths

    ignored = (sizes.ROOT / ".gitignore").read_text()
    found = {sizes.ROOT / name for name in sizes.hub_files(sizes.tracked(sizes.ROOT), ignored)}
    assert found == set(_collect_file_paths(sizes.ROOT))
    names = ["a.py", "b.csv", "conf/a.yaml", "tests/a.py", "tests/x/a.py", "simulations/results/a.md", "docs/a.md"]
    assert sizes.hub_files(names, ignored) == [".gitignore", "a.py", "conf/a.yaml", "docs/a.md"]


def test_measures_hold():
    """Each within 5 % of what it held when it was last lowered; ``python benchmarks/sizes.py`` prints them."""
    now = sizes.measures()
    assert {m.name: now[m.name] for m in sizes.MEASURES if now[m.name] > (1 + sizes.MARGIN) * m.held} == {}
    assert now["files that Flower Hub counts"] <= 900
    assert now["calls from a message to the task's loss"] <= 9


def test_the_baseline_is_its_commit():
    """A sample of its files, counted again where the history is known."""
    stored = json.loads(sizes.BASELINE.read_text())
    try:
        files = sizes.at(stored["commit"])
    except sizes.subprocess.CalledProcessError:
        pytest.skip(f"commit {stored['commit']} is not known here")
    assert files.keys() == stored["lines"].keys()
    sample = dict(sorted(files.items())[::25])
    assert sizes.count(sample) == {path: stored["lines"][path] for path in sample}
