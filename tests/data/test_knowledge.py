"""Knowledge graphs: hand-written files in the published formats become the triples that PyG's classes read."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.datasets as pyg

from fedgraph_flwr.config import DatasetConfig, RunConfig, compose
from fedgraph_flwr.data.datasets import load
from fedgraph_flwr.data.graph import ClientGraph, Graph, unpack_words
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.partition.clients import make, pool
from fedgraph_flwr.tasks.edges import Edges
from fedgraph_flwr.tasks.triples import Triples

NAMES = {
    "train": "cat\t_hypernym\tanimal\ndog\t_hypernym\tanimal\ncat\t_also_see\tdog\n",
    "valid": "animal\t_has_part\tcat\n",
    "test": "dog\t_also_see\tnew york\nhen\t_hypernym\tanimal\n",
}
ONE_WORD = {part: text.replace("new york", "new_york") for part, text in NAMES.items()}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path))
    return tmp_path


def write(root: Path, name: str, texts: dict[str, str]) -> Path:
    folder = root / "kg" / name / "raw"
    folder.mkdir(parents=True)
    for part, text in texts.items():
        (folder / f"{part}.txt").write_text(text)
    return folder


def dataset(name: str) -> DatasetConfig:
    return compose(["task=triples", "dataset=kg", f"dataset.name={name}"]).dataset


def read(name: str) -> Graph:
    graph = load(dataset(name))
    assert isinstance(graph, Graph)
    return graph


def named(graph: Graph, stage: int) -> list[tuple[str, int, str]]:
    """Triples of a stage, with the names of entities."""
    words = unpack_words(graph.ids)
    rows = (graph.edge_split == stage).nonzero().view(-1)
    heads, tails = (words[row] for row in graph.edge_index[:, rows].numpy())
    return sorted(zip(heads.tolist(), graph.edge_y[rows].tolist(), tails.tolist(), strict=True))


def of_pyg(data: Any, mask: torch.Tensor) -> list[tuple[int, int, int]]:
    rows = torch.stack([data.edge_index[0], data.edge_type, data.edge_index[1]])[:, mask].T.tolist()
    return sorted((h, r, t) for h, r, t in rows)


def test_files_of_names_are_those_of_pyg(root, tmp_path):
    """PyG's class for WN18RR splits at blanks too, so its words have none."""
    write(root, "WN18RR", ONE_WORD)
    graph = read("WN18RR")
    plain = pyg.WordNet18RR(str(tmp_path / "kg" / "WN18RR"))[0]
    words = ["cat", "dog", "animal", "hen", "new_york"]  # in the order in which PyG numbers them: heads, then tails
    number = pyg.WordNet18RR.edge2id
    relations = sorted({"_hypernym", "_also_see", "_has_part"})
    for stage, mask in enumerate((plain.train_mask, plain.val_mask, plain.test_mask)):
        ours = sorted((words.index(h), number[relations[r]], words.index(t)) for h, r, t in named(graph, stage))
        assert ours == of_pyg(plain, mask)
    write(root, "FB15k-237", NAMES)
    graph = read("FB15k-237")
    plain = pyg.FB15k_237(str(tmp_path / "kg" / "FB15k-237"), "test")[0]
    assert graph.num_nodes == plain.num_nodes == 5
    assert named(graph, 2) == [("dog", 0, "new york"), ("hen", 2, "animal")]
    assert torch.equal(plain.edge_index, graph.edge_index[:, graph.edge_split == 2])


@pytest.mark.parametrize(
    ("part", "text", "reason"),
    [
        ("valid", "animal\t_has_part\n", r"valid\.txt, line 1: expected 'HEAD<tab>RELATION<tab>TAIL', got 'animal"),
        ("valid", "animal\t \tcat\n", r"valid\.txt, line 1: expected 'HEAD<tab>RELATION<tab>TAIL', got 'animal"),
    ],
)
def test_other_files_are_refused(root, part, text, reason):
    write(root, "MINE", {**NAMES, part: text})
    with pytest.raises(FedGraphError, match=reason):
        read("MINE")


def test_missing_files_are_named(root):
    folder = write(root, "MINE", {"train": NAMES["train"]})
    with pytest.raises(
        FedGraphError, match=rf"put valid\.txt, test\.txt into {folder}.*or set FEDGRAPH_DATA"
    ) as caught:
        read("MINE")
    assert "only WN18RR, FB15k-237 can be downloaded" in str(caught.value)


