"""What the parties' tables mean, agreed upon by all: a small YAML that is passed around, and compared before every run.

    scaling: local
    classes: [ok, fraud]
    nodes:
      node:                                    # the type; nodes of one type alone are called so
        age: {kind: number, unit: years}
        job: {kind: category, categories: [clerk, nurse]}
        opened: {kind: date}
        name: {kind: ignored}
    edges: ['node:edge:node']
    tables: {id: customer, source: payer, target: payee, label: status, separator: ';'}
    undirected: true

The last two are written where they differ from the defaults. The columns stand in the order of their features.
What a column's values become is said in `columns`.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from fedgraph_flwr.config import one_of
from fedgraph_flwr.data.tables import TableLayout
from fedgraph_flwr.data.value_formats import NumberFormat
from fedgraph_flwr.errors import FedGraphError, no_yaml, unknown

KINDS = ("number", "category", "date", "flag", "ignored")
SCALES = ("standard", "robust", "log", "none")
SCALINGS = ("none", "local", "federated")
NODE = "node"
EDGE = "node:edge:node"

Types = Mapping[str, Mapping[str, "Column"]]
"""Columns by node type and name."""


@dataclass(frozen=True)
class Column:
    """One column of a node table.

    Attributes:
        kind: of `KINDS`.
        unit: what a number counts, for people.
        scale: of numbers and dates, one of `SCALES`.
        missing: whether a feature of its own marks the missing values.
        categories: of a category, in the order of their features; any other word is "other".
        format: of dates, as pandas reads them, several separated by ``|``; of numbers, an example such as ``1.234,5``. "" is
            the plain number, and of dates what is detected.
        width: features; more than 1 only for numbers without names (a saved graph's ``x``).
        statistics: ``fill`` (for missing values), ``center`` and ``spread``, as far as they are agreed upon.
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
        """What differs from a plain number, and the kind."""
        told = {key: value for key, value in asdict(self).items() if value != getattr(_PLAIN, key)}
        if "categories" in told:
            told["categories"] = list(told["categories"])
        return {"kind": self.kind} | told

    @classmethod
    def from_dict(cls, values: Any, name: str, where: str) -> "Column":
        """From what `to_dict` gives, or from YAML whose scalars are all words.

        Raises:
            FedGraphError: an unknown key, kind or scale, or a statistic that is no number.
        """
        values = {"kind": values} if isinstance(values, str) else values
        if not isinstance(values, Mapping):
            raise FedGraphError(f"{where}: column '{name}' must be a kind or a mapping such as {{kind: number}}")
        for key in values:
            if key not in (known := [f.name for f in fields(cls)]):
                raise unknown("key of a column", key, known, f"{where}, column '{name}'")
        given: dict[str, Any] = {key: str(value) for key, value in values.items()}
        try:
            given |= {
                "width": int(values.get("width", 1)),
                "missing": str(values.get("missing", False)).lower() == "true",
            }
            given["categories"] = tuple(map(str, values.get("categories", ())))
            words = values.get("kind") == "category"
            told = dict(values.get("statistics", {}))
            given["statistics"] = {key: str(value) if words else float(value) for key, value in told.items()}
            return cls(**given)
        except (TypeError, ValueError) as error:
            raise FedGraphError(f"{where}, column '{name}': {error}") from error
        except FedGraphError as error:
            raise FedGraphError(f"{where}, column '{name}': {error}") from error


_PLAIN = Column()


@dataclass(frozen=True)
class Schema:
    """What all parties agree upon.

    Attributes:
        classes: the labels, in the order of their numbers.
        nodes: columns by node type and name, those of a type in the order of its features.
        edges: edge types, as ``SOURCE:RELATION:TARGET``.
        scaling: none; local: by each party's own statistics where the schema holds none; federated: by those it holds.
        tables: names of the columns that are no features, and how files are written. Each party may have its own.
        undirected: whether each row of an edge table stands for both directions.
    """

    classes: tuple[str, ...]
    nodes: Types
    edges: tuple[str, ...] = (EDGE,)
    scaling: str = "local"
    tables: TableLayout = field(default_factory=TableLayout)
    undirected: bool = False

    def __post_init__(self) -> None:
        one_of(self.scaling, SCALINGS, "scaling")
        if len(set(self.classes)) < len(self.classes):
            raise FedGraphError(f"classes must differ from each other, got {', '.join(self.classes)}")

    def to_dict(self) -> dict[str, Any]:
        """As JSON and YAML hold it."""
        nodes = {kind: {name: c.to_dict() for name, c in columns.items()} for kind, columns in self.nodes.items()}
        values = {"scaling": self.scaling, "classes": list(self.classes), "nodes": nodes, "edges": list(self.edges)}
        return values | self._optional()

    def _optional(self) -> dict[str, Any]:
        """The keys that are written only where they differ from their default."""
        tables = self.tables.to_dict()
        return ({"tables": tables} if tables else {}) | ({"undirected": True} if self.undirected else {})

    @classmethod
    def from_dict(cls, values: Any, where: str) -> "Schema":
        """From what `to_dict` gives.

        Raises:
            FedGraphError: a key that lacks or is unknown, or what `Column.from_dict` raises.
        """
        known = [f.name for f in fields(cls)]
        if not isinstance(values, Mapping) or not isinstance(values.get("nodes"), Mapping):
            raise FedGraphError(f"{where} is no schema: it needs the keys {', '.join(known)}")
        for key in values:
            if key not in known:
                raise unknown("key of a schema", key, known, where)
        return cls(
            classes=tuple(map(str, values.get("classes", ()))),
            nodes={
                str(kind): {str(name): Column.from_dict(c, str(name), where) for name, c in (columns or {}).items()}
                for kind, columns in values["nodes"].items()
            },
            edges=tuple(map(str, values.get("edges", ()))),
            scaling=str(values.get("scaling", "local")),
            tables=TableLayout.from_dict(values.get("tables", {}), where),
            undirected=str(values.get("undirected", False)).lower() == "true",
        )

    def save(self, path: Path) -> None:
        """Write the YAML, a line a column."""
        import yaml

        from fedgraph_flwr.data.graph import write_bytes

        def flow(value: Any) -> str:
            text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
            return text.removesuffix("\n").removesuffix("\n...")

        lines = ["# What the parties' tables mean: pass it on, and import with --schema.", f"scaling: {self.scaling}"]
        lines += [f"classes: {flow(list(self.classes))}", "nodes:"]
        for kind, columns in self.nodes.items():
            lines.append(f"  {flow(kind)}:{'' if columns else ' {}'}")
            lines += [f"    {flow(name)}: {flow(column.to_dict())}" for name, column in columns.items()]
        lines.append(f"edges: {flow(list(self.edges))}")
        lines += [f"{key}: {flow(value)}" for key, value in self._optional().items()]
        write_bytes(path, ("\n".join(lines) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> "Schema":
        """Read what `save` wrote, or a person.

        Raises:
            FedGraphError: there is no such file, it is no YAML, or what `from_dict` raises.
        """
        import yaml

        try:
            # Every scalar is a word here: `no` is a class as good as `yes`.
            values = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
        except yaml.YAMLError as error:
            raise FedGraphError(f"{no_yaml(path, error)}, so it cannot be read as a schema") from error
        except (OSError, UnicodeDecodeError) as error:
            raise FedGraphError(f"{path} cannot be read as a schema ({str(error).splitlines()[0]})") from error
        return cls.from_dict(values, str(path))

    def difference(self, other: "Schema") -> str:
        """In what another schema differs first, as a clause that says first ours, then theirs; "" where it does not.

        Types that only one of them has are no difference: a party may lack a type, or keep it to itself.
        """
        if self.scaling != other.scaling:
            return f"scaling is {self.scaling} here and {other.scaling} there"
        if self.classes != other.classes:
            return f"the classes are {', '.join(self.classes)} here and {', '.join(other.classes)} there"
        for kind in self.nodes.keys() & other.nodes.keys():
            if told := _columns_differ(_used(self.nodes[kind]), _used(other.nodes[kind])):
                return told if kind == NODE else f"of '{kind}', {told}"
        return ""

    def classes_in_order(self, given: Sequence[str], where: str) -> tuple[str, ...]:
        """The schema's classes, when those given are the same in whatever order.

        Raises:
            FedGraphError: they are others.
        """
        if given and set(given) != set(self.classes):
            raise FedGraphError(f"--classes {','.join(given)} are not those of {where}: {','.join(self.classes)}")
        return self.classes


def _used(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns that become features, without what does not change them."""
    return {
        name: replace(column, unit="", format="" if column.kind == "number" else column.format)
        for name, column in columns.items()
        if column.kind != "ignored"
    }


def _columns_differ(ours: Mapping[str, Column], theirs: Mapping[str, Column]) -> str:
    for name in ours:
        if name not in theirs:
            return f"column '{name}' is here and not there"
    for name in theirs:
        if name not in ours:
            return f"column '{name}' is there and not here"
    for place, (name, other) in enumerate(zip(ours, theirs, strict=True), 1):
        if name != other:
            return f"column {place} is '{name}' here and '{other}' there"
        for f in fields(Column):
            mine, its = getattr(ours[name], f.name), getattr(theirs[name], f.name)
            if mine != its:
                return f"column '{name}' has {f.name} {in_words(mine)} here and {in_words(its)} there"
    return ""


def in_words(value: Any) -> str:
    """A value of a column's key, for people."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items()) or "none"
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def stored(
    agreed: Schema, fitted: Types, undirected: bool = False, tables: TableLayout | None = None
) -> dict[str, Any]:
    """What a graph keeps as its ``schema``.

    That is what is agreed upon, the same with this party's own statistics and layout of ``tables``, and whether each row of its
    edges stood for both directions.
    """
    own = replace(agreed, nodes=fitted, tables=tables or agreed.tables)
    return {"agreed": agreed.to_dict(), "fitted": own.to_dict(), "undirected": undirected}


def agreed_schema(values: Mapping[str, Any], where: str) -> Schema | None:
    """The agreed schema of a graph's ``schema``; None where the graph was not imported."""
    return Schema.from_dict(values["agreed"], where) if values else None


def fitted_schema(values: Mapping[str, Any], where: str) -> Schema | None:
    """The same with this party's own statistics, by which new rows become features as the old ones did."""
    return Schema.from_dict(values["fitted"], where) if values else None


def check_same(found: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Check that graphs were imported by one schema.

    Args:
        found: name of each graph, and its ``schema``.

    Raises:
        FedGraphError: two differ; the sentence names the column.
    """
    first: tuple[str, Schema | None] | None = None
    for name, values in found:
        schema = agreed_schema(values, name)
        if first is None:
            first = name, schema
            continue
        ours, theirs = schema, first[1]
        if ours is None or theirs is None:
            if ours is not theirs:
                lacks, has = (name, first[0]) if ours is None else (first[0], name)
                raise FedGraphError(f"{lacks} has no schema, but {has} has: import both anew with one --schema FILE")
        elif told := ours.difference(theirs):
            raise FedGraphError(f"{name} differs from {first[0]}: {told}; import both with one --schema FILE")


def fingerprint(graph: Any) -> list[int]:
    """What a party tells of its graph's schema: numbers of 48 bits of scaling, classes, and each column used, in order.

    Of a typed graph the columns of the type with labels alone, since a party may keep its other types to itself. ``[0]``
    where the graph was not imported.
    """
    schema = agreed_schema(graph.schema, "this graph")
    if schema is None:
        return [0]
    columns = _used(schema.nodes.get(getattr(graph, "target", NODE), {}))
    parts: list[Any] = [schema.scaling, schema.classes, *([name, c.to_dict()] for name, c in columns.items())]
    digests = (hashlib.sha256(json.dumps(part, sort_keys=True).encode()).digest() for part in parts)
    return [int.from_bytes(digest[:6]) for digest in digests]


def check_fingerprints(told: Mapping[int, Sequence[int]]) -> None:
    """Check what clients told of their schemas by `fingerprint`.

    Raises:
        FedGraphError: two differ; the sentence says in what, a column by its place, since its name is the parties' own.
    """
    first, *others = sorted(told)
    for client in others:
        ours, theirs = list(told[client]), list(told[first])
        if ours == theirs:
            continue
        length = min(len(ours), len(theirs))
        place = next((i for i in range(length) if ours[i] != theirs[i]), length)
        what = ("the scaling", "the classes")[place] if place < 2 else f"column {place - 1}"
        if [0] in (ours, theirs):
            what = "one of them has none"
        raise FedGraphError(
            f"the schemas of clients {first} and {client} differ: {what}; compare both files by `fedgraph-flwr schema show FILE`"
            " and import both with one --schema FILE"
        )
