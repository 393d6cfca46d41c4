"""A desk's month on generated books: days alone equal the month, no quiet day alarms, and no command is refused."""

import pytest

from benchmarks.desk_month import month


@pytest.mark.slow
@pytest.mark.parametrize("hours", [True, False], ids=["hours", "dates"])
def test_a_month_at_a_desk(tmp_path, hours):
    found = month(tmp_path / "month", days=12, hours=hours, history=40, every=4)
    assert found.refused == []
    assert len(found.scores) > 150
    assert found.scores.keys() == found.whole.keys()
    assert found.largest_difference == 0
    assert found.alarms == [], found.looked
