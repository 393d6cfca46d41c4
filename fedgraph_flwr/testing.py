"""Tests that every method passes, for packages that bring one: pytest collects what a subclass of `MethodContract` inherits.

class TestMine(MethodContract):
    overrides = ("strategy=mine",)
"""

import json
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from flwr.app import Error, Message

from fedgraph_flwr import partition
from fedgraph_flwr.config import CONF, RunConfig, compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.runner import run
from fedgraph_flwr.methods.declarations import declaration
from fedgraph_flwr.node import clients as node_clients
from fedgraph_flwr.wire.messages import TRAIN, from_record

SMALL = shlex.split(
    "dataset=csbm dataset.nodes_per_client=[41,67] dataset.features=5 dataset.classes=3 dataset.degree=4 dataset.cut_degree=1"
    " dataset.gap=0.2 dataset.seed=3 partition=planted num_clients=3 model.hidden=8"
)
"""Three clients joined by edges. No other size of a model or message equals a client's number of nodes or edges."""


UNIFORM = ("strategy.weighting=uniform", "privacy.noise_multiplier=1")
COMBINATIONS = {
    "secure sums": ("privacy.secagg=true",),
    "noise": ("privacy.dp=client_fixed", *UNIFORM),
    "noise of the server": ("privacy.dp=server_fixed", *UNIFORM),
    "noise of the clients": ("privacy.dp=distributed", "privacy.secagg=true", "privacy.secagg_bits=20", *UNIFORM),
    "neighbours": ("train.sampler=neighbors", "train.batch_size=8", "train.fanout=[3,2]"),
    "clusters": ("train.sampler=clusters", "train.clusters=4"),
    "saint": ("train.sampler=saint", "train.batch_size=8"),
}
"""Settings under which a method runs, or is refused by a sentence that says what to set."""


