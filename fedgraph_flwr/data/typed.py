"""Heterogeneous datasets: AIFB, MUTAG and BGS (RDF), and FedHGN's published client graphs."""

import gzip
import json
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedgraph_flwr.data.graph import MASKS, unsplit
from fedgraph_flwr.data.hetero import EdgeType, HeteroClientGraph, HeteroGraph
from fedgraph_flwr.data.raw import Reader
from fedgraph_flwr.errors import FedGraphError

Node = tuple[str, str]
"""Node type, and the node's name within it."""

LITERAL = "_Literal"


@dataclass(frozen=True)
class Vocabulary:
    """Mapping from the terms of an RDF dataset to typed nodes and relations.

    Attributes:
        target: the labelled node type.
        column: column of the label tables with the node's name; ``label`` is the column with its class.
        node: IRI of an entity → its node, or None to drop it. The type may be empty: the predicate decides.
        relation: IRI of a predicate → name of the relation, or None to drop it.
        schema: prefix of predicates that describe the data; all others lead to the type "SCHEMA". Empty if not used.
        literals: whether literals are nodes.
    """

    target: str
    column: str
    label: str
    node: Callable[[str], Node | None]
    relation: Callable[[str], str | None]
    schema: str = ""
    literals: bool = True


def _last(iri: str) -> str:
    return iri.rsplit("/", 1)[-1]


def _unless(*left_out: str) -> Callable[[str], str | None]:
    """Return a function to the last part of an IRI, which drops predicates that reveal the label."""
    return lambda iri: None if iri in left_out else _last(iri)


def _aifb_node(iri: str) -> Node | None:
    # http://www.aifb.uni-karlsruhe.de/<type>/<view>/<id>: the name is only the id, as in the commonly used graph, so
    # that an external author and a publication with the same number are one node of type Publikationen
    parts = iri.split("/")
    return (parts[3], parts[5]) if iri.startswith("http://www.aifb.uni-karlsruhe.de/") and len(parts) > 5 else None


_CARCINOGENESIS = "http://dl-learner.org/carcinogenesis#"


def _mutag_node(iri: str) -> Node | None:
    if not iri.startswith(_CARCINOGENESIS):
        return None
    name = iri[len(_CARCINOGENESIS) :]
    kind = re.match(r"(d|bond)[0-9]", name)
    return (kind.group(1) if kind else "", name)


def _bgs_node(iri: str) -> Node | None:
    # http://data.bgs.ac.uk/(ref|id)/<concept>/<sub-concept>/<name>
    parts = iri.split("/")
    status = iri.startswith("http://data.bgs.ac.uk/ref/CurrentStatus")
    inside = iri.startswith("http://data.bgs.ac.uk/") and len(parts) == 7
    return (f"{parts[4]}/{parts[5]}", parts[6]) if inside and not status else None


def _bgs_relation(iri: str) -> str | None:
    if iri == "http://data.bgs.ac.uk/ref/Lexicon/hasLithogenesis":  # the label
        return None
    parts = iri.split("/")
    if iri.startswith("http://data.bgs.ac.uk/ref"):
        return f"{parts[4]}/{parts[5]}" if len(parts) == 6 else None
    return iri


_SWRC = "http://swrc.ontoware.org/ontology#"

VOCABULARIES = {
    "aifb": Vocabulary(
        "Personen", "person", "label_affiliation", _aifb_node, _unless(f"{_SWRC}employs", f"{_SWRC}affiliation")
    ),
    "mutag": Vocabulary(
        "d",
        "bond",
        "label_mutagenic",
        _mutag_node,
        lambda iri: None if iri == f"{_CARCINOGENESIS}isMutagenic" else _last(iri.replace(_CARCINOGENESIS, "/")),
        schema=_CARCINOGENESIS,
    ),
    "bgs": Vocabulary("Lexicon/NamedRockUnit", "rock", "label_lithogenesis", _bgs_node, _bgs_relation, literals=False),
}


def rdf(name: str) -> Reader:
    """Return a reader of AIFB, MUTAG or BGS as stored by PyG's ``Entities``, with node types, without reverse edges.

    Types follow the names in the data (Schlichtkrull et al., ESWC 2018, as read by DGL): AIFB has 7 node types, 52 edge
    types, 7262 nodes and 24405 edges. Types and nodes are in alphabetical order.
    """

    def read(folder: Path, params: dict[str, Any]) -> HeteroGraph:
        raw = folder / name / "raw"
        if not (raw / f"{name}_stripped.nt.gz").is_file():
            from torch_geometric.datasets import Entities

            Entities(str(folder), name)  # downloads
        return typed_graph(_triples(raw / f"{name}_stripped.nt.gz"), VOCABULARIES[name], *_labels(raw, name), name)

    return read


def _triples(path: Path) -> list[tuple[Any, Any, Any]]:
    import rdflib

    noisy = logging.getLogger("rdflib.term")
    level = noisy.level
    noisy.setLevel(logging.CRITICAL)  # malformed dates of the source, not used here
    try:
        graph = rdflib.Graph()
        with gzip.open(path, "rb") as file:
            graph.parse(file=file, format="nt")
        return sorted(graph)
    finally:
        noisy.setLevel(level)


