"""Envelopes: what one client seals, only its addressee opens, once, in its step."""

import numpy as np
import pytest

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure.sealed import OVERHEAD, Sealer

CONTENT = {"values": np.arange(5.0), "columns": np.array([3, 1, 4, 1, 5], np.int32)}


@pytest.fixture
def clients():
    sealers = [Sealer(i) for i in range(3)]
    for sealer in sealers:
        sealer.meet({i: s.public for i, s in enumerate(sealers)})
    return sealers


def test_the_addressee_reads_what_was_sealed(clients):
    opened = clients[1].open(0, "hop 2", clients[0].seal(1, "hop 2", CONTENT))
    assert opened.keys() == CONTENT.keys()
    for key, array in CONTENT.items():
        np.testing.assert_array_equal(opened[key], array)
        assert opened[key].dtype == array.dtype


def test_the_envelope_shows_nothing_of_its_content(clients):
    envelope = clients[0].seal(1, "hop 2", CONTENT)
    raw = envelope.tobytes()
    assert CONTENT["values"].tobytes()[8:24] not in raw
    assert b"columns" not in raw
    again = clients[0].seal(1, "hop 2", CONTENT)
    assert not np.array_equal(envelope, again)  # the nonce is random
    assert envelope.size > OVERHEAD


@pytest.mark.parametrize("byte", [0, 20, -1])
def test_a_changed_byte_is_refused(clients, byte):
    envelope = clients[0].seal(1, "hop 2", CONTENT).copy()
    envelope[byte] ^= 1
    with pytest.raises(RunFailed, match="altered"):
        clients[1].open(0, "hop 2", envelope)


def test_another_step_sender_or_receiver_is_refused(clients):
    envelope = clients[0].seal(1, "hop 2", CONTENT)
    for reader, sender, step in ((1, 0, "hop 3"), (1, 2, "hop 2"), (2, 0, "hop 2"), (0, 1, "hop 2")):
        with pytest.raises(RunFailed, match="cannot open"):
            clients[reader].open(sender, step, envelope)


def test_an_envelope_opens_once(clients):
    envelope = clients[0].seal(1, "hop 2", CONTENT)
    clients[1].open(0, "hop 2", envelope)
    with pytest.raises(RunFailed, match="second envelope"):
        clients[1].open(0, "hop 2", envelope)


def test_a_client_goes_on_with_its_stored_key(clients):
    envelope = clients[0].seal(1, "hop 2", CONTENT)
    restored = Sealer(1, clients[1].private)
    restored.meet({0: clients[0].public})
    np.testing.assert_array_equal(restored.open(0, "hop 2", envelope)["values"], CONTENT["values"])
    assert restored.public == clients[1].public


def test_a_stranger_is_named(clients):
    with pytest.raises(RunFailed, match="no public key of client 7"):
        clients[0].seal(7, "hop 2", CONTENT)


def test_a_truncated_envelope_is_refused(clients):
    with pytest.raises(RunFailed, match="cannot open"):
        clients[1].open(0, "hop 2", np.zeros(5, np.uint8))
