"""A mask that the user gives is kept, at every entrance: what it leaves out completes the split, or the run is refused."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import fedgraph_flwr as fg
from fedgraph_flwr.cli import main
from fedgraph_flwr.data.graph import MASKS
from fedgraph_flwr.partition import load_client
from fedgraph_flwr.sklearn import FederatedClassifier

N = 40
HELD = torch.arange(N) % 5 == 0
"""The nodes that the given mask marks."""

SHORT = {"rounds": 1, "progress": False}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(seed: int = 0, **masks: torch.Tensor) -> Data:
    """A ring with chords and labels at random; x holds each node's number."""
    rng = np.random.default_rng(seed)
    ends = torch.arange(N)
    edges = torch.cat([torch.stack([ends, (ends + step) % N]) for step in (1, 7)], 1)
    y = torch.from_numpy(rng.integers(2, size=N))
    return Data(x=ends.float().view(-1, 1), edge_index=torch.cat([edges, edges.flip(0)], 1), y=y, **masks)


def typed(**masks: torch.Tensor) -> HeteroData:
    plain, made = data(), HeteroData()
    made["a"].x, made["a"].y, made["b"].x = plain.x, plain.y, plain.x
    for key, mask in masks.items():
        made["a"][key] = mask
    for relation in ("to", "from", "by"):
        made["a", relation, "b"].edge_index = plain.edge_index
    return made


def stages(run: fg.Run) -> list[set[int]]:
    """The nodes of training, validation and test over all clients, by the number in x."""
    clients = [load_client(run.config, index) for index in range(run.config.num_clients)]
    assert not any(bool((c.train_mask & c.test_mask).any()) for c in clients)
    rows = [(c.x["a"] if isinstance(c.x, dict) else c.x, c) for c in clients]
    return [{int(v) for x, c in rows for v in x[getattr(c, mask)][:, 0]} for mask in MASKS]


def check(stage_sets: list[set[int]], given: str) -> None:
    """Check that a given mask is a stage of its own, and that the others have the rest."""
    train, val, test = stage_sets
    held = set(HELD.nonzero().view(-1).tolist())
    rest = set(range(N)) - held
    if given == "test_mask":
        assert test == held
        assert train | val == rest
    else:
        assert train | val == held
        assert test == rest
    assert train
    assert val


GIVEN = [
    pytest.param({"test_mask": HELD}, "test_mask", id="test alone"),
    pytest.param({"train_mask": HELD}, "train_mask", id="train alone"),
    pytest.param({"test_mask": HELD, "train_mask": HELD & False, "val_mask": HELD & False}, "test_mask", id="no other"),
]


@pytest.mark.parametrize(("masks", "given"), GIVEN)
def test_one_mask_is_a_split(masks, given):
    check(stages(fg.run(data(**masks), num_clients=2, **SHORT)), given)
    hetero = {"model": "rgcn", "partition": "random-edges", "num_clients": 3}
    check(stages(fg.run(typed(**masks), **hetero, **SHORT)), given)
    of_each = fg.run([data(**masks), data(1, **masks)], **SHORT)
    for client in range(2):
        made = load_client(of_each.config, client)
        check([set(getattr(made, mask).nonzero().view(-1).tolist()) for mask in MASKS], given)
    parts = fg.datasets.partition(data(**masks), "random", num_clients=2)
    check([{int(v) for part in parts for v in part.x[getattr(part, mask)][:, 0]} for mask in MASKS], given)


@pytest.mark.parametrize(("masks", "given"), GIVEN)
def test_an_imported_mask_is_a_split(folder, capsys, masks, given):
    torch.save(data(**masks), "d.pt")
    assert main(["import", "--data", "d.pt", "--name", "mine"]) == 0
    other = "training" if given == "test_mask" else "test"
    assert f"; runs use it, and the other labelled nodes for {other}, unless split.kind=ratio is set" in (
        capsys.readouterr().out
    )
    check(stages(fg.run(dataset="mine", num_clients=2, **SHORT)), given)
    assert (
        main(["import", "--data", "d.pt", "--client", "0", "--classes", "0,1", "--out", "c/client_0000.safetensors"])
        == 0
    )
    check(stages(fg.run(graph="c", **SHORT)), given)


