"""`benchmarks/sizes.py`: what counts as a line of code, and its stored baseline."""

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
lines"""
'''


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", PYTHON, 4),
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
        ("tests/data/banks.py", "tests"),
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
    assert rows["the package"] == ["10", "7", "-3", "(-30%)"]
    assert rows["all"] == ["15", "15", "+0", "(+0%)"]


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