@dataclass
class Finished:
    """A finished run: its configuration and summary, and what its folder holds."""

    cfg: RunConfig
    summary: dict[str, Any]

    @property
    def out(self) -> Path:
        """The result folder."""
        return Path(self.cfg.out)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """The records of the rounds."""
        return [json.loads(line) for line in (self.out / "rounds.jsonl").read_text().splitlines()]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The final shared parameters."""
        return {name: t.numpy() for name, t in read_tensors(self.out / "model_final.safetensors")[0].items()}


def assert_same_arrays(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """Bit for bit."""
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


def same_result(a: Finished, b: Finished) -> None:
    """The same parameters, scores and losses in every round."""
    assert_same_arrays(a.arrays, b.arrays)
    for key in ("round", "cohort", "train", "metrics", "clients"):
        np.testing.assert_equal([r[key] for r in a.rounds], [r[key] for r in b.rounds])


def call_fresh(self: Any, message: Any) -> Any:
    """In the place of `InlineGrid._call`: every message meets a fresh client, restored from what its node kept."""
    context = self.contexts[message.metadata.dst_node_id]
    context.node_config.pop("live", None)
    node_clients.forget(self.run_id)
    return self.app(message, context)


class MethodContract:
    """What holds of any method on small clients in this process.

    Attributes:
        overrides: select the method, ``("strategy=mine",)``, and set the keys that it needs.
        graph: overrides for the clients' graphs.
        conf: config folder of the method, if its package is not installed.
    """

    overrides: ClassVar[Sequence[str]] = ("strategy=fedavg",)
    graph: ClassVar[Sequence[str]] = SMALL
    conf: ClassVar[Path | None] = None

    _count = count()

    def go(self, tmp_path: Path, monkeypatch: Any, *overrides: str) -> Finished:
        """Run the method with further overrides, by default three rounds."""
        monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "data"))
        if self.conf:
            monkeypatch.setenv(CONF, str(self.conf))
        fixed = ["rounds=3", "checkpoint_every=0", f"out={tmp_path / f'run{next(self._count)}'}"]
        cfg = compose([*self.graph, *fixed, *self.overrides, *overrides])
        return Finished(cfg, run(cfg))

    def test_it_runs_and_nobody_fails(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Three rounds, whose losses, scores and parameters are numbers."""
        outcome = self.go(tmp_path, monkeypatch)
        assert outcome.summary["failures"] == {}
        assert [r["round"] for r in outcome.rounds] == [1, 2, 3]
        assert all(np.isfinite(r["train"]["train_loss"]) for r in outcome.rounds)
        assert 0 <= outcome.summary["test_accuracy"] <= 1
        assert all(np.isfinite(a).all() for a in outcome.arrays.values())

    def test_training_lowers_the_loss(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Over 25 rounds, without dropout."""
        outcome = self.go(tmp_path, monkeypatch, "rounds=25", "model.dropout=0")
        losses = [r["train"]["train_loss"] for r in outcome.rounds]
        assert np.mean(losses[-5:]) < losses[0]

    def test_the_same_seed_gives_the_same_and_another_another(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Bit for bit, whatever the process drew before, and in whatever order clients answer."""
        one = self.go(tmp_path, monkeypatch)
        pull, rng = InlineGrid.pull_messages, random.Random(0)

        def shuffled(grid: InlineGrid, message_ids: Any) -> list[Any]:
            replies = list(pull(grid, message_ids))
            rng.shuffle(replies)
            return replies

        with monkeypatch.context() as patch:
            patch.setattr(InlineGrid, "pull_messages", shuffled)
            np.random.seed(7)
            same_result(self.go(tmp_path, monkeypatch), one)
        other = self.go(tmp_path, monkeypatch, "seed=1")
        assert [r["train"] for r in other.rounds] != [r["train"] for r in one.rounds]

    def test_a_client_survives_between_messages_only_in_its_state(self, tmp_path: Path, monkeypatch: Any) -> None:
        """As on a fleet, where each message meets a new process: what it must keep stands in `memory`."""
        one = self.go(tmp_path, monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(InlineGrid, "_call", call_fresh)
            same_result(self.go(tmp_path, monkeypatch), one)

    def test_a_resumed_run_ends_like_one_that_was_never_interrupted(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Resumed after round 1, on both sides."""
        half = self.go(tmp_path, monkeypatch, "rounds=1", "checkpoint_every=1")
        resumed = self.go(tmp_path, monkeypatch, f"resume={half.out}", f"out={half.out}")
        same_result(resumed, self.go(tmp_path, monkeypatch))

    def test_a_part_of_the_clients_trains_in_a_round(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Absent clients keep what is theirs."""
        outcome = self.go(tmp_path, monkeypatch, "strategy.fraction=0.67", "rounds=4")
        assert outcome.summary["failures"] == {}

    def test_it_runs_under_each_protection_and_sampler_or_is_refused(self, tmp_path: Path, monkeypatch: Any) -> None:
        """A run that starts ends, with all clients; a refusal says what to set or declare."""
        for name, words in COMBINATIONS.items():
            refusal = ""
            try:
                outcome = self.go(tmp_path, monkeypatch, "rounds=2", *words)
            except RunFailed:
                raise
            except FedGraphError as error:
                refusal = str(error)
            said = any(word in refusal for word in ("set ", "declare"))
            assert said or (not refusal and outcome.summary["failures"] == {}), f"{name}: {refusal}"

    def test_stacked_clients_train_like_single_ones(self, tmp_path: Path, monkeypatch: Any) -> None:
        """The same losses and parameters but for rounding, if the method stacks."""
        sized = "dataset.nodes_per_client=[60,67]"  # clients of one stack have similar sizes
        stacked = [self.go(tmp_path, monkeypatch, "rounds=2", "dtype=float64", sized, f"stack={n}") for n in (0, 3)]
        losses = [[r["train"]["train_loss"] for r in outcome.rounds] for outcome in stacked]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        for key, array in stacked[0].arrays.items():
            np.testing.assert_allclose(stacked[1].arrays[key], array, rtol=1e-5, atol=1e-7, err_msg=key)

    def test_actors_of_ray_train_like_this_process(self, tmp_path: Path, monkeypatch: Any) -> None:
        """The same losses and parameters but for rounding. Ray starts in another process, which imports what this one does."""
        one = self.go(tmp_path, monkeypatch, "rounds=2", "dtype=float64")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        two = Finished(replace(one.cfg, out=str(tmp_path / "ray")), {})
        words = [f"config={one.out / 'config.yaml'}", "engine=ray", "ray.actors=1", f"out={two.out}", "--no-report"]
        command = [sys.executable, "-m", "fedgraph_flwr", "run", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        losses = [[r["train"]["train_loss"] for r in outcome.rounds] for outcome in (one, two)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-7)
        for key, array in one.arrays.items():
            np.testing.assert_allclose(two.arrays[key], array, rtol=1e-7, atol=1e-9, err_msg=key)

    def test_a_run_goes_on_without_a_client_whose_training_fails(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Client 2 fails in round 2, and takes part in round 3 again."""
        call = InlineGrid._call

        def lossy(grid: InlineGrid, message: Any) -> Any:
            config = message.content["config"]
            lost = (config["phase"], config["round"], message.metadata.dst_node_id) == (TRAIN, 2, 3)
            return Message(Error(1, "lost"), reply_to=message) if lost else call(grid, message)

        with monkeypatch.context() as patch:
            patch.setattr(InlineGrid, "_call", lossy)
            outcome = self.go(tmp_path, monkeypatch)
        assert outcome.summary["failures"].keys() == {"2 (train)"}
        assert all(np.isfinite(a).all() for a in outcome.arrays.values())

    def test_no_message_holds_rows_of_a_client(self, tmp_path: Path, monkeypatch: Any) -> None:
        """No array that goes up has a client's number of nodes, edges or training nodes in its shape, unless it is declared."""
        call, seen = InlineGrid._call, []

        def spy(grid: InlineGrid, message: Any) -> Any:
            reply = call(grid, message)
            seen.append(reply)
            return reply

        with monkeypatch.context() as patch:
            patch.setattr(InlineGrid, "_call", spy)
            outcome = self.go(tmp_path, monkeypatch)
        graphs = [partition.load_client(outcome.cfg, i) for i in range(partition.num_clients(outcome.cfg))]
        sizes = {size for graph in graphs for size in _sizes(graph)}
        sized = declaration(outcome.cfg.strategy.name).sized
        records = [item for reply in seen if reply.has_content() for item in reply.content.array_records.items()]
        assert records
        for group, record in records:
            shapes = [array.shape for array in from_record(record).values()]
            assert f"up/{group}" in sized or not any(sizes & set(shape) for shape in shapes), group

    def test_it_is_another_method_at_the_limits_that_it_declares(self, tmp_path: Path, monkeypatch: Any) -> None:
        """The same losses in every round, and the same values of the parameters that both have."""
        name = self.go(tmp_path, monkeypatch, "rounds=1").cfg.strategy.name
        for limit in declaration(name).limits:
            one = self.go(tmp_path, monkeypatch, *limit.overrides, *limit.also)
            two = self.go(tmp_path, monkeypatch, *limit.equals, *limit.also)
            mine, its = ([r["train"]["train_loss"] for r in outcome.rounds] for outcome in (one, two))
            np.testing.assert_allclose(mine, its, rtol=limit.within, atol=limit.within)
            for key in one.arrays.keys() & two.arrays.keys():
                np.testing.assert_allclose(one.arrays[key], two.arrays[key], rtol=limit.within, atol=limit.within)


def _sizes(graph: Any) -> set[int]:
    """Numbers of nodes, edges and training nodes of a client, small ones aside, which other things have too."""
    edges = [graph.edge_index] if hasattr(graph, "edge_index") else list(graph.edges.values())
    return {graph.num_nodes, int(graph.train_mask.sum()), *(index.size(1) for index in edges)} - set(range(10))
