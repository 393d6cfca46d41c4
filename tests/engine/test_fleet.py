"""A fleet on loopback, with real processes: the parameters of the in-process engine, and what happens when parts of it die."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.fleet import Fleet
from tests.support import assert_same_arrays

pytestmark = pytest.mark.fleet


@pytest.fixture
def graphs(client_files: Callable[..., str]) -> Path:
    return Path(client_files((12, 16, 20)).removeprefix("graph="))


@pytest.fixture
def fleet(tmp_path: Path, graphs: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path / "fleet", graphs)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.stop()


def test_a_fleet_gives_the_parameters_of_the_inline_engine(fleet: Fleet, run: Any, tmp_path: Path):
    found = fleet.run(tmp_path / "found", "rounds=3")
    inline = run("rounds=3")
    assert_same_arrays(found.arrays, inline.arrays)
    assert [r["clients"] for r in found.rounds] == [r["clients"] for r in inline.rounds]
    assert found.summary["exchanges_per_round"] == 1
