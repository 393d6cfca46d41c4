"""Parties of different kinds: tables that lack nodes, edges, labels or columns that other parties have.

    network    edges with labels, no node table: its nodes are the ends of the edges          --role network --edges FILE
    bank       nodes with columns, no edges, no labels                                        --role bank --nodes FILE

The schema lists the columns of each role (`Schema.roles`), and every file has the columns of all roles. A column that the party
does not have is 0 with the indicator of missing values, until `link --entities columns` brings it from who has it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.data.graph import ClientGraph, Graph, unpack_words
from fedgraph_flwr.data.hetero import EdgeType
from fedgraph_flwr.data.pyg import EDGE_TYPE
from fedgraph_flwr.data.schema import EDGE, NODE
from fedgraph_flwr.errors import FedGraphError, sanitize
from fedgraph_flwr.party.tables.columns import Treatment, as_words
from fedgraph_flwr.party.tables.nodes import column_of
from fedgraph_flwr.party.tables.parties import PartyRule, fold, parties_of
from fedgraph_flwr.party.tables.roles import Columns

NAMED = "named"
"""Column of nodes that a party without columns of nodes gets: 1."""


def complete(
    nodes: dict[str, Any], edges: dict[EdgeType, Any], files: dict[str, str], columns: Columns, treatment: Treatment
) -> None:
    """Add the tables and the column that a party of a role does not have: nodes from ends of edges, or edges without rows.

    Raises:
        FedGraphError: the schema has columns but no roles.
    """
    import pandas as pd

    schema = treatment.schema
    if schema and not schema.roles and any(schema.nodes.values()):
        why = f"so --role {treatment.role} cannot say which of its columns this party has"
        raise FedGraphError(f"{treatment.where} has no roles, {why}: create it again with --role in the first import")
    if NODE not in nodes:
        nodes[NODE], files[NODE] = _ends(edges[EDGE_TYPE], columns, files[EDGE]), files[EDGE]
    if EDGE_TYPE not in edges:
        names = {columns.source, columns.target, *columns.edge_others}
        edges[EDGE_TYPE] = pd.DataFrame({name: np.zeros(0, dtype=object) for name in sorted(names)})
        files[EDGE] = files[NODE]
    held = treatment.agreed.roles.get(treatment.role)
    free = [name for name in map(str, nodes[NODE].columns) if name not in columns.others]
    if NAMED in held.get(NODE, ()) if held is not None else not free:
        nodes[NODE] = nodes[NODE].assign(**{NAMED: "yes"})


def _ends(links: Any, columns: Columns, where: str) -> Any:
    """Return a table of the nodes that edges name."""
    import pandas as pd

    ends = pd.concat([column_of(links, name, where, "end of edges") for name in (columns.source, columns.target)])
    return pd.DataFrame({columns.id: pd.unique(ends.dropna())})


def nodes_of_role(links: Any, columns: Columns, stored: Any, where: str, treatment: Treatment) -> tuple[Any, Treatment]:
    """Return a table of the nodes that new edges name and a stored graph does not have, and the treatment by the party's role.

    Raises:
        FedGraphError: the stored graph is not of a party without node table.
    """
    role = getattr(stored, "linking", {}).get("role", "")
    if NAMED not in treatment.agreed.roles.get(role, {}).get(NODE, ()):
        whose = f"role {role}" if role else "this party"
        raise FedGraphError(f"{where} needs --nodes FILE: the graph of {whose} was imported from a table of nodes")
    table = _ends(links, columns, where)
    known = np.isin(as_words(table[columns.id]), unpack_words(stored.ids))
    return table[~known].reset_index(drop=True).assign(**{NAMED: "yes"}), replace(treatment, role=role)


def with_role(
    graph: Graph, party: str, ids: np.ndarray, links: Any, columns: Columns, where: str, treatment: Treatment
) -> ClientGraph:
    """Return the graph with the party's name, and the bank of each of its nodes if its edges name one (``group``).

    Args:
        graph: the party's graph of N nodes.
        party: the party's name, "" if unknown.
        ids: of the nodes [N].
        links: table of edges.
        columns: roles of the columns; ``party_columns`` or ``party_prefix`` name banks.
        where: file, for errors.
        treatment: its ``say`` receives what the party lacks.

    Raises:
        FedGraphError: edges name one node with two banks.
    """
    linking: dict[str, Any] = {
        "party": str(fold([party])[0]),
        "parties": [],
        "role": treatment.role,
        "form": f"ids {columns.id_form or 'text'}; key none",
    }
    made = ClientGraph(**{**vars(graph), "linking": linking})
    if (columns.party_columns or columns.party_prefix) and len(links):
        rule = PartyRule.parse(party or "-", columns.party_columns, columns.party_prefix, "", columns.id_form)
        texts = [as_words(column_of(links, name, where, "end of edges")) for name in (columns.source, columns.target)]
        banks = np.concatenate([fold(names) for names in parties_of(links, texts, rule, where)]) if rule else texts[0]
        names, group = np.unique(banks, return_inverse=True)
        accounts, first, code = np.unique(np.concatenate(texts), return_index=True, return_inverse=True)
        if (odd := np.flatnonzero(group != group[first][code])).size:
            account = accounts[code[odd[0]]]
            two = f"'{names[group[first][code[odd[0]]]]}' and '{names[group[odd[0]]]}'"
            raise FedGraphError(
                f"{where}: account '{sanitize(account, 40)}' is named with two parties, {two}: begin ids with the party's name"
            )
        linking["parties"] = names.tolist()
        made.group = torch.from_numpy(group[first][np.searchsorted(accounts, ids.astype(str))].astype(np.int64))
    treatment.say(_lacks(made, treatment))
    return made


def _lacks(graph: ClientGraph, treatment: Treatment) -> str:
    """Return a line on what a party of a role has not, and what it takes part in."""
    held = {"edges": graph.edge_index.size(1), "labels of nodes": int((graph.y >= 0).sum() or graph.targets.numel())}
    held["labels of edges"] = int((graph.edge_y >= 0).sum())
    labels = [what.split()[-1] for what in ("labels of nodes", "labels of edges") if held[what]]
    gaps = ", ".join(what for what, count in held.items() if not count) or "gaps"
    part = f"in link, in prediction, and in training and scores of {' and '.join(labels)}"
    if not labels:
        part = "in link and in prediction; without labels it neither trains nor is scored"
    return f"role '{treatment.role}' without {gaps}: it takes part {part}"
