"""A user's own graph: tables and saved PyG objects, and one sentence for each way in which they can be wrong."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr import api, cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.files import writing
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.pyg import client_graph, from_data
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_saved, from_tables, save_dataset
from fedgraph_flwr.party.tables.roles import Columns
from tests.support import last_given

NODES = "id,x_a,x_b,label,part,bank\nann,1,0.5,yes,train,north\nbob,2,-1,no,val,south\ncat,3,4,,test,south\ndan,0,1e3,no,,north\n"
EDGES = "source,target\nann,bob\nbob,cat\ndan,ann\nann,bob\n"


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def tables(tmp_path):
    """``tables(nodes, edges)`` writes both and returns their paths."""

    def write(nodes=NODES, edges=EDGES):
        (tmp_path / "nodes.csv").write_text(nodes)
        (tmp_path / "edges.csv").write_text(edges)
        return tmp_path / "nodes.csv", tmp_path / "edges.csv"

    return write


FULL = Columns(split="part", client="bank")
AS_IT_IS = Treatment(scaling="none")


def test_tables_by_hand(tables):
    graph = from_tables(*tables(), FULL, treatment=AS_IT_IS)
    assert graph.x.tolist() == [[1, 0.5], [2, -1], [3, 4], [0, 1000]]
    assert graph.edge_index.t().tolist() == [[0, 1], [1, 2], [3, 0]]  # ann → bob counts once
    assert graph.y.tolist() == [1, 0, -1, 0]  # no, yes by alphabet; cat's is unknown
    assert graph.num_classes == 2
    assert graph.train_mask.tolist() == [True, False, False, False]
    assert graph.val_mask.tolist() == [False, True, False, False]
    assert not bool(graph.test_mask.any())  # cat has no label
    assert graph.group.tolist() == [0, 1, 1, 0]
    both = from_tables(*tables(), FULL, undirected=True)
    assert both.edge_index.t().tolist() == [[0, 1], [0, 3], [1, 0], [1, 2], [2, 1], [3, 0]]


def test_spaces_around_labels_splits_and_clients_do_not_count(tables):
    spaced = NODES.replace(",yes,train,north", ", yes ,train ,north ").replace(",no,,north", ",no ,, north")
    graph, plain = (from_tables(*tables(nodes), FULL, treatment=AS_IT_IS) for nodes in (spaced, NODES))
    for key in ("y", "train_mask", "val_mask", "group"):
        assert torch.equal(getattr(graph, key), getattr(plain, key)), key
    assert graph.schema["agreed"]["classes"] == ["no", "yes"]


def test_classes_fix_the_order_on_every_client(tables):
    graph = from_tables(*tables(), FULL, classes=["yes", "maybe", "no"])
    assert graph.y.tolist() == [0, 2, -1, 2]
    assert graph.num_classes == 3
    ten = "id,f,label\n" + "".join(f"{i},0,{i}\n" for i in range(11))
    assert from_tables(*tables(ten, "source,target\n")).y.tolist() == list(range(11))  # 10 after 9, not after 1


def test_feature_columns_by_name_and_pattern(tables):
    paths = tables()
    assert from_tables(*paths, Columns(features=["x_b"]), treatment=AS_IT_IS).x.tolist() == [[0.5], [-1], [4], [1000]]
    assert from_tables(*paths, Columns(features=["x_b", "x_*"]), treatment=AS_IT_IS).x[0].tolist() == [0.5, 1]


def test_parquet_with_other_types_and_names(tmp_path):
    """Integer ids that became floats in the edges, integer labels with a gap, boolean features, ids as the index."""
    frame = pd.DataFrame({"key": [10, 20, 30], "flag": [True, False, True], "w": [1.5, 2, 3], "kind": [2.0, None, 7.0]})
    frame.set_index("key").to_parquet(tmp_path / "n.parquet")
    pd.DataFrame({"u": [10.0, 30.0], "v": [30, 20]}).to_parquet(tmp_path / "e.parquet")
    columns = Columns(id="key", label="kind", source="u", target="v")
    graph = from_tables(tmp_path / "n.parquet", tmp_path / "e.parquet", columns, treatment=AS_IT_IS)
    assert graph.x.tolist() == [[1, 1.5], [0, 2], [1, 3]]
    assert graph.y.tolist() == [0, -1, 1]
    assert graph.edge_index.t().tolist() == [[0, 2], [2, 1]]


def test_a_column_without_a_name_is_no_input(tmp_path):
    """Such as the row numbers that pandas writes, unless its kind is given."""
    table = pd.DataFrame({"id": [*"abcdef"], "size": range(6), "label": ["no", "yes"] * 3})
    table.to_csv(tmp_path / "n.csv")
    (tmp_path / "e.csv").write_text("source,target\na,b\n")
    files = tmp_path / "n.csv", tmp_path / "e.csv"
    lines = []
    assert from_tables(*files, Columns(), treatment=replace(AS_IT_IS, say=lines.append)).num_features == 1
    assert any("ignored: Unnamed: 0 (has no name)" in line for line in lines)
    kinds = replace(AS_IT_IS, kinds={"Unnamed: 0": "number"})
    assert from_tables(*files, Columns(), treatment=kinds).num_features == 2


@pytest.mark.parametrize(
    ("nodes", "edges", "columns", "classes", "message"),
    [
        (NODES + "ann,1,1,no,,north\n", EDGES, FULL, (), "id 'ann' is repeated in rows 1 and 5"),
        (NODES + ",1,1,no,,north\n", EDGES, FULL, (), "row 5 has '' in column 'id', expected an id"),
        (
            NODES,
            EDGES + "bob,eve\n",
            FULL,
            (),
            r"edges.csv: row 5 has 'eve' in column 'target', which is not an id of .*nodes.csv: add the node",
        ),
        (NODES, EDGES + "bob,Ann\n", FULL, (), r"which is not an id of .*nodes.csv, but 'ann' is: write both alike"),
        (NODES, EDGES + "bob,0ann\n", FULL, (), r"which is not an id of .*nodes.csv, but 'ann' is: write both alike"),
        (NODES.replace("cat,3", "cat,three"), EDGES, FULL, (), "column 'x_a' has 'three' in row 3"),
        (NODES.replace("1e3", "inf"), EDGES, FULL, (), "column 'x_b' has 'inf' in row 4"),
        (NODES.replace("1e3", "1e39"), EDGES, FULL, (), "column 'x_b' has '1e39' in row 4"),  # infinite in float32
        (NODES, EDGES, FULL, ("no",), "row 1 has 'yes' in column 'label', expected one of: no"),
        (
            NODES,
            EDGES,
            Columns(label="lable"),
            (),
            "label column 'lable' is unknown.*mean 'label'.*; pass columns.label=NAME",
        ),
        (
            NODES,
            EDGES,
            Columns(source="from"),
            (),
            "end of edges column 'from' is unknown.*edges.csv.*; pass columns.source=NAME",
        ),
        (
            NODES.replace("x_a,x_b", "label, x"),
            EDGES,
            FULL,
            (),
            "nodes.csv has two columns 'label': rename or remove one",
        ),
        (NODES, EDGES.replace("target", "source "), FULL, (), "edges.csv has two columns 'source'"),
        (
            NODES.encode("utf-16-le").decode("latin-1"),
            EDGES,
            FULL,
            (),
            "begins with a NUL.*: pass encoding=utf-16-le",
        ),
        (NODES, EDGES, Columns(features=["z_*"]), (), "feature column 'z_\\*' is unknown"),
        (
            NODES.replace("val", "dev"),
            EDGES,
            FULL,
            (),
            "row 2 has 'dev' in column 'part', expected train, val, test or empty",
        ),
        (NODES.replace("no,,north", "no,,"), EDGES, FULL, (), "row 4 has '' in column 'bank', expected the client"),
        ("id,label\na,1\n", "source,target\n", Columns(), (), "has no feature column; its other columns: none"),
        ("id,f,label\na,1,\n", "source,target\n", Columns(), (), "no labelled node"),
        (
            "id,f\na,1e300\n",
            "source,target\n",
            Columns(label=""),
            (),
            r"'1e300' in row 1: correct it, or .* .the largest number is 3.4e\+38",
        ),
        (
            "id,f\na,\nb,-inf\nc,2",
            "source,target\n",
            Columns(label=""),
            (),
            "'-inf' in row 2: correct it, or leave the cell empty",
        ),
        ("id,f,label\n", "source,target\n", Columns(), (), "has no nodes"),
        ("", EDGES, FULL, (), "is empty: expected a first line"),
    ],
)
def test_wrong_tables_are_one_sentence(tables, nodes, edges, columns, classes, message):
    with pytest.raises(FedGraphError, match=message) as caught:
        from_tables(*tables(nodes, edges), columns, classes=classes)
    assert "\n" not in str(caught.value)


def test_wrong_files_are_one_sentence(tables, tmp_path):
    nodes, edges = tables()
    with pytest.raises(FedGraphError, match="no such table"):
        from_tables(tmp_path / "none.csv", edges)
    (tmp_path / "t.xlsx").write_text("")
    with pytest.raises(FedGraphError, match=r"unknown suffix: expected \.csv"):
        from_tables(nodes, tmp_path / "t.xlsx")
    (tmp_path / "t.parquet").write_text("no parquet")
    with pytest.raises(FedGraphError, match=r"t\.parquet cannot be read as a table"):
        from_tables(tmp_path / "t.parquet", edges)


def pyg_data(**changes):
    from torch_geometric.data import Data

    values = {
        "x": torch.arange(8.0).view(4, 2),
        "edge_index": torch.tensor([[0, 1], [1, 2]]),
        "y": torch.tensor([0, 2, 1, -1]),
        "train_mask": torch.tensor([True, False, False, True]),
    }
    return Data(**(values | changes))


@pytest.mark.parametrize("mask", [torch.arange(3), torch.arange(4), torch.ones(5, dtype=torch.bool), [True] * 4])
def test_masks_that_list_nodes_are_refused(mask):
    with pytest.raises(
        FedGraphError, match=r"mine: val_mask must hold one boolean for each of 4 nodes, got (torch|list)"
    ):
        from_data(pyg_data(val_mask=mask), "mine")
    assert from_data(pyg_data(val_mask=torch.tensor([0, 1, 0, 0])), "mine").val_mask.tolist() == [
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_features_are_read(layout):
    x = pyg_data().x
    assert torch.equal(from_data(pyg_data(x=getattr(x, layout)()), "mine").x, x)


def test_saved_data_round_trips(tmp_path):
    torch.save(pyg_data(), tmp_path / "d.pt")
    graph = from_saved(tmp_path / "d.pt")
    assert torch.equal(graph.x, torch.arange(8.0).view(4, 2))
    assert graph.edge_index.tolist() == [[0, 1], [1, 2]]
    assert (graph.y.tolist(), graph.num_classes) == ([0, 2, 1, -1], 3)
    assert graph.train_mask.tolist() == [True, False, False, False]  # the last has no label
    assert from_saved(tmp_path / "d.pt", classes=list("abcde")).num_classes == 5
    assert from_saved(tmp_path / "d.pt", undirected=True).edge_index.size(1) == 4


@pytest.mark.parametrize(
    "clients", [torch.tensor([7, 2, 7, 2]), ["north", "east", "north", "east"]], ids=["int", "text"]
)
def test_an_attribute_names_the_client_of_each_node(tmp_path, capsys, clients):
    torch.save(pyg_data(hospital=clients, train_mask=None), tmp_path / "d.pt")
    args = [
        "import",
        "--data",
        str(tmp_path / "d.pt"),
        "--client-column",
        "hospital",
        "--out",
        str(tmp_path / "g.safetensors"),
    ]
    assert cli.main(args) == 0
    assert "2 clients of 2 to 2 nodes: runs take num_clients=2" in capsys.readouterr().out
    assert Graph.load(tmp_path / "g.safetensors").group.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("name", "clients", "message"),
    [
        ("ward", [1, 2, 3, 4], r"no attribute 'ward' with each node's client; its other attributes: hospital"),
        ("x", [1, 2, 3, 4], "no attribute 'x' with each node's client"),
        (
            "hospital",
            torch.zeros(3, dtype=torch.int64),
            r"must be one integer or text per node \[4\], got int64 of shape \(3,\)",
        ),
        ("hospital", torch.zeros(4), r"must be one integer or text per node \[4\], got float32"),
        ("hospital", ["a", "", "a", "b"], "'hospital' names no client of node 1"),
    ],
)
def test_wrong_clients_of_a_saved_object_are_one_sentence(tmp_path, name, clients, message):
    torch.save(pyg_data(hospital=clients), tmp_path / "d.pt")
    with pytest.raises(FedGraphError, match=message):
        from_saved(tmp_path / "d.pt", client=name)


class Harm:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_else_is_unpickled(tmp_path):
    torch.save(Harm(tmp_path / "harmed"), tmp_path / "harm.pt")
    with pytest.raises(FedGraphError, match=r"does not hold a plain PyG Data or HeteroData") as caught:
        from_saved(tmp_path / "harm.pt")
    assert not (tmp_path / "harmed").exists()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello", "does not hold a plain PyG Data"),
        ({"x": 1}, "holds a dict"),
        (pyg_data(x=None), "no tensor 'x'"),
        (pyg_data(y=torch.tensor([0.5, 1, 1, 1])), "one integer per node, got torch.float32"),
        (pyg_data(edge_index=torch.tensor([[0], [7]])), r"edge_index, row 1, must be in 0\.\.3; place 0 has 7"),
    ],
)
def test_wrong_saved_files_are_one_sentence(tmp_path, content, message):
    path = tmp_path / "d.pt"
    path.write_bytes(content) if isinstance(content, bytes) else torch.save(content, path)
    with pytest.raises(FedGraphError, match=message):
        from_saved(path)


def run(*args):
    return cli.main(["import", *map(str, args)])


def test_import_as_a_named_dataset(tables, capsys, root):
    nodes, edges = tables()
    args = (
        "--nodes",
        nodes,
        "--edges",
        edges,
        "columns.split=part",
        "--client-column",
        "bank",
        "--name",
        "people",
    )
    assert run(*args) == 0
    output = capsys.readouterr().out
    assert "4 nodes, 3 edges, 2 features, 2 classes" in output
    assert "dataset=people" in output
    graph = load(compose(["dataset=people", "dataset.undirected=true"]).dataset)
    assert (graph.name, graph.edge_index.size(1), graph.group.tolist()) == ("people", 6, [0, 1, 1, 0])
    assert run(*args) == 2
    assert "'people' is taken" in capsys.readouterr().err
    assert run(*args, "--overwrite") == 0
    assert cli.main(["datasets"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("people"))
    assert line.split() == ["people", "4", "3", "2", "2", "yes", "imported"]
    (root / "imported/half.safetensors").write_bytes((root / "imported/people.safetensors").read_bytes()[:90])
    assert cli.main(["datasets"]) == 0
    assert "damaged" in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("half"))


def test_import_as_a_file_by_path(tables, tmp_path, monkeypatch):
    nodes, edges = tables()
    features = ["feature_columns=x_*"]
    assert run("--nodes", nodes, "--edges", edges, *features, "--out", tmp_path / "own.safetensors") == 0
    assert load(compose(["dataset=file", f"dataset.path={tmp_path / 'own.safetensors'}"]).dataset).num_nodes == 4
    monkeypatch.chdir(tmp_path)
    cfg = compose(["dataset=file", "dataset.path=own.safetensors"])
    monkeypatch.chdir("/")  # as a client process may run elsewhere
    assert load(cfg.dataset).num_nodes == 4
    with pytest.raises(FedGraphError, match="dataset=file needs"):
        load(compose(["dataset=file"]).dataset)
    with pytest.raises(FedGraphError, match=r"dataset.path=.*gone.safetensors is no file"):
        load(compose(["dataset=file", f"dataset.path={tmp_path / 'gone.safetensors'}"]).dataset)


def test_import_as_one_clients_file(tmp_path):
    torch.save(pyg_data(train_mask=None, y=torch.tensor([0, 1, 1, 0])), tmp_path / "d.pt")
    out = tmp_path / "client.safetensors"
    args = ("--data", tmp_path / "d.pt", "--client", 1, "--num-clients", 3, "--out", out)
    assert run(*args) == 2  # the classes must be agreed upon
    assert run(*args, "--classes", "a,b,c", "--ratio", "0.5,0.25,0.25") == 0
    client = ClientGraph.load(out)
    assert (client.client, client.num_clients, client.num_classes) == (1, 3, 3)
    assert [int(m.sum()) for m in (client.train_mask, client.val_mask, client.test_mask)] == [2, 1, 1]
    assert client.node_id.tolist() == [0, 1, 2, 3]
    assert client.cut_out.shape == (2, 0)
    assert run(*args[:4], *args[6:], "--classes", "a,b,c", "--ratio", "0.5,0.25,0.25") == 0  # no number of clients
    assert (ClientGraph.load(out).client, ClientGraph.load(out).num_clients) == (1, 2)


def test_an_import_removes_what_a_killed_one_left(tables, tmp_path):
    """The temporary files of its own names, by `tempfile`; not those of other files, which another process may be writing."""
    others = [
        tmp_path / name
        for name in (".other.safetensors.xnckqwuz", ".client.safetensors.old.xnckqwuz", "client.safetensors")
    ]
    left = [tmp_path / ".client.safetensors.xnckqwuz", tmp_path / ".client.safetensors._a1b2c3d"]
    for path in (*others, *left):
        path.write_text("a party's data")
    nodes, edges = tables()
    args = ("--nodes", nodes, "--edges", edges, "--out", others[2])
    assert run(*args[:2], "--edges", tmp_path / "none.csv", *args[4:]) == 2
    assert all(path.is_file() for path in left), "an import that fails removes nothing"
    with writing(others[2], 0) as file:  # as another import of the same file does
        file.write(b"its data")
        assert run(*args) == 0
        assert Path(file.name).is_file(), "or that import would end with an error"
    assert not any(path.exists() for path in left)
    assert all(path.is_file() for path in others)
    assert others[2].read_bytes() == b"its data", "the last one counts"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "no input: pass both --nodes FILE and --edges FILE"),
        (("--data", "d.pt"), "no output selected"),
        (
            ("--nodes", "n.csv"),
            "no edge table: pass both --nodes FILE and --edges FILE (or one of them with --role NAME)",
        ),
        (("--edges", "n.csv", "--name", "x"), "--data FILE; --role network takes nodes from the ends of --edges"),
        (("n.csv",), "n.csv: expected one party's file, such as bank.yaml; pass tables as --nodes FILE --edges FILE"),
        (("--name", "x", "n.csv", "e.csv"), "n.csv e.csv: expected one party's file"),
        (("none.yaml",), "none.yaml cannot be read as a party's file (No such file or directory)"),
        (("--nodes", "/", "--edges", "e.csv", "--name", "x"), "a folder, not a table: /; expected a .csv"),
        (("--data", "d.pt", "--nodes", "n.csv", "--name", "x"), "--data d.pt is a whole graph: leave out"),
        (("--data", "none.pt", "--name", "x"), "no such file"),
        (("--data", "none.pt", "--client", "1", "--name", "x"), "--client requires"),
        (("--data", "none.pt", "--classes", "a,b,a", "--name", "x"), "--classes names 'a' twice"),
    ],
)
def test_wrong_words_end_with_2(capsys, args, message):
    assert run(*args) == 2
    assert message in capsys.readouterr().err


def make():
    none = torch.zeros(5, dtype=torch.bool)
    y = torch.tensor([0, 1, 0, 1, 0])
    return Graph(torch.ones(5, 1), torch.zeros(2, 0, dtype=torch.int64), y, none, none, none, 2)


@pytest.mark.parametrize("name", ["Mine", "cora", "../x", ""])
def test_names_that_cannot_be(name):
    with pytest.raises(FedGraphError, match="--name"):
        save_dataset(make(), name)


def test_a_client_needs_a_place_and_training_nodes(capsys):
    for option, value in (("--client", 99999999999), ("--client", -1), ("--num-clients", 0)):
        assert (
            cli.main(
                last_given(
                    ["import", "--data", "a.pt", "--classes", "a,b", "--out", "b", "--client", "0", option, str(value)]
                )
            )
            == 2
        )
        assert re.search(rf"{option} must be in \[[01], \d+\], got {value}", capsys.readouterr().err)
    assert cli.main(["import", "--data", "a.pt", "--name", "b", "--ratio", "1,1,1"]) == 2
    assert "--split ratio --ratio 1,1,1 has no effect without --client I" in capsys.readouterr().err
    with pytest.raises(FedGraphError, match=r"--client must be in 0\.\.2"):
        client_graph(make(), 3, 3)
    tested = make()
    tested.test_mask = torch.ones(5, dtype=torch.bool)
    with pytest.raises(FedGraphError, match="none for training"):
        client_graph(tested, 0, 3)
    assert int(client_graph(make(), 0, 3).train_mask.sum()) == 3


def test_datasets_command_tells_where_files_go(capsys, root):
    assert cli.main(["datasets"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["csbm"].split()[-2:] == ["yes", "generated"]
    assert lines["cora"].split() == ["cora", "2708", "10556", "1433", "7", "download", "Planetoid/Cora/raw"]
    assert lines["credit"].split()[-2:] == ["no", "credit"]
    assert cli.main(["datasets", "cora"]) == 0
    assert f"missing  {root}/Planetoid/Cora/raw/ind.cora.x" in capsys.readouterr().out
    assert cli.main(["datasets", "coar"]) == 2


@pytest.mark.slow
def test_large_tables_are_quick(tables, tmp_path):
    rng = np.random.default_rng(0)
    n = 50_000
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=list("abcd"))
    frame.insert(0, "id", [f"node-{i}" for i in rng.permutation(n)])
    frame["label"] = rng.integers(0, 3, n)
    ends = frame["id"].to_numpy()[rng.integers(0, n, (200_000, 2))]
    frame.to_parquet(tmp_path / "n.parquet")
    pd.DataFrame(ends, columns=["source", "target"]).to_parquet(tmp_path / "e.parquet")
    graph = from_tables(tmp_path / "n.parquet", tmp_path / "e.parquet")
    names = frame["id"].to_numpy()
    assert set(map(tuple, names[graph.edge_index.numpy()].T)) == set(map(tuple, ends))


def test_an_imported_split_is_kept_to(tables, tmp_path, capsys):
    """By its name and by its path; not where the user or a protocol says otherwise, nor without test nodes."""
    nodes, edges = tables(NODES.replace("dan,0,1e3,no,", "dan,0,1e3,no,test"))
    args = ("--nodes", nodes, "--edges", edges, "columns.split=part", "--client-column", "bank")
    assert run(*args, "--name", "people") == 0
    assert run(*args, "--out", tmp_path / "own.safetensors") == 0
    assert "split: train 1, validation 1, test 1; runs use it" in capsys.readouterr().out
    by_path = ["dataset=file", f"dataset.path={tmp_path / 'own.safetensors'}"]
    for chosen in (["dataset=people"], by_path):
        assert compose(chosen).split.kind == "public"
        assert compose([*chosen, "split.kind=ratio"]).split.kind == "ratio"
        assert compose([*chosen, "protocol=fedomd"]).split.kind == "ratio"
    from fedgraph_flwr.partition import clients

    cfg = compose(["dataset=people", "partition=random", "num_clients=1"])
    made = clients.make(load(cfg.dataset), cfg)[0]
    assert [mask.tolist() for mask in (made.train_mask, made.test_mask)] == [[1, 0, 0, 0], [0, 0, 0, 1]]
    args = [*args[:4], *args[5:]]
    assert run(*args, "--name", "drawn") == 0
    assert compose(["dataset=drawn"]).split.kind == "ratio"
    assert compose(["dataset=cora"]).split.kind == "ratio"


def test_a_report_names_clients_as_their_column_does(tables, tmp_path):
    """In sorted order, which their numbers follow; not under another partition."""
    rows = "".join(f"n{i},{i % 3},{i % 2},{'north' if i % 4 else 'south'}\n" for i in range(40))
    links = "".join(f"n{i},n{(i + 2) % 40}\n" for i in range(40))
    nodes, edges = tables("id,a,label,bank\n" + rows, "source,target\n" + links)
    assert run("--nodes", nodes, "--edges", edges, "--client-column", "bank", "--name", "banks") == 0
    keys = {"dataset": "banks", "rounds": 1, "progress": False}
    named = api.run(partition="planted", num_clients=2, **keys)
    assert named.summary["parties"] == ["north", "south"]
    sizes = [load_client(compose(["dataset=banks", "partition=planted", "num_clients=2"]), i).num_nodes for i in (0, 1)]
    assert sizes == [30, 10]
    assert "south" in named.report().read_text()
    assert "parties" not in api.run(partition="random", num_clients=2, **keys).summary


def test_a_run_says_whose_split_it_is(tables, capsys, tmp_path):
    rows = "".join(f"n{i},{i % 3},{i % 2},{['train', 'test', 'val'][i % 3]}\n" for i in range(30))
    nodes, edges = tables("id,x,label,part\n" + rows, "source,target\nn0,n1\n")
    assert run("--nodes", nodes, "--edges", edges, "columns.split=part", "--name", "mine") == 0
    overrides = ["run", "dataset=mine", "partition=random", "num_clients=2", "rounds=1", f"out={tmp_path / 'r'}"]
    capsys.readouterr()
    assert cli.main([*overrides, "--no-report", "--verbose"]) == 0
    output = capsys.readouterr().out
    assert "split: imported with dataset=mine" in output
    assert "majority" in output
    assert output.index("accuracy") < output.index("majority") < output.index("test auc")


def test_a_party_with_one_class_is_told_that_it_has_no_average_precision(tables, capsys, root):
    rows = "".join(f"n{i},{i % 3},{int(i % 3 == 0)},{['train', 'test', 'val'][i % 3]}\n" for i in range(30))
    nodes, edges = tables("id,x,label,part\n" + rows, "source,target\nn0,n1\n")
    assert run("--nodes", nodes, "--edges", edges, "columns.split=part", "--name", "mine") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: all")]
    assert lines == [
        "warning: all train labels are of class '1'",
        "warning: all validation labels are of class '0'",
        "warning: all test labels are of class '0': auc and average precision are undefined, so means over parties"
        " exclude this one",
    ]
    nodes, edges = tables("id,x,label\n" + "".join(f"n{i},{i},0\n" for i in range(30)), "source,target\nn0,n1\n")
    assert run("--nodes", nodes, "--edges", edges, "--classes", "0,1", "--name", "single") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: all")]
    assert lines == [
        "warning: all labels are of class '0': auc and average precision are undefined, so means over parties exclude this"
        " one"
    ]
