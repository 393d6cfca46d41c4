"""Values of saved graphs and client files that a conversion would silently change, and files that lack what they need."""

import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.cleaning import subgraph
from fedgraph_flwr.data.graph import ClientGraph, pack_words, read_tensors, unpack_words, write_tensors
from fedgraph_flwr.data.hetero import HeteroGraph
from fedgraph_flwr.data.pyg import from_data, from_hetero_data
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.partition import store
from fedgraph_flwr.party.use.prediction_input import InputSpec, from_pyg
from tests.party import banks


def data(**changes):
    from torch_geometric.data import Data

    values = {"x": torch.ones(3, 2), "edge_index": torch.tensor([[0, 1], [1, 2]]), "y": torch.tensor([0, 1, 0])}
    return Data(**(values | changes))


def typed(x=None, edges=None, y=None):
    from torch_geometric.data import HeteroData

    graph = HeteroData()
    graph["a"].x = torch.ones(3, 2) if x is None else x
    graph["a"].y = torch.tensor([0, 1, 0]) if y is None else y
    graph["a", "to", "a"].edge_index = torch.tensor([[0, 1], [1, 2]]) if edges is None else edges
    return graph


HALF = torch.tensor([[0.5, 1], [1, 2]])
COMPLEX = torch.ones(3, 2, dtype=torch.complex64)
BILLION = torch.tensor([0, 10**9, 1])
NONE = {
    "x": torch.zeros(0, 2),
    "edge_index": torch.zeros(2, 0, dtype=torch.int64),
    "y": torch.zeros(0, dtype=torch.int64),
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge_index": HALF}, r"mine: edge_index must hold integers, got torch.float32: convert it with .long\(\)"),
        ({"x": COMPLEX}, r"mine: x must hold real numbers, got torch.complex64: pass the real and imaginary parts"),
        (
            {"y": BILLION},
            r"mine: y has the label 1000000000 at node 1, but only 3 different labels: set y to -1",
        ),
        ({"y": torch.tensor([0, 255, 1], dtype=torch.uint8)}, "mine: y has the label 255 at node 1"),
        ({"y": torch.tensor([9999, 0, 1])}, "mine: y has the label 9999 at node 0"),
        (
            {"edge_index": torch.eye(3) > 0},
            "mine: edge_index must hold integers, got torch.bool: pass the numbers of both ends",
        ),
        (NONE, "mine has no nodes"),
    ],
)
def test_a_saved_graph_is_one_error(changes, message, tmp_path, capsys):
    with pytest.raises(FedGraphError, match=message):
        from_data(data(**changes), "mine")
    torch.save(data(**changes), tmp_path / "mine")
    assert cli.main(["import", "--data", str(tmp_path / "mine"), "--out", str(tmp_path / "g.safetensors")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    if "y" not in changes:
        with pytest.raises(FedGraphError, match=message):
            from_pyg(data(**changes), InputSpec(("a", "b")), "mine")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edges": HALF}, "mine, 'a:to:a': edge_index must hold integers"),
        ({"edges": torch.eye(3) > 0}, "mine, 'a:to:a': edge_index must hold integers, got torch.bool"),
        ({"y": torch.tensor([0, 255, 1], dtype=torch.uint8)}, "mine: y has the label 255 at node 1"),
        ({"x": COMPLEX}, "mine, 'a': x must hold real numbers"),
        ({"y": BILLION}, "mine: y has the label 1000000000 at node 1"),
        ({"x": torch.zeros(0, 2), "y": torch.zeros(0, dtype=torch.int64)}, "mine has no nodes of type 'a'"),
    ],
)
def test_a_saved_typed_graph_is_one_error(changes, message):
    with pytest.raises(FedGraphError, match=message):
        from_hetero_data(typed(**changes), "mine", "a")


def make_graph(y: int = 0, half: bool = False, none: bool = False):
    """A dataset of a user's own function."""
    labels = torch.tensor([0, y, 1])
    return data(**(NONE if none else {"y": labels} | ({"edge_index": HALF} if half else {})))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dataset.y=1000000000"], "y has the label 1000000000 at node 1"),
        (["dataset.half=true"], "edge_index must hold integers"),
        (["dataset.none=true"], "has no nodes"),
    ],
)
def test_a_users_own_function_is_checked_too(overrides, message, tmp_path, monkeypatch):
    from fedgraph_flwr.data.datasets import load

    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    cfg = compose(["dataset=tests.party.tables.test_saved_values:make_graph", *overrides])
    with pytest.raises(FedGraphError, match=f"the graph of dataset.source=.*{message}"):
        load(cfg.dataset)


