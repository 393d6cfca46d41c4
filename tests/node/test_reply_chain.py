"""`benchmarks/reply_chain.py`: few calls lead from a message to the loss, and they do not go back and forth."""

from benchmarks.reply_chain import BASE, entries, reply_chain


def test_a_reply_takes_few_calls_and_enters_the_base_once(tmp_path):
    """A method's author follows them in each traceback."""
    chain = reply_chain(tmp_path / "run")
    assert chain[0] == ("node/respond.py", "respond")
    assert chain[-1] == ("tasks/classification.py", "Classification.loss")
    assert len(chain) - 1 <= 9
    assert entries(chain) == 1


def test_entries_are_counted():
    base, other = (BASE, "a"), ("clients/x.py", "b")
    assert entries([other, base, base, other, base]) == 2
    assert entries([base, other]) == 0
