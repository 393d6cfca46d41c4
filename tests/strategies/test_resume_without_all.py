"""A run that is cut while clients are down resumes: each client continues from the last state that it stored."""

import shutil
from collections.abc import Callable
from logging import WARNING
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedgraph_flwr.clients.state import StateFolder
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline, run_ray
from fedgraph_flwr.strategies import connection
from fedgraph_flwr.strategies.connection import ClientInfo, Connection
from tests.nodes import model_of
from tests.support import Finished, recorded_messages

WORDS = ["rounds=6", "checkpoint_every=2", "strategy=local", "model.dropout=0"]
"""All state is private: the network and its optimiser."""


@pytest.fixture
def down(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Any], None]:
    """``down(1, {3, 4})``: the node of client 1 is gone for all messages of rounds 3 and 4, or for those with a key."""
    gone: dict[int, Any] = {}
    call = InlineGrid._call

    def lossy(self: InlineGrid, message: Message) -> Message:
        config = message.content["config"]
        if {config["round"], *config.keys()} & set(gone.get(message.metadata.dst_node_id - 1, ())):
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        return call(self, message)

    monkeypatch.setattr(InlineGrid, "_call", lossy)
    return gone.__setitem__


def cut(run: Callable[..., Finished], tmp_path: Path, after: int, *overrides: str, launch: Any = run_inline) -> Path:
    """The folder of a run that is killed once the scores of a round are there."""
    graph = run("rounds=1").cfg.graph
    words = [*WORDS, f"graph={graph}", "num_clients=3", "model.hidden=8", f"out={tmp_path / 'cut'}", *overrides]

    def kill(record: dict[str, Any]) -> None:
        if record["round"] == after:
            raise SystemExit

    with pytest.raises(SystemExit):
        launch(with_folder(compose(words)), kill)
    return tmp_path / "cut"


def resumed(out: Path, *overrides: str, launch: Any = run_inline) -> Finished:
    """The same run, taken up again."""
    cfg = with_folder(compose([f"resume={out}", *overrides], out / "config.yaml"))
    return Finished(cfg, launch(cfg))


def test_a_client_that_was_down_at_the_checkpoint_resumes_from_its_last_one(run, tmp_path, down, caplog):
    down(1, {3, 4, 5})
    out = cut(run, tmp_path, 4)
    assert "the checkpoint of round 4 has an earlier state of client 1 (round 2)" in caplog.text
    down(1, ())
    resumed_run = resumed(out)
    assert [sorted(r["failed"]) for r in resumed_run.rounds] == [
        [],
        ["1 (scores)"],
        ["1 (scores)", "1 (train)"],
        ["1 (train)"],
        [],
        [],
    ]
    state, values = read_tensors(next(out.glob("state/*/client_0001/round_000006.safetensors")))
    assert values["round"] == 6
    assert state


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_it_goes_on_as_if_the_run_had_not_been_cut(run, tmp_path, monkeypatch, engine, request):
    """Client 1 fails in the round of a checkpoint, and cannot store its state either."""
    from fedgraph_flwr.clients.base import GraphClient
    from fedgraph_flwr.clients.state import StateFolder

    write = StateFolder.write_checkpoint

    def full(self: StateFolder, state: Any, server_round: int, trained: bool) -> None:
        if (self.owner["client"], server_round) == (1, 4):
            raise OSError("no space left")
        write(self, state, server_round, trained)

    def trains_from_the_start(self: GraphClient) -> float:
        if (self.graph.client, self.server_round) in ((1, 3), (1, 4)):
            raise OSError("no power")
        return train(self)

    train = GraphClient.train
    whole = run(*WORDS, "strategy.fraction=1")
    with monkeypatch.context() as patch:
        patch.setattr(StateFolder, "write_checkpoint", full)
        patch.setattr(GraphClient, "train", trains_from_the_start)
        undisturbed = run(*WORDS)
        out = cut(run, tmp_path, 4)
    assert undisturbed.rounds[-1]["clients"] != whole.rounds[-1]["clients"]
    if engine == "ray":
        request.getfixturevalue("one_ray")
    resumed_run = resumed(
        out, *(["engine=ray"] if engine == "ray" else []), launch=run_ray if engine == "ray" else run_inline
    )
    assert [r["clients"] for r in resumed_run.rounds] == [r["clients"] for r in undisturbed.rounds]


