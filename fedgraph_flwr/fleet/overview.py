"""What runs on a fleet and who is there: nodes by the names of their parties, and runs with their progress."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from fedgraph_flwr.errors import RunFailed, sanitize
from fedgraph_flwr.fleet.flower_commands import node_infos, runs
from fedgraph_flwr.fleet.run_folders import ServerRuns, Unserved


def overview(name: str) -> dict[str, Any]:
    """Return the nodes and runs of a fleet.

    Args:
        name: name of the connection.

    Raises:
        RunFailed: the server does not respond.
    """
    server = ServerRuns(name)
    try:  # without Flower's packages, whose import takes most of a second
        nodes, started = server.fleet()
    except Unserved:
        nodes, started = node_infos(name), runs(name)
    try:
        folders = server.listing({})
    except RunFailed as error:  # an older server, or one of unpatched Flower
        return {"nodes": nodes, "runs": joined(started, [], nodes), "note": f"no progress of runs is known: {error}"}
    statuses = [{**run["status"], "run": run["run"]} for run in folders if isinstance(run.get("status"), dict)]
    return {"nodes": [_with_runs(node, statuses) for node in nodes], "runs": joined(started, statuses, nodes)}


def _with_runs(node: Mapping[str, Any], statuses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a node with what runs know about it: its client, versions, last reply and last failure."""
    known = [
        (status, entry) for status in statuses if isinstance(entry := _dict(status, "nodes").get(node["node"]), dict)
    ]
    description = dict(node)
    for status, entry in sorted(known, key=lambda pair: _number(pair[1], "replied")):
        description |= {key: entry[key] for key in ("versions", "replied") if key in entry}
        if status.get("state") == "running":
            description |= {
                "run": status["run"],
                "client": entry.get("client"),
                "waited_for": node["node"] in _waiting(status),
            }
            description |= {key: status.get(key) for key in ("phase", "round")}
    failures = [(status["run"], entry["failed"]) for status, entry in known if isinstance(entry.get("failed"), dict)]
    if failures:
        run, last = max(failures, key=lambda pair: _number(pair[1], "at"))
        description["last_error"] = {"run": run, **last}
    return description


