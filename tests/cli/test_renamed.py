"""One language of options: old spellings say the new one, and what is gone says what replaces it."""

import argparse
import json

import pytest

from fedgraph_flwr.cli.app import COMMANDS, _parser, main
from fedgraph_flwr.cli.renamed import GONE, RENAMED, current


@pytest.mark.parametrize(
    ("words", "now"),
    [
        ("predict --node state --edges e.csv", "predict state --edges e.csv"),
        ("alerts --node=state", "alerts state"),
        ("import --node-table a=n.csv --edge-kind x=date", "import --nodes a=n.csv kinds.edges.x=date"),
        ("import --edge-scale=x=log", "import scales.edges.x=log"),
        ("import a b --label-column fraud --date-format t=%d", "import a b columns.label=fraud date_formats.t=%d"),
        ("fleet init --nodes 3 --operator a:1", "fleet init --trial 3 --operator a:1"),
        ("fleet check --ca ca.crt", "fleet check --ca ca.crt"),
        ("schema merge a b --schema s.yaml", "schema merge a b --out s.yaml"),
        (
            "link --new-consent c --parties 3 --expires 2026-12-31",
            "link --new-consent c --parties 3 --until 2026-12-31",
        ),
        ("report a --out b.html", "report a --page b.html"),
    ],
)
def test_an_old_spelling_is_taken_and_named(words, now, capsys):
    assert current(words.split()) == now.split()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == sum(word not in now.split() and word.startswith("--") for word in words.split()) or words == now
    assert all(" is now " in line for line in said)
    shown = [line.partition(" is now ")[2].partition(";")[0] for line in said]
    assert all(text in now for text in shown if "=" in text), "with the value"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("drift r --undirected", "--undirected is gone: the stored schema says it"),
        ("predict r --keep-formulas", "--keep-formulas is gone: write a .parquet file"),
        ("explain r --time-column t", "--time-column is for `import`"),
    ],
)
def test_an_option_that_is_gone_says_what_replaces_it(words, text, capsys):
    assert main(words.split()) == 2
    error = capsys.readouterr().err
    assert text in error
    assert len(error.splitlines()) == 1


def _options(parser, path):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _options(inner, [*path, name])
        for option in action.option_strings:
            yield " ".join(path), option, action


def _all():
    for command in COMMANDS:
        parser = next(a for a in _parser([command])._actions if a.choices).choices[command]
        yield from _options(parser, [command])


def test_the_tables_of_old_spellings_name_no_present_option():
    present = {(command, option) for command, option, _ in _all()}
    for table in (RENAMED, GONE):
        for names, words in table.items():
            commands = names.split(", ")
            assert not {(command, option) for command in commands for option in words} & present


def test_an_option_means_one_thing():
    """A name has one form of value wherever it stands, and one that writes HTML is ``--page``."""
    forms: dict[str, set[str]] = {}
    for command, option, action in _all():
        forms.setdefault(option, set()).add(str(action.metavar or action.nargs == 0))
        assert (".html" in (action.help or "")) <= (option in ("--page", "--no-report")) or option == "--out", (
            command,
            option,
        )
    for option in ("--schema", "--nodes", "--budget", "--server", "--until", "--ca", "--expires", "--coalitions"):
        assert len(forms.get(option, set())) <= 1 or option == "--until", option
    assert "--expires" not in forms


def test_datasets_as_json(capsys):
    assert main(["datasets", "cora", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["nodes"], row["classes"]) == ("cora", 2708, 7)