def test_a_column_with_test_alone_is_a_split(folder):
    lines = ["id,number,label,split"]
    lines += [f"{i},{i},{'ab'[i % 2]},{'test' if HELD[i] else ''}" for i in range(N)]
    (folder / "n.csv").write_text("\n".join(lines) + "\n")
    (folder / "e.csv").write_text("\n".join(["source,target", *(f"{i},{(i + 1) % N}" for i in range(N))]) + "\n")
    assert main(["import", *["--nodes", "n.csv", "--edges", "e.csv", "columns.split=split", "--name", "t"]]) == 0
    run = fg.run(dataset="t", num_clients=2, **SHORT)
    tested = sum(int(load_client(run.config, i).test_mask.sum()) for i in range(2))
    assert tested == int(HELD.sum())


def test_an_estimator_trains_on_no_node_of_the_hold_out():
    """Labels are random, so only a model that saw the test nodes finds them."""
    model = {"model": "mlp", "model__hidden": 64, "train__lr": 0.05, "train__local_steps": 20, "rounds": 4}
    given = data(test_mask=HELD)
    given.x = torch.eye(N)
    fitted = FederatedClassifier(num_clients=1, **model).fit(given)
    given.test_mask = ~HELD
    assert fitted.score(given) > 0.7
    given.test_mask = HELD
    assert fitted.score(given) < 0.9


def test_a_sweep_keeps_a_given_mask():
    sweep = fg.sweep(data(test_mask=HELD), seed=[0], num_clients=2, rounds=1, baselines=False, jobs=1)
    check(stages(sweep.runs[0]), "test_mask")


def test_graphs_of_a_list_keep_theirs():
    graphs = [
        Data(x=torch.full((3, 1), float(i)), edge_index=torch.tensor([[0], [1]]), y=torch.tensor(i % 2))
        for i in range(20)
    ]
    for graph in graphs:
        graph.test_mask = torch.tensor(bool(graph.x[0, 0] % 4 == 0))
    run = fg.run([graphs, graphs], task="graphs", **SHORT)
    made = load_client(run.config, 0)
    assert {int(v) for v in made.x[made.test_mask][:, 0]} == {0, 4, 8, 12, 16}
    assert not bool((made.x[made.train_mask][:, 0] % 4 == 0).any())
    graphs[3].test_mask = torch.ones(3, dtype=torch.bool)
    with pytest.raises(fg.FedGraphError, match=r"graphs\[0\]\[3\]: test_mask must be one boolean, as its label is"):
        fg.run([graphs, graphs], task="graphs", **SHORT)


WRONG = [
    ({"val_mask": HELD}, "marks no node in train_mask and none in test_mask"),
    ({"train_mask": HELD | True}, "marks no node in test_mask, and every labelled node is in the other masks"),
    ({"test_mask": HELD | True}, "marks no node in train_mask, and every labelled node is in the other masks"),
    ({"train_mask": HELD, "test_mask": HELD}, "must not overlap; node 0 is in two of them"),
]


@pytest.mark.parametrize(("masks", "message"), WRONG)
def test_masks_that_make_no_split_are_refused(masks, message):
    with pytest.raises(fg.FedGraphError, match=f"^data.*{message}") as error:
        fg.run(data(**masks), num_clients=2, **SHORT)
    assert "/" not in str(error.value)
    with pytest.raises(fg.FedGraphError, match=rf"^graphs\[1\].*{message}"):
        fg.run([data(test_mask=HELD), data(1, **masks)], **SHORT)
    if "overlap" in message:
        with pytest.raises(fg.FedGraphError, match=f"^data.*{message}"):
            fg.sweep(data(**masks), seed=[0], num_clients=2, rounds=1, baselines=False, jobs=1)
    assert fg.run(data(**masks), num_clients=2, **{"split.kind": "ratio"}, **SHORT).summary


def test_masks_that_overlap_are_not_imported(folder, capsys):
    torch.save(data(train_mask=HELD, test_mask=HELD), "d.pt")
    assert main(["import", "--data", "d.pt", "--name", "mine"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: d.pt: train_mask and val_mask and test_mask must not overlap; node 0"
    )


def test_a_list_in_which_one_graph_has_masks_is_refused():
    with pytest.raises(fg.FedGraphError, match=r"graphs\[1\] marks no labelled node in train_mask"):
        fg.run([data(test_mask=HELD), data(1)], **SHORT)