def random_files(entities: int = 20, relations: int = 4, count: int = 240) -> dict[str, str]:
    rng = np.random.default_rng(0)
    code = rng.permutation(entities * entities * relations)[:count]
    rows = np.stack(np.unravel_index(code, (entities, entities, relations))).T
    cuts = np.split(rows, [count // 2, 3 * count // 4])
    return {
        part: "".join(f"{h}\t{r}\t{t}\n" for h, t, r in triples)
        for part, triples in zip(("train", "valid", "test"), cuts, strict=True)
    }


def config(*overrides: str) -> RunConfig:
    return compose(["dataset=kg", "dataset.name=RANDOM", "num_clients=3", "rounds=1", "model.hidden=4", *overrides])


def triples_of(graph: Graph) -> set[tuple[int, ...]]:
    ids = graph.node_id if isinstance(graph, ClientGraph) else torch.arange(graph.num_nodes)
    return set(map(tuple, torch.stack([*ids[graph.edge_index], graph.edge_y, graph.edge_split.long()]).T.tolist()))


def test_relations_are_shared_out_and_pooled_again(root):
    """Every triple is at one client, with its stage; Central has the clients' items."""
    write(root, "RANDOM", random_files())
    cfg = config("task=triples")
    assert (cfg.partition.name, cfg.split.kind) == ("relations", "public")
    whole = read("RANDOM")
    clients = make(whole, cfg)
    triples = [triples_of(client) for client in clients]
    assert sum(map(len, triples)) == 240
    assert set.union(*triples) == triples_of(whole)
    for client in clients:
        assert torch.equal(client.edge_index.unique(), torch.arange(client.num_nodes))  # no other entities
        assert torch.equal(client.ids, whole.ids[client.node_id])
    shares = torch.stack([client.edge_y.bincount(minlength=4) for client in clients]) / whole.edge_y.bincount()
    assert float(shares.max()) > 0.6  # uniform shares would be near 1/3
    pooled = pool(clients)
    assert triples_of(pooled) == triples_of(whole)
    for kind, ratio in (("public", []), ("ratio", ["split.kind=ratio"])):
        cfg = config("task=triples", *ratio)
        clients = make(whole, cfg)
        pooled = pool(clients)
        parties = Triples(cfg, pooled).parties
        for party, client in zip(parties, clients, strict=True):
            (local_party,) = Triples(cfg, client).parties
            assert pooled.node_id[party.entities].tolist() == client.node_id.tolist()
            for split, rows in local_party.items.items():
                pairs = [
                    np.stack([ids[t[0]], t[1], ids[t[2]]])
                    for ids, t in ((client.node_id.numpy(), rows), (pooled.node_id.numpy(), party.items[split]))
                ]
                assert {tuple(c) for c in pairs[0].T} == {tuple(c) for c in pairs[1].T}, (kind, split)


@pytest.mark.parametrize("split", ["public", "ratio"])
def test_the_relation_of_a_given_triple_is_a_class_of_edges(root, split):
    """As FederatedScope has it: later stages read the edges that they predict, training reads its own only."""
    write(root, "RANDOM", random_files())
    cfg = config("task=edges", f"split.kind={split}")
    clients = make(read("RANDOM"), cfg)
    pooled = Edges(cfg, pool(clients))
    for number, client in enumerate(clients):
        task = Edges(cfg, client)
        assert task.num_classes(client) == 4
        read_in_training = task.until(0).num_edges
        assert read_in_training == (int((client.edge_split == 0).sum()) if split == "public" else client.num_edges)
        for stage, mask in task.masks.items():
            triples = set(map(tuple, torch.cat([task.ends[:, mask], task.y[None, mask]]).T.tolist()))
            rows = pooled.masks[stage] & (pooled.part == number)
            assert triples == set(map(tuple, torch.cat([pooled.ends[:, rows], pooled.y[None, rows]]).T.tolist()))


@pytest.mark.parametrize(("task", "strategy"), [("triples", "fedavg"), ("edges", "central")])
def test_a_run_trains(root, tmp_path, task, strategy):
    write(root, "RANDOM", random_files())
    cfg = config(f"task={task}", f"strategy={strategy}", f"out={tmp_path / 'run'}")
    scores = run(cfg)
    assert 0 < scores["test_mrr" if task == "triples" else "test_accuracy"] <= 1
    assert load_client(cfg, 0).num_edge_classes == 4


def test_edges_without_labels_cannot_be_shared_out(root):
    graph = load(compose([]).dataset)
    assert isinstance(graph, Graph)
    with pytest.raises(FedGraphError, match="partition=relations needs labels of edges, which 'demo' does not have"):
        make(graph, compose(["partition=relations"]))
