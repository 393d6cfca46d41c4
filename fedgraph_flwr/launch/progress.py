"""Progress bar of a run in a terminal or notebook."""

import html
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from fedgraph_flwr.config import RunConfig
from fedgraph_flwr.store.events import OnRound, OnWait

Shown = bool | Literal["auto"]
"""Whether to show progress; ``auto``: in a notebook or a terminal."""

_Show = Callable[[int, str], None]
"""Function that shows the number of finished rounds, and their scores as text."""


@contextmanager
def progress(cfg: RunConfig, shown: Shown = "auto") -> Iterator[tuple[OnRound, OnWait]]:
    """Show a bar over the rounds of a run during the block.

    Yields:
        A function for the record of each finished round, and a function for messages before the
        first round.
    """
    title = f"{cfg.strategy.name} on {cfg.engine if cfg.on_fleet else cfg.dataset.name}"
    with bar(title, cfg.rounds, shown) as show:

        def on_round(record: dict[str, Any]) -> None:
            scores = record.get("metrics", {})
            known = [split for split in ("val", "test") if f"{split}_accuracy" in scores]
            show(
                record["round"],
                " ".join(f"{split} {scores[f'{split}_accuracy']:.3f}" for split in known),
            )

        yield on_round, lambda what: show(0, what)


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def bar(title: str, rounds: int, shown: Shown) -> AbstractContextManager[_Show]:
    """Show a bar during the block, in a notebook or a terminal.

    Args:
        title: its title.
        rounds: number of steps.
        shown: whether to show it.

    Returns:
        A context with a function for the number of finished steps and a text.
    """
    if not shown:
        return nullcontext(lambda done, score: None)
    return (
        nullcontext(_notebook(title, rounds))
        if in_notebook()
        else _terminal(title, rounds, always=shown is True)
    )


def _notebook(title: str, rounds: int) -> _Show:
    """Return a bar that needs no widgets and keeps its last state in the notebook."""
    from IPython.display import HTML, display

    def bar(done: int, score: str) -> Any:
        text = html.escape(f"{title} {done}/{rounds} {score}")
        return HTML(f'<progress value="{done}" max="{rounds}"></progress> {text}')

    shown = display(bar(0, ""), display_id=True)
    return lambda done, score: shown.update(bar(done, score))


@contextmanager
def _terminal(title: str, rounds: int, always: bool) -> Iterator[_Show]:
    """Show a bar on stderr; with ``always``, also without a terminal, where its last line is printed."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
    )
    console = Console(stderr=True)
    with Progress(
        *columns,
        TimeRemainingColumn(),
        disable=not (always or console.is_terminal),
        console=console,
    ) as bar:
        task = bar.add_task(title, total=rounds, score="")
        yield lambda done, score: bar.update(task, completed=done, score=score)
