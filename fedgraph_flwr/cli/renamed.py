"""Options of the last release under other names: one line says the new spelling, for one release."""

import sys
from collections.abc import Sequence

from fedgraph_flwr.errors import FedGraphError

_MODEL = "predict, alerts, drift, explain"

_COLUMNS = ("id", "label", "split", "source", "target", "time", "amount", "edge-label", "graph", "edge-id")
_KEYS = (
    *("windows", "features", "currency", "id_form", "edge_classes", "feature_columns", "edge_columns"),
    *("separator", "encoding", "day", "party_columns", "party_prefix"),
)

RENAMED = {
    f"{_MODEL}, export, blend": {"--node": ""},
    f"{_MODEL}, import": {"--node-table": "--nodes", "--edge-table": "--edges"},
    "import": {
        **{f"--{role}-column": f"columns.{role.replace('-', '_')}=" for role in _COLUMNS},
        **{f"--{key.replace('_', '-')}": f"{key}=" for key in _KEYS},
        **{"--kind": "kinds.", "--edge-kind": "kinds.edges.", "--scale": "scales.", "--edge-scale": "scales.edges."},
        **{"--rate": "rates.", "--input": "inputs=", "--date-format": "date_formats."},
    },
    "schema": {"--schema": "--out"},
    "link": {"--expires": "--until"},
    "report": {"--out": "--page"},
    "fleet init": {"--nodes": "--trial"},
}
"""Commands → old option → new one; "": its value alone; ``key=`` and ``key.`` are joined with the value."""

_SCHEMA = "the stored schema says it: leave it out"
_TABLES = (
    "is for `import`, whose schema says it for all later files: import with it, or name the columns of these files in party.yaml"
    " and pass --party-file"
)
_FORMS = (
    "predict-columns",
    "windows",
    "features",
    "separator",
    "encoding",
    "decimal",
    "thousands",
    "rate",
    "date-format",
)

GONE = {
    _MODEL: {
        "--undirected": _SCHEMA,
        "--schema": "pass a client file by --graph, whose schema is read",
        "--keep-formulas": "write a .parquet file, whose cells stay as they are",
        **dict.fromkeys([*(f"--{role}-column" for role in _COLUMNS), *(f"--{name}" for name in _FORMS)], _TABLES),
    },
}
"""Commands → option that is gone → what replaces it."""


def _of(table: dict[str, dict[str, str]], given: Sequence[str]) -> dict[str, str]:
    commands = {given[0], " ".join(given[:2])}
    return {old: new for names, words in table.items() if commands & {*names.split(", ")} for old, new in words.items()}


def current(given: Sequence[str]) -> list[str]:
    """Return the words of a command line in the present spelling, and print a line for each old one.

    Raises:
        FedGraphError: an option is gone; the message has what replaces it.
    """
    renamed, gone = _of(RENAMED, given), _of(GONE, given)
    words, rest = list(given[:1]), list(given[1:])
    while rest:
        word, sign, value = rest.pop(0).partition("=")
        if word in gone:
            text = gone[word]
            raise FedGraphError(f"{word} {text}" if text.startswith("is ") else f"{word} is gone: {text}")
        new = renamed.get(word)
        if new is None:
            words.append(word + sign + value)
            continue
        option, _, start = new.rpartition(" ")
        joined = start.endswith(("=", "."))
        if joined and not sign and rest:
            value = rest.pop(0)
        shown = f"{new}{value or 'VALUE'}" if joined else new or "its value alone"
        print(f"{word} is now {shown}; the old spelling goes with the next release", file=sys.stderr)
        words += [option] if option else []
        words += [start + value] if joined else [start + sign + value if start else value] if start or sign else []
    return words
