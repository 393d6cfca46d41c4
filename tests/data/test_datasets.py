"""Datasets from copied raw files: counts, options, caching, and what is said when files lack."""

import gzip
import importlib
import socket
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph_flwr.config import DatasetConfig, compose, group_names
from fedgraph_flwr.data import datasets
from fedgraph_flwr.data.checks import check_graph
from fedgraph_flwr.data.cleaning import clean, largest_component, to_undirected
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.graph import Graph
from fedgraph_flwr.data.root import cache_dir, data_root
from fedgraph_flwr.data.statistics import edge_homophily
from fedgraph_flwr.errors import FedGraphError


def config(name, *options):
    return compose([f"dataset={name}", *(f"dataset.{option}" for option in options)]).dataset


def numbers(graph):
    return graph.num_nodes, graph.edge_index.size(1), graph.num_features, graph.num_classes


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """An empty data root and no network."""

    def refuse(*args, **kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "root"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "masks", "homophily"),
    [
        ("cora", "Planetoid/Cora", (140, 500, 1000), 0.81),
        ("citeseer", "Planetoid/CiteSeer", (120, 500, 1000), 0.74),
        ("computers", "Amazon/Computers", (0, 0, 0), 0.78),
        ("cs", "Coauthor/CS", (0, 0, 0), 0.81),
        ("chameleon", "WikipediaNetwork/chameleon", (1092, 729, 456), 0.23),
        ("cornell", "WebKB/cornell", (87, 59, 37), 0.30),
        ("minesweeper", "HeterophilousGraphDataset/minesweeper", (5000, 2500, 2500), 0.68),
        ("pubmed", "Planetoid/PubMed", (60, 500, 1000), 0.80),
        ("photo", "Amazon/Photo", (0, 0, 0), 0.83),
        ("squirrel", "WikipediaNetwork/squirrel", (2496, 1664, 1041), 0.22),
        ("wisconsin", "WebKB/wisconsin", (120, 80, 51), 0.20),
        ("syn-cora", "syn-cora", (0, 0, 0), 0.50),
        ("credit", "credit", (0, 0, 0), 0.64),
    ],
)
def test_counts_are_those_published(shared_data, name, folder, masks, homophily):
    root = shared_data(folder)
    graph = load(config(name))
    assert numbers(graph) == datasets.SOURCES[name].sizes
    assert tuple(int(m.sum()) for m in (graph.train_mask, graph.val_mask, graph.test_mask)) == masks
    assert edge_homophily(graph.edge_index, graph.y) == pytest.approx(homophily, abs=0.006)
    assert graph.name == name
    assert not list(root.rglob("processed"))  # nothing of PyG's stays
    assert len(list((root / "fedgraph").glob("*.safetensors"))) == 1
    assert not list((root / "fedgraph").glob(".convert-*"))


