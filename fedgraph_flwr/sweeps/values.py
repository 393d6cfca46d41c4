"""Several values in one override: ``train.lr=0.01,0.003 seed=0..4``."""

import re

from fedgraph_flwr.errors import FedGraphError, sanitize

_OPEN, _CLOSED = "([{", ")]}"
MOST = 10_000
"""Maximum number of values per override; more are probably a mistake."""


def expand(text: str) -> list[str]:
    """Split a text at commas, and expand ranges ``A..B`` with both ends.

    A comma in brackets or quotes does not separate: ``[a,b]`` is one value.

    Raises:
        FedGraphError: unbalanced brackets or quotes, an empty value, an invalid range.
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
        raise FedGraphError(f"'{text}': unbalanced bracket or quote: close each one")
    values.append(text[begin:].strip())
    if "" in values and len(values) > 1:
        raise FedGraphError(f"'{text}' contains an empty value: remove the extra comma, or write '' for an empty text")
    return [one for value in values for one in _range(value)]


def _range(value: str) -> list[str]:
    ends = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", value, re.ASCII)
    if not ends:
        return [value]
    first, last = (int(end) if len(end) < 20 else -1 for end in ends.groups())
    if len(value) > 40 or not first <= last < first + MOST:
        raise FedGraphError(f"'{sanitize(value, 60)}' must be a range of at most {MOST} integers, from low to high")
    return [str(number) for number in range(first, last + 1)]
