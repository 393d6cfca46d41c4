"""Roles of the columns of tables, and types of tables: what an id, a label, a time or a feature is."""

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedgraph_flwr.data.features import ALIKE, Recipe
from fedgraph_flwr.data.hetero import EdgeType
from fedgraph_flwr.data.schema import EDGE, NODE, TableLayout, split_names
from fedgraph_flwr.errors import FedGraphError, unknown
from fedgraph_flwr.party.tables.columns import Treatment, conflict
from fedgraph_flwr.party.tables.parties import PartyRule

BOUND = f"{ALIKE:.4f}"
"""`TableLayout.alike` of the columns of a recipe that this release computes."""


@dataclass(frozen=True)
class Columns(TableLayout):
    """Roles of the columns of the two tables; "" for a missing one.

    Attributes:
        features: names or patterns such as ``x_*``; empty for every other column of the node table.
        edge_features: names or patterns of columns of the edge table; empty for those of the schema, if there is one.
    """

    id: str = "id"
    label: str = "label"
    source: str = "source"
    target: str = "target"
    features: Sequence[str] = ()
    edge_features: Sequence[str] = ()

    @classmethod
    def of(cls, layout: TableLayout, features: Sequence[str] = (), edge_features: Sequence[str] = ()) -> "Columns":
        """Return the columns of a layout, with defaults for the others.

        Raises:
            FedGraphError: ids of edges are to be unique, and no column has them.
        """
        if layout.edge_ids and not layout.edge_id:
            raise FedGraphError(
                f"edge_ids={layout.edge_ids} needs the column with ids of edges: set columns.edge_id=NAME"
            )
        return cls(features=features, edge_features=edge_features, **layout.to_dict())

    @property
    def layout(self) -> TableLayout:
        """Differences from the defaults, as stored in a schema."""
        values = {f.name: getattr(self, f.name) for f in fields(TableLayout)}
        return TableLayout(**{name: value for name, value in values.items() if value != getattr(DEFAULTS, name)})

    @property
    def others(self) -> list[str]:
        """Columns of a node table with another role than feature."""
        return [name for name in (self.id, self.label, self.split, self.client, self.graph, *self.targets) if name]

    @property
    def targets(self) -> list[str]:
        """Columns of a node table with numbers to predict."""
        return split_names(self.predict)

    @property
    def edge_others(self) -> list[str]:
        """Columns of an edge table with another role than feature."""
        roles = (self.source, self.target, self.time, self.edge_label, self.edge_id, self.graph)
        read = [self.amount_column] if self.recipe and self.amount_column not in self.edge_features else []
        return [name for name in (*roles, *split_names(self.party_columns), *read) if name]

    def without(self, tables: Sequence[Any], *roles: str) -> "Columns":
        """Return the columns without those of these roles that no table has."""
        return replace(
            self, **{role: "" for role in roles if not any(getattr(self, role) in t.columns for t in tables)}
        )

    def of_one_type(self, own_party: str, graphs: Any, undirected: bool) -> None:
        """Refuse what only a graph of one node type and one edge type has.

        Raises:
            FedGraphError: names the option.
        """
        given = {
            "--undirected": undirected,
            "--own-party": own_party or self.party_columns or self.party_prefix,
            "columns.graph": self.graph or graphs,
            "columns.time": self.time,
            "columns.edge_label": self.edge_label,
            "windows": self.windows,
            "features": self.recipe,
            "day": self.day,
            "--predict-columns": self.predict,
            "--client-column": self.client,
        }
        if named := [option for option, value in given.items() if value]:
            several = "but this graph has several or named ones"
            raise FedGraphError(
                f"{named[0]} needs nodes and edges of one type (--nodes and --edges), {several}: leave it out"
            )

    @property
    def amount_column(self) -> str:
        """Column of the edge table with amounts."""
        return self.amount or "amount"

    @property
    def own_recipe(self) -> Recipe | None:
        """The recipe of columns that the party computes from its own records; None without one.

        Raises:
            FedGraphError: the recipe is not accepted, or the edges have no times.
        """
        if not self.recipe:
            return None
        recipe = Recipe.parse(self.recipe, self.windows, self.day)
        if not self.time:
            raise FedGraphError(f"features={self.recipe} reads the times of edges: pass columns.time=NAME, too")
        return recipe

    @property
    def seconds(self) -> list[int]:
        """Lengths of `windows` in seconds, in which edges are counted; a recipe has them as its own.

        Raises:
            FedGraphError: a length is not a number above 0, or the edges have no times.
        """
        if self.recipe:
            return []
        try:
            lengths = [round(float(word) * 86_400) for word in split_names(self.windows)]
        except (ValueError, OverflowError):
            lengths = [0]
        if any(not 0 < window < 2**53 for window in lengths):
            raise FedGraphError(f"windows must be numbers of days above 0, such as 2,0.5, got '{self.windows}'")
        if lengths and not self.time:
            raise FedGraphError(f"windows={self.windows} counts edges by their times: pass columns.time=NAME, too")
        return lengths

    def parties(self, party: str) -> PartyRule | None:
        """Return the rule that names the parties of ends, for ``party``; None without one.

        Raises:
            FedGraphError: the rule is incomplete.
        """
        return PartyRule.parse(party, self.party_columns, self.party_prefix, self.match_columns, self.id_form)


DEFAULTS = Columns()