@pytest.mark.slow
def test_second_load_needs_neither_the_raw_files_nor_pyg(shared_data):
    root = shared_data("Planetoid/Cora")
    first = load(config("cora"))
    for file in (root / "Planetoid").rglob("ind.*"):
        file.unlink()
    program = (
        "import sys; from fedgraph_flwr.config import compose; from fedgraph_flwr.data.datasets import load;"
        "g = load(compose(['dataset=cora']).dataset); print(g.x.sum().item(), 'torch_geometric' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(float(first.x.sum())), "False"]


def test_several_at_once_convert_once(shared_data, monkeypatch):
    shared_data("WebKB/cornell")
    calls = []
    convert = datasets._convert
    monkeypatch.setattr(datasets, "_convert", lambda *args: calls.append(1) or convert(*args))
    with ThreadPoolExecutor(4) as pool:
        graphs = list(pool.map(lambda _: load(config("cornell")), range(4)))
    assert calls == [1]
    assert all(torch.equal(graph.x, graphs[0].x) for graph in graphs)


def test_a_root_that_cannot_be_written_leaves_the_cache_elsewhere(shared_data, monkeypatch, tmp_path):
    root = shared_data("WebKB/cornell")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = sorted(root.rglob("*"))
    root.chmod(0o555)
    try:
        assert load(config("cornell")).num_nodes == 183
        assert sorted(root.rglob("*")) == before
        assert cache_dir().is_relative_to(tmp_path / "cache")
        assert list(cache_dir().glob("cornell-v*.safetensors"))
    finally:
        root.chmod(0o755)


@pytest.mark.slow
def test_options_on_real_graphs(shared_data):
    shared_data("WikipediaNetwork/chameleon")
    graph = load(config("chameleon", "undirected=true"))
    loops = int((graph.edge_index[0] == graph.edge_index[1]).sum())
    assert (graph.edge_index.size(1) + loops) / 2 == 31421  # FedHERO, Table 6
    assert load(config("chameleon", "undirected=true", "remove_self_loops=true")).edge_index.size(1) == 2 * (
        31421 - loops
    )
    stored, turned = load(config("chameleon")), load(config("chameleon", "reversed=true"))
    assert torch.equal(turned.edge_index, stored.edge_index[[1, 0]])
    hears = [torch.bincount(g.edge_index[1], minlength=2277) for g in (stored, turned)]
    assert [int((n == 0).sum()) for n in hears] == [1413, 0]  # as stored most pages hear nobody
    shared_data("Amazon/Computers")
    assert load(config("computers", "largest_component=true")).num_nodes == 13381  # FedOMD's count
    totals = load(config("chameleon", "normalize_features=true")).x.sum(1)
    assert int((totals == 0).sum()) == 233  # nodes without features stay so
    torch.testing.assert_close(totals[totals > 0], torch.ones(2277 - 233))


def test_syn_cora_plants_its_graphs(shared_data):
    shared_data("syn-cora")
    graph = load(config("syn-cora"))
    source, target = graph.edge_index
    assert torch.equal(graph.group[source], graph.group[target])
    assert graph.group.bincount().tolist() == [1490] * 10
    levels = [edge_homophily(graph.edge_index[:, graph.group[source] == g], graph.y) for g in range(10)]
    assert levels == pytest.approx([0, 0, 0.3, 0.3, 0.5, 0.5, 0.7, 0.7, 1, 1], abs=0.025)
    one = load(config("syn-cora", "homophily=[0.2]", "replicates=[3]"))
    assert numbers(one) == (1490, 5936, 1433, 5)
    with pytest.raises(FedGraphError, match=r"h0\.25-r1\.npz"):
        load(config("syn-cora", "homophily=[0.25]"))
    with pytest.raises(
        FedGraphError, match=r"^dataset.homophily must be a list of numbers such as \[0, 0.5\], got 0.9$"
    ):
        load(config("syn-cora", "homophily=0.9"))


def test_credit_has_no_label_among_its_features(shared_data):
    shared_data("credit")
    graph = load(config("credit"))
    assert float(graph.x.min()) == -1
    assert float(graph.x.max()) == 1
    agree = ((graph.x > 0).long() == graph.y[:, None]).float().mean(0)
    assert float(agree.max()) < 0.9
    assert float(agree.min()) > 0.1


def test_arxiv_year_labels_are_five_equal_quantiles(offline):
    folder = offline / "ogbn_arxiv/raw"
    folder.mkdir(parents=True)
    year = np.repeat(np.arange(2000, 2020), 5)  # 20 years, 5 papers each: four years a class
    year = np.append(year, [2019])  # the bounds are then years that occur, and each opens its class
    rng = np.random.default_rng(0)
    rng.shuffle(year)
    edges = rng.integers(0, 101, (300, 2))
    np.savetxt(folder / "node_year.csv.gz", year, fmt="%d")
    np.savetxt(folder / "edge.csv.gz", edges, fmt="%d", delimiter=",")
    np.savetxt(folder / "node-feat.csv.gz", rng.normal(size=(101, 3)), delimiter=",")
    graph = load(config("arxiv-year"))
    assert graph.y.tolist() == ((year - 2000) // 4).tolist()
    assert graph.y.bincount().tolist() == [20, 20, 20, 20, 21]
    assert torch.equal(graph.edge_index, torch.from_numpy(edges.T))  # directed, as stored


def test_arxiv_year_downloads_ogbs_archive(offline, monkeypatch, tmp_path):
    import torch_geometric.data

    def archive(url, folder):
        path = Path(folder) / "arxiv.zip"
        with zipfile.ZipFile(path, "w") as file:
            for name, text in {"edge": "0,1\n1,2\n", "node_year": "1\n2\n3\n", "node-feat": "1\n2\n3\n"}.items():
                file.writestr(f"arxiv/raw/{name}.csv.gz", gzip.compress(text.encode()))
        return str(path)

    monkeypatch.setattr(torch_geometric.data, "download_url", archive)
    assert load(config("arxiv-year")).edge_index.tolist() == [[0, 1], [1, 2]]
    left = sorted(path.name for path in (offline / "ogbn_arxiv").rglob("*") if path.is_file())
    assert left == ["edge.csv.gz", "node-feat.csv.gz", "node_year.csv.gz"]


def test_ieee_fraud_links_what_is_near_in_time_within_a_product(offline):
    folder = offline / "ieee-fraud"
    folder.mkdir(parents=True)
    (folder / "train_transaction.csv").write_text(
        "TransactionID,isFraud,TransactionDT,TransactionAmt,ProductCD,card4,C1,V1\n"
        "1,0,50,10,W,visa,1,\n2,1,10,20,C,visa,1,4\n3,0,30,30,C,visa,1,\n4,0,20,40,C,visa,1,8\n5,0,1,50,H,visa,1,6\n"
        "6,1,60,60,C,visa,1,2\n"
    )
    (folder / "train_identity.csv").write_text("TransactionID,id_01\n2,0\n3,-5\n4,-5\n5,0\n6,-5\n")
    graph = load(config("ieee-fraud", "neighbours=1"))
    assert graph.num_nodes == 5  # those with an identity
    assert graph.y.tolist() == [1, 0, 0, 0, 1]
    assert graph.group.tolist() == [0, 0, 0, 1, 0]
    # product C in time: rows 0 (10), 2 (20), 1 (30), 4 (60)
    assert set(map(tuple, graph.edge_index.t().tolist())) == {(0, 2), (2, 0), (1, 2), (2, 1), (1, 4), (4, 1)}
    assert graph.num_features == 3  # TransactionAmt, V1 and id_01; C1 is constant
    torch.testing.assert_close(graph.x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    assert float(graph.x[1, 1]) == 0  # missing


@pytest.mark.parametrize("name", [name for name, s in datasets.SOURCES.items() if s.kind in ("download", "files")])
def test_no_network_and_no_files_is_one_sentence_and_leaves_nothing(offline, name):
    with pytest.raises(FedGraphError) as caught:
        load(config(name))
    message = str(caught.value)
    source = datasets.source_of(config(name))
    assert str(offline / source.folder) in message
    assert all(file in message for file in source.files)
    assert "\n" not in message
    left = [path for path in offline.rglob("*") if path.suffix != ".lock" and path != offline / "fedgraph"]
    assert left == []


def test_damaged_raw_files_are_one_sentence(shared_data):
    root = shared_data("WebKB/cornell")
    file = root / "WebKB/cornell/raw/out1_graph_edges.txt"
    file.chmod(0o644)
    file.write_text("no\tedges\nhere\n")
    with pytest.raises(FedGraphError, match="dataset 'cornell' cannot be read from"):
        load(config("cornell"))


def test_a_download_is_kept_only_when_it_is_complete(offline, monkeypatch):
    """A class that downloads: the files move under the root after it succeeded, and not when it broke half-way."""
    import torch_geometric.datasets

    cls, folder = torch_geometric.datasets.HeterophilousGraphDataset, offline / "HeterophilousGraphDataset"
    content = {
        "node_features": np.ones((4, 300), dtype=np.float32),
        "node_labels": np.array([0, 1, 2, 4]),
        "edges": np.array([[0, 1], [1, 2]]),
        **{f"{key}_masks": np.zeros((10, 4), dtype=bool) for key in ("train", "val", "test")},
    }

    def broken(self):
        Path(self.raw_paths[0]).write_bytes(b"half a f")
        raise OSError("connection reset")

    monkeypatch.setattr(cls, "download", broken)
    with pytest.raises(FedGraphError, match="cannot be downloaded"):
        load(config("amazon-ratings"))
    assert not folder.exists()
    monkeypatch.setattr(cls, "download", lambda self: np.savez(self.raw_paths[0], **content))
    assert numbers(load(config("amazon-ratings"))) == (4, 4, 300, 5)
    assert (folder / "amazon_ratings/raw/amazon_ratings.npz").is_file()


@pytest.mark.parametrize(
    "name", [name for name, s in datasets.SOURCES.items() if s.kind == "download" and s.read.__closure__]
)
def test_folders_and_files_are_those_pyg_expects(name, tmp_path):
    source = datasets.SOURCES[name]
    closure = dict(
        zip(source.read.__code__.co_freevars, (c.cell_contents for c in source.read.__closure__), strict=True)
    )
    cls = getattr(importlib.import_module("torch_geometric.datasets"), closure["cls"])
    dataset = cls.__new__(cls)
    dataset.root = str(tmp_path / source.root)
    dataset.split = "public"
    dataset.geom_gcn_preprocess = True
    lower = cls.__name__ in ("WebKB", "WikipediaNetwork", "HeterophilousGraphDataset")
    name = closure["kwargs"].get("name", "")
    dataset.name = name.lower().replace("-", "_") if lower else name
    assert [Path(p) for p in dataset.raw_paths] == [tmp_path / source.folder / file for file in source.files]


def test_every_dataset_has_its_yaml(offline):
    assert datasets.SOURCES.keys() <= set(group_names("dataset"))
    for name in datasets.SOURCES:
        assert config(name).params.get("collection", config(name).name) == name
    with pytest.raises(FedGraphError, match="did you mean 'cora'"):
        load(DatasetConfig(name="coar"))


def test_default_root_is_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDGRAPH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_root() == tmp_path / "fedgraph-flwr"


def test_no_folder_to_write_to_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "file" / "root"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(FedGraphError, match=r"cannot create .*FEDGRAPH_DATA"):
        cache_dir()


def toy(edges, n=4, **kwargs):
    none = torch.zeros(n, dtype=torch.bool)
    values = {"x": torch.ones(n, 2), "y": torch.zeros(n, dtype=torch.int64), "num_classes": 2} | kwargs
    return Graph(edge_index=torch.tensor(edges).t(), train_mask=none, val_mask=none, test_mask=none, **values)


def test_cleaning_by_hand():
    graph = toy([(0, 1), (1, 0), (1, 2), (3, 3)], group=torch.tensor([5, 6, 7, 8]))
    assert to_undirected(graph.edge_index, 4).t().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1], [3, 3]]
    assert largest_component(graph.edge_index, 4).tolist() == [True, True, True, False]
    kept = clean(graph, DatasetConfig(largest_component=True, undirected=True, remove_self_loops=True))
    assert kept.edge_index.t().tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert kept.group.tolist() == [5, 6, 7]
    late = clean(toy([(0, 1), (2, 3), (3, 1)], n=5), DatasetConfig(largest_component=True))
    assert late.num_nodes == 4
    x = torch.tensor([[0.0, -1], [0, 0], [2, 0], [0, 0]])
    featured = clean(toy([(0, 1), (0, 2), (2, 0), (3, 2)], x=x), DatasetConfig(drop_featureless=True))
    assert featured.edge_index.t().tolist() == [[0, 1], [1, 0]]
    assert featured.x.tolist() == [[0, -1], [2, 0]]
    shifted = clean(toy([(1, 2), (2, 3)]), DatasetConfig(largest_component=True))
    assert shifted.edge_index.t().tolist() == [[0, 1], [1, 2]]  # ids follow the nodes that stay


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (toy([(0, 9)]), r"edge_index, row 1, must be in 0\.\.3; place 0 has 9"),
        (toy([(0, 1), (-1, 2)]), r"row 0, must be in 0\.\.3; place 1 has -1"),
        (toy([(0, 1)], y=torch.tensor([0, 1, 2, 1])), r"labels must be in 0\.\.1.*node 2 has 2"),
        (toy([(0, 1)], y=torch.tensor([0, -2, 0, 1])), "node 1 has -2"),
        (toy([(0, 1)], y=torch.tensor([-1, -1, -1, -1])), "no labelled node"),
        (toy([(0, 1)], x=torch.tensor([[0.0], [1.0], [float("nan")], [2.0]])), "node 2 has nan in column 0"),
        (toy([(0, 1)], x=torch.ones(3, 2)), r"x must be torch.float32 \[4, any\]"),
        (toy([(0, 1)], x=torch.ones(4, 0)), r"x must be \[4, F\] with F >= 1"),
    ],
)
def test_impossible_graphs_are_one_sentence(graph, message):
    with pytest.raises(FedGraphError, match=message):
        check_graph(graph, "own.csv")


def test_names_for_edge_types_are_for_typed_graphs():
    with pytest.raises(
        FedGraphError,
        match=r"dataset\.edge_types=name is only for heterogeneous graphs, but 'csbm' has a single edge type",
    ):
        load(config("csbm", "edge_types=name"))
