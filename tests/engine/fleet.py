"""A fleet on loopback for tests: a SuperLink with TLS and SuperNode authentication, SuperNodes, and runs on them."""

import contextlib
import io
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import psutil

from fedgraph_flwr import cli
from fedgraph_flwr.config import compose
from fedgraph_flwr.engine.flower import end_group, free_port, tool
from fedgraph_flwr.fleet.run_folders import RUNS
from tests.support import PATIENCE, Finished, wait_for

ROOT = Path(__file__).parents[2]
NAME = "loopback"
COMMAND = [sys.executable, "-m", "fedgraph_flwr"]


class Fleet:
    """Processes in one folder, each the head of its own group, all ended by `stop`.

    Args:
        folder: keys, logs, FLWR_HOME and state folders go here.
        graphs: folder of client files; node i is given the i-th.
    """

    host = "127.0.0.1"

    def __init__(self, folder: Path, graphs: Path):
        self.folder, self.graphs = folder, graphs
        self.files = sorted(graphs.glob("client_*.safetensors"))
        self.port = self.superlink_port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",  # each costs the SuperLink 10 ms
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self.keys = folder / "keys"
        self.make_keys("--trial", str(len(self.files)))
        self.connect(
            folder / "home", f'address = "{self.host}:{self.port}"\nroot-certificates = "{self.keys / "ca.crt"}"'
        )

    def within(self, name: str) -> list[str]:
        """Words before the command of a process: here none, elsewhere the host that it runs on."""
        return []

    def make_keys(self, *args: str) -> None:
        """Keys, certificates and configurations as the how-to makes them."""
        with contextlib.redirect_stdout(io.StringIO()):
            assert cli.main(["fleet", "init", str(self.keys), *args]) == 0

    def connect(self, home: Path, lines: str) -> None:
        """Write Flower's configuration of the one connection."""
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n{lines}\n')

    def start(self) -> None:
        """The SuperLink, every key registered, every node."""
        self.start_superlink()
        self.register(*range(len(self.files)))
        for node in range(len(self.files)):
            self.start_node(node)

    def register(self, *nodes: int) -> None:
        """Let the SuperLink accept the keys of these nodes, by Flower's own command, once for each in one process."""
        script = f"""import sys; from flwr.cli.app import app
for key in sys.argv[1:]: app(["supernode", "register", key, "{NAME}"], standalone_mode=False)"""
        keys = [str(self.keys / f"node_{node}.pub") for node in nodes]
        _checked([*self.within("flwr"), sys.executable, "-c", script, *keys], self.environment)

    def start_superlink(self) -> None:
        """TLS, authentication and a database; returns when it answers."""
        args = ["--host", self.host, "--port", str(self.superlink_port), "--enable-supernode-auth"]
        args += ["--ssl-ca-certfile", str(self.keys / "ca.crt"), "--ssl-certfile", str(self.keys / "server.crt")]
        args += ["--ssl-keyfile", str(self.keys / "server.key"), "--disable-runtime-dependency-installation"]
        args += ["--database", str(self.folder / "superlink.db")]
        self._spawn("superlink", [*self.superlink(), *args])
        wait_for(self._answers, "the SuperLink to answer")

    def superlink(self) -> list[str]:
        """The program of the SuperLink: Flower's, so that runs write to the folders that tests name."""
        return [tool("flower-superlink")]

    def start_node(self, node: int, *options: str, **more: str) -> None:
        """Node ``node`` with its client file, a state folder and a policy for the code and small graphs of tests."""
        (policy := self.folder / "policy_of_tests.yaml").write_text(
            "modules: [tests]\nmin_nodes: 0\nsamplers: [none, neighbors, clusters, saint]\n"
        )
        settings = {
            "graph": self.files[node],
            "state": self.folder / f"state_{node}",
            "policy": policy,
            "peers": self.keys,
            "server": f"{self.host}:{self.port}",
            "key": self.keys / f"node_{node}",
        }
        settings |= more
        args = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        self._spawn(f"node_{node}", [*COMMAND, "node", *args, *options])

    def kill(self, name: str) -> None:
        """End a process and all it started, without asking."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def restart_node(self, node: int, *options: str, **more: str) -> None:
        """Start a killed node again; it tries until the SuperLink, which still waits for the old one's heartbeat, takes it."""
        before = self.log(f"node_{node}").count("SuperNode ID:")
        self.start_node(node, *options, **more)
        wait_for(lambda: self.log(f"node_{node}").count("SuperNode ID:") > before, f"node {node} to be taken again")

    def stop(self) -> None:
        """End everything, the SuperLink last."""
        for name in reversed(list(self.processes)):
            end_group(self.processes.pop(name))

    def flwr(self, *args: str, **environment: str) -> str:
        """Flower's own command; returns what it prints."""
        return _checked([*self.within("flwr"), tool("flwr"), *args], self.environment | environment)

    def begin(self, out: Path, *args: str) -> subprocess.Popen[bytes]:
        """Start ``fedgraph-flwr run`` on this fleet."""
        command = [*COMMAND, "run", "--quiet", "--no-report"]
        if any(word.startswith("resume=") for word in args):
            return self._spawn(f"resumed-{out.name}", [*command, *args])
        command += [f"engine={NAME}", f"out={out}", f"num_clients={len(self.files)}", "model.hidden=8"]
        return self._spawn(f"run-{out.name}", [*command, *args])

    def run(self, out: Path, *args: str) -> Finished:
        """Run to the end."""
        self.wait(self.begin(out, *args))
        return finished(out)

    def wait(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for the end of a process, however long: as long as it or a node logs something now and then.

        Raises:
            RuntimeError: it failed; with its log.
            TimeoutError: nothing was logged for `PATIENCE` seconds.
        """
        name = next(name for name, one in self.processes.items() if one is process)
        before, since = -1, time.monotonic()
        while process.poll() is None:
            logs = [path for path in self.folder.glob("*.log") if path.stem != "superlink"]  # which logs heartbeats
            size = sum(path.stat().st_size for path in logs)
            if size != before:
                before, since = size, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise TimeoutError(f"{name}: nothing was logged for {PATIENCE:g} s: {self.log(name)}")
            time.sleep(0.2)
        if process.returncode:
            raise RuntimeError(self.log(name))

    def log(self, name: str) -> str:
        """What a process printed so far."""
        return (self.folder / f"{name}.log").read_text()

    def process_id(self, command: str) -> int:
        """The id of a process of this fleet by its command: one that Flower started, perhaps in a session of its own."""
        home = f"FLWR_HOME={self.environment['FLWR_HOME']}"
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if command in (path / "cmdline").read_text() and home in (path / "environ").read_text():
                    return int(path.name)
        raise LookupError(f"no process of this fleet runs {command}")

    def part(self, what: str, node: int = 1) -> psutil.Process | None:
        """The ``supernode``, ``executor`` or ``client`` process of a node, if there is one now."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.processes[f"node_{node}"].pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    args, parent = process.cmdline(), process.parent()
                    forked = bool(parent and parent.cmdline() == args)
                    role = "client" if forked else args[3] if len(args) > 3 else ""
                    if role == what and process.status() != psutil.STATUS_ZOMBIE:
                        return process
        return None

    def _answers(self) -> bool:
        if not self.within("superlink"):
            with contextlib.suppress(OSError):
                context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
                urllib.request.urlopen(f"https://{self.host}:{self.superlink_port}/health", timeout=2, context=context)
                return True
            return False
        script = f"""import ssl, urllib.request as r
context = ssl.create_default_context(cafile="{self.keys / "ca.crt"}")
r.urlopen("https://{self.host}:{self.superlink_port}/health", timeout=2, context=context)"""
        command = [*self.within("superlink"), sys.executable, "-c", script]
        return not subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode

    def _spawn(self, name: str, command: list[str], cwd: Path = ROOT) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.within(name), *command],
                env=self.environment,
                cwd=cwd,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes[name] = process
        return process