def check_roles(columns: Columns, kind: str, treatment: Treatment) -> None:
    """Check that no column with another role is a feature of the schema.

    Raises:
        FedGraphError: a column is both.
    """
    agreed = treatment.agreed.nodes.get(kind, {})
    for role in ("id", "label", "split", "client", "graph"):
        name = getattr(columns, role)
        if name in agreed and agreed[name].kind != "ignored":
            raise conflict(
                f"columns.{role}={name}",
                f"its feature '{name}' ({agreed[name].kind})",
                treatment.where,
            )


def check_unknown_at_prediction(columns: Columns, nodes: Sequence[str], edges: Sequence[str], where: str) -> None:
    """Refuse labels and targets among the features, which would leak them to the model.

    Raises:
        FedGraphError: names the column and its roles.
    """
    taken = {
        "columns.label": ([columns.label], nodes),
        "--predict-columns": (columns.targets, [*nodes, columns.id, columns.label, columns.split]),
        "columns.edge_label": ([columns.edge_label], edges),
    }
    for role, (names, others) in taken.items():
        if twice := [name for name in names if name and name in others]:
            fix = f"leave it out of the features, or of {role}"
            raise FedGraphError(f"{where}: column '{twice[0]}' of {role} also has another role: {fix}")


def feature_columns(
    tables: Mapping[str, Any], wanted: Sequence[str], others: Sequence[str], files: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return the candidate feature columns of each table, in order.

    Args:
        tables: rows by type.
        wanted: names or patterns, each for every table that has it; empty for every column not in ``others``.
        others: columns with another role.
        files: file of each type, for errors.

    Raises:
        FedGraphError: no table has a column that fits a pattern.
    """
    free = {kind: [str(name) for name in table.columns if name not in others] for kind, table in tables.items()}
    if not wanted:
        return free
    names: dict[str, list[str]] = {kind: [] for kind in tables}
    for pattern in wanted:
        fitting = {
            kind: [pattern] if pattern in table.columns else fnmatch.filter(free[kind], pattern)
            for kind, table in tables.items()
        }
        if not any(fitting.values()):
            known = {name for listing in free.values() for name in listing}
            raise unknown("feature column", pattern, known, ", ".join(files[kind] for kind in tables))
        for kind, matches in fitting.items():
            names[kind] += [name for name in matches if name not in names[kind]]
    return names


def edge_feature_columns(
    tables: Mapping[str, Any], columns: Columns, files: Mapping[str, str], treatment: Treatment
) -> dict[str, list[str]]:
    """Return the columns of each edge type that may become features: those asked for, or the schema's; report the others.

    Raises:
        FedGraphError: as `feature_columns`.
    """
    agreed = treatment.agreed.nodes
    features = feature_columns(tables, columns.edge_features, columns.edge_others, files)
    for kind, table in tables.items():
        if columns.edge_features and features[kind]:
            continue
        if entries := agreed.get(
            kind
        ):  # which may list columns with another role, such as times, if they were asked for
            listed = [name for name in entries if entries[name].kind != "ignored"]
            # further columns of a new role are features only if asked for
            held = [name for name in map(str, table.columns) if name in entries or not treatment.new_role]
            features[kind] = [name for name in held if name in listed or name not in columns.edge_others]
            continue
        if features[kind]:
            unused = ", ".join(features[kind])
            treatment.say(f"{files[kind]}: ignored: {unused} (edge_columns=NAMES keeps them)")
        features[kind] = []
    return features


def named_files(args: Sequence[str], option: str) -> dict[str, Path | None]:
    """Parse ``NAME=FILE`` arguments to paths by name; ``NAME=`` gives None.

    Raises:
        FedGraphError: an argument has no ``=``, or a name is repeated.
    """
    paths: dict[str, Path | None] = {}
    for arg in args:
        name, sign, path = arg.rpartition("=")
        if not sign or not name:
            raise FedGraphError(f"{option} {arg}: expected NAME=FILE, or NAME= for a type without a table")
        if name in paths:
            raise FedGraphError(f"{option} names '{name}' twice: leave one out")
        paths[name] = Path(path) if path else None
    return paths


def listed(files: Sequence[Path]) -> str:
    """Return the names of several files of one table."""
    return ", ".join(map(str, files))


def typed_files(args: Any) -> tuple[dict[str, Path | None], dict[EdgeType, Path | None]]:
    """Return the files of ``--nodes`` and ``--edges`` by type.

    Raises:
        FedGraphError: an argument has a wrong form, or a type has two files.
    """
    nodes = [*args.node_table, *([f"{NODE}={args.nodes}"] if args.nodes else [])]
    edges = [*args.edge_table, *([f"{EDGE}={listed(args.edges)}"] if args.edges else [])]
    return named_files(nodes, "--nodes"), edge_types(named_files(edges, "--edges"))


def edge_types(named: Mapping[str, Path | None]) -> dict[EdgeType, Path | None]:
    """Parse ``SOURCE:RELATION:TARGET`` names to edge types.

    Raises:
        FedGraphError: a name has another form.
    """
    paths: dict[EdgeType, Path | None] = {}
    for name, path in named.items():
        parts = name.split(":")
        if len(parts) != 3 or not all(parts):
            raise FedGraphError(f"--edges {name}: expected SOURCE:RELATION:TARGET=FILE, such as a:writes:b=w.csv")
        paths[parts[0], parts[1], parts[2]] = path
    return paths
