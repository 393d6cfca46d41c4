"""The cache of client files: computed once, whole, by any number of processes, and checked where the user brings it."""

import json
import multiprocessing
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.cli.partition import rows
from fedgraph_flwr.config import RunConfig, compose, configuration
from fedgraph_flwr.data import datasets
from fedgraph_flwr.data.graph import ClientGraph, Graph
from fedgraph_flwr.data.hetero import HeteroClientGraph
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.partition import assign, client_files, cut, load_client, num_clients, store
from tests.conftest import client_graph

SMALL = (
    "dataset=csbm",
    "dataset.nodes_per_client=[30,30]",
    "dataset.features=4",
    "dataset.cut_degree=2",
    "num_clients=3",
    "partition=metis",
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    """How often client files were computed, by this process and those it forks."""
    log, fill = tmp_path / "made.log", store._fill

    def counted(folder, cfg):
        with log.open("a") as file:
            file.write("x")
        fill(folder, cfg)

    monkeypatch.setattr(store, "_fill", counted)
    return lambda: len(log.read_text()) if log.exists() else 0


def config(*overrides: str) -> RunConfig:
    return compose([*SMALL, *overrides])


def clients_of(*overrides: str) -> list[ClientGraph]:
    cfg = config(*overrides)
    return [load_client(cfg, index) for index in range(num_clients(cfg))]


def same(a: ClientGraph, b: ClientGraph) -> bool:
    return all(
        torch.equal(value, getattr(b, key)) if isinstance(value, torch.Tensor) else value == getattr(b, key)
        for key, value in vars(a).items()
    )


def test_prepare_is_load_assign_cut_split(root):
    cfg = config("seed=5")
    folder = client_files(cfg)
    assert folder.parent == root / "fedgraph" / "partitions"
    graph = datasets.load(cfg.dataset, seed=5, num_clients=3)
    cuts = cut(graph, assign(graph, cfg.partition, 3, 5))
    assert num_clients(cfg) == 3
    for index, expected in enumerate(cuts):
        client = load_client(cfg, index)
        split = client.train_mask.int() + client.val_mask.int() + client.test_mask.int()
        assert split.tolist() == [1] * client.num_nodes
        assert int(client.train_mask.sum()) == int(0.6 * client.num_nodes)
        none = torch.zeros_like(client.train_mask)
        assert same(replace(client, train_mask=none, val_mask=none, test_mask=none), expected)
    manifest = json.loads((folder / "partition.json").read_text())
    assert manifest["num_clients"] == 3
    assert manifest["nodes"] == [c.num_nodes for c in cuts]
    assert manifest["config"]["seed"] == 5


def test_global_split_is_drawn_before_the_cut():
    clients = clients_of("split={kind: ratio, scope: global, train: 0.5, val: 0.25, test: 0.25}")
    assert sum(int(c.train_mask.sum()) for c in clients) == 45
    assert len({int(c.train_mask.sum()) / c.num_nodes for c in clients}) > 1


def test_computed_once(made, monkeypatch):
    cfg = config()
    folder = client_files(cfg)
    monkeypatch.setattr(datasets, "load", None)  # the dataset is not needed again
    assert client_files(cfg) == folder
    assert load_client(cfg, 2).client == 2
    assert made() == 1


def test_client_reads_only_its_own_file():
    cfg = config()
    folder = client_files(cfg)
    for index in (0, 2):
        (folder / f"client_{index:04d}.safetensors").write_bytes(b"")
    assert load_client(cfg, 1).client == 1


@pytest.mark.parametrize(
    "change",
    [
        "seed=1",
        "num_clients=4",
        "partition=random",
        "split.train=0.5",
        "dataset.edge_flip=0.1",
        "dataset.homophily=0.5",
        "strategy=central",
    ],
)
def test_key_covers_what_files_depend_on(change):
    assert store.key(config(change)) != store.key(config())


@pytest.mark.parametrize("change", ["rounds=3", "strategy=fedprox", "train.lr=0.5", "model.hidden=8", "device=cpu"])
def test_key_covers_nothing_else(change):
    assert store.key(config(change)) == store.key(config())


def test_key_covers_what_is_in_an_own_file(tmp_path):
    cfg = config()
    cfg.dataset.name, cfg.dataset.params = "mine", {"path": str(tmp_path / "mine.safetensors")}
    keys = []
    for value in (0.0, 1.0):
        graph = Graph(**{k: v for k, v in vars(client_graph(0)).items() if k in Graph.__dataclass_fields__})
        graph.x = graph.x + value
        graph.save(tmp_path / "mine.safetensors")
        keys.append(store.key(cfg))
    assert keys[0] != keys[1]
    client_files(cfg)


def test_folds_rotate_over_one_partition():
    """Five seeds of a five-fold split test each node once, on the same clients."""
    runs = [clients_of("split.kind=kfold", f"seed={seed}") for seed in range(5)]
    for client in zip(*runs, strict=True):
        assert all(torch.equal(c.node_id, client[0].node_id) and torch.equal(c.x, client[0].x) for c in client)
        assert sum(c.test_mask.int() for c in client).tolist() == [1] * client[0].num_nodes


def test_folds_may_draw_a_partition_each():
    first, second = (
        clients_of("split.kind=kfold", "split.resample=true", "partition=random", f"seed={s}") for s in range(2)
    )
    assert any(not torch.equal(a.node_id, b.node_id) for a, b in zip(first, second, strict=False))


def test_pooled_is_the_union_of_the_clients():
    clients = clients_of()
    cfg = config("strategy=central")
    assert num_clients(cfg) == 1
    whole = load_client(cfg, 0)
    for i, client in enumerate(clients):
        assert torch.equal((whole.part == i).nonzero().view(-1), client.node_id)
        for key in ("x", "y", "train_mask", "val_mask", "test_mask"):
            assert torch.equal(getattr(whole, key)[client.node_id], getattr(client, key))
    assert whole.edge_index.size(1) == sum(c.edge_index.size(1) + c.cut_out.size(1) for c in clients)
    assert whole.edge_index.size(1) > sum(c.edge_index.size(1) for c in clients)


def test_pooled_from_a_folder(tmp_path):
    cli.main(["partition", *SMALL, "--out", str(tmp_path / "parts")])
    expected = load_client(config("strategy=central"), 0)
    cfg = compose(["strategy=central", f"graph={tmp_path / 'parts'}"])
    assert num_clients(cfg) == 1
    assert same(load_client(cfg, 0), expected)


def test_many_processes_compute_once(made):
    cfg, fork = config("dataset.nodes_per_client=[700,700]"), multiprocessing.get_context("fork")
    start, answers = fork.Barrier(4), fork.SimpleQueue()

    def ask(index):
        start.wait()
        answers.put((str(client_files(cfg)), load_client(cfg, index % 3).num_nodes))

    processes = [fork.Process(target=ask, args=(i,)) for i in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 4
    assert {answers.get()[0] for _ in processes} == {str(client_files(cfg))}
    assert made() == 1


@pytest.mark.parametrize("damage", ["truncated", "missing", "manifest", "half"])
def test_damaged_cache_is_made_again(made, damage):
    cfg = config()
    folder = client_files(cfg)
    before = load_client(cfg, 1)
    path = folder / "client_0001.safetensors"
    match damage:
        case "truncated":
            content = path.read_bytes()
            path.unlink()  # `before` is mapped to the old file
            path.write_bytes(content[:-10])
        case "missing":
            path.unlink()
        case "manifest":
            (folder / "partition.json").write_text("{")
        case "half":  # what an older program that died in between may have left
            shutil.rmtree(folder)
            folder.mkdir()
    client_files(cfg)
    assert made() == 2
    assert same(load_client(cfg, 1), before)


def test_nothing_is_left_when_it_fails(root):
    cfg = config("split.train=0", "split.val=0.5", "split.test=0.5")
    with pytest.raises(FedGraphError, match=r"client 0 has \d+ nodes, none for training: lower num_clients=3"):
        client_files(cfg)
    left = [path for path in (root / "fedgraph" / "partitions").iterdir() if path.suffix != ".lock"]
    assert left == []


def test_min_train_gives_unused_nodes():
    clients = clients_of("split={kind: ratio, scope: global, train: 0.0, val: 0.2, test: 0.2, min_train: 2}")
    assert [int(c.train_mask.sum()) for c in clients] == [2, 2, 2]
    assert not any(bool((c.train_mask & (c.val_mask | c.test_mask)).any()) for c in clients)


def test_edges_flip_within_clients():
    for a, b in zip(clients_of(), clients_of("dataset.edge_flip=0.3"), strict=True):
        assert a.edge_index.shape == b.edge_index.shape
        assert not torch.equal(a.edge_index, b.edge_index)
        assert torch.equal(a.cut_out, b.cut_out)


@pytest.mark.parametrize("clients", ["", "dataset.clients=5"])
def test_the_number_of_clients_that_results_names_the_same_files(clients):
    overrides = ["partition=louvain-fedhero", "partition.min_size=10", "num_clients=2", *clients.split()]
    cfg = config(*overrides)
    resolved = store.resolved(cfg)
    assert resolved.num_clients == num_clients(cfg) > 2
    assert num_clients(resolved) == resolved.num_clients
    for index in range(resolved.num_clients):
        assert same(load_client(resolved, index), load_client(cfg, index))
    assert store.resolved(resolved) == resolved
    assert store.key(resolved) == store.key(replace(resolved, num_clients=2))
    assert store.resolved(config()) == config()


def test_random_merge_needs_groups_that_do_not_follow_num_clients():
    with pytest.raises(FedGraphError, match="metis makes num_clients groups: use it with louvain or planted"):
        client_files(config("partition.merge=random_merge"))


def test_a_run_takes_all_clients_of_a_folder(parts, tmp_path):
    summary = run(compose([f"graph={parts}", "rounds=1", f"out={tmp_path / 'run'}"]))
    assert compose([], tmp_path / "run" / "config.yaml").num_clients == 3
    assert summary["rounds"] == 1


# --- a user's folder ---------------------------------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    assert cli.main(["partition", *SMALL, "--out", str(tmp_path / "parts")]) == 0
    return tmp_path / "parts"


def test_folder_goes_before_dataset(parts, monkeypatch):
    expected = load_client(config(), 1)
    monkeypatch.setattr(datasets, "load", None)
    cfg = compose([f"graph={parts}"])
    assert client_files(cfg) == parts
    assert num_clients(cfg) == 3
    assert same(load_client(cfg, 1), expected)


def resave(path: Path, **changes) -> None:
    replace(ClientGraph.load(path), **changes).save(path)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "client_0001.safetensors, it is truncated"),
        (lambda p: p.unlink(), "has no client_0001.safetensors, but client_0002"),
        (lambda p: p.write_bytes(p.read_bytes().replace(b'"format":"2"', b'"format":"9"')), "format version '9'"),
        (
            lambda p: resave(p, num_classes=7),
            "client_0001.safetensors has classes 7, expected 2",
        ),
        (lambda p: resave(p, x=torch.ones(30, 9)), r"has features \(9,\), expected \(4,\)"),
        (lambda p: resave(p, client=2), "has client 2, expected 1: use the files of one partition"),
        (lambda p: [f.unlink() for f in p.parent.glob("client_*")], "contains no client files"),
        (lambda p: client_graph_as_graph(p), "client_0001.safetensors contains a Graph"),
    ],
)
def test_wrong_folder_is_one_sentence(parts, damage, sentence):
    damage(parts / "client_0001.safetensors")
    with pytest.raises(FedGraphError, match=sentence):
        client_files(compose([f"graph={parts}"]))


