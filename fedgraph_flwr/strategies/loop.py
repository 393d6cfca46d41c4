"""The loop of a run: connect, set up, rounds with their scores and checkpoints, and the end."""

import time
from collections.abc import Sequence
from dataclasses import replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedgraph_flwr.data.schema import check_fingerprints, check_links
from fedgraph_flwr.errors import FedGraphError, RunFailed, first_line
from fedgraph_flwr.evaluation.best_round import MISSING, SCORED_BY
from fedgraph_flwr.logs import log
from fedgraph_flwr.methods import cohorts
from fedgraph_flwr.methods.uplink import released_once, releases, sums
from fedgraph_flwr.secure.masked import digest
from fedgraph_flwr.store.earlier import earlier_spent, newcomers
from fedgraph_flwr.store.recorder import Recorder
from fedgraph_flwr.strategies.base import GraphStrategy
from fedgraph_flwr.strategies.beginning import begin
from fedgraph_flwr.strategies.connection import ClientInfo, Connection
from fedgraph_flwr.strategies.exchange import with_own
from fedgraph_flwr.strategies.filed import Filed
from fedgraph_flwr.strategies.live import Live
from fedgraph_flwr.strategies.reducing import Reduced
from fedgraph_flwr.strategies.round import GroupsFor, Kind, Outcome, Round
from fedgraph_flwr.strategies.scoring import (
    as_list,
    confusion_of,
    scorers,
    scores_of,
    statistics_of,
    terms_of,
    training_record,
)
from fedgraph_flwr.wire.messages import (
    CONFIG,
    DESCRIBE,
    EVALUATE,
    METRICS,
    TRAIN,
    Arrays,
    Reply,
    to_record,
)
from fedgraph_flwr.wire.trees import Tree, as_arrays, unlike


class StopRequest:
    """Request to stop the run of this process after the current round and save a checkpoint.

    Attributes:
        enabled: whether a loop is running that can honour it.
        requested: whether the user asked for it.
    """

    enabled = False
    requested = False


STOP = StopRequest()


