"""The progress of a run while it lasts: a bar in a terminal, or in a notebook."""

import html
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from fedgraph_flwr.config import RunConfig

Shown = bool | Literal["auto"]
"""Whether progress is shown; ``auto``: where somebody watches, in a notebook or a terminal."""

OnRound = Callable[[dict[str, Any]], None]

OnWait = Callable[[str], None]

_Show = Callable[[int, str], None]
"""Shows how many rounds are done, and their scores in words."""


@contextmanager
def progress(cfg: RunConfig, shown: Shown = "auto") -> Iterator[tuple[OnRound, OnWait]]:
    """A bar over the rounds of a run, for the time of the block.

    Yields:
        What takes the record of each finished round, and what takes words for what the run waits for before its first.
    """
    title = f"{cfg.strategy.name} on {cfg.engine if cfg.on_fleet else cfg.dataset.name}"
    with _bar(title, cfg.rounds, shown) as show:

        def on_round(record: dict[str, Any]) -> None:
            told = record.get("metrics", {})
            keys = {split: f"{split}_accuracy" for split in ("val", "test")}
            show(record["round"], " ".join(f"{split} {told[key]:.3f}" for split, key in keys.items() if key in told))

        yield on_round, lambda what: show(0, what)


def in_notebook() -> bool:
    """Whether this is a notebook's kernel, which shows HTML."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return hasattr(shell, "kernel")


def _bar(title: str, rounds: int, shown: Shown) -> AbstractContextManager[_Show]:
    if not shown:
        return nullcontext(lambda done, score: None)
    return nullcontext(_notebook(title, rounds)) if in_notebook() else _terminal(title, rounds, always=shown is True)


def _notebook(title: str, rounds: int) -> _Show:
    """A bar that needs no widgets, and stays in the notebook as it was last shown."""
    from IPython.display import HTML, display

    def bar(done: int, score: str) -> Any:
        told = html.escape(f"{title} {done}/{rounds} {score}")
        return HTML(f'<progress value="{done}" max="{rounds}"></progress> {told}')

    shown = display(bar(0, ""), display_id=True)
    return lambda done, score: shown.update(bar(done, score))


@contextmanager
def _terminal(title: str, rounds: int, always: bool) -> Iterator[_Show]:
    """A bar on stderr; ``always``: also where that is no terminal, which gets its last line."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[score]}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, disable=not (always or console.is_terminal), console=console) as bar:
        task = bar.add_task(title, total=rounds, score="")
        yield lambda done, score: bar.update(task, completed=done, score=score)