def client_graph_as_graph(path: Path) -> None:
    client = ClientGraph.load(path)
    Graph(**{name: getattr(client, name) for name in Graph.__dataclass_fields__}).save(path)


def test_unknown_client(parts):
    for cfg in (compose([f"graph={parts}"]), config()):
        with pytest.raises(FedGraphError, match=f"client 7 does not exist: expected 0 to {num_clients(cfg) - 1}, as "):
            load_client(cfg, 7)


def test_a_truncated_file_of_a_cache_is_made_again_by_the_client_that_reads_it(made):
    cfg = config()
    path = client_files(cfg) / "client_0001.safetensors"
    whole = load_client(cfg, 1)
    path.write_bytes(path.read_bytes()[:-10])
    again = load_client(cfg, 1)
    assert again.client == 1
    assert torch.equal(again.x, whole.x)
    assert torch.equal(again.edge_index, whole.edge_index)
    assert made() == 2


def test_files_are_in_the_order_of_their_numbers(tmp_path):
    for number in (10_000, 2, 9_999, 10_001):
        (tmp_path / f"client_{number:04d}.safetensors").touch()
    numbers = [int(path.stem.removeprefix("client_")) for path in store.files(tmp_path)]
    assert numbers == [2, 9_999, 10_000, 10_001]


