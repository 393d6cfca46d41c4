"""One vocabulary for differences between two methods, decided by the 95 % interval of the difference.

*level*: the interval lies within a margin that was fixed beforehand. *better*, *worse*: the interval lies on one side of 0. Else
the comparison is *not decided*, as with one seed.
"""

import math

BETTER, WORSE, LEVEL, NOT_DECIDED = "better", "worse", "level", "not decided"

MARGIN = 1.0
"""Default margin in points, for scores that are shares."""


def verdict(low: float, high: float, margin: float = 0.0, sign: float = 1.0) -> str:
    """Return what the interval of a difference decides.

    Args:
        low: lower end of the interval; NaN if there is none.
        high: upper end.
        margin: largest difference that counts as none, in the unit of the difference.
        sign: -1 if a lower score is better.
    """
    if math.isnan(low) or math.isnan(high):
        return NOT_DECIDED
    low, high = sorted((sign * low, sign * high))
    if -margin <= low and high <= margin:
        return LEVEL
    return BETTER if low > 0 else WORSE if high < 0 else NOT_DECIDED
