"""Records of a run in its folder: one line per round, the summary, the global parameters, and checkpoints."""

import json
import os
import platform
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedgraph_flwr.config import RunConfig, to_yaml
from fedgraph_flwr.config.schema import DATA
from fedgraph_flwr.data.files import leftovers, write_bytes
from fedgraph_flwr.data.graph import write_tensors
from fedgraph_flwr.errors import system_errors
from fedgraph_flwr.evaluation import metrics
from fedgraph_flwr.evaluation.best_round import (
    MIN_ITEMS,
    MISSING,
    NO_SCORES,
    SCORED_BY,
    BestRound,
    failed_replies,
)
from fedgraph_flwr.partition.store import number_in
from fedgraph_flwr.store.checkpoint import (
    Checkpoint,
    check_descriptions,
    check_resumable,
    fingerprint,
    read_checkpoint,
)
from fedgraph_flwr.store.code import digest
from fedgraph_flwr.store.earlier import EarlierModel, earlier_model
from fedgraph_flwr.store.events import OnRound
from fedgraph_flwr.store.folder import CHECKPOINT, clear
from fedgraph_flwr.store.results import CONFIG, FAILURE, ROUNDS, SUMMARY
from fedgraph_flwr.version import installed
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.trees import Tree, as_arrays, flatten


