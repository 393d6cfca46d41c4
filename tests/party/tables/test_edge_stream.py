"""Import of big edge tables in chunks: the graph of the import in memory, in bounded memory."""

import numpy as np
import pandas as pd
import pytest
import torch

from fedgraph_flwr.data import mapped
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.statistics import describe
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.party.tables import edge_stream
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_tables, save_dataset
from fedgraph_flwr.party.tables.roles import Columns


@pytest.fixture
def tables(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    names = [f"n{i}" for i in rng.permutation(50)]
    nodes = pd.DataFrame({"id": names, "label": rng.integers(3, size=50), "a": rng.normal(size=50)})
    edges = pd.DataFrame({"source": rng.choice(names[:45], 300), "target": rng.choice(names, 300), "paid": 1})
    edges = pd.concat([edges, edges[:20]])  # repeated rows
    for table, name in ((nodes, "nodes"), (edges, "edges")):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
        table.to_parquet(tmp_path / f"{name}.parquet", index=False)
    monkeypatch.setattr(edge_stream, "ROWS_AT_ONCE", 64)
    monkeypatch.setattr(edge_stream, "BUCKET_EDGES", 40)
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("undirected", [False, True])
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_an_import_in_chunks_gives_the_same_graph(tables, monkeypatch, suffix, undirected):
    graphs, said = [], []
    for size in (2**60, 1):
        monkeypatch.setattr(mapped, "MAPPED_BYTES", size)
        lines: list[str] = []
        files = tables / f"nodes.{suffix}", tables / f"edges.{suffix}"
        graphs.append(from_tables(*files, undirected=undirected, treatment=Treatment(say=lines.append)))
        said.append(lines)
    whole, chunked = graphs
    assert said[0] == said[1]
    assert any("20 of 320 rows repeat" in line or "rows repeat an edge" in line for line in said[0])
    assert whole.compressed is None
    assert chunked.compressed is not None
    one, other = describe(whole), describe(chunked)
    for key in ("edges", "isolated", "self_loops"):
        assert one[key] == other[key], key
    assert one["edge_homophily"] == pytest.approx(other["edge_homophily"], abs=1e-12)
    path = save_dataset(chunked, "chunks")
    assert chunked.compressed is not None  # not expanded on the way
    stored = Graph.load(path)
    assert torch.equal(stored.x, whole.x)
    assert torch.equal(stored.edge_index, whole.edge_index)
    assert torch.equal(chunked.edge_index, whole.edge_index)


def test_an_unknown_id_is_named_with_its_row_in_the_file(tables, monkeypatch):
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    edges = pd.read_csv(tables / "edges.csv")
    edges.loc[200, "target"] = "nobody"
    edges.to_csv(tables / "edges.csv", index=False)
    with pytest.raises(FedGraphError, match="row 201 has 'nobody' in column 'target'"):
        from_tables(tables / "nodes.csv", tables / "edges.csv")
    with pytest.raises(FedGraphError, match="end of edges column"):
        from_tables(tables / "nodes.csv", tables / "edges.csv", Columns(source="from"))


def test_a_full_disk_of_temporary_files_is_one_error_message(tables, monkeypatch):
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(edge_stream, "_spool", full)
    with pytest.raises(FedGraphError, match=r"cannot write temporary files .*No space left on device; set TMPDIR"):
        from_tables(tables / "nodes.csv", tables / "edges.csv")


def test_features_of_edges_are_read_whole(tables, monkeypatch):
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 1)
    graph = from_tables(tables / "nodes.csv", tables / "edges.csv", Columns(edge_features=("paid",)))
    assert graph.compressed is None
    assert graph.num_edge_features
