"""Random faults on a fleet of five nodes on loopback: every run ends with the undisturbed bits, or names who was missing.

    python -m benchmarks.random_faults [minutes=18] [pause=15] [seed=0] [out=faults]

A server and five nodes, each behind a link that can be cut, run one run after another while faults come every few seconds: killed
tasks, executors, SuperNodes, nodes, ServerApps and SuperExecs, stopped processes (SIGSTOP), links that close or go silent. Every
stopped run is resumed. After the minutes, all faults end, and the last run must end as well. Half of the runs have
``strategy.on_failure=fail``: with all their stops and resumes, they must end with the bits of a run that nothing disturbed. The
others must have those bits if their record names no missing client.

``events.jsonl`` gets a line for each fault and each end of an attempt as it happens, with the load of the machine. The script
ends with 1 if a run broke the promise. The seed determines the faults, but not how far a run is when one comes.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

NODES = 5
ROUNDS = 8
LENGTH = (2.0, 40.0)
"""Seconds that a fault lasts which ends."""

ENDS_RUN = ("kill_serverapp", "kill_superexec")
"""Faults that end a run at once, a third as frequent as each other, so that runs make progress on a busy machine."""

WORDS = [
    f"rounds={ROUNDS}",
    "checkpoint_every=1",
    "strategy.timeout=60",
]
METHODS = ("fedavgm", "scaffold")
"""Methods whose server and whose clients have a state between rounds."""

PATIENCE = 420.0
"""Seconds for one attempt without faults, on a busy machine."""


class Log:
    """Events, as they happen."""

    def __init__(self, path: Path):
        self.path, self.began = path, time.monotonic()
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, event: str, **values: Any) -> None:
        """Write an event."""
        at = round(time.monotonic() - self.began, 1)
        with self.lock, self.path.open("a") as file:
            file.write(json.dumps({"at": at, "event": event, **values, "load": round(os.getloadavg()[0], 1)}) + "\n")
            self.counts[event] += 1
            print(f"{at:7.1f} s  {event:14} {' '.join(f'{key}={value}' for key, value in values.items())}", flush=True)


class Faults:
    """Faults on a fleet, one after another in a thread; those that last end by themselves, or with `heal`.

    Args:
        fleet: the fleet.
        links: the link of each node.
        draw: decides which, where and how long.
        pause: mean seconds between two; a busy machine needs more of them to make progress.
        log: gets each.
    """

    def __init__(self, fleet: Any, links: list[Any], draw: random.Random, pause: float, log: Log):
        self.fleet, self.links, self.draw, self.pause, self.log = fleet, links, draw, pause, log
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._play, daemon=True)
        self.stopped: list[psutil.Process] = []
        self.down: set[int] = set()
        self.ends: list[threading.Timer] = []
        self.kinds: dict[str, Callable[[int, float], str | None]] = {
            "kill_client": lambda node, _: self._kill_part("client", node),
            "kill_executor": lambda node, _: self._kill_part("executor", node),
            "kill_supernode": lambda node, _: self._kill_part("supernode", node),
            "kill_node": self._kill_node,
            "stop_supernode": lambda node, seconds: self._stop("supernode", node, seconds),
            "stop_executor": lambda node, seconds: self._stop("executor", node, seconds),
            "link_closes": lambda node, seconds: self._cut("closes", node, seconds),
            "link_silent": lambda node, seconds: self._cut("silent", node, seconds),
            "kill_serverapp": lambda *_: self._kill_command("flwr-serverapp"),
            "kill_superexec": lambda *_: self._kill_command("flower-superexec"),
        }

    def _play(self) -> None:
        while not self.over.wait(self.pause * self.draw.uniform(0.4, 1.6)):
            weights = [1 if kind in ENDS_RUN else 3 for kind in self.kinds]
            (kind,) = self.draw.choices(list(self.kinds), weights)
            node, seconds = self.draw.randrange(NODES), self.draw.uniform(*LENGTH)
            with contextlib.suppress(LookupError, psutil.Error, ProcessLookupError):  # it is not there now
                if text := self.kinds[kind](node, seconds):
                    self.log(kind, what=text)

    def heal(self) -> None:
        """End all faults; `later` calls it at the end of the minutes."""
        self.over.set()
        if self.thread.ident:
            self.thread.join()
        for timer in self.ends[1:]:  # the first is the one that heals
            timer.cancel()
        for process in self.stopped:
            with contextlib.suppress(psutil.Error):
                process.resume()
        for link in self.links:
            link.become("open")
        for node in sorted(self.down):
            self._start_node(node)

    def later(self, seconds: float, action: Callable[[], object]) -> None:
        """Call an action after some seconds."""
        self.ends.append(threading.Timer(seconds, action))
        self.ends[-1].daemon = True
        self.ends[-1].start()

    def _kill_part(self, part: str, node: int) -> str | None:
        if node in self.down or not (process := self.fleet.part(part, node)):
            return None
        process.kill()
        return f"node {node}"

    def _kill_node(self, node: int, seconds: float) -> str | None:
        if node in self.down:
            return None
        self.down.add(node)
        self.fleet.kill(f"node_{node}")
        self.later(seconds, lambda: self._start_node(node))
        return f"node {node} for {seconds:.0f} s"

    def _start_node(self, node: int) -> None:
        if node in self.down:
            self.down.discard(node)
            self.fleet.start_node(node, server=f"127.0.0.1:{self.links[node].port}")

    def _stop(self, part: str, node: int, seconds: float) -> str | None:
        if node in self.down or not (process := self.fleet.part(part, node)):
            return None
        process.suspend()
        self.stopped.append(process)

        def go_on() -> None:
            with contextlib.suppress(psutil.Error):
                process.resume()

        self.later(seconds, go_on)
        return f"node {node} for {seconds:.0f} s"

    def _cut(self, way: Any, node: int, seconds: float) -> str:
        self.links[node].become(way)
        self.later(seconds, lambda: self.links[node].become("open"))
        return f"node {node} for {seconds:.0f} s"

    def _kill_command(self, command: str) -> str:
        os.kill(number := self.fleet.process_id(command), signal.SIGKILL)
        return f"process {number}"


def main() -> int:
    """Play the faults, print a summary, and return 1 if a run broke the promise."""
    from fedgraph_flwr import cli
    from tests.conftest import client_graph
    from tests.engine.fleet import ServedFleet
    from tests.engine.links import Link

    words = dict(word.split("=", 1) for word in sys.argv[1:])
    unknown = words.keys() - {"minutes", "pause", "seed", "out"}
    if unknown:
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; expected minutes=, pause=, seed=, out=")
    minutes, seed = float(words.get("minutes", 18)), int(words.get("seed", 0))
    folder = Path(words.get("out", "faults")).absolute()
    if folder.exists():
        raise SystemExit(f"out={folder} exists: remove it, or name another")
    for client in range(NODES):
        graph = client_graph(client, 12 + 2 * client)
        graph.num_clients = NODES
        graph.save(folder / "graphs" / f"client_{client:04d}.safetensors")
    for method in METHODS:
        alone = [f"graph={folder / 'graphs'}", "model.hidden=8", f"strategy={method}", f"out={folder / method}"]
        if cli.main(["run", "--quiet", "--no-report", *alone, *WORDS]):
            raise SystemExit(f"the undisturbed run of {method} failed")
    log, draw = Log(folder / "events.jsonl"), random.Random(seed)
    fleet = ServedFleet(folder, folder / "graphs")
    links = [Link(fleet.port) for _ in range(NODES)]
    faults = Faults(fleet, links, random.Random(seed + 1), float(words.get("pause", 15)), log)
    broken: list[str] = []
    try:
        fleet.start_superlink()
        fleet.register(*range(NODES))
        for node, link in enumerate(links):
            fleet.start_node(node, server=f"127.0.0.1:{link.port}")
        log("start", minutes=minutes, seed=seed, runs=str(fleet.runs))
        faults.thread.start()
        end = time.monotonic() + 60 * minutes
        faults.later(60 * minutes, faults.heal)
        number = 0
        while time.monotonic() < end:
            method, rule = draw.choice(METHODS), draw.choice(("fail", "continue"))
            broken += one_run(fleet, f"run_{number}", method, rule, end, faults, log)
            number += 1
    finally:
        faults.heal()
        for link in links:
            link.close()
        fleet.stop()
    log(
        "end",
        runs=number,
        broken=len(broken),
        **{key: n for key, n in sorted(log.counts.items()) if key not in ("start", "end")},
    )
    for text in broken:
        print(f"BROKEN: {text}")
    return bool(broken)


def one_run(fleet: Any, name: str, method: str, rule: str, end: float, faults: Faults, log: Log) -> list[str]:
    """Run to the end, with as many resumes as it takes; return what broke the promise."""
    out = fleet.folder / "runs" / name
    new = [*WORDS, f"strategy={method}", f"strategy.on_failure={rule}"]
    args = new = [*new, *(["strategy.min_clients=2"] if rule == "continue" else [])]
    log("run", name=name, method=method, on_failure=rule)
    attempts = healthy = 0
    while True:
        attempts += 1
        calm = time.monotonic() > end
        healthy += calm
        process = fleet.begin(out, *args)
        code = wait(process, PATIENCE + max(0.0, end - time.monotonic()))
        text = fleet.log(f"{'run' if args is new else 'resumed'}-{name}")
        why = next((line for line in reversed(text.splitlines()) if line.startswith("error: ")), text[-300:])
        log("ended", name=name, code=code, attempt=attempts, why="" if code == 0 else why[:600])
        if code == 0:
            return check(fleet, out, method, rule, log)
        if code is None or "Traceback" in text or not why.startswith("error: "):
            return [f"{name}: attempt {attempts} ended with {code}: {why}"]
        if healthy > 3:
            return [f"{name}: not resumed by {healthy} attempts without faults: {why}"]
        resumable = (fleet.runs / name / "checkpoint.safetensors").is_file()
        if resumable:
            args = [f"resume={out}"]
        else:  # before round 1 ended
            shutil.rmtree(out, ignore_errors=True)
            shutil.rmtree(fleet.runs / name, ignore_errors=True)
            args = new
        if not calm:
            time.sleep(5.0)


def wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Return the exit code of a run; None, after stopping it, if it did not end."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        from fedgraph_flwr.fleet.processes import end_group

        end_group(process)
        return None


def check(fleet: Any, out: Path, method: str, rule: str, log: Log) -> list[str]:
    """Compare an ended run with the undisturbed one."""
    from safetensors.numpy import load_file

    tensors, expected = (load_file(path / "model_final.safetensors") for path in (out, fleet.folder / method))
    same = tensors.keys() == expected.keys() and all(np.array_equal(tensors[key], expected[key]) for key in expected)
    records = [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]
    named = sorted({text for record in records for text in record.get("failed", {})})
    log("checked", name=out.name, same_bits=same, named=named)
    if len(records) != ROUNDS:
        return [f"{out.name}: {len(records)} of {ROUNDS} rounds"]
    return [] if same or (named and rule == "continue") else [f"{out.name}: other bits, and no missing client is named"]


if __name__ == "__main__":
    sys.exit(main())
