"""Fixtures of the methods' tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.methods.worlds import trainer
from tests.support import Finished


@pytest.fixture
def train(run: Callable[..., Finished], tmp_path: Path) -> Callable[..., Finished]:
    """``train("strategy=fedstruct", ...)`` on clients that are joined by edges; see `worlds.trainer`."""
    return trainer(run, tmp_path)
