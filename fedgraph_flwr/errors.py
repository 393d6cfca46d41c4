"""The one exception a user is meant to see: a sentence, and the exit code that goes with it."""

import difflib
from collections.abc import Iterable

from fedgraph_flwr.usual import USUAL_KEYS, USUAL_VALUES


class FedGraphError(Exception):
    """Wrong input or a run that cannot go on.

    The message is one sentence with the value, where it came from and what is accepted.

    Attributes:
        exit_code: what the command line ends with (2: wrong input; 1: the run itself failed).
    """

    exit_code = 2


class RunFailed(FedGraphError):
    """The input was right but the run could not go on (too few clients answered, say)."""

    exit_code = 1


def _elsewhere(kind: str, value: str, names: Iterable[str]) -> str:
    """What a usual name is called here; empty where it is none."""
    if (word := USUAL_VALUES.get(value.lower(), "")) in names:
        return word
    if kind.endswith("key"):
        return USUAL_KEYS.get(value.rpartition(".")[2].lower().replace("-", "_"), "")
    return ""


def unknown(kind: str, value: object, accepted: Iterable[str], where: str = "") -> FedGraphError:
    """Error for a name that is not known, with the nearest match.

    Args:
        kind: what the name stands for, such as ``"dataset"``.
        value: the name given.
        accepted: the names that are known.
        where: the file or key the name came from.
    """
    names = sorted(accepted)
    near = difflib.get_close_matches(str(value), names, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    if here := _elsewhere(kind, str(value), names):
        hint = f"; here it is {here}"
    source = f" ({where})" if where else ""
    return FedGraphError(
        f"{kind} '{value}' unknown{source}{hint}{'' if hint.endswith('?') else ';'} one of: {', '.join(names)}"
    )


def first_line(error: BaseException) -> str:
    """What an error of somebody else's says, as one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def plain(text: object, most: int = 300) -> str:
    """Foreign text as one line of printable characters, so that it can neither steer a terminal nor fill it."""
    line = "".join(c if c.isprintable() else "?" for c in str(text).replace("\n", " "))
    return line if len(line) <= most else line[: most - 3] + "..."