class Recorder:
    """Recorder of a run's events, which also decides when to stop.

    Args:
        cfg: the run's configuration; nothing is written if ``cfg.out`` is empty.
        on_round: called with each finished round's record, for example by a progress bar.
        data: hashes of the files behind the clients' graphs, if available.

    Raises:
        FedGraphError: this configuration cannot resume the run in ``cfg.resume``; nothing is
            written.

    Attributes:
        nodes: node id of each client, restored for a resumed run.
    """

    def __init__(
        self, cfg: RunConfig, on_round: OnRound | None = None, data: list[str] | None = None
    ):
        self.cfg = cfg
        self.fingerprint = fingerprint(cfg, data)
        self.restored: Checkpoint | None = None
        if cfg.resume:
            self.restored = read_checkpoint(Path(cfg.resume))
            check_resumable(cfg, self.restored, data)
        self.folder = Path(cfg.out) if cfg.out else None
        self.on_round = on_round
        self.rounds: list[dict[str, Any]] = []
        self.best = BestRound()
        self.own_rounds = metrics.OwnRounds(cfg.evaluation)
        self.best_arrays: Arrays = {}
        self.best_models: dict[int, Arrays] = {}
        self.final_arrays: Arrays = {}
        self.extra: dict[str, Any] = {}
        self.described: Mapping[int, Any] = {}
        self._nodes: dict[int, float] = {}
        self.setup_record: dict[str, Any] = _blank(0, [])
        self.end_record: dict[str, Any] = _blank(0, [])
        self._open: dict[str, Any] = self.setup_record
        self._pending: dict[str, Any] | None = None
        self.nodes: dict[int, int] = self.restored.of_clients() if self.restored else {}
        # Random, and kept when the run is resumed: clients store their private state under it.
        self.run_name = self.restored.run if self.restored else secrets.token_hex(8)
        self._began = self._round_began = time.perf_counter()
        self._before = self.restored.seconds if self.restored else 0.0  # of the processes before
        if self.folder:
            if not self.restored:
                clear(self.folder)
            unknown = DATA if cfg.on_fleet and not cfg.agreement else ()  # members signed theirs
            write_bytes(self.folder / CONFIG, to_yaml(cfg, unknown).encode())

    # --- called by the strategy, in the order of a run --------------------------------------------

    def exchanged(
        self,
        phase: str,
        down: int,
        groups: Mapping[str, int],
        seconds: float,
        failures: Mapping[int, str],
        kinds: Mapping[int, str],
    ) -> None:
        """Record one exchange under its phase.

        Args:
            phase: name of the phase.
            down: bytes to clients.
            groups: bytes from clients by group of the uplink.
            seconds: duration.
            failures: reason by failed client.
            kinds: kind of each failure: ``no_reply``, ``refused``, ``invalid`` or ``error``.
        """
        zero = {
            "exchanges": 0,
            "bytes_down": 0,
            "bytes_up": 0,
            "bytes_up_by_group": Counter(),
            "seconds": 0.0,
        }
        entry = self._open["phases"].setdefault(phase, zero)
        entry["exchanges"] += 1
        entry["bytes_down"] += down
        entry["bytes_up"] += sum(groups.values())
        entry["bytes_up_by_group"].update(groups)
        entry["seconds"] += seconds
        self._open["failed"].update(
            {f"{who} ({phase})": reason for who, reason in failures.items()}
        )
        if kinds:
            of_phase = {f"{who} ({phase})": str(kind) for who, kind in kinds.items()}
            self._open["failure_kinds"] = self._open.get("failure_kinds", {}) | of_phase

    def setup_done(self) -> None:
        """Record the end of the set-up."""
        self.setup_record["seconds"] = time.perf_counter() - self._began

    def begin_round(self, server_round: int, cohort: list[int]) -> None:
        """Record the start of a round."""
        self._open = _blank(server_round, cohort)
        self._round_began = time.perf_counter()

    def scored(
        self,
        scores: dict[str, Any],
        arrays: Arrays,
        nodes: list[float] | None = None,
        models: Mapping[int, Arrays] | None = None,
    ) -> None:
        """Complete the record of the pending round with scores of the shared parameters.

        Args:
            scores: ``metrics``, ``clients``, the clients of their entries under ``scored_by``, and
                further values; ``missing`` has the clients that were to score this model and did
                not, with reasons.
            arrays: the shared parameters.
            nodes: each client's number of nodes, if means are weighted by them.
            models: personal shared parameters by client.
        """
        if self._pending is None:
            raise RuntimeError("scores without a finished round")
        record = self._pending
        self._pending = None
        record |= scores
        known = {who.partition(" ")[0] for who in record["failed"] if who.endswith("(evaluate)")}
        record["failed"] |= {
            f"{client} {NO_SCORES}": why
            for client, why in record.get(MISSING, {}).items()
            if client not in known
        }
        if self.best.take(
            record,
            metrics.watched(self.cfg.evaluation, scores["metrics"]),
            self.cfg.evaluation.min_delta,
        ):
            self.best_arrays = arrays
            # Copy: an absent client keeps the same arrays, and a checkpoint must store each array
            # once.
            self.best_models = {
                c: {n: a.copy() for n, a in model.items()} for c, model in (models or {}).items()
            }
        self.own_rounds.take(record["round"], record["clients"], record.get(SCORED_BY))
        if nodes:
            self._nodes |= dict(zip(record.get(SCORED_BY, range(len(nodes))), nodes, strict=True))
        self._write(record)

    def end_round(self, train: dict[str, Any], arrays: Arrays, **more: dict[str, Any]) -> None:
        """Record the parameters of a round; its record waits for their scores.

        A record has ``round``, ``cohort``, ``failed`` (client and phase → reason),
        ``failure_kinds`` (the kind of each, if one failed), ``seconds``, ``phases`` (exchanges,
        bytes and seconds of each), ``train`` (mean training loss), ``metrics`` (means over
        clients), ``clients`` (their scores), and ``more``: ``privacy`` (ε, δ and releases so far).
        """
        if self._pending is not None:
            self._write(self._pending)
        self._open["seconds"] = time.perf_counter() - self._round_began
        self._open |= {"train": train, **more}
        self.final_arrays = arrays
        self._pending = self._open

    @property
    def pending(self) -> bool:
        """Whether the scores of the last finished round are missing."""
        return self._pending is not None

    @property
    def scoring(self) -> dict[str, int]:
        """Values sent to clients with a request for scores of a round: its number and the best round so far."""
        return {"scored": self._pending["round"], "best": self.best.round} if self._pending else {}

    def begin_end(self) -> None:
        """Record the following events outside of any round."""
        self._open = self.end_record = _blank(0, [])

    @property
    def should_stop(self) -> bool:
        """Whether the validation score has not improved for ``evaluation.patience`` rounds, by the rule of `BestRound`."""
        patience = self.cfg.evaluation.patience
        last = next((r["round"] for r in reversed(self.rounds) if "metrics" in r), None)
        if not patience or last is None:
            return False
        if self.cfg.evaluation.select == "own_best_val":
            return self.own_rounds.all_stopped(last)
        return self.best.last - self.best.round >= patience

    def checkpoint(
        self, server_round: int, arrays: Arrays, server: Tree, descriptions: Mapping[int, Any]
    ) -> None:
        """Write all state that the server needs to resume after this round; ``descriptions`` are the clients', by index."""
        if not self.folder:
            return
        done = Checkpoint(
            round=server_round,
            run=self.run_name,
            best_round=self.best.round,
            best_score=self.best.score,
            pending=self._pending or {"round": 0},
            fingerprint=self.fingerprint,
            seconds=self._total_seconds(),
            start=self.extra.get("start", {}),
            nodes={str(client): node for client, node in self.nodes.items()},
            descriptions=_by_text(descriptions),
        )
        tree = {
            "arrays": arrays,
            "best": self.best_arrays,
            "best_models": self.best_models,
            "server": server,
        }
        self._settle()
        write_tensors(self.folder / CHECKPOINT, flatten(tree), done.values())

    def known_clients(self) -> dict[int, dict[str, Any]]:
        """Return the descriptions of the clients of the run that is resumed; none of a new run."""
        known = self.restored.descriptions if self.restored else {}
        return {
            int(client): dict(what) for client, what in known.items() if int(client) in self.nodes
        }

    def check_clients(self, descriptions: Mapping[int, Any]) -> None:
        """Store the clients' descriptions, and check that they are unchanged in a resumed run.

        Raises:
            FedGraphError: a client has another graph.
        """
        self.described = descriptions
        if self.restored:
            check_descriptions(_by_text(descriptions), self.restored, self.cfg.resume)

    def _reported(self, scored: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        """Return the sizes that each client reported in its description and with its scores."""
        sizes = {
            client: {key: value for key, value in description.items() if key.startswith("num_")}
            for client, description in sorted(self.described.items())
        }
        for record in scored:
            for split in metrics.SPLITS:
                counts = record["clients"].get(f"{split}-count", [])
                clients = record.get(SCORED_BY, list(sizes) if len(counts) == len(sizes) else [])
                for client, count in zip(clients, counts, strict=False):
                    if client in sizes:
                        sizes[client][f"num_{split}"] = int(count)
        return sizes

    def resume(self) -> tuple[int, Arrays, Tree] | None:
        """Resume the run of ``cfg.resume``: return the checkpoint's round, the shared parameters and the server's state."""
        if self.restored is None:
            return None
        checkpoint = self.restored
        self.restored = None
        self.best.restore(checkpoint.best_round, checkpoint.best_score, checkpoint.rounds)
        self.best_arrays = as_arrays(checkpoint.tree.get("best", {}))
        self.best_models = {
            int(client): values
            for client, values in as_arrays(checkpoint.tree.get("best_models", {})).items()
        }
        self._pending = checkpoint.pending if checkpoint.round else None
        self.extra |= {"start": checkpoint.start} if checkpoint.start else {}
        self.rounds = checkpoint.rounds
        for record in self.rounds:
            if "clients" in record:
                self.own_rounds.take(record["round"], record["clients"], record.get(SCORED_BY))
        if self.folder:
            write_bytes(
                self.folder / ROUNDS, "".join(json.dumps(r) + "\n" for r in self.rounds).encode()
            )
            for path in (self.folder / SUMMARY, self.folder / FAILURE, *leftovers(self.folder)):
                path.unlink(missing_ok=True)
        self.final_arrays = as_arrays(checkpoint.tree.get("arrays", {}))
        return checkpoint.round, self.final_arrays, checkpoint.tree.get("server", {})

    def earlier_model(self, key: str) -> EarlierModel:
        """Return the model of the run in ``cfg.init`` or ``cfg.evaluate``, by the key's name, for this run's clients.

        Raises:
            FedGraphError: it holds no such model, or its files had another schema.
        """
        schemas = {
            client: description.get("schema", [0]) for client, description in self.described.items()
        }
        run = Path(getattr(self.cfg, key))
        origin = earlier_model(run, key, schemas)
        if not origin.models:
            return origin
        numbers = {client: number_in(run, self.cfg, client) for client in schemas}
        models = {c: origin.models[n] for c, n in numbers.items() if n in origin.models}
        return origin._replace(models=models)

    def finish(self, models: Mapping[int, Arrays] | None = None) -> dict[str, Any]:
        """Write summary and parameters, and return the summary.

        Args:
            models: personal shared parameters by client, for methods that have them.

        Keys: ``headline`` (the reported score as ``KEY at CHOICE``), its value under that KEY, such
            as ``test_accuracy``,
        ``chance`` (its chance level), ``left_out`` (clients excluded from its mean, with reasons),
        ``scored_by`` (the clients that scored it), ``missing`` (those that were to score it and did
        not, with reasons), ``min_items`` (clients leave classes with fewer items out of their
        scores), ``strategy``, ``dataset`` (unknown for a fleet), ``clients`` (for a fleet: sizes
        reported by each), ``protocol``, ``seed``, ``rounds`` (completed), ``best_round``,
        ``metrics`` (every score and mean at ``best_val``, ``own_best_val``, ``last`` and
        ``last5``), ``seconds_per_round`` (median), ``setup_seconds``, ``total_seconds``,
        ``exchanges_per_round``, ``setup_exchanges``, ``bytes_up``, ``bytes_down`` (whole run),
        ``bytes_by_phase``, ``failures`` (client and phase → reason), ``peak_rss_mb`` (this process
        and its largest child), ``versions``, ``commit``, ``code`` (its `digest`), ``nodes`` (node
        id of each client). Optional keys: ``privacy`` (ε, δ and releases of the run), ``start``
        (run, digest and scores of the incoming model), ``attack``, ``adversary`` (success rate of a
        backdoor), ``classes`` (names, for imported graphs), and ``parties`` (their names).
        """
        if self._pending is not None:
            self._write(self._pending)
            self._pending = None
        scored = [r for r in self.rounds if "metrics" in r]
        at = self._averages(scored)
        choice = self.cfg.evaluation.select
        headline = metrics.headline(self.cfg.evaluation, "test")
        chosen = at.get(choice, {})
        every = [self.setup_record, *self.rounds, self.end_record]
        phases = [(name, entry) for record in every for name, entry in record["phases"].items()]
        last_round = self.rounds[-1] if self.rounds else self.setup_record
        behind = self._behind(scored)
        left_out = self._left_out(scored)
        summary = {
            headline: chosen.get(headline, float("nan")),
            "headline": f"{headline} at {choice}",
            "chance": chosen.get(metrics.chance_key(self.cfg.evaluation, "test"), float("nan")),
            **({"left_out": left_out} if left_out else {}),
            **behind,
            "strategy": self.cfg.strategy.name,
            "dataset": self.cfg.data_name,
            **({"clients": self._reported(scored)} if self.cfg.on_fleet else {}),
            "protocol": self.cfg.protocol,
            "seed": self.cfg.seed,
            "rounds": last_round["round"],
            "best_round": self.best.round,
            "metrics": at,
            "seconds_per_round": float(np.median([r["seconds"] for r in self.rounds]))
            if self.rounds
            else 0.0,
            "setup_seconds": self.setup_record["seconds"],
            "total_seconds": self._total_seconds(),
            "exchanges_per_round": _exchanges_per_round(self.rounds),
            "setup_exchanges": sum(e["exchanges"] for e in self.setup_record["phases"].values()),
            "bytes_up": sum(e["bytes_up"] for _, e in phases),
            "bytes_down": sum(e["bytes_down"] for _, e in phases),
            "bytes_by_phase": _by_phase(phases),
            "failures": {k: v for r in every for k, v in failed_replies(r).items()},
            "peak_rss_mb": _peak_rss_mb(),
            "versions": dict(
                installed("fedgraph-flwr", "flwr", "torch", "torch-geometric", "numpy", "ray")
            ),
            "commit": _commit(),
            "code": digest(self.cfg),
            "nodes": self.nodes,
            **self.extra,
        }
        self.summary = summary
        if self.folder:
            self._write_end(self.folder, models)
        return summary

    def _total_seconds(self) -> float:
        """Return the duration of the run so far: of this process, and of those before it up to the checkpoints."""
        return self._before + time.perf_counter() - self._began

    def _averages(self, scored: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
        """Return every score and mean at the rounds that a headline may choose."""
        if not scored:
            return {}
        last = scored[-1]["metrics"]
        scores = {key: column.tolist() for key, column in self.own_rounds.scores.items()}
        size = len(next(iter(scores.values()), ()))
        nodes = [self._nodes.get(client, np.nan) for client in range(size)] if self._nodes else None
        return {
            "own_best_val": metrics.averages(scores, nodes),
            "last": last,
            "last5": {k: float(np.mean([r["metrics"][k] for r in scored[-5:]])) for k in last},
            "best_val": self._best_of(scored)["metrics"],
        }

    def _best_of(self, scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the record of the best round."""
        return next((r for r in scored if r["round"] == self.best.round), scored[-1])

    def _headline_records(self, scored: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return the records of the rounds behind the headline; of no single round under ``own_best_val``."""
        chosen = {
            "best_val": [self._best_of(scored)] if scored else [],
            "last5": scored[-5:],
            "last": scored[-1:],
        }
        return chosen.get(self.cfg.evaluation.select, ())

    def _behind(self, scored: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the clients behind the headline, and those that were to score it and did not, with reasons."""
        if self.cfg.evaluation.select == "own_best_val" and self.own_rounds.scores:
            records = scored
            clients = set(self.own_rounds.clients)
        else:
            records = self._headline_records(scored)
            clients = {client for record in records for client in record.get(SCORED_BY, ())}
            if len(records) > 1 and self.cfg.evaluation.clients != "cohort":
                clients = clients.intersection(*(record.get(SCORED_BY, ()) for record in records))
        missing = {
            client: why for record in records for client, why in record.get(MISSING, {}).items()
        }
        if self.cfg.evaluation.clients != "cohort":
            missing = {client: why for client, why in missing.items() if int(client) not in clients}
        known = all(SCORED_BY in record for record in records) and records
        floors = [
            self.cfg.evaluation.min_items,
            *(int(what.get("min_nodes", 0)) for what in self.described.values()),
        ]
        least = {MIN_ITEMS: max(floors)} if known and max(floors) > 1 else {}
        return (
            ({SCORED_BY: sorted(clients)} if known else {})
            | least
            | ({MISSING: missing} if missing else {})
        )

    def _left_out(self, scored: Sequence[dict[str, Any]]) -> dict[int, str]:
        """Return the clients that replied and that the headline's mean leaves out, with reasons."""
        records = self._headline_records(scored) or scored
        return {
            client: why
            for record in records[-1:]
            for client, why in metrics.left_out(
                self.cfg.evaluation, record["clients"], record.get(SCORED_BY)
            ).items()
        }

    def _write_end(self, folder: Path, models: Mapping[int, Arrays] | None) -> None:
        """Write the summary and the parameters of the last and the best round."""
        kept: dict[str, Any] = {"model_final": self.final_arrays, "model_best": self.best_arrays}
        personal = {"models_final": models, "models_best": self.best_models}
        for name, tree in (kept | {name: tree for name, tree in personal.items() if tree}).items():
            write_tensors(
                folder / f"{name}.safetensors", flatten(tree), {"strategy": self.cfg.strategy.name}
            )
        write_bytes(folder / SUMMARY, json.dumps(self.summary, indent=2).encode())

    def _settle(self) -> None:
        """Flush the records to disk before a checkpoint that depends on them."""
        if self.folder and (path := self.folder / ROUNDS).is_file():
            with system_errors(f"cannot write {path}"), path.open("a") as file:
                os.fsync(file.fileno())

    def _write(self, record: dict[str, Any]) -> None:
        self.rounds.append(record)
        if self.folder:
            path = self.folder / ROUNDS
            with system_errors(f"cannot write {path}"), path.open("a") as file:
                file.write(json.dumps(record) + "\n")
        if self.on_round:
            self.on_round(record)


def _by_text(descriptions: Mapping[int, Any]) -> dict[str, Any]:
    """Return the clients' descriptions as a checkpoint has them."""
    return {str(client): dict(description) for client, description in descriptions.items()}


def _by_phase(phases: list[tuple[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the bytes and exchanges of each phase over the whole run."""
    totals: dict[str, dict[str, Any]] = {}
    summed = ("bytes_up", "bytes_down", "exchanges")
    for name, entry in phases:
        total = totals.setdefault(
            name, {"bytes_up_by_group": Counter(), **dict.fromkeys(summed, 0)}
        )
        # missing in records of older versions
        total["bytes_up_by_group"].update(entry.get("bytes_up_by_group", {}))
        for key in summed:
            total[key] += entry[key]
    return totals


def _blank(server_round: int, cohort: list[int]) -> dict[str, Any]:
    return {"round": server_round, "cohort": cohort, "seconds": 0.0, "phases": {}, "failed": {}}


def _exchanges_per_round(rounds: list[dict[str, Any]]) -> float:
    """Return the median over rounds, without the separate exchange that scores the last round."""
    if not rounds:
        return 0.0
    return float(
        np.median(
            [sum(e["exchanges"] for n, e in r["phases"].items() if n != "evaluate") for r in rounds]
        )
    )


def _peak_rss_mb() -> float:
    """Return the peak memory of this process, or its current memory if the system has no peak."""
    memory = psutil.Process().memory_info()
    try:
        import resource
    except ImportError:  # Windows, where psutil knows the peak
        return float(getattr(memory, "peak_wset", memory.rss)) / 2**20
    most = max(
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return most / (1024.0 * 1024.0 if platform.system() == "Darwin" else 1024.0)


@cache
def _commit() -> str:
    """Return the commit of this code's checkout; empty if it is not a checkout."""
    try:
        root = Path(__file__).parents[2]
        if not (root / ".git").exists():
            return ""
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=5, check=False
        ).stdout.strip()
    except OSError:
        return ""
