"""A desk's month on generated books: days alone equal the month, no quiet day alarms, and no command is refused.

In a simulation, and where each bank's own node links and trains.
"""

import pytest

from benchmarks.desk_month import month


@pytest.mark.slow
@pytest.mark.parametrize("hours", [True, False], ids=["hours", "dates"])
@pytest.mark.parametrize(("place", "days"), [("simulation", 12), ("fleet", 5)])
def test_a_month_at_a_desk(tmp_path, monkeypatch, hours, place, days):
    patch = monkeypatch if place == "fleet" else None
    report = month(tmp_path / "month", days=days, hours=hours, history=40, every=4, patch=patch)
    assert report.refused == []
    assert len(report.scores) > 12 * days
    assert report.scores.keys() == report.whole.keys()
    assert report.largest_difference == 0
    assert report.alarms == [], report.looked
