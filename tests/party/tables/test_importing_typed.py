"""A user's own typed graph: tables, a saved HeteroData, one client's file."""

import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.hetero import load_graph
from fedgraph_flwr.data.schema import check_same
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_saved, from_tables
from fedgraph_flwr.party.tables.roles import Columns, edge_types, named_files

PAPERS = "id,label,part,x\np1,ml,train,0.5\np2,db,val,1\np3,,test,2\np4,db,test,3\n"
AUTHORS = "id\nann\nbob\n"
WRITES = "source,target\nann,p1\nann,p2\nbob,p4\n"
BY = "source,target\np2,ann\np1,ann\np4,bob\n"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))


@pytest.fixture
def words(tmp_path):
    """``words()`` writes the tables and returns the options that name them."""

    def write(**texts):
        named = {"papers": PAPERS, "authors": AUTHORS, "writes": WRITES, "by": BY} | texts
        for name, text in named.items():
            (tmp_path / f"{name}.csv").write_text(text)
        nodes = [f"paper={tmp_path / 'papers.csv'}", f"author={tmp_path / 'authors.csv'}"]
        edges = [f"author:writes:paper={tmp_path / 'writes.csv'}", f"paper:by:author={tmp_path / 'by.csv'}"]
        return nodes, edges

    return write


def read(nodes, edges, target="paper", **kwargs):
    files = named_files(nodes, "--node-table"), edge_types(named_files(edges, "--edge-table"))
    return from_tables(*files, target=target, columns=Columns(split="part"), **kwargs)


def options(nodes, edges):
    return [*(w for n in nodes for w in ("--node-table", n)), *(w for e in edges for w in ("--edge-table", e))]


def test_tables_by_hand(words):
    graph = read(*words(), treatment=Treatment(scaling="none"))
    assert graph.counts == {"author": 2, "paper": 4}
    assert list(graph.edges) == [("author", "writes", "paper")]  # `by` is its exact reverse
    assert graph.edges["author", "writes", "paper"].t().tolist() == [[0, 0], [0, 1], [1, 3]]
    assert graph.x["paper"].view(-1).tolist() == [0.5, 1, 2, 3]
    assert "author" not in graph.x
    assert graph.y.tolist() == [1, 0, -1, 0]
    assert graph.train_mask.tolist() == [True, False, False, False]
    assert graph.test_mask.tolist() == [False, False, False, True]  # p3 has no label


def test_types_without_a_table_are_named_and_empty(words):
    nodes, edges = words()
    graph = read([*nodes, "venue="], [*edges, "paper:in:venue="])
    assert graph.counts == {"author": 2, "paper": 4, "venue": 0}
    assert graph.edges["paper", "in", "venue"].shape == (2, 0)
    assert graph.num_features == [3, 2, 0, 1, 0]


def test_a_dataset_is_partitioned_and_a_client_file_trains(words, tmp_path):
    nodes, edges = words(
        papers=PAPERS.replace(",train,", ",").replace(",val,", ",").replace(",test,", ",").replace(",part", "")
    )
    assert cli.main(["import", *options(nodes, edges), "--target", "paper", "--name", "mine"]) == 0
    assert load(compose(["dataset=mine"]).dataset).counts == {"author": 2, "paper": 4}
    out = tmp_path / "client.safetensors"
    words_ = [*options(nodes, edges), "--target", "paper", "--classes", "db,ml", "--client", "1", "--num-clients", "3"]
    assert cli.main(["import", *words_, "--out", str(out), "--ratio", "0.5,0.25,0.25"]) == 0
    client = load_graph(out)
    assert (client.client, client.num_clients) == (1, 3)
    assert list(client.edges) == [("author", "writes", "paper"), ("paper", "rev_writes", "author")]
    assert client.train_mask.any()
    from fedgraph_flwr.clients.fedhgn import FedHGNClient

    trained = FedHGNClient(compose(["strategy=fedhgn", "dataset=aifb"]), client)
    assert trained.train() > 0


