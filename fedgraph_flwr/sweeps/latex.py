"""A sweep's table for a paper: LaTeX with booktabs, a row per setting and a column per method."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fedgraph_flwr.config import one_of
from fedgraph_flwr.config.method_names import column_name

SPREADS = {"interval": "half", "std": "deviation"}
"""What may stand behind a mean, and its key in a cell of `outcome`: half of its 95 % interval, or the standard deviation."""


def latex(cells: Sequence[Mapping[str, Any]], spread: str = "interval") -> str:
    """Return the table of a sweep's ``cells`` (`outcome`); the best method of a row, and those level with it, are bold.

    Args:
        cells: with ``setting``, ``method``, ``mean``, ``half``, ``deviation`` and ``best``.
        spread: one of `SPREADS`.

    Raises:
        FedGraphError: another spread.
    """
    one_of(spread, tuple(SPREADS), "cells")
    texts: dict[str, dict[str, str]] = {}
    for cell in cells:
        row = texts.setdefault(str(cell["setting"]), {})
        row[column_name(str(cell["method"]))] = _text(
            cell.get("mean"), cell.get(SPREADS[spread]), bool(cell.get("best"))
        )
    style = pd.DataFrame.from_dict(texts, orient="index").fillna("").style
    for axis in (0, 1):
        style = style.format_index(escape="latex", axis=axis)
    return str(style.to_latex(hrules=True))


def _text(mean: Any, spread: Any, bold: bool) -> str:
    if mean is None or math.isnan(mean):
        return ""
    number = f"{mean:.2f}"
    behind = "" if spread is None or math.isnan(spread) else f" $\\pm$ {spread:.2f}"
    return (f"\\textbf{{{number}}}" if bold else number) + behind