def test_graphs_in_memory_are_checked_too():
    from fedgraph_flwr.partition import objects

    with pytest.raises(FedGraphError, match="has the label 1000000000 at node 1"):
        objects.clients([data(y=BILLION)], compose(["num_clients=1"]), "mine")
    with pytest.raises(FedGraphError, match="edge_index must hold integers"):
        HeteroGraph.from_pyg(typed(edges=HALF), "a", 2)


def test_graphs_in_memory_count_classes_together():
    """A party may have few classes of many."""
    from fedgraph_flwr.partition import objects

    graphs = [data(x=torch.ones(6, 2), y=torch.arange(6) // 2 + 3 * i) for i in range(20)]
    assert {
        graph.num_classes for graph in objects.clients(graphs, compose(["num_clients=20", "split.train=0.6"]), "mine")
    } == {60}
    with pytest.raises(FedGraphError, match=r"graphs=\[\.\.\.\]: y has the label 255 at node 1, but only 3 different"):
        objects.clients([data(y=torch.tensor([0, 255, 1])), data()], compose(["num_clients=2"]), "mine")


def test_some_classes_may_have_no_node():
    for largest in (9, 15):
        assert len(from_data(data(y=torch.tensor([0, largest, 1])), "mine").schema["agreed"]["classes"]) == largest + 1
    named = from_data(data(y=torch.tensor([0, 255, 1])), "mine", classes=[str(i) for i in range(256)])
    assert named.num_classes == 256
    with pytest.raises(FedGraphError, match=r"labels must be in 0\.\.1.*node 1 has 1000000000"):
        from_data(data(y=BILLION), "mine", classes=["a", "b"])


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Three banks' client files, in ``parts``."""
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    monkeypatch.chdir(tmp_path)
    for number, (nodes, edges) in enumerate(banks.write(tmp_path, customers=60).values()):
        args = ["--nodes", str(nodes), "--edges", str(edges), "--schema", "s.yaml", "--client", str(number)]
        args += ["--classes", "ok,fraud"] if number == 0 else []
        args += ["columns.split=part", "--num-clients", "3", "--out", f"parts/client_{number:04d}.safetensors"]
        assert cli.main(["import", *args]) == 0
    return tmp_path / "parts"


@pytest.mark.parametrize("key", ["client", "num_clients"])
def test_a_client_file_without_its_client_is_one_error(parts, key):
    path = parts / "client_0001.safetensors"
    tensors, values = read_tensors(path)
    del values[key]
    write_tensors(path, tensors, values)
    for read in (lambda: store.load(path), lambda: store.check(parts)):
        with pytest.raises(FedGraphError, match=rf"client_0001\.safetensors has no field '{key}': write it again"):
            read()


def test_a_client_file_of_before_ids_is_read(parts):
    path = parts / "client_0001.safetensors"
    tensors, values = read_tensors(path)
    assert unpack_words(tensors.pop("ids"))[:2].tolist() == ["b00000", "b00001"]
    for schema in (values["schema"]["agreed"], values["schema"]["fitted"]):
        schema.pop("tables", None)
    write_tensors(path, tensors, values)
    assert store.load(path).ids.numel() == 0


def test_ids_are_cut_with_their_nodes(parts, tmp_path):
    words = [str(tmp_path / f"a_{name}.csv") for name in ("customers", "payments")]
    assert cli.main(["import", "--nodes", words[0], "--edges", words[1], "columns.split=part", "--name", "bank"]) == 0
    assert cli.main(["partition", "dataset=bank", "num_clients=2", "split.kind=ratio", "--out", "cut"]) == 0
    for path in sorted((tmp_path / "cut").glob("*.safetensors")):
        graph = ClientGraph.load(path)
        assert unpack_words(graph.ids).tolist() == [f"a{node:05d}" for node in graph.node_id.tolist()]


def test_ids_are_selected_with_their_nodes(parts):
    graph = ClientGraph.load(parts / "client_0000.safetensors")
    kept = torch.arange(graph.num_nodes) % 3 == 1
    assert unpack_words(subgraph(graph, kept).ids)[:2].tolist() == ["a00001", "a00004"]


@pytest.mark.parametrize("words", [["a", "bb", "ü€"], [""], []])
def test_words_are_packed_and_unpacked(words):
    assert unpack_words(pack_words(words)).tolist() == words


def test_a_number_of_clients_that_is_not_that_of_the_files_is_an_error(parts, capsys):
    for overrides in (["num_clients=5"], ["num_clients=5", "strategy=central"]):
        assert cli.main(["run", f"graph={parts}", *overrides, "rounds=1", "--dry-run"]) == 2
        assert "num_clients=5, but graph=" in (message := capsys.readouterr().err)
        assert "holds 3 client files: leave num_clients out, or set it to 3" in message
    assert compose([f"graph={parts}", "num_clients=3"]).num_clients == 3
    assert compose([f"graph={parts}"]).num_clients != 5  # nobody asked for a number
