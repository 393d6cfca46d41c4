"""What goes with what: pairs of choices have the stored answers."""

import pytest

from benchmarks import pairs


def test_a_share_of_all_pairs_has_the_stored_answers():
    """`python -m benchmarks.pairs` compares all of them."""
    among = list(pairs.pairs())
    assert len(among) > 4000
    assert pairs.differences(among[7::61]) == []


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        (("strategy=fednova", "train.sampler=clusters"), "numbers of nodes that clients do not report"),
        (("task=edges", "train.sampler=saint train.batch_size=64"), "whose items are the edges that it draws"),
        (("task=nodes-regression", "train.sampler=saint train.batch_size=64"), "is derived for classes"),
        (("task=links", "train.sampler=clusters"), "pairs between two parts would never be trained on"),
        (("task=edges", "train.sampler=clusters"), "accepted"),
        (("strategy=fedavg", "strategy.objective=[moon]"), "accepted, not stacked: the part 'moon'"),
    ],
)
def test_a_refusal_says_why(chosen, why):
    assert why in pairs.answer(*chosen)
