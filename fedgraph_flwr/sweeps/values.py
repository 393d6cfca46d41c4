"""Several values in one word: ``train.lr=0.01,0.003 seed=0..4``."""

import re

from fedgraph_flwr.errors import FedGraphError

_OPEN, _CLOSED = "([{", ")]}"
MOST = 10_000
"""Values of one word; more are a slip."""


def expand(text: str) -> list[str]:
    """The values that stand between commas, and every whole number of a range ``A..B``, its ends included.

    A comma between brackets or quotes parts nothing: ``[a,b]`` is one value.

    Raises:
        FedGraphError: brackets or quotes that are not closed, a value that is empty, a range that is none.
    """
    values, depth, quote, begin = [], 0, "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSED:
            depth -= 1
            if depth < 0:
                break
        elif letter == "," and not depth:
            values.append(text[begin:place].strip())
            begin = place + 1
    if depth or quote:
        raise FedGraphError(f"'{text}': a bracket or a quote is not closed")
    values.append(text[begin:].strip())
    if "" in values and len(values) > 1:
        raise FedGraphError(f"'{text}' has an empty value between its commas")
    return [one for value in values for one in _range(value)]


def _range(value: str) -> list[str]:
    ends = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", value)
    if not ends:
        return [value]
    first, last = int(ends[1]), int(ends[2])
    if not first <= last < first + MOST:
        raise FedGraphError(f"'{value}' must be a range of whole numbers from low to high, at most {MOST}")
    return [str(number) for number in range(first, last + 1)]
