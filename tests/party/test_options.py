"""Options of a command from their description."""

import argparse
from pathlib import Path

from fedgraph_flwr.party.options import add_options


def test_a_description_gives_types_defaults_and_help():
    parser = argparse.ArgumentParser(prog="p")
    add_options(
        parser,
        """
        --table FILE  a table
            of 5 % of all
        --kind COLUMN=KIND...  kinds
        --number N  a number (default: 3)
        --share P  a share
        --word A|B  a word
        --fast  a flag
        """,
        number={"default": 3},
        word={"choices": ("", "A", "B")},
    )
    empty = {"table": None, "kind": [], "number": 3, "share": None, "word": "", "fast": False}
    assert vars(parser.parse_args([])) == empty
    given = [
        "--table",
        "t.csv",
        "--kind",
        "a=b",
        "--kind",
        "c=d",
        "--number",
        "4",
        "--share",
        "0.5",
        "--word",
        "B",
        "--fast",
    ]
    full = {"table": Path("t.csv"), "kind": ["a=b", "c=d"], "number": 4, "share": 0.5, "word": "B", "fast": True}
    assert vars(parser.parse_args(given)) == full
    shown = " ".join(parser.format_help().split())
    assert "--table FILE a table of 5 % of all" in shown
    assert "--kind COLUMN=KIND kinds" in shown
