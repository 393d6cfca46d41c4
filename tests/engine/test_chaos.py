"""A server and four nodes as hosts of a network that loses and delays packets: what dies ends a run in a sentence, or not at all.

A run that ended is taken up again, with `resume=` where there is a checkpoint; in the end its parameters are those of a run that
nothing has disturbed, bit for bit.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import client_graph
from tests.engine.fleet import Fleet, finished
from tests.engine.lossy import Switch
from tests.support import Finished, assert_same_arrays, wait_for

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.faults,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="needs root and ip, for network namespaces"),
    pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="needs /dev/net/tun"),
]

SIZES = (12, 16, 20, 14)
HOSTS = [f"fg{os.getpid()}s", *(f"fg{os.getpid()}n{i}" for i in range(len(SIZES)))]  # two test runs share a machine
WORDS = ["rounds=2", "checkpoint_every=1", "strategy.on_failure=fail", "strategy.timeout=300"]
PHASES = {"describe": "query", "train": "train", "evaluate": "evaluate"}
SECONDS = 900
"""For one attempt at a run; of which a SuperLink that has lost a node or a server's process takes a minute or more."""


class Hosts(Fleet):
    """A fleet whose SuperLink and operator are one host, and each SuperNode another."""

    host = "10.88.0.1"

    def __init__(self, folder: Path, graphs: Path, switch: Switch):
        self.switch = switch
        super().__init__(folder, graphs)
        self.make_keys("--trial", str(len(SIZES)), "--host", self.host)

    def within(self, name: str) -> list[str]:
        """The namespace of a process."""
        host = HOSTS[1 + int(name.removeprefix("node_"))] if name.startswith("node_") else HOSTS[0]
        return ["ip", "netns", "exec", host]

    def asked(self, phase: str) -> int:
        """How many messages of a phase have come to the last node."""
        return self.log(f"node_{len(SIZES) - 1}").count(f"Receiving: {PHASES[phase]} message")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("chaos")
    for client, size in enumerate(SIZES):
        graph = client_graph(client, size)
        graph.num_clients, graph.num_global_nodes = len(SIZES), 1000 * len(SIZES)
        graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
    switch = Switch(HOSTS)
    fleet = Hosts(folder, folder / "graphs", switch)
    try:
        switch.start()
        fleet.start()
        yield fleet
    finally:
        fleet.stop()
        switch.stop()


def _cut(fleet: Hosts) -> None:
    fleet.switch.cut = {HOSTS[-1]}
    time.sleep(60)
    fleet.switch.cut = set()


def _kill_node(fleet: Hosts) -> None:
    fleet.kill(f"node_{len(SIZES) - 1}")


def _has_server_app(fleet: Hosts) -> bool:
    with contextlib.suppress(LookupError):
        return fleet.process_id("flwr-serverapp") > 0
    return False


def _kill_server_app(fleet: Hosts) -> None:
    wait_for(lambda: _has_server_app(fleet), "a ServerApp")
    with contextlib.suppress(LookupError, ProcessLookupError):  # it may just have ended
        os.kill(fleet.process_id("flwr-serverapp"), signal.SIGKILL)


def _kill_client(fleet: Hosts) -> None:
    node = len(SIZES) - 1
    wait_for(lambda: fleet.part("client", node) is not None, "a client's process")
    if process := fleet.part("client", node):
        process.kill()


DISTURBANCES: dict[str, Callable[[Hosts], None]] = {
    "nothing but the network": lambda fleet: None,
    "a cut of a minute": _cut,
    "a dead SuperLink": lambda fleet: fleet.kill("superlink"),
    "a dead SuperNode": _kill_node,
    "a dead ServerApp": _kill_server_app,
    "a dead ClientApp": _kill_client,
}


@pytest.mark.parametrize("what", DISTURBANCES)
def test_the_end_is_that_of_an_undisturbed_run(
    fleet: Hosts, run: Callable[..., Any], tmp_path: Path, what: str
) -> None:
    """The disturbance comes once in each phase: as nodes say who they are, as they train, as they score."""
    expected: Finished = run(f"graph={fleet.graphs}", f"num_clients={len(SIZES)}", *WORDS)
    disturbed_run = _finish(fleet, tmp_path / "out", dict.fromkeys(PHASES, DISTURBANCES[what]))
    assert_same_arrays(disturbed_run.arrays, expected.arrays)
    assert [r["clients"] for r in disturbed_run.rounds] == [r["clients"] for r in expected.rounds]
    assert fleet.switch.dropped > 0


def _finish(fleet: Hosts, out: Path, disturb: dict[str, Callable[[Hosts], None]]) -> Finished:
    """A run to its end, with what is done to it as each phase begins."""
    for attempt in range(2 * len(disturb) + 2):
        resumes = (out / "checkpoint.safetensors").is_file()
        name = f"{'resumed' if resumes else 'run'}-{out.name}"
        before = len(fleet.log(name)) if (fleet.folder / f"{name}.log").is_file() else 0
        asked = {phase: fleet.asked(phase) for phase in disturb}
        process = fleet.begin(out, *([f"resume={out}"] if resumes else WORDS))
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            for phase in [phase for phase in disturb if fleet.asked(phase) > asked[phase]]:
                disturb.pop(phase)(fleet)
            time.sleep(0.05)
        code, output = process.poll(), fleet.log(name)[before:]
        print(f"attempt {attempt}: code {code}; {output.strip()}; to come: {sorted(disturb)}")
        if code == 0:
            assert not disturb
            return finished(out)
        assert code == 1, output
        assert output.count("error: ") == 1
        assert "Traceback" not in output
        _repair(fleet)
    raise AssertionError("it never ended")


def _repair(fleet: Hosts) -> None:
    """Restart what is dead, as a supervisor would, and wait until a dead SuperLink's ServerApp has left the run's folder."""
    if "superlink" not in fleet.processes or fleet.processes["superlink"].poll() is not None:
        fleet.start_superlink()
    for node in range(len(SIZES)):
        if f"node_{node}" not in fleet.processes or fleet.processes[f"node_{node}"].poll() is not None:
            fleet.restart_node(node)
    wait_for(lambda: not _has_server_app(fleet), "the end of the ServerApp")