def _labels(raw: Path, name: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read the classes of the training and the test nodes, each as IRI → class."""
    import pandas as pd

    vocabulary = VOCABULARIES[name]
    tables = (pd.read_csv(raw / f"{kind}Set.tsv", sep="\t", dtype=str) for kind in ("training", "test"))
    train, test = (dict(zip(t[vocabulary.column], t[vocabulary.label], strict=True)) for t in tables)
    return train, test


def typed_graph(
    triples: list[tuple[Any, Any, Any]], vocabulary: Vocabulary, train: dict[str, str], test: dict[str, str], name: str
) -> HeteroGraph:
    """Build a heterogeneous graph from RDF triples.

    Args:
        triples: (subject, predicate, object) terms of rdflib.
        vocabulary: mapping of the terms.
        train: IRI → class of the training nodes.
        test: likewise for the test nodes.
        name: name of the dataset.
    """
    by_type = _pairs(triples, vocabulary, name)
    names: dict[str, set[str]] = {}
    for (a, _, b), pairs in by_type.items():
        names.setdefault(a, set()).update(s for s, _ in pairs)
        names.setdefault(b, set()).update(t for _, t in pairs)
    place = {a: {n: i for i, n in enumerate(sorted(names[a]))} for a in sorted(names)}
    edges = {
        (a, r, b): torch.tensor(
            [[place[a][s] for s, _ in by_type[a, r, b]], [place[b][t] for _, t in by_type[a, r, b]]]
        )
        for a, r, b in sorted(by_type)
    }
    classes = {c: i for i, c in enumerate(sorted({*train.values(), *test.values()}))}
    n = len(place[vocabulary.target])
    y, masks = torch.full((n,), -1), unsplit(n)
    for table, mask in ((train, masks["train_mask"]), (test, masks["test_mask"])):
        for iri, label in table.items():
            labelled = vocabulary.node(iri)
            if labelled and labelled[1] in place[vocabulary.target]:
                i = place[vocabulary.target][labelled[1]]
                y[i], mask[i] = classes[label], True
    return HeteroGraph(
        counts={a: len(ids) for a, ids in place.items()},
        edges=edges,
        target=vocabulary.target,
        y=y,
        **masks,
        num_classes=len(classes),
        name=name,
    )


def _pairs(
    triples: list[tuple[Any, Any, Any]], vocabulary: Vocabulary, name: str
) -> dict[EdgeType, list[tuple[str, str]]]:
    """Return the names of both ends of each edge, by edge type."""
    import rdflib

    def node(term: Any) -> Node | None:
        if isinstance(term, rdflib.Literal):
            return (LITERAL, str(term)) if vocabulary.literals else None
        return None if isinstance(term, rdflib.BNode) else vocabulary.node(str(term))

    pairs: dict[EdgeType, list[tuple[str, str]]] = {}
    for subject, predicate, obj in triples:
        source, relation, target = node(subject), vocabulary.relation(str(predicate)), node(obj)
        if source is None or relation is None or target is None:
            continue
        if vocabulary.schema and not str(predicate).startswith(vocabulary.schema):
            source, target = (source[0] or "SCHEMA", source[1]), ("SCHEMA", target[1])
        target = (target[0] or relation, target[1])
        if not source[0]:
            raise FedGraphError(f"{name}: the subject {subject} has no node type: fetch the dataset again")
        pairs.setdefault((source[0], relation, target[0]), []).append((source[1], target[1]))
    return pairs


PUBLISHED = "-published"
"""End of the name of a dataset with published client graphs."""


def published_whole(name: str) -> Reader:
    """Return a reader of the whole graph of published client graphs, including reverse edges."""

    def read(folder: Path, params: dict[str, Any]) -> HeteroGraph:
        whole = published(folder, name, "centralized", 1)[0]
        return HeteroGraph(**{f.name: getattr(whole, f.name) for f in fields(HeteroGraph)})

    return read


def published(folder: Path, name: str, split: str, num_clients: int) -> list[HeteroClientGraph]:
    """Read the client graphs published by the FedHGN authors, decoded to npz, including reverse edges.

    Args:
        folder: folder with ``{name}-hetero_{split}_{num_clients}.npz``.
        name: ``aifb`` or ``mutag``.
        split: ``random-edges`` or ``random-etypes`` for 3, 5 or 10 clients; ``centralized`` with 1 for the whole graph.
        num_clients: M.

    Raises:
        FedGraphError: the file is missing.
    """
    path = folder / f"{name}-hetero_{split}_{num_clients}.npz"
    if not path.is_file():
        there = sorted(p.name for p in folder.glob(f"{name}-hetero_*.npz"))
        raise FedGraphError(
            f"no published {name.upper()} split '{split}' for {num_clients} clients: {path} is missing; "
            f"available: {', '.join(there) or 'none'}"
        )
    with np.load(path, allow_pickle=False) as file:
        graphs = []
        for client, meta in enumerate(json.loads(str(file["meta"]))):

            def tensor(key: str, dtype: torch.dtype = torch.int64, client: int = client) -> Any:
                return torch.from_numpy(file[f"c{client}_{key}"]).to(dtype)

            types: list[EdgeType] = [(a, relation, b) for a, relation, b in meta["canonical_etypes"]]
            graphs.append(
                HeteroClientGraph(
                    counts=dict(zip(meta["ntypes"], meta["num_nodes"], strict=True)),
                    edges={r: tensor(f"e{k}") for k, r in enumerate(types)},
                    target=meta["target"],
                    y=tensor("label"),
                    **{mask: tensor(mask, torch.bool) for mask in MASKS},
                    num_classes=int(meta["num_classes"]),
                    name=f"{name}{PUBLISHED}",
                    node_id={a: tensor(f"n{j}_id") for j, a in enumerate(meta["ntypes"])},
                    client=client,
                    num_clients=num_clients,
                )
            )
    return graphs
