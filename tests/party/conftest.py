"""Links of small banks."""

import pytest


@pytest.fixture(autouse=True)
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of few values are padded to 32 of them, not to 64: most of a small link's time is for padding."""
    monkeypatch.setattr("fedgraph_flwr.party.link.matching.FEWEST", 32)
