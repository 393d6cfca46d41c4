"""Colours and shapes of the pages (`report/assets`), for pictures by Matplotlib."""

from typing import Any

COLOURS = (
    "#0072b2",
    "#d55e00",
    "#008a66",
    "#b65a94",
    "#c98a00",
    "#3b9ad1",
    "#5b5f66",
    "#8a6d3b",
    "#6a4fb3",
    "#7a8c00",
)
"""Colours of series on light ground, ``--s0`` to ``--s9``."""

MARKERS = ("o", "s", "^", "D", "P", "v", ">")
"""Shapes of series, in the order of the page's script."""

SOFT, LINE = "#59616b", "#e2e3de"
"""Colours of labels and of lines of the grid."""


def colour(place: int) -> str:
    """Return the colour of a series by its place."""
    return COLOURS[place % len(COLOURS)]


def marker(place: int) -> str:
    """Return the shape of a series by its place."""
    return MARKERS[place % len(MARKERS)]


def lay_out(axes: Any) -> None:
    """Draw axes as the pages do: a light grid, no frame, quiet labels."""
    axes.set_axisbelow(True)
    axes.grid(color=LINE)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(LINE)
    axes.tick_params(colors=SOFT, labelsize=8, length=0)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(color=SOFT, fontsize=9)