class Loop:
    """One run of a strategy on a grid.

    Args:
        strategy: the method's rounds.
        grid: joins the server with its nodes.
        recorder: receives the run's results.
    """

    def __init__(self, strategy: GraphStrategy, grid: Grid, recorder: Recorder):
        self.server = strategy
        self.cfg = strategy.cfg
        self.recorder = recorder
        self.grid = grid
        self.live = Live(strategy, grid, recorder)
        strategy.connect(self.live)
        self.connection = Connection(grid, self._describe)
        self._rule = cohorts.LOWEST_HASHES
        self._involved: set[int] = set()  # in earlier rounds
        # clients of the cohort whose node did not respond in the previous round
        self._silent: set[int] = set()
        self._filed = Filed()

    def run(self) -> Result:
        """Run from the first node to the last score."""
        self._connect()
        if self.cfg.agreement:
            begin(self.server)
        self.server.adopt(self.server.initial_arrays())
        if self.cfg.init:
            self.server.adopt(self._earlier("init")[0])
        if self.live.summation.sets_up() or not released_once(self.server.uplink_of):
            self.server.set_up()
        self.server.adopt(self.live.summation.certified(self.server.arrays))
        if self.cfg.evaluate:
            return self._evaluate_finished()
        first = self._resume() + 1
        if self.cfg.init and first == 1:
            self._score_start()
        self.recorder.setup_done()
        if (
            self.server.counting.protection.verified
            and self.cfg.checkpoint_every
            and not self.cfg.resume
        ):
            self._checkpoint(0)  # nodes repeat their replies of round 1
        STOP.requested = False
        STOP.enabled = bool(self.cfg.checkpoint_every)
        try:
            self._rounds(first)
        finally:
            STOP.enabled = False
        return self._finish()

    def _evaluate_finished(self) -> Result:
        """Score the model of a finished run, which clients store with what they received in the set-up."""
        self.server.adopt(*self._earlier("evaluate"))
        self.recorder.setup_done()
        self._next_round(Round(1))
        self.recorder.begin_round(1, [])
        self.recorder.end_round({}, self.server.arrays)
        return self._finish()

    def _earlier(self, key: str) -> tuple[Arrays, dict[int, Arrays]]:
        """Return the shared parameters of a finished run, and those that are a client's own.

        Raises:
            FedGraphError: they do not fit this run's model, or the files have another schema.
        """
        earlier = self.recorder.earlier_model(key)
        fix = (
            "keep that run's strategy and model keys, as its config.yaml has them"
            if key == "init"
            else "evaluate the run with its own strategy, model and schema"
        )
        where = f"{earlier.path}:"
        shared = self._fitting(earlier.arrays, where, fix)
        return shared, {
            client: self._fitting(values, where, fix)
            for client, values in earlier.models.items()
        }

    def _score_start(self) -> None:
        """Score the incoming model before round 1, where scores are exact: others would need a further release."""
        start: dict[str, Any] = {
            "run": self.cfg.init,
            "model": digest(self.server.arrays).hex(),
        }
        log(INFO, "this run starts with the model %s of %s", start["model"], self.cfg.init)
        if new := newcomers(
            Path(self.cfg.init),
            self.recorder.extra.get("parties", []),
            sorted(self.server.clients),
        ):
            log(INFO, "new in this run, and not in %s: %s", self.cfg.init, ", ".join(new))
            start["new"] = new
        if self.server.counting.protection.scores == "exact":
            judges = self._judges()
            scores = self._scores(self._judged(judges), judges)
            start |= {
                key: scores[key] for key in ("metrics", SCORED_BY, MISSING) if key in scores
            }
        if spent := earlier_spent(Path(self.cfg.init)):
            start["privacy"] = spent
        self.recorder.extra["start"] = start

    def _finish(self) -> Result:
        """Score the last model, and end the run."""
        self.live.summation.closed()
        if self._filed.missing:  # no round was left to do so
            self._restore(sorted(self._filed.missing))
        if self.recorder.pending and not self.recorder.should_stop and self._scores_sent:
            judges = self._judges()
            self._scored(self._judged(judges), judges)
        self._keep()
        self.recorder.extra |= self.live.summation.spent() | self.server.remarks
        self.recorder.finish(self.server.models)
        self.live.summation.forget(self.cfg.rounds)
        return Result(arrays=to_record(self.recorder.final_arrays))

    def _rounds(self, first: int) -> None:
        """Run the rounds from ``first``."""
        for server_round in range(first, self.cfg.rounds + 1):
            if why := self._nothing_left(server_round):
                log(INFO, "the run ends here: %s", why)
                return
            if not self.run_round(server_round):
                return
            if STOP.requested and server_round < self.cfg.rounds:
                self._leave(server_round)

    def _nothing_left(self, server_round: int) -> str:
        """Return why a round is not run; empty: it is."""
        if self.server.finished:
            return f"strategy={self.cfg.strategy.name} has nothing more to train"
        ahead = map(self._releases_in, [server_round])
        if not self.live.summation.allows_round(self.recorder.pending, ahead):
            return "one more release would exceed privacy.epsilon_budget"
        return ""

    def run_round(self, server_round: int) -> bool:
        """Run one round; return whether another may follow, which early stopping prevents."""
        self._begin(server_round)
        self._score_apart()
        if self.recorder.should_stop:
            return False
        self.recorder.begin_round(server_round, self.server.cohort)
        if self._filed.missing:
            self._restore(sorted(self._filed.missing))
            self.server.drop(self._filed.missing)
        self._wait_for_silent()
        replies = self._train()
        if self.server.scores_due:
            self._scored(replies, self.server.round.drawn)
        if self.recorder.should_stop:
            return False
        up = self.server.stage().up
        reduced = self.live.reduce(TRAIN, replies) if up else Reduced(replies)
        self.server.adopt(self.live.summation.certified(self.server.next_arrays(reduced)))
        spent = self.live.summation.spent()
        self.recorder.end_round(self._training(replies), self.server.arrays, **spent)
        if self.server.round.checkpoint_due:
            self._file(server_round, set(self.server.cohort) - self.server.failed.keys())
        return True

    # --- before the rounds ------------------------------------------------------------------------

    def _connect(self) -> None:
        """Wait for the clients."""
        rules = self.cfg.strategy
        wanted = 1 if rules.pooled else self.cfg.num_clients
        known = {
            client: ClientInfo(client, self.recorder.nodes[client], description)
            for client, description in self.recorder.known_clients().items()
        }
        # nodes decide whether a member may be absent from an agreed run (`absent`)
        agreed = self.cfg.agreement and self.server.counting.protection.noise
        fewer = (known or agreed) and rules.on_failure == "continue"
        least = rules.min_clients if fewer else wanted
        self.live.bind(self.connection.wait(wanted, rules.timeout, known, least))
        check_fingerprints(
            {
                index: info.description.get("schema", [0])
                for index, info in self.server.clients.items()
            }
        )
        check_links(
            {
                index: int(info.description.get("link", 0))
                for index, info in self.server.clients.items()
            }
        )
        if rules.min_clients > wanted:
            raise FedGraphError(
                f"strategy.min_clients={rules.min_clients} exceeds the {wanted} clients of this run: lower it or add clients"
            )
        self.recorder.check_clients(
            {index: info.description for index, info in self.server.clients.items()}
        )
        idle = [
            index
            for index, info in self.server.clients.items()
            if np.sum(info.description.get("num_train", 1)) == 0
        ]
        if 0 < len(idle) < len(self.server.clients):
            named = ", ".join(map(str, sorted(idle)[:20])) + (", ..." if len(idle) > 20 else "")
            log(
                WARNING,
                "clients without items to train on only predict with the model: %s",
                named,
            )
        self.live.summation.check_places()

    def _describe(
        self, nodes: list[int], timeout: float | None = None
    ) -> tuple[list[ClientInfo], dict[int, str]]:
        """Request the descriptions of nodes; return them, and the reason for each node without one."""
        record = self.live.config_record(DESCRIBE, {})
        sent = [
            Message(
                RecordDict({CONFIG: record}), dst_node_id=node, message_type=MessageType.QUERY
            )
            for node in nodes
        ]
        outcome = self.live.collect(DESCRIBE, sent, timeout)
        clients = [
            ClientInfo(reply.client, reply.message.metadata.src_node_id, reply.metrics)
            for reply in outcome.replies
            if reply.message
        ]
        return clients, outcome.failures

    def _resume(self) -> int:
        """Restore a checkpoint and return its round; 0 for a fresh run."""
        restored = self.recorder.resume()
        if restored is None:
            return 0
        done, arrays, tree = restored
        numbers = as_arrays(tree)
        self._rule = int(numbers.get("cohorts", cohorts.CHOICE))
        self._involved = (
            set(numbers["involved"].tolist())
            if "involved" in tree
            else set(self.server.clients)
        )
        fix = "resume with the configuration that wrote the checkpoint"

        def fitting(values: Arrays, part: str) -> Arrays:
            return self._fitting(
                values, f"resume={self.cfg.resume}: in {part} of its checkpoint", fix
            )

        shared = fitting(arrays, "the shared parameters")
        models = as_arrays(tree.get("models", {}))
        self.server.adopt(
            shared,
            {
                int(client): fitting(values, f"the parameters of client {client}")
                for client, values in models.items()
            },
        )
        try:
            self.server.load(tree.get("method", {}))
        except (
            AttributeError,
            IndexError,
            KeyError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            name = self.cfg.strategy.name
            raise FedGraphError(
                f"resume={self.cfg.resume} holds no state of strategy={name} ({first_line(error)}): {fix}"
            ) from error
        self.live.summation.load(tree)
        if self.live.summation.spent():
            # accounts for what this attempt may release, in case it dies as well
            self._checkpoint(done)
        self._filed = Filed.load(tree.get("filed", {}), sorted(self._involved), done)
        if not done:
            self._filed.note(self.server.clients, done)
        self._restore_all(done)
        # Without rounds left, the final scores count as requests of this round, as at the clients.
        self._next_round(Round(done))
        return done

    def _restore_all(self, done: int) -> None:
        """Request that clients restore the state that they last stored; those that are down do so later.

        Raises:
            RunFailed: a client that is there cannot, or too few did.
        """
        for client in sorted(self._involved - self._filed.rounds.keys()):
            log(
                WARNING,
                "client %d stored no state before round %d, and begins anew",
                client,
                done,
            )
        asked = sorted(self._filed.rounds)
        outcomes = self._restore(asked)
        failed = {client for outcome in outcomes for client in outcome.failures}
        present = {
            c for o in outcomes for c, kind in o.kinds.items() if kind is not Kind.NO_REPLY
        }
        rules = self.cfg.strategy
        least = len(asked) if rules.on_failure == "fail" else min(rules.min_clients, len(asked))
        restored = len(asked) - len(failed)
        if not present and restored >= least:
            return
        reasons = "; ".join(self.recorder.setup_record["failed"].values())
        raise RunFailed(
            f"{restored} of {len(asked)} clients restored their state of round {done}: {reasons}; restore"
            f" these files, or stop the nodes that lost them: a run resumes with at least {least} clients"
            f" (strategy.min_clients={rules.min_clients}, on_failure={rules.on_failure})"
        )

    def _restore(self, clients: list[int]) -> list[Outcome]:
        """Request that clients restore the state that they last stored; note who did not."""
        outcomes = []
        for stored in sorted({self._filed.rounds[client] for client in clients}):
            asked = [client for client in clients if self._filed.rounds[client] == stored]
            scalars = {"resume": stored, "run": self.recorder.run_name}
            if stored < self._filed.last:
                # a later state up to this round is the one that was lost on its way to the server
                scalars["round"] = max(self.server.server_round, self._filed.last)
            sent = self.live.messages(DESCRIBE, asked, {}, scalars)
            outcome = self.live.collect(DESCRIBE, sent)
            self._filed.missing |= outcome.failures.keys()
            self._filed.missing -= {reply.client for reply in outcome.replies}
            outcomes.append(outcome)
        return outcomes

    def _fitting(self, arrays: Arrays, where: str, fix: str) -> Arrays:
        """Return the arrays of a file in the model's order, which files do not preserve."""
        try:
            model = self.server.accepted(arrays, where)
        except FedGraphError as error:
            raise FedGraphError(f"{error}: {fix}") from error
        if problem := unlike(arrays, model):
            raise FedGraphError(f"{where} {problem}: {fix}")
        return {name: arrays[name] for name in model}

    # --- a round ----------------------------------------------------------------------------------

    def _next_round(self, coming: Round) -> None:
        """Start a round, without requests or failures."""
        self._involved |= self.server.round.involved
        self.server.round = coming

    def _begin(self, server_round: int) -> None:
        """Reconnect clients that were away, sample the cohort, and determine what is due."""
        before = self.server.round
        replied = set(before.cohort) - before.failed.keys()
        back = self.connection.returned(self.server.clients, before.silent, replied)
        if back:
            self.live.bind(back)
        cohort = self._sample(server_round)
        scored = self.recorder.pending and (server_round - 1) % self.cfg.evaluation.every == 0
        coming = Round(
            number=server_round,
            cohort=cohort,
            drawn=tuple(cohort),
            scores_due=scored and self._scores_sent,
            checkpoint_due=bool(every := self.cfg.checkpoint_every)
            and (
                server_round % every == 0
                or server_round == self.cfg.rounds
                or self.server.counting.protection.verified  # nodes repeat one round
            ),
        )
        self._next_round(coming)
        self._silent = before.silent & set(cohort) - back.keys() - self._filed.missing

    @property
    def _min_clients(self) -> int:
        """Fewest clients of the round that must reply."""
        rules = self.cfg.strategy
        if rules.on_failure == "fail":
            return len(self.server.cohort)
        return max(rules.min_clients, self.live.summation.min_clients(len(self.server.cohort)))

    def _wait_for_silent(self) -> None:
        """Wait for unresponsive clients if the round would have too few clients without them.

        A SuperLink accepts a restarted node only after it has missed its heartbeats, which takes
        longer than a round.
        """
        away = self._silent
        started = time.perf_counter()
        pause = 1.0
        if not away:
            return
        while away and len(self.server.cohort) - len(away) < self._min_clients:
            left = self.cfg.strategy.timeout - (time.perf_counter() - started)
            if left <= pause:
                return  # the round reports who is missing
            log(
                WARNING,
                "round %d waits for unresponsive clients %s",
                self.server.server_round,
                sorted(away),
            )
            time.sleep(pause)
            back = self.connection.returned(self.server.clients, away, set())
            self.live.bind(back)
            nodes = [
                self.server.clients[client].node_id for client in sorted(away - back.keys())
            ]
            described, _ = self._describe(
                nodes, left - pause
            )  # the timeout covers the whole wait
            away = away - back.keys() - {info.client for info in described}
            pause = min(2 * pause, 10.0)
        self.server.round = (
            self.server.round.without_failures()
        )  # of requests sent while waiting

    def _sample(self, server_round: int) -> list[int]:
        """Return a round's cohort: drawn from its own random stream, or a fixed batch with secure sums."""
        size = self.server.counting.cohort_size(server_round)
        return self._drawn(server_round, size, "cohort", server_round)

    def _drawn(self, server_round: int, size: int, *stream: str | int) -> list[int]:
        """Draw this many places of a round, ascending; return the clients that are there."""
        clients = self.server.clients
        places = self.server.counting.protection.places(server_round, sorted(clients))
        drawn = cohorts.draw(places, size, self.cfg.seed, *stream, rule=self._rule)
        return [place for place in drawn if place in clients]

    def _train(self) -> list[Reply]:
        """Run the exchanges before a secure sum, then training; return the valid replies in client order."""
        groups = self.server.groups_to_train()
        inputs = (
            self.live.summation.begin(TRAIN, self.server.cohort)
            if self.server.stage().up
            else None
        )
        self.server.round = replace(
            self.server.round, sent=groups if inputs is None else with_own(groups, inputs)
        )
        self._score_apart()  # a client that failed in those exchanges is not requested to train
        record = to_record(self.server.arrays)
        due = self.server.scores_due
        flags = {"evaluate": due, "checkpoint": False, **self.live.filing}
        config = ConfigRecord({**flags, **(self.recorder.scoring if due else {})})
        sent = self.server.configure_train(self.server.server_round, record, config, self.grid)
        return self.live.enough_replies(TRAIN, sent)

    def _training(self, replies: list[Reply]) -> dict[str, Any]:
        """Return the round's record of training."""
        prefixes = ("trained-",) if self.cfg.evaluation.trained else ()
        record = training_record(
            replies, prefixes, self.cfg, self.server.described.class_counts
        )
        declared = self.server.uplink_of[TRAIN].get(METRICS)
        return record | statistics_of(replies, declared.fields if declared else None)

    def _nodes_of(self, replies: list[Reply]) -> list[float] | None:
        """Return the numbers of nodes of the clients that replied, if means of scores are weighted by them."""
        if self.cfg.evaluation.average != "nodes":
            return None
        clients = self.server.clients
        return [
            float(v)
            for reply in replies
            for v in as_list(clients[reply.client].description["num_nodes"])
        ]

    def _releases_in(self, server_round: int) -> int:
        """Return the number of releases under differential privacy in a round's exchanges."""
        current = self.server.round
        self.server.round = replace(current, number=server_round)
        up = self.server.stage().up
        self.server.round = current
        return releases(self.server.uplink_of) - (
            not up and bool(sums(self.server.uplink_of[TRAIN]))
        )

    @property
    def _scores_sent(self) -> bool:
        return self.server.counting.protection.scores != "none"

    # --- scores -----------------------------------------------------------------------------------

    def _score_apart(self) -> None:
        """Request the due scores in a separate exchange if training replies cannot bring them.

        That is the case if other clients than the cohort score the model, or if this round changes
        what is scored.
        """
        by_cohort = self.cfg.evaluation.clients == "cohort"
        judges = self.server.cohort if by_cohort else self._judges()
        if self.server.scores_due and (
            self.server.cohort != judges or self.server.scores_first
        ):
            self._scored(self._judged(judges), self.server.round.drawn if by_cohort else judges)
            self.server.round = replace(self.server.round, scores_due=False)

    def _judges(self) -> list[int]:
        """Return the clients that score a model in a separate exchange, by ``evaluation.clients``."""
        scoring = self.cfg.evaluation.clients
        if scoring == "cohort":
            return self._sample(self.server.server_round + 1)
        if scoring == "all":
            return sorted(self.server.clients)
        return self._drawn(0, int(scoring), "judges")

    def _judged(self, judges: list[int]) -> list[Reply]:
        """Request scores of the model in a separate exchange, and return the replies."""
        there = [client for client in judges if client not in self._filed.missing]
        self.server.round = replace(self.server.round, judges=there)
        record = to_record(self.server.arrays)
        sent = self.server.configure_evaluate(
            self.server.server_round, record, ConfigRecord({**self.recorder.scoring}), self.grid
        )
        return self.live.enough_replies(EVALUATE, sent)

    def _scores(self, replies: list[Reply], judges: Sequence[int]) -> dict[str, Any]:
        """Return the scores in these replies, the clients of their entries, and the clients among ``judges`` without a reply."""
        evaluation = self.cfg.evaluation
        for reply in replies:
            self.live.reader.note_counts(reply)
        nodes = self._nodes_of(replies)
        classes = self.server.described.class_counts
        scores = (
            terms_of(replies, self.cfg)
            if self.server.counting.protection.scores == "noised"
            else scores_of(replies, self.cfg, classes, "", nodes)
        )
        if self.cfg.strategy.personal:
            shared = scores_of(replies, self.cfg, classes, "global-", nodes)["metrics"]
            scores["metrics"] |= {f"global_{key}": value for key, value in shared.items()}
        if evaluation.confusion:
            scores |= confusion_of(replies, self.server.agreed("num_classes"))
        missing = sorted(set(judges) - {reply.client for reply in replies})
        scores[SCORED_BY] = scorers(replies, self.cfg.strategy.pooled)
        if missing:
            scores[MISSING] = {
                str(client): self.server.failed.get(client, "it was not requested")
                for client in missing
            }
        return scores

    def _scored(self, replies: list[Reply], judges: Sequence[int]) -> None:
        """Complete the previous round's record with the scores in these replies; ``judges`` were to send them."""
        nodes = self._nodes_of(replies)
        scores = self.live.summation.scores(self._scores(replies, judges))
        self.recorder.scored(scores, self.server.arrays, nodes, self.server.models)

    # --- the end ----------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Request that clients store their models for prediction; send the model along if none was scored."""
        self.recorder.begin_end()
        if not getattr(self.grid, "files_models", True):
            return
        receivers = sorted(self._with_state - self.server.failed.keys())
        scalars = {
            "keep": True,
            "run": self.recorder.run_name,
            "best": self.recorder.best.round,
        }
        model: ArrayRecord | None = None
        groups: GroupsFor = {}
        if not self._scores_sent and self.server.stage().down:
            groups = self.server.before_evaluate(self.server.arrays)
            scalars |= self.recorder.scoring
            model = to_record(self.server.arrays)
        self.live.collect(
            DESCRIBE, self.live.messages(DESCRIBE, receivers, groups, scalars, model)
        )

    # --- checkpoints ------------------------------------------------------------------------------

    def _file(self, server_round: int, stored: set[int]) -> None:
        """Write a checkpoint once clients that did not store their state with their training have done so too.

        Those that cannot, since they are down or their disk is full, keep their earlier state.
        """
        away = self.server.round.silent | self._filed.missing
        if absent := sorted(self._with_state - stored - away):
            sent = self.live.messages(DESCRIBE, absent, {}, self.live.filing)
            stored = stored | {
                reply.client for reply in self.live.collect(DESCRIBE, sent).replies
            }
        self._filed.note(stored, server_round)
        if behind := sorted(self._with_state - stored):
            log(
                WARNING,
                "the checkpoint of round %d has an earlier state of %s",
                server_round,
                self._filed.text(behind),
            )
        self._checkpoint(server_round)

    @property
    def _with_state(self) -> set[int]:
        """Clients that may have private state: all, or those that took part if not all clients score models."""
        return (
            set(self.server.clients)
            if self.cfg.evaluation.clients == "all"
            else self._involved | self.server.round.involved
        )

    def _leave(self, server_round: int) -> None:
        """Stop here, after a checkpoint for which all clients stored their state.

        Raises:
            KeyboardInterrupt: always.
        """
        self.live.summation.closed()
        if not self.server.round.checkpoint_due:
            self.server.round = replace(self.server.round, checkpoint_due=True)
            self._file(server_round, set())
        raise KeyboardInterrupt

    def _checkpoint(self, server_round: int) -> None:
        """Write the server's part of a checkpoint."""
        tree: Tree = {"method": self.server.save(), "models": self.server.models}
        if self._rule != cohorts.CHOICE:
            tree["cohorts"] = np.array(self._rule)
        if self.cfg.evaluation.clients != "all":
            tree["involved"] = np.array(sorted(self._with_state), np.int64)
        left = max(self.cfg.rounds - server_round, 0)
        coming = range(
            server_round + 1, server_round + 1 + min(self.cfg.checkpoint_every or left, left)
        )
        tree |= self._filed.save(sorted(self._with_state))
        tree |= self.live.summation.save(map(self._releases_in, coming))
        descriptions = {index: info.description for index, info in self.server.clients.items()}
        self.recorder.checkpoint(server_round, self.server.arrays, tree, descriptions)
        self.live.summation.forget(server_round)
