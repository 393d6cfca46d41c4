"""Schema of the parties' tables: a small YAML file that they share, compared before every run.

    scaling: local
    classes: [ok, fraud]
    nodes:
      node:                                    # node type; always "node" for homogeneous graphs
        age: {kind: number, unit: years}
        job: {kind: category, categories: [clerk, nurse]}
        opened: {kind: date}
        name: {kind: ignored}
    edges: ['node:edge:node']
    tables: {id: customer, source: payer, target: payee, label: status, separator: ';'}
    targets: {income: [2100.5, 830.2]}         # mean and standard deviation of numbers to predict, from `schema merge`
    undirected: true
    roles: {bank: {node: [age, job]}, network: {'node:edge:node': [amount]}}   # columns that parties of each role have

The last four keys are written only if they differ from the defaults. Columns are in feature order.
`party.tables.columns` defines how values become features.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import one_of
from fedgraph_flwr.config.config_file import load_texts
from fedgraph_flwr.data.features import BEFORE
from fedgraph_flwr.data.value_formats import NumberFormat
from fedgraph_flwr.errors import MALFORMED, FedGraphError, check_names, sanitize

KINDS = ("number", "category", "date", "flag", "ignored")
SCALES = ("standard", "robust", "log", "none")
SCALINGS = ("none", "local", "federated")
NODE = "node"
DRILL = "drill-"
"""Start of the class of payments that a drill planted, which no real label has."""
EDGE = "node:edge:node"
UNIQUE = "unique"
"""Value of `TableLayout.edge_ids`."""


SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|", "space": " "}
"""Names for separators that are awkward to type in a shell."""

Types = Mapping[str, Mapping[str, "Column"]]
"""Columns by node type and name."""


@contextmanager
def _reading(where: str, form: str, values: Any) -> Iterator[None]:
    """Name the place of values in their errors, and the expected form where they have another one."""
    try:
        yield
    except FedGraphError as error:
        raise FedGraphError(f"{where}: {error}") from error
    except MALFORMED as error:
        raise FedGraphError(f"{where}: expected {form}, got {sanitize(values)}") from error


def split_names(text: str) -> list[str]:
    """Return the entries of a text of a `TableLayout`, which are separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


@dataclass(frozen=True)
class TableLayout:
    """Column names and file format of a party's tables; "" for a default or a detected value.

    Attributes:
        id: column of the node table; likewise ``label``, ``split`` and ``client``.
        source: column of the edge table; likewise ``target``, ``time``, ``edge_label`` and ``edge_id``.
        graph: column of the node table with the graph of each node, if it holds many graphs.
        predict: columns of the node table with numbers to predict, separated by commas.
        amount: column of the edge table with the amount of each edge, which a recipe reads.
        recipe: columns that a party computes from its own records (`features.Recipe.parse`): ``payments``.
        windows: days within which payments at both ends of an edge are counted, separated by commas; with a recipe, its windows.
        day: what a record of the recipe reads, one of `features.DAYS`; "": ``before``.
        alike: bound of alike amounts in the columns of the recipe, which `import` writes; "": a release that wrote none.
        separator: field separator of a CSV.
        encoding: encoding of a CSV.
        party_columns: columns of the edge table with the parties of source and target, ``SOURCE,TARGET``.
        party_prefix: text after a party's name at the start of an id.
        match_columns: columns of the edge table that identify a record, ``NAME:KIND,...``.
        id_form: form in which parties compare ids, ``text`` or ``number``.
        edge_ids: ``unique`` if the id of a payment alone names it; "": its id and its accounts do.
        currency: unit of amounts, for display.
        time_format: format of the times of edges, if they are neither seconds nor dates such as 2026-01-31; `import` writes it.
    """

    id: str = ""
    label: str = ""
    split: str = ""
    client: str = ""
    source: str = ""
    target: str = ""
    time: str = ""
    edge_label: str = ""
    edge_id: str = ""
    graph: str = ""
    predict: str = ""
    amount: str = ""
    recipe: str = ""
    windows: str = ""
    day: str = ""
    alike: str = ""
    separator: str = ""
    encoding: str = ""
    party_columns: str = ""
    party_prefix: str = ""
    match_columns: str = ""
    id_form: str = ""
    edge_ids: str = ""
    currency: str = ""
    time_format: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "separator", SEPARATORS.get(self.separator, self.separator))
        if len(self.separator) > 1:
            accepted = ", ".join(SEPARATORS)
            raise FedGraphError(f"separator '{self.separator}' must be one character, or one of: {accepted}")
        try:
            "".encode(self.encoding or "utf-8")
        except LookupError as error:
            raise FedGraphError(f"encoding '{self.encoding}' is unknown; expected one such as cp1252") from error

    def to_dict(self) -> dict[str, str]:
        """Return the non-empty fields."""
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_dict(cls, values: Any) -> "TableLayout":
        """Build a layout from the output of `to_dict`.

        Raises:
            FedGraphError: the value is not a mapping, or has an unknown key.
        """
        with _reading("tables", "a mapping such as {id: customer, separator: ';'}", values):
            given = {str(key): str(value) for key, value in values.items()}
            check_names(given, [f.name for f in fields(cls)], "key of tables")
            return cls(**given)

    def over(self, other: "TableLayout") -> "TableLayout":
        """Return this layout with empty fields filled from the other."""
        return replace(other, **self.to_dict())


