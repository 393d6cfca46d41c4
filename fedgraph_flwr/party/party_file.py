"""A party's own file, ``party.yaml``: its tables and their columns, which `import`, `link`, `predict` and others read.

    party: a                             # its name, as the edge table writes it
    client: 0                            # its number in runs, from 0
    nodes: accounts.csv                  # paths are relative to this file
    edges: payments.csv
    schema: ../schema.yaml               # what all parties share: read if it exists, else the import writes it
    out: client_0000.safetensors         # the client file that `import` writes and `link` reads
    columns: {id: account, label: fraud, split: part, time: booked, amount: amount}
    party_columns: [from_bank, to_bank]
    match: {value_date: date, amount: amount, reference: text}
    features: payments
    share: ["age:exact"]                 # columns that `link` tells the other parties (`link --share`)
    agreement: agreement.yaml            # the runs that this party's node accepts (fedgraph-flwr agree)
    role: bank                           # for parties with different tables: nodes or edges may then be absent

`import` and `init-party` take the keys as words, too, such as ``columns.label=fraud``. An option or a word on the command line
takes precedence.
"""

import argparse
import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedgraph_flwr.config import at_least, one_of, typed
from fedgraph_flwr.config.config_file import load_texts
from fedgraph_flwr.data.far_ends import parse_share
from fedgraph_flwr.data.features import DAYS
from fedgraph_flwr.data.schema import KINDS, SCALES, UNIQUE, Schema, TableLayout
from fedgraph_flwr.errors import FedGraphError, check_names
from fedgraph_flwr.party.tables.columns import as_words, rates_of
from fedgraph_flwr.party.tables.nodes import column_of
from fedgraph_flwr.party.tables.parties import ID_FORMS, KEY_KINDS
from fedgraph_flwr.party.tables.reading import read_table

COLUMNS = ("id", "label", "split", "source", "target", "time", "amount", "edge_label", "graph", "edge_id")
"""Keys of ``columns``."""

_PATHS = ("nodes", "edges", "schema", "out", "outcomes")
_OPTIONS = ("client", "role", "split", "undirected")
"""Keys with an option of `import` of the same name."""

ACCEPTED = {
    **{"match": KEY_KINDS, "kinds": KINDS, "edge_kinds": KINDS, "scales": SCALES, "edge_scales": SCALES},
    **{"day": DAYS, "id_form": ID_FORMS, "edge_ids": (UNIQUE,), "split": ("ratio", "temporal")},
}
"""Values that keys accept, or each name of a key."""


@dataclass
class PartyFile:
    """Keys of the file; the module's docstring shows them. Those not shown are in the help of `import`.

    Attributes:
        path: the file.
    """

    party: str = ""
    role: str = ""
    client: int = 0
    nodes: str = ""
    edges: str = ""
    schema: str = ""
    out: str = ""
    outcomes: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    party_columns: list[str] = field(default_factory=list)
    party_prefix: str = ""
    match: dict[str, str] = field(default_factory=dict)
    id_form: str = ""
    edge_ids: str = ""
    features: str = ""
    windows: str = ""
    day: str = ""
    share: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    edge_classes: list[str] = field(default_factory=list)
    feature_columns: list[str] = field(default_factory=list)
    edge_columns: list[str] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    scales: dict[str, str] = field(default_factory=dict)
    edge_kinds: dict[str, str] = field(default_factory=dict)
    edge_scales: dict[str, str] = field(default_factory=dict)
    date_formats: dict[str, str] = field(default_factory=dict)
    rates: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    undirected: bool = False
    split: str = ""
    until: list[str] = field(default_factory=list)
    separator: str = ""
    encoding: str = ""
    currency: str = ""
    agreement: str = ""

    def __post_init__(self) -> None:
        at_least(self.client, 0, "client")
        check_names(self.columns, COLUMNS, "key of columns")
        for key, values in ACCEPTED.items():
            given = getattr(self, key)
            for name, value in given.items() if isinstance(given, dict) else [("", given or values[0])]:
                one_of(value, values, f"{key}.{name}".rstrip("."))
        parse_share(self.share)
        rates_of(self.rates)
        if self.party_columns and (len(self.party_columns) != 2 or self.party_prefix):
            raise FedGraphError(
                f"party_columns must be the columns with the parties of source and target, such as [from_bank, to_bank], without"
                f" party_prefix, got {self.party_columns}"
            )

    @property
    def formats(self) -> dict[str, Any]:
        """Formats of values, as fields of a `Treatment`."""
        return {"date_formats": self.date_formats, "rates": rates_of(self.rates)}

    @property
    def layout(self) -> TableLayout:
        """Names of columns and format of the tables."""
        same = ("party_prefix", "id_form", "edge_ids", "windows", "day", "separator", "encoding", "currency")
        return TableLayout(
            **self.columns,
            **{key: getattr(self, key) for key in same},
            recipe=self.features,
            party_columns=",".join(self.party_columns),
            match_columns=",".join(f"{name}:{kind}" for name, kind in self.match.items()),
        )

    def path(self, key: str, folder: Path) -> Path | None:
        """Return a path of the file, relative to its folder; None if it is not given."""
        return folder / value if (value := getattr(self, key)) else None

    def schema_in(self, folder: Path) -> Schema | None:
        """Return the schema that the file names; None if it names none, or one that is yet to be written."""
        path = self.path("schema", folder)
        return Schema.load(path) if path and path.is_file() else None

    def options(self, folder: Path) -> dict[str, Any]:
        """Return the values of keys that are options of `import`, by their destination."""
        options: dict[str, Any] = {key: self.path(key, folder) for key in _PATHS}
        options |= {key: getattr(self, key) for key in _OPTIONS}
        options |= {key: ",".join(getattr(self, key)) for key in ("classes", "until")}
        options["match_columns"] = self.layout.match_columns
        schema = self.schema_in(folder)
        if self.role or any(
            layout.party_columns or layout.party_prefix for layout in (self, schema.tables if schema else self)
        ):
            options["own_party"] = self.party
        return {
            dest: value for dest, value in options.items() if value not in (None, "", [], False) or dest == "client"
        }

    def over(self, other: "PartyFile") -> "PartyFile":
        """Return this file's keys, completed by those of another one: of keys with names by name, and all inputs."""
        made = copy.copy(self)
        for key, value in vars(other).items():
            own = getattr(self, key)
            setattr(made, key, value | own if isinstance(own, dict) else own or value)
        made.inputs = [*other.inputs, *self.inputs]
        return made


def read_party(path: Path) -> PartyFile:
    """Read a party's file.

    Raises:
        FedGraphError: the file is missing or not YAML, a key is unknown or missing, or a value has another type or range.
    """
    values = load_texts(path, "a party's file")
    if not isinstance(values, Mapping):
        raise FedGraphError(
            f"{path} must hold keys and values, such as party: a (`fedgraph-flwr init-party` writes one)"
        )
    check_names(values, _KINDS, "key of a party's file", str(path))
    given: dict[str, Any] = dict(values)
    if any(isinstance(given.get(key), Mapping) for key in ("nodes", "edges")):
        raise FedGraphError(
            f"{path}: expected one table of nodes and one of edges; pass those of several types to `import`, as --nodes TYPE=FILE"
            " and --edges A:RELATION:B=FILE"
        )
    if re.fullmatch(r"\d{1,9}", str(given.get("client", "0")), re.ASCII):
        given["client"] = int(given.get("client", "0"))
    given["undirected"] = {"true": True, "false": False}.get(word := given.get("undirected", "false"), word)
    try:
        party: PartyFile = typed(PartyFile, given, f"{path}=")
        for key in ("party", *([] if party.role and party.nodes + party.edges else ["nodes", "edges"])):
            if not getattr(party, key):
                raise FedGraphError(f"{key} is missing: write it, as `fedgraph-flwr init-party` does")
    except FedGraphError as error:
        raise FedGraphError(f"{path}: {str(error).removeprefix(f'{path}.').replace(f' ({path}=)', '')}") from error
    return party


def is_key(word: str) -> bool:
    """Return whether a word of a command line sets a key of the file, instead of naming a file."""
    head = re.match(r"(\w+)(\.[^=]+)?=", word)
    return head is not None and (head[1] in _KINDS or "/" not in head[0])