class ServedFleet(Fleet):
    """A fleet whose server is `fedgraph-flwr server`, which has its own folder of runs."""

    def __init__(self, folder: Path, graphs: Path):
        super().__init__(folder, graphs)
        self.runs, self.monitor = folder / "server" / "runs", free_port()
        address = f"{self.host}:{self.port}"
        self.make_keys("--trial", str(len(self.files)), "--listen", address, "--superlink", address)

    def start_superlink(self) -> None:
        """Start the server; returns when it is ready."""
        options = ["--runs", str(self.runs), "--name", NAME, "--monitor", str(self.monitor), "--no-join"]
        self._spawn("superlink", [*COMMAND, "server", str(self.keys), *options])
        wait_for(self.ready, "the server to be ready")

    def ready(self) -> bool:
        """Return what /ready says."""
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/ready", timeout=10).close()
            return True
        return False


class GuardedFleet(Fleet):
    """A fleet as the how-to has it: nginx before the SuperLink, and nginx with a certificate on the operator's side.

    The server has its own folder of runs. Where mounting is allowed, it cannot reach `operators`, the folder of the operator.
    """

    def __init__(self, folder: Path, graphs: Path):
        super().__init__(folder, graphs)
        self.runs, self.operators = folder / "server" / "runs", folder / "operators"
        self.operators.mkdir()
        self.environment[RUNS] = str(self.runs)
        hide = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o ro none "$0" && exec "$@"', str(self.operators)]
        self.hide = hide if subprocess.run([*hide, "true"], capture_output=True, check=False).returncode == 0 else []
        self.superlink_port, self.operator_port = free_port(), free_port()
        ports = {"--listen": self.port, "--superlink": self.superlink_port, "--operator": self.operator_port}
        self.make_keys("--trial", str(len(self.files)), *(w for k, p in ports.items() for w in (k, f"127.0.0.1:{p}")))
        self.connect(folder / "home", f'address = "127.0.0.1:{self.operator_port}"\ninsecure = true')

    def superlink(self) -> list[str]:
        """The program of `fedgraph-flwr server`."""
        return [*self.hide, sys.executable, "-P", "-m", "fedgraph_flwr.cli.superlink"]

    def start_superlink(self) -> None:
        """The SuperLink, then both nginx."""
        super().start_superlink()
        for name, port in (("server", self.port), ("operator", self.operator_port)):
            self._spawn(f"nginx-{name}", ["nginx", "-e", "stderr", "-p", f"{self.keys}/", "-c", f"{name}.conf"])
            wait_for(lambda port=port: listens(port), f"the {name}'s nginx to listen")


def listens(port: int) -> bool:
    """Whether a process of this machine accepts connections to a port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def finished(out: Path) -> Finished:
    """What a run left in its folder."""
    cfg = replace(compose(base=out / "config.yaml"), out=str(out))
    return Finished(cfg, json.loads((out / "summary.json").read_text()))


def _checked(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout
