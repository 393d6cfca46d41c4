"""Every block of docs/fleet.md, in its order, as it stands but for the server's name and `pip install`: ports 9090 to 9093."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgraph_flwr.secure.policy import read_policy
from tests.engine.fleet import ROOT
from tests.support import PATIENCE, wait_for

TEXT = (ROOT / "docs" / "fleet.md").read_text()
READY = {
    "fedgraph-flwr server": "ready on",
    "fedgraph-flwr node": "SuperNode ID",
    "signed_app.py serve": "serving",
    "nginx": "",
}
"""Command that stays → what it says when it is up."""


def _sections() -> dict[str, list[str]]:
    """Heading → the lines of its blocks of commands, but those that the page says are not run (other tests run them)."""
    text = re.sub(r"^<!-- not run: .*? -->\n```bash\n.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    blocks = {
        name: re.findall(r"```bash\n(.*?)```", body, re.S) for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }
    return {name: "".join(scripts).splitlines() for name, scripts in blocks.items() if scripts}


def needs_nginx(section: str) -> bool:
    """Whether a section starts nginx, itself or by `fedgraph-flwr server`."""
    return any(line.startswith("nginx ") for line in _sections()[section])


class Terminal:
    """Where a reader types the commands of a page.

    Args:
        folder: the working directory.
    """

    def __init__(self, folder: Path):
        self.folder, self.groups, self.logs = folder, list[int](), list[Path]()
        self.typed: list[str] = []
        (folder / "bin").mkdir()
        shim = folder / "bin" / "fedgraph-flwr"
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m fedgraph_flwr "$@"\n')
        shim.chmod(0o755)
        places = [folder / "bin", Path(sys.executable).parent, os.environ["PATH"]]
        self.environment = {
            **os.environ,
            "PATH": ":".join(map(str, places)),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        self.environment |= {"CHECKOUT": str(ROOT), "FLWR_HOME": str(folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
        self.environment |= {"FEDGRAPH_DATA": str(folder / "data"), "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def type(self, line: str) -> None:
        """One line: waits for its end, or, where it stays, for what it says when it is up."""
        line = line.replace("fleet.example.org", "localhost").replace("0.0.0.0", "127.0.0.1")
        if "&" not in line:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}{self.last_lines()}"
            return
        self.logs.append(log := self.folder / f"{len(self.logs)}.log")
        with log.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"{line}\nwait"],
                cwd=self.folder,
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.groups.append(process.pid)
        ready = next(text for command, text in READY.items() if command in line)
        number = len(re.search(r"for i in ([\d ]+)", line)[1].split()) if line.startswith("for") else 1
        wait_for(lambda: log.read_text().count(ready) >= number, f"{line}: {ready}")

    def type_until(self, section: str) -> None:
        """Type the sections of the page in their order up to this one, those that were not typed yet.

        Sections that need nginx are left out where it is not installed; later ones do without what they make.
        """
        if section in self.typed:
            return
        for name, lines in _sections().items():
            if name in self.typed or (needs_nginx(name) and not shutil.which("nginx")):
                continue
            for line in lines:
                if not line.startswith("pip install"):  # tests use what is installed; .ci/run installs the wheel
                    self.type(line)
            self.typed.append(name)
            self.check(name)
            self.close()
            if name == section:
                return

    def check(self, section: str) -> None:
        """Check what a section left behind."""
        if section == "Start three nodes on one machine":
            assert (self.folder / "runs" / "first" / "summary.json").is_file()

    def last_lines(self) -> str:
        """The last lines of all that stays."""
        return "".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in self.logs)

    def close(self) -> None:
        """End all that stays, as `kill` does, and see that nothing is left."""
        for group in reversed(self.groups):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
            try:
                wait_for(lambda group=group: not _alive(group), f"the end of group {group}")
            except TimeoutError:
                os.killpg(group, signal.SIGKILL)
                raise
        self.groups.clear()


def _alive(group: int) -> bool:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, pgrp = path.read_text().rpartition(") ")[2].split()[:3]
            if int(pgrp) == group and state != "Z":
                return True
    return False


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """One working directory for the whole page."""
    one = Terminal(tmp_path_factory.mktemp("how-to"))
    try:
        yield one
    finally:
        one.close()


@pytest.mark.fleet
@pytest.mark.faults
@pytest.mark.parametrize("section", _sections())
def test_the_commands_run(terminal, section):
    """In any order of the tests: a section comes after those before it on the page."""
    if needs_nginx(section) and not shutil.which("nginx"):
        pytest.skip("nginx is not installed: apt-get install nginx")
    terminal.type_until(section)
    assert section in terminal.typed


def test_a_stranger_gets_to_three_nodes_in_five_commands():
    first = next(iter(_sections().values()))
    assert first[0].startswith("pip install")
    assert "for i in 0 1 2; do fedgraph-flwr node" in first[4]


def test_the_policy_of_the_page_is_one(tmp_path):
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.S)
    (tmp_path / "policy.yaml").write_text(block)
    assert read_policy(str(tmp_path / "policy.yaml")).min_nodes == 20


def test_no_block_is_of_a_kind_that_no_test_reads():
    kinds = re.findall(r"^```(\w*)$", TEXT, re.MULTILINE)[::2]
    assert set(kinds) <= {"bash", "yaml", ""}
