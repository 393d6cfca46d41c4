"""The bundle of `flwr build`, unpacked, on a fleet of three: their Python has what the package requires, but not the package."""

import importlib.metadata
import io
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from flwr.cli.build import build_fab_from_files
from flwr.cli.utils import collect_files

from fedgraph_flwr.cli import main
from fedgraph_flwr.data.graph import ClientGraph
from tests.engine.fleet import COMMAND, NAME, ROOT, Fleet
from tests.party.linked_banks import BANKS, banks
from tests.support import assert_same_arrays

OURS = ("fedgraph_flwr", "fedgraph_baselines", "clients", "strategies")


class UnpackedFleet(Fleet):
    """A fleet whose processes run in the unpacked bundle, by a Python of their own.

    Args:
        folder: as of `Fleet`; the bundle, the Python and links to its packages go here, too.
        graphs: as of `Fleet`.
    """

    def __init__(self, folder: Path, graphs: Path):
        self.app, self.python = folder / "app", folder / "python" / "bin" / "python"
        content, _ = build_fab_from_files(collect_files(ROOT))
        zipfile.ZipFile(io.BytesIO(content)).extractall(self.app)
        venv.create(folder / "python", symlinks=True)
        (packages := folder / "packages").mkdir()
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not path.name.startswith(OURS) and path.suffix != ".pth":  # which leads to an editable installation
                (packages / path.name).symlink_to(path)
        for tool in importlib.metadata.distribution("flwr").entry_points:
            script = self.python.with_name(tool.name)
            script.write_text(f"#!{self.python}\nfrom {tool.module} import {tool.attr}\n{tool.attr}()\n")
            script.chmod(0o755)
        super().__init__(folder, graphs)
        self.environment["PATH"] = f"{self.python.parent}:{self.environment['PATH']}"
        self.environment["PYTHONPATH"] = str(packages)

    def _spawn(self, name: str, command: list[str], cwd: Path = ROOT) -> "subprocess.Popen[bytes]":
        program = self.python if command[0] == sys.executable else self.python.with_name(Path(command[0]).name)
        return super()._spawn(name, [str(program), *command[1:]], self.app)


@pytest.mark.fleet
@pytest.mark.slow
def test_an_unpacked_bundle_links_and_trains_networks_and_trees_to_the_bits_of_the_package(tmp_path, run):
    graphs, tables = tmp_path / "graphs", banks(tmp_path, accounts=40)
    for client, bank in enumerate(BANKS):
        tables.client(bank).save(graphs / f"client_{client:04d}.safetensors")
    fleet = UnpackedFleet(tmp_path, graphs)
    try:
        absent = [str(fleet.python), "-c", "import fedgraph_flwr"]
        answer = subprocess.run(
            absent, env=fleet.environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert answer.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'fedgraph_flwr'"
        fleet.start_superlink()
        fleet.register(0, 1, 2)
        (policy := tmp_path / "policy.yaml").write_text("min_nodes: 0\nlink: {match: [payments], hours: 0}\n")
        for node in range(3):
            fleet.start_node(node, policy=policy)
        for overrides in (["strategy=fedavg"], ["strategy=boosting", "strategy.min_data_in_leaf=1"]):
            unpacked = fleet.run(tmp_path / overrides[0], "rounds=1", *overrides)
            expected = run(f"graph={graphs}", "rounds=1", "num_clients=3", *overrides)
            assert_same_arrays(unpacked.arrays, expected.arrays)
        link = [*COMMAND, "link", f"engine={NAME}", "num_clients=3", f"out={tmp_path / 'link'}"]
        fleet.wait(fleet._spawn("link", link))
    finally:
        fleet.stop()
    assert main(["link", "--simulate", *map(str, fleet.files), "--out", str(tmp_path / "linked")]) == 0
    for file in fleet.files:
        linked, expected = (
            ClientGraph.load(file.with_name(f"linked_{file.name}")),
            ClientGraph.load(tmp_path / "linked" / file.name),
        )
        assert expected.cut_out.size(1) > 0
        for field in fields(expected):
            if isinstance(tensor := getattr(expected, field.name), torch.Tensor):
                assert torch.equal(getattr(linked, field.name), tensor), field.name