def joined(
    started: Sequence[Mapping[str, Any]], statuses: Sequence[Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return Flower's runs with the progress that their folders know; parties by name.

    Args:
        started: runs as Flower lists them.
        statuses: content of ``status.json``, with ``run``, the folder's name.
        nodes: see `node_infos`.
    """
    names = {node["node"]: node["party"] or node["node"] for node in nodes}
    for one in statuses:  # removed nodes, too
        known = {node: _dict(_dict(one, "nodes"), node).get("name") for node in _dict(one, "nodes")}
        names = {node: str(name) for node, name in known.items() if name} | names
    by_id = {str(status.get("run_id")): status for status in statuses}
    entries = []
    for run in started:
        entry: dict[str, Any] = {"id": str(run["run-id"]), "state": run["status"]}
        if status := by_id.get(entry["id"]):
            keys = ["run", "strategy", "phase", "round", "rounds", "rounds_done", "seconds_left", "reason", "updated"]
            keys += ["operator", "stopped_by", "started"]
            entry |= {key: status[key] for key in keys if key in status}
            running = str(run["status"]).startswith("running")
            entry["waiting"] = [names.get(str(node), str(node)) for node in _waiting(status) if running]
            entry |= {"failures": {}, "late": {}}
            for node in _dict(status, "nodes"):
                party, of_node = names.get(node, node), _dict(status["nodes"], node)
                if of_node.get("failures"):
                    counts = _dict(of_node, "failures").values()
                    entry["failures"][party] = sum(n for n in counts if isinstance(n, int))
                if isinstance(of_node.get("late"), int):
                    entry["late"][party] = of_node["late"]
        entries.append(entry)
    return entries


def lines(content: Mapping[str, Any], now: float | None = None) -> list[str]:
    """Return an overview as text.

    Args:
        content: see `overview`.
        now: seconds since 1970; default: now.
    """
    now = time.time() if now is None else now
    nodes, started = content["nodes"], content["runs"]
    online = sum(node["status"] == "online" for node in nodes)
    text = [f"{len(nodes)} admitted nodes, {online} online", *(f"  {_node_line(node, now)}" for node in nodes)]
    counts: dict[str, int] = {}
    for run in started:
        counts[run["state"]] = counts.get(run["state"], 0) + 1
    counted = ", ".join(f"{number} {state}" for state, number in counts.items())
    text += [f"{len(started)} run{'s' * (len(started) != 1)}{f': {counted}' if counted else ''}"]
    text += [
        f"  {_run_line(run)}"
        for run in started
        if "run" in run and (run["state"] != "finished:completed" or run["failures"])
    ]
    return [*text, content["note"]] if "note" in content else text


def _node_line(node: Mapping[str, Any], now: float) -> str:
    words = [f"{sanitize(node['party'] or 'node', 60)} ({node['node']}): {_connected(node)}"]
    if versions := _dict(node, "versions"):
        old = " before its restart" if _restarted(node) else ""
        words.append(f"version {sanitize(versions.get('fedgraph-flwr', '?'), 40)}{old}")
    if replied := _number(node, "replied"):
        words.append(f"replied {_ago(now - replied)}")
    if node.get("run"):
        waited = ", which waits for it" if node["waited_for"] else ""
        words.append(f"in {_place(node)}{waited}")
    if failed := _dict(node, "last_error"):
        ago, why = _ago(now - _number(failed, "at")), sanitize(failed.get("reason"), 200)
        words.append(f"last error {ago} ({_place(failed)}): {why}")
    return ", ".join(words)


def _restarted(node: Mapping[str, Any]) -> bool:
    """Return whether a node was started after its last reply: it may have another version since."""
    try:
        return datetime.fromisoformat(str(node["online_since"])).timestamp() > _number(node, "replied") + 1.0
    except ValueError:  # never online
        return False


def _place(values: Mapping[str, Any]) -> str:
    """Return a run, a round and a phase as text; a server may send anything for them."""
    run, server_round, phase = (sanitize(values.get(key), 60) for key in ("run", "round", "phase"))
    return f"{run}, round {server_round}, {phase}"


def _connected(node: Mapping[str, Any]) -> str:
    if node["status"] == "registered":
        return "never connected"
    since = node["online_since"] if node["status"] == "online" else node["offline_since"]
    return f"{node['status']}{f' since {since}' if since else ''}"


def _run_line(run: Mapping[str, Any]) -> str:
    reached, rounds = (sanitize(run.get(key), 20) for key in ("round", "rounds"))
    words = [f"{sanitize(run['run'], 60)}: {run['state']}", f"round {reached} of {rounds}"]
    for key, what in (("operator", "started"), ("stopped_by", "stopped")):
        at = f" {minute(run.get('started'))}" if key == "operator" else ""
        words += [f"{what}{at} by {sanitize(run[key], 60)}"] if run.get(key) else []
    if run["waiting"]:
        named = ", ".join(sanitize(name, 60) for name in run["waiting"][:10])
        words.append(f"{sanitize(run.get('phase'), 40)} waits for {named}")
    if (left := _number(run, "seconds_left")) and run["waiting"]:
        words.append(f"about {_duration(left)} left")
    if run["failures"]:
        words.append(f"failed replies: {_counts(run['failures'])}")
    if run["late"]:
        words.append(f"late replies: {_counts(run['late'])}")
    if run.get("reason"):
        words.append(sanitize(run["reason"], 300))
    return ", ".join(words)


def _counts(parties: Mapping[str, int]) -> str:
    return ", ".join(f"{sanitize(party, 60)} {number}" for party, number in parties.items())


def _ago(seconds: float) -> str:
    return f"{_duration(max(seconds, 0.0))} ago"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def minute(seconds: object) -> str:
    """Return seconds since 1970 in UTC to the minute; "?" for anything else, since a server may send it."""
    try:
        return datetime.fromtimestamp(float(str(seconds)), UTC).strftime("%Y-%m-%d %H:%MZ")
    except (ValueError, OverflowError, OSError):
        return "?"


def _dict(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    entry = values.get(key)
    return entry if isinstance(entry, dict) else {}


def _waiting(status: Mapping[str, Any]) -> list[Any]:
    entry = status.get("waiting")
    return entry if isinstance(entry, list) else []


def _number(values: Mapping[str, Any], key: str) -> float:
    entry = values.get(key)
    return float(entry) if isinstance(entry, int | float) else 0.0
