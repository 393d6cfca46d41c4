"""Random schedules of a coordinator of agreed runs; FEDGRAPH_SCHEDULES=10000 plays that many in the slow part."""

import os

import pytest

from tests.safety.schedules import KINDS, Player, watched
from tests.safety.verified_schedules import VerifiedPlayer

OF_PLAYER = 10
"""Schedules on the same members."""


def played(folder, kind, count, seed):
    """The last rounds of schedules; every tenth is followed by an honest run."""
    with watched():
        player, last = (VerifiedPlayer if kind == "verified" else Player)(folder, kind, seed), []
        for turn in range(1, count + 1):
            last.append(player.play())
            if turn % 10 == 0 or turn == count:
                player.honest()
    return last


@pytest.mark.parametrize("kind", KINDS)
def test_what_must_hold_after_each_message(tmp_path, kind):
    assert max(played(tmp_path, kind, 2 if kind == "verified" else 4, seed=3)) >= 3


@pytest.mark.slow
def test_what_must_hold_in_many_schedules(tmp_path):
    """A third reach round 3; most have no secure sums, which take five times the messages."""
    count, last = int(os.environ.get("FEDGRAPH_SCHEDULES", "50")), []
    for turn in range(max(count // OF_PLAYER, 1)):
        kind = ("plain", "secure", "plain", "noised", "verified")[turn % 5]
        last += played(tmp_path / str(turn), kind, OF_PLAYER, seed=turn)
    assert sum(number >= 3 for number in last) >= len(last) / 3
