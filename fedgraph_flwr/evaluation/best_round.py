"""The best round of a run, chosen among rounds whose scores cover the same clients.

A round is complete if every client that was to score its model has replied. Without a complete round, those rounds compete
that miss the fewest clients. Other rounds are neither the best nor counted by ``evaluation.patience``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedgraph_flwr.errors import counted

SCORED_BY = "scored_by"
"""Key of a record: the clients of its scores, one per entry of its lists. Records of older versions may lack it."""

MISSING = "missing"
"""Key of a record: clients that were to score its model and did not → reason. Absent if the round is complete."""

MIN_ITEMS = "min_items"
"""Key of a summary: a client leaves classes with fewer items in a split out of its scores. Absent if none does."""

NO_SCORES = "(scores)"
"""Phase in a record's ``failed`` of a client that did not score its model; the next round's record has the exchange."""


@dataclass
class BestRound:
    """The best round so far.

    Attributes:
        round: its number; 0 before the first scored round.
        score: its validation score, larger is better.
        missing: number of clients that did not score it.
        last: the last round that misses no more clients than it.
    """

    round: int = 0
    score: float = -math.inf
    missing: int = 0
    last: int = 0

    def take(self, record: Mapping[str, Any], score: float, min_delta: float) -> bool:
        """Compare a scored round, and return whether it is the best one from now on.

        Args:
            record: the round's record.
            score: its validation score, larger is better; NaN is worse than any number.
            min_delta: smallest improvement.
        """
        missing, value = len(record.get(MISSING, ())), -math.inf if math.isnan(score) else score
        if self.round and missing > self.missing:
            return False
        self.last = record["round"]
        if self.round and missing == self.missing and not value > self.score + min_delta:
            return False
        self.round, self.score, self.missing = record["round"], value, missing
        return True

    def restore(self, number: int, score: float, records: Sequence[Mapping[str, Any]]) -> None:
        """Continue from a checkpoint's best round and score, and the records up to it."""
        missing = {record["round"]: len(record.get(MISSING, ())) for record in records if "metrics" in record}
        self.round, self.score = number, -math.inf if math.isnan(score) else score
        self.missing = missing.get(number, 0)
        self.last = max((candidate for candidate, count in missing.items() if count <= self.missing), default=number)


def failed_replies(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the failures of a record's own exchanges, ``CLIENT (PHASE)`` → reason, without the missing scores of its model."""
    return {who: why for who, why in record["failed"].items() if not who.endswith(NO_SCORES)}


def trained(record: Mapping[str, Any]) -> int:
    """Return the number of clients of a round's cohort that replied to all its requests."""
    failed = {who.partition(" ")[0] for who in failed_replies(record) if not who.endswith("(evaluate)")}
    return sum(str(client) not in failed for client in record["cohort"])


def coverage(record: Mapping[str, Any], named: int = 3) -> str:
    """Return whose scores a mean covers: ``2 of 3 clients (client 1 did not reply)``, or ``3 clients``; empty if unknown.

    Args:
        record: a record or a summary.
        named: the most clients that are named.
    """
    if SCORED_BY not in record:
        return ""
    replied, missing = len(record[SCORED_BY]), list(record.get(MISSING, ()))
    least = record.get(MIN_ITEMS, 0)
    rare = f", without classes of fewer than {least} items at a client (min_nodes)" if least else ""
    if not missing:
        return counted(replied, "client") + rare
    which = ", ".join(map(str, missing[:named])) + (", ..." if len(missing) > named else "")
    who = f"client{'' if len(missing) == 1 else 's'} {which} did not reply"
    return f"{replied} of {replied + len(missing)} clients ({who}){rare}"
