"""The units, the compose file and the Dockerfile: their commands are ours, without root. No engine is needed."""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fedgraph_flwr.cli.app import _parse, main
from fedgraph_flwr.cli.node import monitor_address
from fedgraph_flwr.fleet.processes import free_port
from tests.conftest import client_graph
from tests.support import PATIENCE, wait_for

FOLDER = Path(__file__).parents[2] / "docs" / "fleet"
UNITS = sorted(FOLDER.glob("*.service"))
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
LINES = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def variables(text):
    """Variables that a unit sets."""
    return dict(word.split("=") for word in re.search(r"^Environment=(.*)$", text, re.M)[1].split())


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_there_is_and_no_root(unit):
    text = unit.read_text()
    args = shlex.split(re.search(r"^ExecStart=\S+/fedgraph-flwr (.*)$", text, re.M)[1].replace("$OPTIONS", ""))
    parsed = _parse(
        [word.replace("${SERVER}", "h:1").replace("${MONITOR}", variables(text)["MONITOR"]) for word in args]
    )
    assert monitor_address(parsed.monitor)
    assert parsed.log_format == "json"
    assert re.search(r"^User=(?!root)", text, re.M)
    assert {"Restart=always", "NoNewPrivileges=true", "ProtectSystem=strict"} <= set(text.splitlines())
    limited = {"MemoryMax=75%", "TasksMax=512", "LimitCPU=86400", "OOMPolicy=continue"} <= set(text.splitlines())
    assert limited == (unit.stem == "fedgraph-node")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_a_unit(unit, tmp_path):
    """Verified with a program that is there, in the place of ours."""
    (copy := tmp_path / unit.name).write_text(unit.read_text().replace("/opt/fedgraph/bin/fedgraph-flwr", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert unit.name not in done.stderr, done.stderr


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_runs_a_command_that_there_is_without_root_and_rights(name):
    service = COMPOSE["services"][name]
    _parse(service["command"])
    assert "user" not in service  # the image's, which is not root and owns the home folder
    assert service["cap_drop"] == ["ALL"]
    assert service["read_only"] is True
    mounted = {volume.split(":")[1] for volume in service["volumes"]}
    for word in service["command"]:
        assert not word.startswith("/") or any(word == place or word.startswith(f"{place}/") for place in mounted), word
    assert all(name == "server" or not volume.startswith("server") for volume in service["volumes"])  # nor others' keys
    assert name == "server" or (service["ulimits"]["cpu"] == 86400 and service["mem_limit"].endswith("g}"))


KEYS = {
    "service": {
        *("build", "cap_drop", "command", "depends_on", "healthcheck", "image", "init", "mem_limit", "pids_limit"),
        *("ports", "read_only", "restart", "security_opt", "tmpfs", "ulimits", "volumes"),
    },
    "build": {"context", "dockerfile"},
    "healthcheck": {"test", "interval", "timeout", "retries", "start_period"},
}
"""Keys of the Compose specification that the file uses. Docker refuses a file with any other, such as a misspelt one."""


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_has_keys_and_values_of_the_compose_specification(name):
    service = COMPOSE["services"][name]
    assert {key for key in COMPOSE if not key.startswith("x-")} == {"services", "volumes"}
    assert service.keys() <= KEYS["service"]
    assert service.get("build", {}).keys() <= KEYS["build"]
    assert service["healthcheck"].keys() <= KEYS["healthcheck"]
    assert all(re.fullmatch(r"\d+[sm]", service["healthcheck"][key]) for key in ("interval", "timeout", "start_period"))
    assert service["restart"] in ("no", "always", "on-failure", "unless-stopped")
    assert service["depends_on"].keys() <= COMPOSE["services"].keys() if name != "server" else "build" in service
    for volume in service["volumes"]:  # NAME:PATH or ./FILE:PATH:ro, relative to the project's folder
        source, target, *mode = volume.split(":")
        assert Path(target).is_absolute()
        assert mode in ([], ["ro"])
        assert source in COMPOSE["volumes"] if not source.startswith("./") else mode == ["ro"]
    images = {one["image"] for one in COMPOSE["services"].values()}
    assert images == {"fedgraph-flwr"}  # built once


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_names_the_files_that_its_commands_use(name):
    """The commands at the top of the file write, copy and read the paths of the mounts and options below."""
    service, args = COMPOSE["services"][name], _parse(COMPOSE["services"][name]["command"])
    steps = [line[1:].strip() for line in (FOLDER / "compose.yaml").read_text().splitlines() if line.startswith("#   ")]
    text = "\n".join(steps)
    (init,) = [step for step in steps if "fleet init" in step]
    made = _parse(shlex.split(init)[4:])
    port = made.listen.rpartition(":")[2]
    if name == "server":
        assert made.folder == args.folder
        assert service["ports"] == [f"{port}:{port}"]
        assert f"cat server {args.folder}/ca.crt > ca.crt" in text
        assert f"out={args.runs}/" in text  # else the run's folder would not lie where operators find it
        return
    assert args.server == f"{made.host[0]}:{port}"
    assert made.host[0] in COMPOSE["services"]  # the name by which containers reach it is in its certificate
    mounts = {target: source for source, target, *_ in (volume.split(":") for volume in service["volumes"])}
    assert mounts[str(args.ca)] == "./ca.crt"
    assert mounts[str(args.graph)] == f"./parts/client_000{name[-1]}.safetensors"
    assert "partition" in steps[0]
    assert steps[0].endswith("--out parts")
    assert f"dc run --rm --no-deps node_$i fleet join {args.key}" in text
    assert f"cat node_$i {args.key}.pub > node_$i.pub" in text
    packaged = [line for line in LINES if line.startswith("FROM python")]
    assert service["healthcheck"]["test"][1] == "python"
    assert packaged


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_keeps_what_it_writes_in_a_volume_of_its_own(name):
    """Docker gives an empty volume the owner of the image's folder, so its user can write there without rights."""
    service, home = COMPOSE["services"][name], next(line.split()[1] for line in LINES if line.startswith("WORKDIR "))
    assert f"{name}:{home}" in service["volumes"]
    assert name in COMPOSE["volumes"]
    assert not [place for place in service["tmpfs"] if place.split(":")[0] == home or place.startswith(f"{home}/")]
    assert any(f"--create-home --home-dir {home} fedgraph" in line for line in LINES)
    assert any(f"FLWR_HOME={home}/" in line for line in LINES)
    args = _parse(service["command"])
    written = [args.folder, args.runs] if name == "server" else [args.state, args.key]
    assert not any(path.is_absolute() for path in written)  # so they lie in the working directory
    test = service["healthcheck"]["test"]
    assert test[0] == "CMD"
    host, port = monitor_address(args.monitor)
    assert host == "0.0.0.0"  # in a container, loopback is the container's own
    assert f"http://127.0.0.1:{port}/ready" in test[-1]
    assert not [word for word in service.get("ports", ()) if str(port) in word]
    assert name == "server" or service["depends_on"] == {"server": {"condition": "service_healthy"}}


def test_the_image_is_built_in_two_stages_and_ends_without_root():
    stages = [i for i, line in enumerate(LINES) if line.startswith("FROM ")]
    assert len(stages) == 2
    last = LINES[stages[-1] :]
    assert [line for line in last if line.startswith("USER ")] == ["USER fedgraph"]
    assert all(
        "--no-install-recommends" in line and "rm -rf /var/lib/apt/lists" in line for line in LINES if "apt-get" in line
    )
    assert all("--no-cache-dir" in word for line in LINES for word in line.split("&&") if "pip install" in word)
    ignored = (FOLDER.parents[1] / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    assert not [line for line in ignored if re.match(r"!.*(keys|parts|state)", line)]
    for line in ignored:
        assert not line.startswith("!") or (FOLDER.parents[1] / line[1:]).exists(), line


@pytest.mark.skipif(
    not shutil.which("docker") or bool(subprocess.run(["docker", "info"], capture_output=True, check=False).returncode),
    reason="no Docker engine is at hand",
)
@pytest.mark.faults
def test_the_image_builds_and_says_its_version():
    root = FOLDER.parents[1]
    subprocess.run(
        ["docker", "build", "-q", "-f", str(FOLDER / "Dockerfile"), "-t", "fedgraph-flwr-test", str(root)], check=True
    )
    done = subprocess.run(
        ["docker", "run", "--rm", "fedgraph-flwr-test", "--version"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", done.stdout)


MONITORING = yaml.safe_load((FOLDER / "monitoring.yaml").read_text())
SCRAPED = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())


def test_prometheus_scrapes_what_compose_starts_under_the_jobs_of_the_rules():
    jobs = {job["job_name"]: job["static_configs"][0]["targets"] for job in SCRAPED["scrape_configs"]}
    expected = {"fedgraph-server": [], "fedgraph-node": []}
    for name, service in COMPOSE["services"].items():
        port = monitor_address(_parse(service["command"]).monitor)[1]
        expected["fedgraph-server" if name == "server" else "fedgraph-node"].append(f"{name}:{port}")
    assert jobs == expected
    rules = yaml.safe_load((FOLDER / SCRAPED["rule_files"][0]).read_text())
    named = {
        job
        for group in rules["groups"]
        for rule in group["rules"]
        for job in re.findall(r'job=~?"([^"]*)"', rule["expr"])
    }
    assert named
    assert all(re.fullmatch(pattern, job) for pattern in named for job in jobs)
    for service in MONITORING["services"].values():
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"])
        for volume in service["volumes"]:
            assert (FOLDER.parents[1] / volume.split(":")[0]).exists(), volume
    assert "docs/fleet/monitoring.yaml up -d" in (FOLDER / "compose.yaml").read_text()


@pytest.mark.fleet
@pytest.mark.faults
@pytest.mark.skipif(not shutil.which("nginx"), reason="nginx is not installed: apt-get install nginx")
def test_what_is_shipped_can_be_scraped(tmp_path):
    """The server of the unit and the node of the compose file, with other ports: their pages, as Prometheus reads them."""
    ports = {name: free_port() for name in ("listen", "superlink", "server", "node")}
    client_graph(0).save(tmp_path / "graph.safetensors")
    where = [f"--listen=127.0.0.2:{ports['listen']}", f"--superlink=127.0.0.1:{ports['superlink']}", "--host=127.0.0.2"]
    assert main(["fleet", "init", str(tmp_path / "keys"), *where, "--trial", "1"]) == 0
    text = (FOLDER / "fedgraph-server.service").read_text()
    command = re.search(r"^ExecStart=\S+/fedgraph-flwr (.*)$", text, re.M)[1]
    address = variables(text)["MONITOR"].replace("9464", str(ports["server"]))
    server = shlex.split(command.replace("${MONITOR}", address))
    places = {"/data/ca.crt": "keys/ca.crt", "/data/graph.safetensors": "graph.safetensors", "node": "keys/node_0"}
    places |= {"server:9090": f"127.0.0.2:{ports['listen']}", "0.0.0.0:9464": f"0.0.0.0:{ports['node']}"}
    first, *rest = COMPOSE["services"]["node_0"]["command"]
    node = [first, *(places.get(word, word) for word in rest)]
    environment = os.environ | {"FLWR_HOME": str(tmp_path / "home")}
    started = []
    try:
        # 127.0.0.2 reaches what listens on all addresses, as from outside a container, and not what listens on 127.0.0.1
        for words, page in ((server, f"127.0.0.1:{ports['server']}"), (node, f"127.0.0.2:{ports['node']}")):
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "fedgraph_flwr", *words],
                    cwd=tmp_path,
                    env=environment,
                    stdout=(log := (tmp_path / f"{words[0]}.log").open("w")),
                    stderr=log,
                )
            )
            wait_for(lambda page=page: scraped(page, "ready") == "ok\n", f"{words[0]} to be ready")
            wait_for(lambda page=page: scraped(page, "metrics"), f"the numbers of {words[0]}")
            families = {family.name for family in text_string_to_metric_families(scraped(page, "metrics"))}
            shown = {"server": "fedgraph_party_online", "node": "fedgraph_node_connected"}[words[0]]
            assert {shown, "fedgraph_memory_bytes", "fedgraph_certificate_days_left"} <= families
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(PATIENCE)
    for name in ("server", "node"):
        for line in (tmp_path / f"{name}.log").read_text().splitlines():
            assert json.loads(line)["time"], line


def scraped(address, page):
    """A page of a monitor; empty while there is none."""
    with contextlib.suppress(OSError):
        return urllib.request.urlopen(f"http://{address}/{page}", timeout=10).read().decode()
    return ""