def given_keys(words: Sequence[str]) -> dict[str, Any]:
    """Return the keys of the file that words set, as `guess` takes them; a list that is set twice has both values.

    Raises:
        FedGraphError: a key is unknown or has two values, or its value has another form.
    """
    keys: dict[str, Any] = {"columns": {}}
    seen: dict[str, str] = {}
    for word in words:
        section = word.partition("=")[0].partition(".")[0]
        # such values have no "=", which a column's name may have
        key, _, value = word.rpartition("=") if section in ACCEPTED else word.partition("=")
        name, kind = key.partition(".")[2], str(_KINDS.get(section))
        check_names([section], _KINDS, "key of a party's file", "`fedgraph-flwr import --help` describes them")
        if (held := seen.setdefault(key, value)) != value and not kind.startswith("list"):
            raise FedGraphError(f"{key} is given twice, as '{held}' and '{value}', but takes one value: leave one out")
        if not value.strip("[] "):
            raise FedGraphError(
                f"{word} has no value: give one, or leave it out. A key of a party's file is removed there"
            )
        if name.strip() and kind.startswith("dict"):
            keys.setdefault(section, {})[name] = value
        elif name or kind.startswith("dict"):
            raise FedGraphError(f"{word}: expected KEY=VALUE, or KEY.NAME=VALUE such as columns.label=fraud")
        elif _KINDS[section] is int:
            if not value.isdecimal():
                raise FedGraphError(f"{word}: expected a whole number from 0")
            keys[section] = int(value)
        elif _KINDS[section] is bool:
            one_of(value, ("true", "false"), section)
            keys[section] = value == "true"
        elif kind.startswith("list"):
            listed = [part.strip() for part in value.strip("[]").split(",")]
            keys[section] = [*keys.get(section, []), *listed]
        else:
            keys[section] = value
    return keys


_KINDS = {each.name: each.type for each in fields(PartyFile)}


def client_file(path: Path, linked: bool = False) -> Path:
    """Return a client file: the given one, or by a party's file the one that `import` wrote.

    Args:
        path: a client file, or a party's file.
        linked: whether to return what `link` wrote from the imported file, if that is not newer.

    Raises:
        FedGraphError: the party's file names none.
    """
    if path.suffix not in (".yaml", ".yml"):
        return path
    if (out := read_party(path).path("out", path.parent)) is None:
        raise FedGraphError(f"{path} has no out, the client file that `fedgraph-flwr import {path}` writes: add it")
    made = out.with_name(f"linked_{out.name}")
    return made if linked and made.is_file() and made.stat().st_mtime_ns >= out.stat().st_mtime_ns else out


def complete(args: argparse.Namespace) -> None:
    """Set options that the command line leaves out from the file ``args.party_file``.

    Commands that read a model take its client, and its node table if ``--edges`` is given.
    """
    party, folder = read_party(args.party_file), args.party_file.parent
    if hasattr(args, "keys"):  # of `import`
        fill_in(args, party.options(folder))
        args.keys = args.keys.over(party)
        return
    if args.client is None and not args.node:
        args.client = party.client
    if getattr(args, "edges", None) and not args.nodes:
        args.nodes = party.path("nodes", folder)


def fill_in(args: argparse.Namespace, options: Mapping[str, Any]) -> None:
    """Set those options of `import` that the command line leaves out."""
    for dest, value in options.items():
        held = getattr(args, dest)
        if held is False or held in (None, "", []):
            setattr(args, dest, [value] if dest == "edges" else value)


def table_order(path: Path, ids: np.ndarray) -> np.ndarray:
    """Return the places [N] of nodes by their rows in the party's node table; unknown ids come last.

    A linked file has the nodes in an order that only the party knows.

    Args:
        path: the party's file.
        ids: ids of the nodes, as the client file has them [N].

    Raises:
        FedGraphError: the table or its column of ids is missing, or it has none of the nodes: they are another party's.
    """
    import pandas as pd

    party = read_party(path)
    where, name = party.path("nodes", path.parent), party.columns.get("id", "id")
    table = read_table(str(where), TableLayout(separator=party.separator, encoding=party.encoding))
    row = pd.Index(as_words(column_of(table, name, str(where), "id"))).get_indexer(np.asarray(ids, dtype=str))
    if (row < 0).all():
        raise FedGraphError(
            f"{where} has none of the {len(row)} nodes of the model's client: pass --client with this party's number in the run"
        )
    return np.argsort(np.where(row < 0, len(table), row), kind="stable")
