"""Very many clients: their files are one, each is found in it, and none is read to learn who they are."""

from pathlib import Path

import pytest
import torch

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.errors import FedGraphError
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.partition import client_files, files, load_client, num_clients, store
from tests.support import Finished, same_result

WORDS = [
    "dataset=csbm",
    "dataset.nodes_per_client=[12,30]",
    "dataset.degree=4",
    "num_clients=9",
    "model.hidden=8",
    "rounds=3",
]


@pytest.fixture
def many(monkeypatch, tmp_path):
    """Nine clients are very many."""
    monkeypatch.setattr(store, "MANY", 8)
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "root"))
    return compose(WORDS)


def same(a, b):
    for key, value in vars(a).items():
        assert torch.equal(value, getattr(b, key)) if isinstance(value, torch.Tensor) else value == getattr(b, key), key


def test_a_packed_client_is_the_client_of_its_own_file(many, tmp_path):
    folder = client_files(many)
    assert sorted(path.name for path in folder.iterdir()) == ["clients.pack", "partition.json"]
    assert num_clients(many) == len(files(folder)) == 9
    packed = [load_client(many, index) for index in range(9)]
    assert cli.main(["partition", *WORDS, "--out", str(tmp_path / "parts")]) == 0
    for client in packed:
        same(client, store.load(tmp_path / "parts" / f"client_{client.client:04d}.safetensors"))
    given = compose([f"graph={tmp_path / 'parts'}"])
    assert num_clients(given) == 9  # `check` finds them whole
    with pytest.raises(FedGraphError, match="client 9 does not exist: expected 0 to 8, as the run has 9 "):
        load_client(many, 9)


@pytest.mark.parametrize("damage", ["truncated", "missing", "manifest"])
def test_a_damaged_pack_is_made_again(many, damage):
    folder = client_files(many)
    before, pack = load_client(many, 3), folder / "clients.pack"
    match damage:
        case "truncated":
            pack.write_bytes(pack.read_bytes()[:-10])
        case "missing":
            pack.unlink()
        case "manifest":
            (folder / "partition.json").write_text("{")
    same(load_client(many, 3), before)
    assert store._whole(folder)


def test_a_changed_byte_is_found(many):
    piece = files(client_files(many))[4]
    content = bytearray(piece.whole.read_bytes())
    content[piece.start + piece.size - 1] ^= 1
    piece.whole.write_bytes(content)
    with pytest.raises(FedGraphError, match=r"client_0004.safetensors in .*clients.pack is damaged"):
        load_client(many, 4)
    assert load_client(many, 5).client == 5


def finished(folder: Path, *overrides: str) -> Finished:
    cfg = with_folder(compose([*WORDS, f"out={folder}", *overrides]))
    return Finished(cfg, run_inline(cfg))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "asks"),
    [
        ([], False),
        (["strategy.weighting=nodes"], False),
        (["strategy=fedproto"], True),  # whose clients tell more
        (["adversary.kind=sign_flip", "adversary.clients=[1]"], True),
    ],
)
def test_what_files_tell_is_what_clients_tell(many, monkeypatch, tmp_path, overrides, asks):
    packed = finished(tmp_path / "packed", *overrides)
    assert packed.summary["setup_exchanges"] == int(asks)
    monkeypatch.setattr("fedgraph_flwr.partition.outline", lambda cfg: None)
    asked = finished(tmp_path / "asked", *overrides)
    assert asked.summary["setup_exchanges"] == 1
    same_result(packed, asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "asks"),
    [
        ([], False),
        (["strategy=fedper"], True),  # the head is each client's own
        (["strategy=ditto"], True),  # so is a model beside the shared one
        (["evaluation.select=own_best_val"], True),  # nobody else knows which round was its best
        (["strategy=fedbn", "model.norm=batch"], True),
    ],
)
def test_clients_are_asked_at_the_end_where_they_have_a_model_of_their_own(
    many, monkeypatch, tmp_path, overrides, asks
):
    asked: list[bool] = []
    plain = node_clients.plain_reply
    monkeypatch.setattr(node_clients, "plain_reply", lambda *given: asked.append("keep" in given[3]) or plain(*given))
    finished(tmp_path / "run", "checkpoint_every=0", *overrides)
    assert any(asked) == asks
    assert (tmp_path / "run" / "state").exists() == asks