def test_saved_heterodata(words, tmp_path):
    data = read(*words()).to_pyg()
    torch.save(data, tmp_path / "saved.pt")
    graph = from_saved(tmp_path / "saved.pt", "paper")
    assert graph.y.tolist() == [1, 0, -1, 0]
    assert graph.edges["author", "writes", "paper"].t().tolist() == [[0, 0], [0, 1], [1, 3]]
    with pytest.raises(FedGraphError, match="did you mean 'paper'"):
        from_saved(tmp_path / "saved.pt", "papers")
    with pytest.raises(FedGraphError, match="y of type 'author' must be one integer per node, got NoneType"):
        from_saved(tmp_path / "saved.pt", "author")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            {"writes": "source,target\nann,p1\neve,p2\n"},
            "row 2 has 'eve' in column 'source', which is not an id of .*authors",
        ),
        ({"authors": "id\nann\nann\n"}, "id 'ann' is repeated in rows 1 and 2"),
        ({"papers": "id,part,x\np1,train,1\np2,val,1\np4,test,1\n"}, "label column 'label' is unknown"),
        ({"papers": PAPERS.replace("0.5", "half")}, "column 'x' has 'half' in row 1"),
    ],
)
def test_wrong_tables_are_one_sentence(words, texts, message):
    with pytest.raises(FedGraphError, match=message):
        read(*words(**texts))


def test_wrong_words_are_one_sentence(words, capsys):
    nodes, edges = words()
    for given, message in (
        ((nodes, ["author-writes=w.csv"]), "expected SOURCE:RELATION:TARGET=FILE"),
        ((nodes, ["author:writes:book=w.csv"]), "node type of the edges 'writes' 'book' is unknown"),
        (([*nodes, nodes[0]], edges), "names 'paper' twice"),
        ((["paper"], edges), "expected NAME=FILE"),
        ((["author=", nodes[0]], edges), "node type 'author' has no table"),
    ):
        with pytest.raises(FedGraphError, match=message):
            read(*given)
    with pytest.raises(FedGraphError, match="target node type 'book' is unknown"):
        read(nodes, edges, "book")
    assert cli.main(["import", *options(nodes, edges), "--target", "paper", "--undirected", "--name", "mine"]) == 2
    assert "--undirected needs nodes and edges of one type" in capsys.readouterr().err
    assert cli.main(["import", "--edge-table", edges[0], "--target", "paper", "--name", "mine"]) == 2


def test_types_share_a_schema_and_an_absent_one_keeps_its_width(words, tmp_path, capsys):
    """A party without papers of its own has the others' features for none of them; columns of a type are compared."""
    nodes, edges = words(authors="id,city\nann,rome\nbob,oslo\n")
    schema = ["--schema", str(tmp_path / "s.yaml"), "--min-count", "1", "--target", "paper", "columns.split=part"]
    assert cli.main(["import", *options(nodes, edges), *schema, "kinds.author.city=category", "--name", "one"]) == 0
    assert "writes.csv: ignored" not in capsys.readouterr().out
    out = ["--out", str(tmp_path / "two.safetensors")]
    assert cli.main(["import", *options([nodes[0], "author="], ["author:writes:paper="]), *schema, *out]) == 0
    one, two = load(compose(["dataset=one"]).dataset), load_graph(tmp_path / "two.safetensors")
    assert one.schema["agreed"]["nodes"]["author"]["city"]["categories"] == ["oslo", "rome"]
    assert one.num_features[2:] == two.num_features[2:] == [3, 1]  # oslo, rome, other; x
    assert two.counts["author"] == 0
    check_same([("one", one.schema), ("two", two.schema)])
    assert cli.main(["import", *options([nodes[0], nodes[1]], edges), *schema[4:], "kinds.city=ignored", *out]) == 0
    with pytest.raises(FedGraphError, match="of 'author', column 'city' is there and not here"):
        check_same([("one", one.schema), ("two", load_graph(tmp_path / "two.safetensors").schema)])
