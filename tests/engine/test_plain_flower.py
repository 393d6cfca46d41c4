"""The app on nodes that Flower's own commands start: `flower-superlink`, `flower-supernode --node-config`, `flwr run`."""

import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from fedgraph_flwr.cli import main
from fedgraph_flwr.engine.flower import free_port, tool
from tests.engine.fleet import NAME, ROOT, Fleet, finished
from tests.support import assert_same_arrays, wait_for

OVERRIDES = ["rounds=2", "checkpoint_every=1"]


class PlainFleet(Fleet):
    """A SuperLink without TLS and SuperNodes without keys and policy, as in Flower's own tutorials."""

    def make_keys(self, *args: str) -> None:
        """There are none."""

    def connect(self, home: Path, lines: str) -> None:
        super().connect(home, f'address = "{self.host}:{self.port}"\ninsecure = true')

    def start_superlink(self) -> None:
        args = [
            "--insecure",
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--disable-runtime-dependency-installation",
        ]
        self._spawn("superlink", [*self.superlink(), *args])
        wait_for(self._answers, "the SuperLink to answer")

    def start_node(self, node: int, *options: str, **more: str) -> None:
        config = f'graph="{self.files[node]}" state="{self.folder / f"state_{node}"}"'
        args = ["--insecure", "--superlink", f"{self.host}:{self.port}", "--port", str(free_port())]
        self._spawn(f"node_{node}", [tool("flower-supernode"), *args, "--node-config", config])

    def _answers(self) -> bool:
        with suppress(OSError):
            return urllib.request.urlopen(f"http://{self.host}:{self.port}/health", timeout=2).status == 200
        return False


@pytest.mark.fleet
@pytest.mark.faults
def test_flower_s_own_commands_give_the_parameters_of_the_inline_engine(tmp_path):
    """With the package's defaults: the demo, its model, and the policy of a node without a file."""
    assert main(["partition", "num_clients=2", "--out", str(tmp_path / "graphs")]) == 0
    words = [f"graph={tmp_path / 'graphs'}", f"out={tmp_path / 'inline'}", "--quiet", "--no-report"]
    assert main(["run", "num_clients=2", *OVERRIDES, *words]) == 0
    fleet = PlainFleet(tmp_path, tmp_path / "graphs")
    out = tmp_path / "flower"
    try:
        fleet.start_superlink()
        for node in range(2):
            fleet.start_node(node)
        words = " ".join([*OVERRIDES, f"out={out}"])
        printed = fleet.flwr("run", str(ROOT), NAME, "--stream", "--run-config", f'num-clients=2 overrides="{words}"')
    finally:
        fleet.stop()
    assert "ServerApp raised" not in printed
    assert_same_arrays(finished(out).arrays, finished(tmp_path / "inline").arrays)