AS_DETECTED = TableLayout()
"""Every column has its default name; the file format is detected."""


@dataclass(frozen=True)
class Column:
    """Column of a node table.

    Attributes:
        kind: one of `KINDS`.
        unit: unit of a number, for display.
        scale: for numbers and dates, one of `SCALES`.
        missing: whether an extra feature marks missing values.
        categories: values of a category, in feature order; any other value is "other".
        format: for dates, pandas formats separated by ``|``. For numbers, an example such as ``1.234,5``. "" means a plain
            number, or a detected date format.
        width: number of features; more than 1 only for unnamed numbers (a saved graph's ``x``).
        statistics: ``fill`` (for missing values), ``center`` and ``spread``, as far as the parties agreed on them.
    """

    kind: str = "number"
    unit: str = ""
    scale: str = "standard"
    missing: bool = False
    categories: tuple[str, ...] = ()
    format: str = ""
    width: int = 1
    statistics: Mapping[str, float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of(self.kind, KINDS, "kind of a column")
        one_of(self.scale, SCALES, "scale of a column")
        if self.kind == "number":
            NumberFormat.parse(self.format)

    def to_dict(self) -> dict[str, Any]:
        """Return the kind and the fields that differ from a plain number."""
        changed = {key: value for key, value in vars(self).items() if value != getattr(_PLAIN, key)}
        if "categories" in changed:
            changed["categories"] = list(self.categories)
        if "statistics" in changed:
            changed["statistics"] = dict(self.statistics)
        return {"kind": self.kind} | changed

    @classmethod
    def from_dict(cls, values: Any, name: str) -> "Column":
        """Build a column from the output of `to_dict`, or from YAML with string scalars only.

        Raises:
            FedGraphError: an unknown key, kind or scale, or a statistic that is not a number.
        """
        values = {"kind": values} if isinstance(values, str) else values
        form = "a kind such as number, or a mapping such as {kind: number, statistics: {fill: 0.5}}"
        with _reading(f"column '{name}'", form, values):
            given: dict[str, Any] = {key: str(value) for key, value in values.items()}
            check_names(given, [f.name for f in fields(cls)], "key of a column")
            read = str if given.get("kind") == "category" else float
            given["width"] = int(values.get("width", 1))
            given["missing"] = given.get("missing", "").lower() == "true"
            given["categories"] = tuple(map(str, values.get("categories", ())))
            given["statistics"] = {key: read(value) for key, value in dict(values.get("statistics", {})).items()}
            return cls(**given)


_PLAIN = Column()


@dataclass(frozen=True)
class Schema:
    """Table schema that all parties agree on.

    Attributes:
        classes: class names, in label order.
        nodes: columns by node type and name, in feature order. Columns of edges are listed under their edge type.
        edges: edge types, as ``SOURCE:RELATION:TARGET``.
        scaling: none, local (each party's statistics where the schema has none) or federated (the schema's statistics).
        tables: names of the other columns, and the file format. Each party may have its own.
        undirected: whether each row of an edge table represents both directions.
        edge_classes: class names of edges, in label order.
        targets: mean and standard deviation of each number to predict, over all parties; empty where none are agreed on.
        roles: columns that parties of each role have, by role and type; empty if all parties have the same ones. All files have
            the columns of all roles.
    """

    classes: tuple[str, ...]
    nodes: Types
    edges: tuple[str, ...] = (EDGE,)
    scaling: str = "local"
    tables: TableLayout = field(default_factory=TableLayout)
    undirected: bool = False
    edge_classes: tuple[str, ...] = ()
    targets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        one_of(self.scaling, SCALINGS, "scaling")
        for name, (mean, std) in self.targets.items():
            if not isfinite(mean) or not isfinite(std) or std <= 0:
                raise FedGraphError(f"target '{name}' needs a finite mean and spread > 0, got {mean} and {std}")
        for key, classes in (("classes", self.classes), ("edge_classes", self.edge_classes)):
            if len(set(classes)) < len(classes):
                raise FedGraphError(f"{key} must differ from each other, got {', '.join(classes)}")
        for role, kinds in self.roles.items():
            for kind, names in kinds.items():
                check_names(names, self.nodes.get(kind, {}), f"column of role '{role}'", f"the schema's '{kind}'")

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as JSON and YAML store it."""
        columns = {kind: {name: c.to_dict() for name, c in of.items()} for kind, of in self.nodes.items()}
        edges: Any = {kind: columns.pop(kind, {}) for kind in self.edges}
        edges = edges if any(edges.values()) else list(self.edges)
        required = {"scaling": self.scaling, "classes": list(self.classes), "nodes": columns, "edges": edges}
        optional = {
            "edge_classes": list(self.edge_classes),
            "targets": {name: list(numbers) for name, numbers in self.targets.items()},
            "roles": {role: {kind: list(names) for kind, names in of.items()} for role, of in self.roles.items()},
            "tables": self.tables.to_dict(),
            "undirected": self.undirected,
        }
        return required | {key: value for key, value in optional.items() if value}

    @classmethod
    def from_dict(cls, values: Any, where: str) -> "Schema":
        """Build a schema from the output of `to_dict`.

        Raises:
            FedGraphError: a key is missing or unknown, or `Column.from_dict` fails.
        """
        known = [f.name for f in fields(cls)]
        with _reading(where, f"a schema with the keys {', '.join(known)}", values):
            check_names(dict(values), known, "key of a schema")
            edges, targets, roles = values.get("edges", ()), values.get("targets", {}), values.get("roles", {})
            of_edges = (
                {kind: entries for kind, entries in edges.items() if entries} if isinstance(edges, Mapping) else {}
            )
            with _reading("targets", "{NAME: [MEAN, STANDARD DEVIATION]} as `schema merge` writes them", targets):
                targets = {str(name): (float(mean), float(std)) for name, (mean, std) in targets.items()}
            with _reading("roles", "{ROLE: {TYPE: [COLUMNS]}} such as {bank: {node: [age]}}", roles):
                roles = {
                    str(role): {str(kind): tuple(map(str, names)) for kind, names in (kinds or {}).items()}
                    for role, kinds in roles.items()
                }
            return cls(
                classes=tuple(map(str, values.get("classes", ()))),
                nodes={
                    str(kind): {str(name): Column.from_dict(c, str(name)) for name, c in (columns or {}).items()}
                    for kind, columns in {**values["nodes"], **of_edges}.items()
                },
                edge_classes=tuple(map(str, values.get("edge_classes", ()))),
                edges=tuple(map(str, edges)),
                scaling=str(values.get("scaling", "local")),
                tables=TableLayout.from_dict(values.get("tables", {})),
                undirected=str(values.get("undirected", False)).lower() == "true",
                targets=targets,
                roles=roles,
            )

    def save(self, path: Path) -> None:
        """Write the YAML with one line per column."""
        from fedgraph_flwr.data.files import write_bytes

        lines = ["# Schema of the parties' tables: share it, and import with --schema."]
        for key, value in self.to_dict().items():
            if key in ("nodes", "edges") and isinstance(value, dict):
                lines.append(f"{key}:")
                for kind, columns in value.items():
                    lines.append(f"  {flow(kind)}:{'' if columns else ' {}'}")
                    lines += [f"    {flow(name)}: {flow(column)}" for name, column in columns.items()]
            else:
                lines.append(f"{key}: {flow(value)}")
        write_bytes(path, ("\n".join(lines) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Schema":
        """Read a file written by `save` or by hand.

        Raises:
            FedGraphError: the file is missing or not YAML, or `from_dict` fails.
        """
        return cls.from_dict(load_texts(path, "a schema"), str(path))

    def difference(self, other: "Schema") -> str:
        """Describe the first difference from another schema, local value first; "" if there is none.

        Types of only one schema do not count: a party may have no data of a type, or keep it private.
        """
        for (what, ours), theirs in zip(self._shared().items(), other._shared().values(), strict=True):
            if ours != theirs:
                return f"{what} {to_text(ours) or 'none'} here and {to_text(theirs) or 'none'} there"
        for kind in sorted({*self.edges} & {*other.edges}):
            used = [_used(schema.nodes.get(kind, {})) for schema in (self, other)]
            if bool(used[0]) != bool(used[1]):
                ours, theirs = (", ".join(columns) or "none" for columns in used)
                which = "edges" if kind == EDGE else f"edges '{kind}'"
                return f"the columns of {which} are {ours} here and {theirs} there"
        for kind in sorted(self.nodes.keys() & other.nodes.keys()):
            if difference := _columns_differ(_used(self.nodes[kind]), _used(other.nodes[kind])):
                return difference if kind == NODE else f"of '{kind}', {difference}"
        return ""

    def scaled(self, kind: str) -> dict[str, Column]:
        """Return the columns of a type whose values are scaled: numbers and dates with a scale."""
        if self.scaling == "none":
            return {}
        columns = self.nodes.get(kind, {})
        return {name: c for name, c in columns.items() if c.kind in ("number", "date") and c.scale != "none"}

    def _shared(self) -> dict[str, Any]:
        """Return what parties must have in common besides columns, by its name in an error message."""
        layout = self.tables if self.tables.recipe else AS_DETECTED
        return {
            "scaling is": self.scaling,
            "the classes are": self.classes,
            "the mean and standard deviation of the targets are": to_text(self.targets),
            "the classes of edges are": self.edge_classes,
            "the columns of roles are": self.roles,
            "the recipe of own columns is": layout.recipe,
            "the windows of own columns are": layout.windows,
            "the day of own columns is": _day(layout),
            "the bound of alike amounts of own columns is": layout.alike,
        }


def _day(tables: TableLayout) -> str:
    """Return the rule of days of a layout, "" for the one of files without the key."""
    return tables.day if tables.day != BEFORE else ""


def _used(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns that become features, without fields that do not affect them."""
    return {
        name: replace(column, unit="", format="" if column.kind == "number" else column.format)
        for name, column in columns.items()
        if column.kind != "ignored"
    }


def _columns_differ(local: Mapping[str, Column], remote: Mapping[str, Column]) -> str:
    for name in (*local, *remote):
        if name not in local or name not in remote:
            return f"column '{name}' is {'here and not there' if name in local else 'there and not here'}"
    for place, (name, other) in enumerate(zip(local, remote, strict=True), 1):
        if name != other:
            return f"column {place} is '{name}' here and '{other}' there"
        for f in fields(Column):
            ours, theirs = getattr(local[name], f.name), getattr(remote[name], f.name)
            if ours != theirs:
                return f"column '{name}' has {f.name} {to_text(ours)} here and {to_text(theirs)} there"
    return ""


def flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def to_text(value: Any) -> str:
    """Format a value of a column's key for display."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items()) or "none"
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def feature_names(columns: Mapping[str, Column]) -> list[str]:
    """Return the names [F] of the features that `encode` creates from a table's columns, in order."""
    names: list[str] = []
    for name, column in columns.items():
        if column.kind == "category":
            names += [f"{name}={word}" for word in (*column.categories, "other")]
        elif column.width > 1:
            names += [f"{name}_{i}" for i in range(column.width)]
        elif column.kind != "ignored":
            names.append(name)
        if column.missing and column.kind != "ignored":
            names.append(f"{name} missing")
    return names


def stored(
    agreed: Schema, fitted: Types, undirected: bool = False, tables: TableLayout | None = None
) -> dict[str, Any]:
    """Return the ``schema`` field of a graph.

    It has the agreed schema, the same with this party's statistics and ``tables``, and whether each row of the edge table
    represents both directions.
    """
    party_schema = replace(agreed, nodes=fitted, tables=tables or agreed.tables)
    return {"agreed": agreed.to_dict(), "fitted": party_schema.to_dict(), "undirected": undirected}


def agreed_schema(values: Mapping[str, Any], where: str) -> Schema | None:
    """Return the agreed schema from a graph's ``schema``; None if the graph was not imported."""
    return Schema.from_dict(values["agreed"], where) if values else None


def fitted_schema(values: Mapping[str, Any], where: str) -> Schema | None:
    """Return the schema with this party's statistics, which encode new rows like the imported ones."""
    return Schema.from_dict(values["fitted"], where) if values else None


def check_same(schemas: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Check that graphs were imported with the same schema.

    Args:
        schemas: name of each graph, and its ``schema``.

    Raises:
        FedGraphError: two schemas differ; the message names the column.
    """
    (first, remote), *others = [(name, agreed_schema(values, name)) for name, values in schemas]
    for name, local in others:
        difference = f"{name if local is None else first} has no schema" if local is not remote else ""
        if local and remote:
            difference = local.difference(remote)
        if difference:
            raise FedGraphError(f"{name} differs from {first}: {difference}; import both with one --schema FILE")


def fingerprint(graph: Any) -> list[int]:
    """Return a party's schema fingerprint: 48-bit hashes of scaling, classes, and each used column, in order.

    For a heterogeneous graph, only columns of the labelled type count, since a party may keep other types private. The
    fingerprint is ``[0]`` if the graph was not imported.
    """
    schema = agreed_schema(graph.schema, "this graph")
    if schema is None:
        return [0]
    columns = _used(schema.nodes.get(getattr(graph, "target", NODE), {}))
    parts: list[Any] = [schema.scaling, schema.classes, *([name, c.to_dict()] for name, c in columns.items())]
    parts += [["edge", name, c.to_dict()] for name, c in _used(schema.nodes.get(EDGE, {})).items()]
    if schema.targets:
        parts.append(["targets", *schema.targets.items()])
    if schema.tables.recipe:
        later = filter(None, [schema.tables.alike, _day(schema.tables)])
        parts.append(["recipe", schema.tables.recipe, schema.tables.windows, *later])
    digests = (hashlib.sha256(json.dumps(part, sort_keys=True).encode()).digest() for part in parts)
    return [int.from_bytes(digest[:6]) for digest in digests]


def link_number(linking: Mapping[str, Any]) -> int:
    """Return a 48-bit number of the link run that wrote a file, from its field ``linking``: the same for all files of the run.

    It is 0 for other files.
    """
    return int(str(linking.get("link", "0"))[:12], 16)


def check_links(numbers: Mapping[int, int]) -> None:
    """Check that the clients' files are of one link run (`link_number`): global ids of two runs do not fit.

    Raises:
        FedGraphError: two differ.
    """
    first, *others = sorted(numbers)
    for client in others:
        if numbers[client] != numbers[first]:
            what = "an unlinked file" if 0 in (numbers[client], numbers[first]) else "the file of another link run"
            fix = "give each node the file of one `fedgraph-flwr link`"
            raise FedGraphError(f"clients {first} and {client} have files that do not fit, one has {what}: {fix}")


def check_fingerprints(fingerprints: Mapping[int, Sequence[int]]) -> None:
    """Check that the clients' schema fingerprints (`fingerprint`) are equal.

    Raises:
        FedGraphError: two differ. The message gives the position of a differing column, since its name is private.
    """
    first, *others = sorted(fingerprints)
    for client in others:
        local, remote = list(fingerprints[client]), list(fingerprints[first])
        if local == remote:
            continue
        place = next(i for i, (ours, theirs) in enumerate(zip_longest(local, remote)) if ours != theirs)
        what = ("the scaling", "the classes")[place] if place < 2 else f"column {place - 1}"
        if [0] in (local, remote):
            what = "one of them has none"
        raise FedGraphError(
            f"the schemas of clients {first} and {client} differ: {what}; `fedgraph-flwr schema show FILE` shows both: import"
            " both with one --schema FILE"
        )
