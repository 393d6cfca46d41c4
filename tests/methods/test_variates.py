"""What clients keep between rounds, and the server's sum of it, stay the same also when an answer is lost on its way."""

import pytest
from flwr.app import Error, Message

from fedgraph_flwr.clients.variates import VariateClient
from fedgraph_flwr.config import compose, group_names
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.engine.inline import InlineGrid
from tests.methods.regression import WORDS, vector
from tests.support import assert_same_arrays, call_fresh

METHODS = [
    name
    for name in group_names("strategy")
    if issubclass(locate(compose([f"strategy={name}"]).strategy.client), VariateClient)
]


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_lost_answer_is_as_if_the_client_had_been_away(run, monkeypatch, method, fresh):
    """Client 1 trains in round 2, but nobody hears of it; in the other run it does not train."""
    call, ends = call_fresh if fresh else InlineGrid._call, {}
    words = [*WORDS, f"strategy={method}", "train.local_steps=3"]
    for trains in (True, False):

        def lossy(self, message, trains=trains):
            config, node = message.content["config"], self.contexts[message.metadata.dst_node_id]
            struck = (config["phase"], config["round"], node.node_config["partition-id"]) == ("train", 2, 1)
            if struck and trains:
                call(self, message)
            return Message(Error(1, "lost"), reply_to=message) if struck else call(self, message)

        with monkeypatch.context() as patch:
            patch.setattr(InlineGrid, "_call", lossy)
            ends[trains] = run(*words)
        assert len(ends[trains].summary["failures"]) == 1
    assert_same_arrays(ends[True].arrays, ends[False].arrays)
    assert (vector(run(*words).arrays) != vector(ends[True].arrays)).any()


def test_there_are_such_methods():
    assert len(METHODS) >= 2
