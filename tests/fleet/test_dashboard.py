"""The dashboard, the scrape file and the rules of alerts, in a real Prometheus that reads the pages of a server and of a node."""

import contextlib
import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from fedgraph_flwr.cli import main
from fedgraph_flwr.cli.node import Node, ServerAddress
from fedgraph_flwr.cli.server import Health, Parties
from fedgraph_flwr.engine.grid import run_identity
from fedgraph_flwr.fleet import audit_chain, metrics
from fedgraph_flwr.fleet.monitor import monitor
from fedgraph_flwr.fleet.processes import free_port
from fedgraph_flwr.fleet.status import RunStatus
from fedgraph_flwr.secure.audit_numbers import AuditNumbers
from tests.support import wait_for

FOLDER = Path(__file__).parents[2] / "docs" / "fleet"
DASHBOARD = json.loads((FOLDER / "grafana" / "dashboards" / "fedgraph.json").read_text())

PANEL_TYPES = {"stat", "timeseries", "bargauge"}
"""Kinds of panels that Grafana has without a plug-in."""


def test_the_dashboard_has_the_structure_that_grafana_imports():
    """Sources are objects (schema 36 and later), panels do not overlap within 24 columns, and the one variable is the source."""
    assert DASHBOARD["schemaVersion"] >= 36
    assert DASHBOARD["uid"]
    assert DASHBOARD.get("id") is None  # else an import replaces the dashboard of that number
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    taken = set()
    for panel in DASHBOARD["panels"]:
        assert panel["type"] in PANEL_TYPES
        assert panel["datasource"] == {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert cells
        assert not cells & taken
        assert max(x for x, _ in cells) < 24
        taken |= cells
        names = [target["refId"] for target in panel["targets"]]
        assert len({*names}) == len(names)


INFOS = [
    {"node": "11", "party": "bank_a", "status": "online", "online_since": "2026-11-28 08:00:00Z", "offline_since": ""},
    {"node": "22", "party": "bank_b", "status": "offline", "online_since": "", "offline_since": "2026-11-28 08:01:00Z"},
]


def exchange(folder: Path, number: int) -> None:
    """An exchange of a run with a refused and a late reply, its round, and the requests of the next."""
    with run_identity(1):
        status = RunStatus(folder, 5, strategy="fedavg", rounds=6)
        if number > 1:
            status.add_up(json.loads((folder / "status.json").read_text()))
        status.late(22)
        costs = {"seconds": 2.0, "bytes_up": 10, "bytes_down": 20}
        status.exchanged("train", number, costs, {22: "rounds=500 exceeds 200"}, {22: "refused"})
        spent = {"epsilon": 0.5, "delta": 1e-5, "budget": 2.0}
        status.took_round({"round": number, "seconds": 2.0, "privacy": spent})
        status.asked("train", number + 1, [11, 22])


@pytest.mark.slow
@pytest.mark.fleet
@pytest.mark.skipif(not shutil.which("prometheus"), reason="Prometheus is not installed: apt-get install prometheus")
def test_a_real_prometheus_answers_each_panel_and_loads_the_rules(tmp_path, monkeypatch):
    """The shipped scrape file, with the addresses of these pages: all panels have samples, and no alert's expression fails."""
    monkeypatch.setattr("fedgraph_flwr.cli.server.node_infos", lambda name: INFOS)
    monkeypatch.setattr("fedgraph_flwr.cli.server.runs", lambda name: [{"status": "pending"}])
    assert main(["fleet", "init", str(tmp_path / "keys")]) == 0
    (folder := tmp_path / "runs" / "first").mkdir(parents=True)
    exchange(folder, 1)
    health = Health("https://127.0.0.1:1", tmp_path / "keys" / "ca.crt", folder.parent)
    health.superexec = SimpleNamespace(up=True, restarts=0)
    parties = Parties("fleet", folder.parent)
    node = Node([], False, 1, ServerAddress("fleet.example.org", 9090, tmp_path / "keys" / "ca.crt"))
    (state := tmp_path / "state").mkdir()
    numbers = AuditNumbers(state / audit_chain.LOG)
    of_server = lambda: (True, metrics.exposition([*parties.metrics(True), *health.metrics(tmp_path / "keys")]))  # noqa: E731
    of_node = lambda: (True, metrics.exposition([*node.metrics(), *numbers.metrics()]))  # noqa: E731
    note_request(state)
    ports = {"fedgraph-server": free_port(), "fedgraph-node": free_port(), "prometheus": free_port()}
    write_configuration(tmp_path, ports)
    options = [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{ports['prometheus']}"]
    pages = ((ports["fedgraph-server"], of_server), (ports["fedgraph-node"], of_node))
    with contextlib.ExitStack() as stack:
        stack.callback(node.end)
        for port, page in pages:
            stack.enter_context(monitor(("127.0.0.1", port), {"/metrics": page}))
        command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yaml'}", *options]
        log = stack.enter_context((tmp_path / "prometheus.log").open("w"))
        process = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)

        def answer(expression: str) -> list:
            where = f"http://127.0.0.1:{ports['prometheus']}/api/v1/query?query={urllib.parse.quote(expression)}"
            with urllib.request.urlopen(where, timeout=10) as reply:
                return json.loads(reply.read())["data"]["result"]

        def begun() -> bool:
            with contextlib.suppress(OSError):
                return len(answer("up == 1")) == 2
            return False

        wait_for(begun, "Prometheus to read both pages", 60)
        exchange(folder, 2)
        note_request(state)
        expressions = {panel["title"]: [t["expr"] for t in panel["targets"]] for panel in DASHBOARD["panels"]}
        for title, several in expressions.items():
            for expression in several:
                wait_for(lambda expression=expression: answer(expression), f"samples of {title}: {expression}", 30)
        late = answer("increase(fedgraph_late_replies_total[1h]) > 0")
        assert [one["metric"]["party"] for one in late] == ["bank_b"]
        rules = yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
        for rule in (rule for group in rules for rule in group["rules"]):
            answer(rule["expr"])  # refuses what is no PromQL
        with urllib.request.urlopen(f"http://127.0.0.1:{ports['prometheus']}/api/v1/rules", timeout=10) as reply:
            loaded = json.loads(reply.read())["data"]["groups"]
        assert {rule["name"] for group in loaded for rule in group["rules"]} == {
            rule["alert"] for group in rules for rule in group["rules"]
        }


def note_request(state: Path) -> None:
    """Append a request with noise to a node's audit log."""
    price = {"noise_multiplier": 4.0, "sensitivity": 1.0, "releases": 1, "unit": "client", "purpose": "fraud"}
    entry = {
        "run": "5",
        "strategy": "fedavg",
        "phase": "train",
        "round": 1,
        "exchange": 0,
        "received": 9,
        "refused": "",
    }
    audit_chain.append(state, entry | {"sent": {"model": 9}, "noise": price})


def write_configuration(folder: Path, ports: dict[str, int]) -> None:
    """Write the shipped scrape file with these pages as its targets, each read twice a second."""
    settings = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())
    for job in settings["scrape_configs"]:
        job["static_configs"] = [{"targets": [f"127.0.0.1:{ports[job['job_name']]}"]}]
    shutil.copy(FOLDER / settings["rule_files"][0], folder)
    (folder / "prometheus.yaml").write_text(
        yaml.safe_dump(settings | {"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}})
    )