def test_a_client_looks_at_no_other_file_of_a_whole_cache(monkeypatch):
    cfg = config()
    client_files(cfg)
    monkeypatch.setattr(store, "files", None)  # else a thousand clients would list a thousand files each
    assert load_client(cfg, 1).client == 1


# --- the command -------------------------------------------------------------------------------------------------------


def test_command_describes(capsys):
    assert cli.main(["partition", *SMALL]) == 0
    printed = capsys.readouterr().out
    clients = clients_of()
    for client in clients:
        masks = "/".join(str(int(m.sum())) for m in (client.train_mask, client.val_mask, client.test_mask))
        ends = client.cut_out.size(1) + client.cut_in.size(1)
        (line,) = (line.split() for line in printed.splitlines() if line.split()[:1] == [str(client.client)])
        assert line[1:3] == [str(client.num_nodes), masks]
        same_class = (client.y[client.edge_index[0]] == client.y[client.edge_index[1]]).float().mean()
        assert line[-3:] == [str(client.edge_index.size(1)), f"{float(same_class):.3f}", str(ends)]
    kept, lost = sum(c.edge_index.size(1) for c in clients), sum(c.cut_out.size(1) for c in clients)
    assert f"{kept} edges kept, {lost} cut" in printed


def test_typed_clients_are_described_by_their_types():
    mask, none = torch.tensor([True, False, False]), torch.zeros(2, 0, dtype=torch.int64)
    typed = HeteroClientGraph(
        counts={"paper": 3, "author": 2, "venue": 0},
        edges={("author", "writes", "paper"): torch.tensor([[0, 1], [2, 0]]), ("paper", "at", "venue"): none},
        target="paper",
        y=torch.tensor([0, 1, 1]),
        train_mask=mask,
        val_mask=mask.roll(1),
        test_mask=mask.roll(2),
        num_classes=2,
        client=4,
    )
    (row,) = rows([typed])
    assert (row["client"], row["nodes"], row["edges"], row["train/val/test"]) == ("4", "5", "2", "1/1/1")
    assert (row["node types"], row["edge types"], row["top class"], row["label TV"]) == ("2", "1", "66.7%", "0.000")