def test_a_run_resumes_while_a_client_is_down_and_takes_it_back_with_its_state(run, tmp_path, down, caplog):
    out = cut(run, tmp_path, 4)
    shutil.copytree(out, tmp_path / "copy")
    whole = resumed(tmp_path / "copy", "rounds=8", f"out={tmp_path / 'copy'}")
    down(1, {0, 4, 5})  # 0: the exchange that resumes
    with caplog.at_level(WARNING), recorded_messages(pytest.MonkeyPatch()) as messages:
        resumed_run = resumed(out, "rounds=8")
    asked = [c["config"] for d, node, c in messages if (d, node) == ("down", 2)]
    assert [c["round"] for c in asked if "resume" in c] == [0, 5, 6]
    assert [c["resume"] for c in asked if "resume" in c] == [4, 4, 4]
    assert [c["round"] for c in asked if c["phase"] == "train"] == [6, 7, 8], "it takes no part before it has its state"
    assert [sorted(r["failed"]) for r in resumed_run.rounds[3:6]] == [["1 (scores)"], ["1 (describe)"], []]
    alone = [r["clients"]["test-loss"] for r in (resumed_run.rounds[7], whole.rounds[6])]
    assert alone[0][1] == alone[1][1], "its own network has one round less"


def test_a_client_that_never_stored_its_state_begins_anew_and_is_named(run, tmp_path, down, caplog):
    down(1, {1, 2, 3})
    out = cut(run, tmp_path, 2)
    down(1, ())
    resumed_run = resumed(out)
    assert "client 1 stored no state before round 2, and begins anew" in caplog.text
    assert not resumed_run.rounds[-1]["failed"]


def test_fewer_than_min_clients_do_not_resume(run, tmp_path, down):
    out = cut(run, tmp_path, 4)
    down(1, {"resume"})
    with pytest.raises(RunFailed, match=r"2 of 3 clients restored their state of round 4.*strategy\.min_clients=3"):
        resumed(out, "strategy.min_clients=3")
    down(1, {0})
    with pytest.raises(RunFailed, match=r"2 of 3 clients registered; node 2: "):
        resumed(out, "strategy.on_failure=fail")


def test_a_resumed_run_does_not_wait_for_all_nodes(monkeypatch, caplog):
    """Two of three nodes are there: it waits for as long as a restarted node takes, and goes on."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(connection, "time", clock)
    known = {client: ClientInfo(client, 10 + client, {"client": client}) for client in range(3)}
    grid: Any = SimpleNamespace(get_node_ids=lambda: [10, 12])

    def describe(nodes: list[int]) -> tuple[list[ClientInfo], dict[int, str]]:
        return [known[node - 10] for node in nodes], {}

    members = Connection(grid, describe).wait(3, 3600.0, known, least=2)
    assert members == known
    assert connection.RETURN <= now[0] < 2 * connection.RETURN
    assert "client 1 has not joined: the run is resumed without it until it does" in caplog.text
    with pytest.raises(RunFailed, match="2 of 3 nodes have joined"):
        Connection(grid, describe).wait(3, 3600.0, known, least=3)


@pytest.mark.parametrize(
    ("stored", "asked", "latest", "restored"),
    [((4, 6), 4, 4, 4), ((4, 6), 6, 6, 6), ((4, 6), 2, 6, 4), ((4, 6), 2, 2, 2), ((2, 4), 6, 6, 6), ((), 2, 8, 2)],
)
def test_a_client_restores_its_first_state_that_no_reply_told_the_server(tmp_path, stored, asked, latest, restored):
    """Replies to two requests to store were lost, and the state that the server knows is deleted; others are not replaced."""
    folder = StateFolder(tmp_path, "run", "fedavg", 0)
    for server_round in stored:
        folder.write_checkpoint({}, server_round)
    assert folder.stored_round(asked, latest) == restored


def test_a_node_resumes_again_until_the_run_goes_on(node):
    asked = node("train.optimizer=sgd", "train.optimizer_state=reset")
    assert not isinstance(asked.request("describe", 4), str)
    for _ in range(2):
        assert not isinstance(asked.request("describe", 4, resume=3, run="a"), str)
    assert "start" not in str(asked.request("evaluate", 4, {"model": model_of(asked)}))
    assert "resumes after round 3 in a run that is in round 4" in asked.request("describe", 4, resume=3, run="a")


def test_a_client_that_is_back_before_the_last_scores_is_asked_for_them(run, tmp_path, down):
    """The run was cut after its last round, so that no round restores the client."""

    class AtFirst:
        """Gone for its first two messages, which are its description and the request to restore its state."""

        messages = 0

        def __iter__(self):
            self.messages += 1
            return iter({"resume"} if self.messages <= 2 else ())

    whole = run(*WORDS)
    out = cut(run, tmp_path, 6)
    down(1, AtFirst())
    resumed_run = resumed(out)
    assert resumed_run.rounds[-1]["failed"] == {}
    assert resumed_run.rounds[-1]["clients"] == whole.rounds[-1]["clients"]
