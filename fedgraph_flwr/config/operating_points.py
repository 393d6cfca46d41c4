"""Names of scores at an operating point, for ``evaluation.metric`` and ``evaluation.metrics``.

precision@K, recall@K, lift@K    of K alerts, per day where items carry time: hits per alert, share of the positives, and hits per
                                 alert relative to the share of positives
recall@fpr=A                     largest share of positives found at a false positive rate of at most A
precision@recall=R               largest precision at a recall of at least R
cost@MISS/ALERT                  cost per item, for the cost of a miss and of an alert; items with p · MISS ≥ ALERT are alerts
brier, log_loss                  mean squared error of the probabilities, and mean −ln p of the true class
"""

import re
from dataclasses import dataclass
from functools import cache

_NUMBER = r"\d+(?:\.\d+)?(?:e-?\d+)?"
_FORMS = [
    re.compile(r"(?P<kind>precision|recall|lift)@(?P<first>[1-9]\d{0,8})"),
    re.compile(rf"(?P<kind>recall@fpr)=(?P<first>{_NUMBER})"),
    re.compile(rf"(?P<kind>precision@recall)=(?P<first>{_NUMBER})"),
    re.compile(rf"(?P<kind>cost)@(?P<first>{_NUMBER})/(?P<second>{_NUMBER})"),
    re.compile(r"(?P<kind>brier|log_loss)"),
]
FORMS = "precision@K, recall@K, lift@K, recall@fpr=A, precision@recall=R, cost@MISS/ALERT, brier, log_loss"
"""The names, for error messages."""

BOUNDED = ("precision", "recall", "recall@fpr", "precision@recall")
"""Kinds with values in [0, 1]."""

OF_TWO = (*BOUNDED, "lift", "cost")
"""Kinds that need two classes, of which the second is positive."""


@dataclass(frozen=True)
class Point:
    """A score at an operating point.

    Attributes:
        kind: the name up to its numbers.
        first: K, A, R or the cost of a miss; 0 without one.
        second: the cost of an alert; 0 without one.
    """

    kind: str
    first: float = 0.0
    second: float = 0.0

    @property
    def sign(self) -> float:
        """1 if higher is better, else -1."""
        return -1.0 if self.kind in ("cost", "brier", "log_loss") else 1.0

    @property
    def bounded(self) -> bool:
        """Whether its values are in [0, 1]."""
        return self.kind in BOUNDED


@cache
def point(name: str) -> Point | None:
    """Return the operating point that a name describes; None for any other name, or numbers out of range."""
    hit = next((match for form in _FORMS if (match := form.fullmatch(name))), None)
    if hit is None:
        return None
    numbers = {key: float(value) for key, value in hit.groupdict().items() if key != "kind"}
    made = Point(hit["kind"], **numbers)
    shares = made.kind not in ("recall@fpr", "precision@recall") or 0 < made.first <= 1
    costs = made.kind != "cost" or (made.first > 0 and made.second > 0)
    return made if shares and costs else None