def test_command_replaces_an_earlier_partition_and_nothing_else(parts, tmp_path, capsys):
    assert cli.main(["partition", *SMALL, "num_clients=2", "--out", str(parts)]) == 0
    assert len(store.files(parts)) == 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (parts / "thesis.txt").write_text("dear")
    assert cli.main(["partition", *SMALL, "--out", str(parts)]) == 2
    assert "holds thesis.txt" in capsys.readouterr().err
    assert len(store.files(parts)) == 2
    assert (parts / "thesis.txt").read_text() == "dear"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["partition=metisse"], "did you mean 'metis'"),
        (["num_clients=91", "dataset.clients=3"], "num_clients=91 exceeds the 90 nodes of 'csbm'"),
        (["partition=planted", "dataset.clients=4"], "partition=planted gives 4 groups, num_clients=3"),
    ],
)
def test_command_on_wrong_input(overrides, sentence, capsys):
    assert cli.main(["partition", *SMALL, *overrides]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "overrides",
    [
        ["dataset=csbm", "dataset.nodes_per_client=[20,30]"],
        ["dataset=payments", "dataset.accounts=60", "dataset.background=200", "dataset.per_kind=1"],
        ["dataset=cycles", "task=graphs"],
        ["dataset=planted-regression", "task=nodes-regression"],
        ["dataset=planted-triples", "task=triples"],
    ],
    ids=lambda words: words[0],
)
def test_torchs_default_type_does_not_reach_client_files(overrides, tmp_path, monkeypatch):
    """Files of a process with float64 as default are those of any other; they were refused and stayed in the cache."""
    cfg = configuration([*overrides, "num_clients=2"])
    versions = []
    for kind in (torch.float64, torch.float32):
        monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / str(kind)))
        torch.set_default_dtype(kind)
        try:
            versions.append(vars(load_client(cfg, 0)))
        finally:
            torch.set_default_dtype(torch.float32)
    for name, value in versions[1].items():
        if isinstance(value, torch.Tensor):
            assert versions[0][name].dtype == value.dtype, name
            assert torch.equal(versions[0][name], value), name
