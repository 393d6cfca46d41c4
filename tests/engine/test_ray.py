"""Clients in Ray actors: the parameters of the in-process engine, whatever dies, and nothing left behind."""

import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from ray.util import list_named_actors

import fedgraph_flwr as fg
from fedgraph_flwr.config import compose
from fedgraph_flwr.data.graph import read_tensors
from fedgraph_flwr.engine import ray as engine
from fedgraph_flwr.engine.ray import RayGrid, ray_session
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.launch.prepare import with_folder
from fedgraph_flwr.launch.simulations import run_inline, run_ray
from tests.engine.actors import kill_an_actor
from tests.support import PATIENCE, Finished, assert_same_arrays, same_result, wait_for, wait_for_end

ROOT = Path(__file__).parents[2]
WORDS = [
    "dataset=csbm",
    "num_clients=5",
    "dataset.nodes_per_client=[30,50]",
    "rounds=3",
    "model.hidden=8",
    "checkpoint_every=0",
]
WIDE = ["strategy=local", "dataset.features=2000", "model.hidden=64", "rounds=5"]
"""Private state of more than a megabyte a client, which is not copied after every exchange."""

SLOW = pytest.mark.slow
pytestmark = pytest.mark.xdist_group("ray")  # one instance

Go = Callable[..., tuple[Finished, Finished]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One data root for the tests and the actors."""
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDGRAPH_DATA", str(folder / "root"))
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where nobody is: an instance of our own does not look
        yield folder


@pytest.fixture(scope="module")
def pool(data: Path) -> Iterator[Any]:
    """One Ray instance for all tests of this file."""
    with ray_session() as pool:
        yield pool


@pytest.fixture
def both(pool: Any, tmp_path: Path) -> Go:
    """``both("key=value", ...)``: the same configuration on Ray and in this process; ``on_round`` receives the rounds of Ray."""

    def go(*overrides: str, on_round: Any = None) -> tuple[Finished, Finished]:
        done, files = [], any(word.startswith("graph=") for word in overrides)
        words = [word for word in WORDS if not (files and word.startswith("dataset"))]
        for name, run in (("ray", lambda cfg: run_ray(cfg, on_round)), ("inline", run_inline)):
            cfg = with_folder(compose([*words, *overrides, f"engine={name}", f"out={tmp_path / name}"]))
            done.append(Finished(cfg, run(cfg)))
        return done[0], done[1]

    return go


def assert_same(ray: Finished, inline: Finished) -> None:
    """The same parameters, scores, losses and private state; nobody failed."""
    assert_same_arrays(ray.arrays, inline.arrays)
    for key in ("cohort", "failed", "train", "clients"):
        assert [r[key] for r in ray.rounds] == [r[key] for r in inline.rounds], key
    assert ray.summary["failures"] == {}
    assert ray.summary["bytes_by_phase"] == inline.summary["bytes_by_phase"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        ["strategy=fedavg", "strategy.fraction=0.6"],
        ["strategy=local", "evaluation.trained=true", "ray.live_clients=1"],
        ["strategy=fedstruct", "dataset.cut_degree=3", "ray.live_clients=1"],  # rows fill, so that they are dense
        ["strategy=central"],
        ["strategy=fedspa", "ray.live_clients=2", "ray.actors=1"],
        # masks are new each time, the sum is not
        ["strategy=fedomd", "strategy.cmd_range=unit", "privacy.secagg=true", "ray.live_clients=2"],
    ],
    ids=lambda overrides: "-".join(word.partition("=")[2] for word in overrides),
)
def test_ray_gives_the_parameters_of_the_inline_engine(both, overrides):
    """In addition to the contract's runs on Ray, `tests/methods/test_contract.py`."""
    assert_same(*both(*overrides))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedavg", "scaffold"])
def test_distributed_noise_gives_the_parameters_of_the_inline_engine(both, tmp_path, strategy):
    """The noise is seeded; integers add up to the same sum in any order."""
    overrides = [
        "strategy.weighting=uniform",
        "privacy.secagg=true",
        "privacy.secagg_bits=20",
        "privacy.dp=distributed",
    ]
    client = {"fedavg": "Seeded", "scaffold": "SeededScaffold"}[strategy]
    overrides += ["privacy.noise_multiplier=4", f"strategy={strategy}", f"strategy.client=tests.engine.seeded:{client}"]
    ray, inline = both(*overrides)
    assert_same(ray, inline)
    assert ray.summary["privacy"] == inline.summary["privacy"]
    assert ray.summary["privacy"]["releases"] == 3
    cfg = with_folder(compose([*WORDS, *overrides[:3], f"strategy={strategy}", f"out={tmp_path / 'still'}"]))
    still = Finished(cfg, run_inline(cfg))
    assert not np.allclose(ray.arrays["head.weight"], still.arrays["head.weight"], atol=0.1), "the noise is there"


@pytest.mark.slow
def test_edge_features_give_the_parameters_of_the_inline_engine(both, client_files):
    assert_same(*both(client_files(num_edge_features=3), "num_clients=3", "model=gine"))


@SLOW
@pytest.mark.parametrize("overrides", [["strategy=fedspa", "rounds=5"], WIDE])
def test_a_killed_actor_loses_nothing(both, overrides, caplog):
    """With phases and little private state, and with so much that exchanges since its last copy are done again."""

    def kill(record):
        if record["round"] in (1, 3):
            kill_an_actor()

    assert_same(*both(*overrides, on_round=kill))
    assert caplog.text.count("died, restarting it") == 2


@pytest.mark.slow
def test_large_private_state_is_copied_only_now_and_then(both, monkeypatch):
    kept = []
    receive = RayGrid._receive
    monkeypatch.setattr(
        RayGrid, "_receive", lambda self: (receive(self), kept.append([len(s.since) for s in self.shares]))
    )
    both(*WIDE, "rounds=12", "num_clients=1", "evaluation.every=12")
    largest = max(since for shares in kept for since in shares)
    assert largest == engine.KEEP_EVERY - 1  # after which a copy is taken


@pytest.mark.slow
def test_an_interrupted_run_goes_on_on_another_engine(both, tmp_path):
    whole = both("strategy=local", "rounds=6", "checkpoint_every=2")[1]
    overrides = [*WORDS, "strategy=local", "rounds=6", f"resume={tmp_path / 'ray'}"]
    cfg = compose([*overrides, "rounds=8", f"out={tmp_path / 'ray'}", "engine=ray"])
    longer = compose([*overrides, "rounds=8", f"resume={tmp_path / 'inline'}", f"out={tmp_path / 'inline'}"])
    assert_same_arrays(Finished(cfg, run_ray(cfg)).arrays, Finished(longer, run_inline(longer)).arrays)
    assert whole.summary["rounds"] == 6


@pytest.mark.slow
def test_an_exchange_is_one_call_an_actor_and_the_model_goes_once(both, monkeypatch):
    calls, puts = [], []
    send, put = RayGrid._send, engine.ray.put
    monkeypatch.setattr(RayGrid, "_send", lambda self, share, call: (calls.append(call), send(self, share, call)))
    monkeypatch.setattr(engine.ray, "put", lambda shared: puts.append(len(pickle.dumps(shared))) or put(shared))
    both("strategy=fedavg", "rounds=2", "model.hidden=500")
    assert len([name for name in list_named_actors() if name.startswith(f"fedgraph-{os.getpid()}-")]) >= 2
    model = 500 * (64 + 1) * 4
    assert len(calls) == 2 * len(puts) == 2 * 5  # describe, two rounds, the last scores, what is kept; two actors
    assert [size > model for size in puts] == [False, True, True, True, False]
    assert max(len(pickle.dumps(call.letters)) for call in calls) < 2000


@pytest.mark.slow
def test_a_client_that_raises_fails_alone(both):
    ray, inline = both("strategy.client=tests.engine.misbehaving:Raising", "strategy.min_clients=1")
    assert ray.summary["failures"] == inline.summary["failures"]
    assert len(ray.summary["failures"]) == 1


@pytest.mark.slow
def test_an_actor_that_dies_of_every_attempt_ends_the_run_with_a_sentence(pool, tmp_path):
    cfg = with_folder(
        compose([*WORDS, "strategy.client=tests.engine.misbehaving:Dying", f"out={tmp_path}", "engine=ray"])
    )
    with pytest.raises(RunFailed, match=r"Ray actor of clients 1, 3, \.\.\. of 5 died 3 times in the same exchange \("):
        run_ray(cfg)
    assert json.loads((tmp_path / "failure.json").read_text())["exit_code"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "error", "sentence"),
    [
        (
            ["client_cpus=1000"],
            RunFailed,
            "no machine has enough resources for client_cpus=1000 and client_gpus=0: lower them; Ray has",
        ),
        (["device=cuda"], FedGraphError, "device=cuda, but this node has no GPU"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(pool, tmp_path, overrides, error, sentence):
    with pytest.raises(error, match=sentence):
        run_ray(with_folder(compose([*WORDS, *overrides, f"out={tmp_path}", "engine=ray"])))


@pytest.mark.parametrize(("overrides", "told"), [([], True), (["client_gpus=0.5"], False), (["device=cpu"], False)])
def test_a_gpu_that_no_client_gets_is_told(monkeypatch, caplog, overrides, told):
    pool = object.__new__(engine.Pool)
    pool.idle = {}
    monkeypatch.setattr(
        engine.ray, "nodes", lambda: [{"NodeID": "a", "Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}}]
    )
    monkeypatch.setattr(pool, "_wait_up", lambda: None)
    monkeypatch.setattr(pool, "new", lambda cfg: None)
    assert len(pool.take(compose(["engine=ray", *overrides]), 8)) == 2
    assert ("clients get none of Ray's 1 GPUs" in caplog.text) == told


@pytest.mark.parametrize("address", ["http://here", "here", "here:there"])
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(FedGraphError, match=f"ray.address must be auto, HOST:PORT or empty, got '{address}'"):
        compose([f"ray.address={address}"])


def command(out: Path, *args: str, **environment: str) -> subprocess.Popen[str]:
    """``fedgraph-flwr run`` on Ray, in a process of its own."""
    line = [
        sys.executable,
        "-m",
        "fedgraph_flwr",
        "run",
        *WORDS,
        "engine=ray",
        f"out={out}",
        *args,
        "--quiet",
        "--no-report",
    ]
    return subprocess.Popen(line, cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    "stop", [pytest.param(signal.SIGTERM, marks=SLOW), pytest.param(signal.SIGINT, marks=pytest.mark.faults)]
)
def test_a_run_that_is_told_to_stop_ends_with_all_that_it_started(data, tmp_path, stop):
    process = command(tmp_path, "strategy=local", "rounds=4000", "checkpoint_every=5")
    wait_for((tmp_path / "checkpoint.safetensors").is_file, "a checkpoint")
    started = psutil.Process(process.pid).children(recursive=True)
    assert {"raylet", "gcs_server"} <= {p.name() for p in started}
    process.send_signal(stop)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert f"resume={tmp_path}" in err
    wait_for_end(started)


@pytest.mark.faults
def test_a_killed_run_leaves_no_clients_behind(data, tmp_path):
    process = command(tmp_path, "rounds=4000", "checkpoint_every=5")
    wait_for((tmp_path / "checkpoint.safetensors").is_file, "a checkpoint")
    started = psutil.Process(process.pid).children(recursive=True)
    large = [p for p in started if p.memory_info().rss > 150e6]  # Ray's small helpers take half a minute to notice
    process.kill()
    process.communicate()
    assert len(large) >= 2
    wait_for_end(large)


@pytest.mark.slow
def test_a_cluster_of_two_machines_gives_the_same_parameters_after_it_lost_one(data, tmp_path, monkeypatch):
    """Whose data folder is another than the server's, and stays empty: an actor is sent the files of its own clients.

    The run ends at once with a message, and its continuation on the machine that is left ends like a run in this process.
    """
    from ray.cluster_utils import Cluster

    root, elsewhere, out = os.environ["FEDGRAPH_DATA"], tmp_path / "elsewhere", tmp_path / "ray"
    monkeypatch.setenv("FEDGRAPH_DATA", str(elsewhere))
    machine: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=machine)
    try:
        second = cluster.add_node(**machine)
        overrides = ["strategy=local", f"ray.address={cluster.address}", "client_cpus=1", "checkpoint_every=2"]
        process = command(out, *overrides, "rounds=4000", FEDGRAPH_DATA=root)
        wait_for((out / "checkpoint.safetensors").is_file, "a checkpoint")
        cluster.remove_node(second, allow_graceful=False)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1, err
        lost = r"error: the Ray cluster lost \S+ \([0-9.]+\), and its other machines have room for 1 of 2 processes"
        assert re.search(lost, err), err
        assert err.endswith(f": to continue on what is left, run: fedgraph-flwr run resume={out} [run-failed]\n")
        rounds = read_tensors(out / "checkpoint.safetensors")[1]["round"] + 2
        process = command(out, *overrides, f"rounds={rounds}", f"resume={out}", FEDGRAPH_DATA=root)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
        assert len(cluster.list_all_nodes()) == 1  # as it was found
    finally:
        cluster.shutdown()
    assert not elsewhere.exists()
    monkeypatch.setenv("FEDGRAPH_DATA", root)
    overrides = ["strategy=local", "checkpoint_every=2", f"rounds={rounds}"]
    cfg = with_folder(compose([*WORDS, *overrides, f"out={tmp_path / 'inline'}"]))
    inline = Finished(cfg, run_inline(cfg))
    ray = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    assert [r["clients"] for r in ray] == [r["clients"] for r in inline.rounds]


def test_a_lost_machine_ends_a_run_only_if_the_others_lack_room(monkeypatch, tmp_path):
    """And only one that the run had when it started."""
    pool, cfg = object.__new__(engine.Pool), compose(["engine=ray", f"out={tmp_path}"])
    pool.idle, nodes = {}, []
    monkeypatch.setattr(engine.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(pool, "_wait_up", lambda: None)
    monkeypatch.setattr(pool, "new", lambda cfg: None)
    for name, alive in {"a": True, "b": True, "c": True, "gone": False}.items():
        about = {"NodeManagerHostname": f"machine-{name}", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 2.0}}
        nodes.append({"NodeID": name, "Alive": alive, **about})
    pool.take(cfg, 6)
    pool.check_machines(cfg, 6)
    nodes[1]["Alive"] = False
    pool.check_machines(cfg, 4)
    message = r"lost machine-b \(10\.0\.0\.1\), and its other machines have room for 4 of 5 .*: no checkpoint was saved"
    with pytest.raises(RunFailed, match=message):
        pool.check_machines(cfg, 5)


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_one_sentence(data, tmp_path):
    process = command(tmp_path, "ray.address=127.0.0.1:1")
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    refused = "ray.address=127.0.0.1:1 could not be reached ([Errno 111] Connection refused): check `ray status`"
    assert err == f"error: {refused} [run-failed]\n"


@pytest.mark.faults
def test_a_cluster_that_never_answers_is_one_sentence(data, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"ray.address=127.0.0.1:{silent.getsockname()[1]}"
        script = "import sys; from fedgraph_flwr import cli; from fedgraph_flwr.engine import ray"
        script += "; ray.PATIENCE = 3.0; sys.exit(cli.main())"
        line = [sys.executable, "-c", script, "run", *WORDS, "engine=ray", f"out={tmp_path}", address]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1] == f"error: {address} did not respond within 3 s: check `ray status` [run-failed]"
    )


@pytest.mark.slow
def test_runs_of_python_share_a_session(pool, tmp_path):
    keys = {"num_clients": 2, "dataset.nodes_per_client": [30, 50], "rounds": 2, "progress": False}
    with fg.ray_session():  # within the tests' own: theirs
        done = fg.run(**keys, engine="ray", out=tmp_path / "ray")
    here = fg.run(**keys, out=tmp_path / "inline")
    assert_same_arrays(*(Finished(run.config, run.summary).arrays for run in (done, here)))


@pytest.mark.faults
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_loses_no_checkpoint(both, tmp_path):
    """Full from round 3 on, for the server and for clients that file their state; with room again the run goes on."""
    overrides = ["strategy=local", "rounds=8", "checkpoint_every=2"]
    disk = tmp_path / "disk"
    disk.mkdir()
    whole = both(*overrides)[1]
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk)], check=False).returncode:
        pytest.skip("may not mount")

    def fill(record):
        if record["round"] == 3:
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
                while file.write(bytes(512)):
                    pass

    try:
        line = [*WORDS, *overrides, "engine=ray", f"out={disk / 'run'}"]
        with pytest.raises(FedGraphError, match="No space left on device"):
            run_ray(with_folder(compose(line)), fill)
        (disk / "filler").unlink()
        cfg = compose([*line, f"resume={disk / 'run'}"])
        same_result(Finished(cfg, run_ray(cfg)), whole)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("many", [True, False])
def test_a_client_that_cannot_file_its_state_keeps_the_one_before(both, tmp_path, many):
    """Its training failed with it, so that the state of round 1 is its newest."""
    overrides = [
        "strategy.client=tests.engine.misbehaving:Unfiled",
        "strategy.shared=[]",
        "checkpoint_every=1",
        "rounds=3",
    ]
    overrides += ["strategy.fraction=0.6"] if many else []
    both(*overrides)
    for place in ("ray", "inline"):
        tensors, meta = read_tensors(tmp_path / place / "checkpoint.safetensors")
        assert meta["round"] == 3
        assert {name: int(value) for name, value in tensors.items() if "filed" in name} == {"server/filed/1": 1}
