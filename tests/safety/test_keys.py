"""Keys that a server relays are signed, pinned and logged as fingerprints; a server that replaces them is rejected or differs."""

import contextlib
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedgraph_flwr.config import from_run_config
from fedgraph_flwr.engine.inline import InlineGrid
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.fleet.keys import make_ca, make_node
from fedgraph_flwr.secure.keyring import SIGNATURE, Keyring, fingerprint, read_key, read_pins
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.wire.messages import from_record, to_record
from tests.methods.worlds import trainer
from tests.support import assert_same_arrays, call_fresh

KEYS = [ec.generate_private_key(ec.SECP384R1()) for _ in range(3)]
PINS = {i: key.public_key() for i, key in enumerate(KEYS)}
FINGERPRINT = re.compile(r"\d{5}( \d{5}){7}")


# --- a keyring, alone -------------------------------------------------------------------------------------------------


def exchange(run=7, at="announce"):
    """Publications of three clients: keys and signatures, by client."""
    keys = {i: bytes([i]) * 32 for i in range(3)}
    return keys, {str(i): Keyring(i, run, KEYS[i]).sign(at, keys[i])[SIGNATURE] for i in keys}


def check(client, keys, signatures, run=7, at="announce", pins=PINS, own=None):
    Keyring(client, run, KEYS[client], pins).check(at, keys[client] if own is None else own, keys, signatures)


def test_keys_of_their_owners_are_taken():
    keys, signatures = exchange()
    for client in range(3):
        check(client, keys, signatures)
        check(client, keys, {}, pins=None)


@given(st.integers(0, 31), st.integers(1, 255))
def test_a_changed_key_is_refused(place, by):
    keys, signatures = exchange()
    changed = bytearray(keys[1])
    changed[place] ^= by
    with pytest.raises(
        RunFailed,
        match=r"client 0 received a public key of client 1 \(announce\) without a valid signature of the pinned key",
    ):
        check(0, {**keys, 1: bytes(changed)}, signatures)


@given(st.integers(0, 95), st.integers(1, 255))
def test_a_changed_signature_is_refused(place, by):
    keys, signatures = exchange()
    changed = signatures["1"].copy()
    changed[place] ^= by
    with pytest.raises(RunFailed, match="without a valid signature of the pinned key for this run"):
        check(0, keys, {**signatures, "1": changed})


@given(st.binary(max_size=200))
def test_whatever_a_server_sends_as_a_signature_is_a_sentence(raw):
    keys, signatures = exchange()
    with pytest.raises(RunFailed, match="without a valid signature of the pinned key for this run"):
        check(0, keys, {**signatures, "1": np.frombuffer(raw, np.uint8)})


def test_what_a_signature_binds():
    keys, signatures = exchange()
    wrong = [
        ({"run": 8}, keys, signatures),  # an old run's
        ({"at": "secagg_keys 1"}, keys, signatures),  # another exchange's
        ({}, {**keys, 1: keys[2]}, {**signatures, "1": signatures["2"]}),  # another client's
        (
            {},
            {**keys, 1: b"x" * 32},
            {**signatures, "1": Keyring(1, 7, KEYS[2]).sign("announce", b"x" * 32)[SIGNATURE]},
        ),
    ]
    for overrides, key_list, signed in wrong:
        with pytest.raises(RunFailed, match="without a valid signature of the pinned key for this run"):
            check(0, key_list, signed, **overrides)


def test_who_is_not_pinned_does_not_sign_or_is_not_oneself():
    keys, signatures = exchange()
    with pytest.raises(
        RunFailed, match=r"client 2 \(announce\) that peers= of its --node-config does not pin: expected"
    ):
        check(0, keys, signatures, pins={1: PINS[1]})
    with pytest.raises(
        RunFailed, match=r"client 2 \(announce\) that is not signed: start that party's node with key= in its"
    ):
        check(0, keys, {"1": signatures["1"]})
    for key_list in (keys, {1: keys[1], 2: keys[2]}):
        with pytest.raises(RunFailed, match="list of keys in which its own differs: the server replaced it"):
            check(0, key_list, signatures, own=b"y" * 32, pins=None)


def test_a_fingerprint_tells_any_difference():
    keys, _ = exchange()
    text = fingerprint(7, "announce", keys)
    assert FINGERPRINT.fullmatch(text)
    assert text == fingerprint(7, "announce", dict(reversed(keys.items())))
    others = [fingerprint(7, "announce", {**keys, i: b"z" * 32}) for i in range(3)]
    others += [
        fingerprint(8, "announce", keys),
        fingerprint(7, "x", keys),
        fingerprint(7, "announce", {0: keys[0], 1: keys[1]}),
    ]
    assert len({text, *others}) == 7


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """``node_0`` to ``node_3`` as the how-to makes them, and ``peers`` with the public halves."""
    folder = tmp_path_factory.mktemp("keys")
    for node in range(4):
        make_node(folder / f"node_{node}")
    make_ca(folder, "ca", days=1)
    (folder / "peers").mkdir()
    for node in range(4):
        (folder / "peers" / f"node_{node}.pub").write_bytes((folder / f"node_{node}.pub").read_bytes())
    return folder


def test_the_keys_of_the_how_to_are_read(files):
    pins = read_pins(str(files / "peers"))
    assert {c: key.public_numbers() for c, key in pins.items()} == {
        c: read_key(str(files / f"node_{c}")).public_key().public_numbers() for c in range(4)
    }


def test_wrong_files_are_a_sentence(files, tmp_path):
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    other = public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    for content, message in (
        (b"x", "node_1.pub in peers=.* is not a public EC P-384 key in"),
        (other, "is not a public EC P-384 key"),
    ):
        (tmp_path / "node_1.pub").write_bytes(content)
        with pytest.raises(FedGraphError, match=message):
            read_pins(str(tmp_path))
    (tmp_path / "node_1.pub").write_bytes((files / "node_1.pub").read_bytes())
    (tmp_path / "bank-01.pub").write_bytes((files / "node_2.pub").read_bytes())
    with pytest.raises(FedGraphError, match="has two keys of client 1"):
        read_pins(str(tmp_path))
    with pytest.raises(FedGraphError, match=r"has no public key: expected files like node_0\.pub"):
        read_pins(str(tmp_path / "nothing"))
    for path, message in (
        (files / "ca.key", "in OpenSSH's format without"),
        (tmp_path / "no", "cannot be read: No such file"),
    ):
        with pytest.raises(FedGraphError, match=message):
            read_key(str(path))


@given(st.binary(max_size=300))
def test_whatever_stands_in_a_key_file_is_a_sentence(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("junk")
    for head in (b"", b"-----BEGIN OPENSSH PRIVATE KEY-----\n", b"ecdsa-sha2-nistp384 "):
        (folder / "node_0.pub").write_bytes(head + raw)
        for read in (lambda: read_pins(str(folder)), lambda: read_key(str(folder / "node_0.pub"))):
            with pytest.raises(FedGraphError, match="EC P-384 key"):
                read()


# --- runs -------------------------------------------------------------------------------------------------------------

METHODS = {
    "fedstruct": ("strategy=fedstruct",),
    "fedspa": ("strategy=fedspa", "strategy.fisher_exchange=scalar"),
    "secagg": ("strategy=fedavg", "privacy.secagg=true"),
}


@pytest.fixture(params=METHODS)
def federate(request, run, tmp_path, monkeypatch, files):
    """``federate(keys=, pins=, swap=)``: a run on nodes of four parties, and the fingerprints that each has kept.

    ``swap`` is a public key that the server shows client 0 as client 1's.
    """
    go = trainer(run, tmp_path) if request.param == "fedstruct" else partial(run, sizes=(12, 16, 20, 14))
    start, count = InlineGrid.__init__, iter(range(9))

    def federate(keys=range(4), pins=range(4), swap=None, plain=False):
        here = tmp_path / f"states{next(count)}"
        here.mkdir()

        def received(self, *args, **kwargs):
            start(self, *args, **kwargs)
            for i, context in enumerate(self.contexts.values()):
                graph = Path(from_run_config(context.run_config).graph) / f"client_{i:04d}.safetensors"
                (here / "policy.yaml").write_text("min_nodes: 0\n")  # two training nodes at one client
                context.node_config = {
                    "graph": str(graph),
                    "state": str(here / str(i)),
                    "policy": str(here / "policy.yaml"),
                }
                context.node_config |= {"key": str(files / f"node_{i}")} if i in keys else {}
                context.node_config |= {"peers": str(files / "peers")} if i in pins else {}

        def call(self, message):
            if swap and message.metadata.dst_node_id == 1:
                message.content = swapped(message.content, 1, swap)
            return call_fresh(self, message)

        with monkeypatch.context() as patch:
            if not plain:
                patch.setattr(InlineGrid, "__init__", received)
                patch.setattr(InlineGrid, "_call", call)
            finished = None
            with contextlib.suppress(FedGraphError, RunFailed):
                finished = go("rounds=1", *METHODS[request.param])
        kept = {int(file.parts[-4]): file.read_text() for file in here.rglob("fingerprints.txt")}
        return finished, kept

    return federate


def swapped(content, client, key):
    """A message down in which ``key`` replaces a client's."""
    changed = RecordDict(content)
    for group in {"keys", "peers", "secagg"} & set(content.array_records):
        arrays = from_record(content.array_records[group])
        if "keys" in arrays:
            keys = arrays["keys"].copy()
            (keys[client] if keys.ndim == 2 else keys[client, 0])[:] = np.frombuffer(key, np.uint8)
            changed[group] = to_record({**arrays, "keys": keys})
    return changed


@pytest.mark.slow
def test_signed_and_pinned_keys_change_nothing_else(federate, caplog):
    plain, _ = federate(plain=True)
    caplog.set_level("INFO")
    signed, kept = federate()
    assert_same_arrays(signed.arrays, plain.arrays)
    assert kept.keys() == {0, 1, 2, 3}
    assert len(set(kept.values())) == 1, "all received the same keys"
    (line,) = kept[0].splitlines()
    digits = FINGERPRINT.match(line)[0]
    assert line.endswith(", clients 0 1 2 3")
    assert re.search(rf"keys of clients 0, 1, 2, 3 \(\w+( \d+)*\): {digits}", caplog.text)
    if "secagg" not in kept[0]:
        unsigned, _ = federate(keys=(), pins=())
        assert_same_arrays(unsigned.arrays, plain.arrays)


def test_a_server_that_swaps_keys_is_refused_where_they_are_pinned(federate, caplog):
    federate(swap=Sealer(1).public)
    text = r"client 0 received a public key of client 1 \(\w+( \d+)*\) without a valid signature of the pinned key for this run"
    assert re.search(text, caplog.text)
    assert "envelope" not in caplog.text


def test_who_does_not_sign_is_refused_where_keys_are_pinned(federate, caplog):
    federate(keys=(0, 2, 3))
    if "this node needs key= in its --node-config to sign" in caplog.text:
        return  # secure sums: the node that does not sign refuses them itself
    message = (
        r"received a public key of client 1 \(\w+( \d+)*\) that is not signed: start that party's node with key= in its"
    )
    assert len(re.findall("client [023] " + message, caplog.text)) >= 3


def test_a_server_that_swaps_keys_shows_in_fingerprints_where_nothing_is_pinned(federate):
    _, kept = federate(pins=(), swap=Sealer(1).public)
    if not kept:
        return  # secure sums: a node without pins refuses them
    first = {client: lines.splitlines()[0] for client, lines in kept.items()}
    assert first[1] == first[2] == first[3] != first[0]


def test_a_server_that_swaps_keys_reads_what_is_sealed_where_nothing_is_pinned(run, tmp_path, monkeypatch):
    """The attack works: with its own key instead of client 1's the server opens what client 0 seals for it."""
    server, seen = Sealer(1), []
    answer = InlineGrid._call

    def call(self, message):
        first = message.metadata.dst_node_id == 1
        if first:
            message.content = swapped(message.content, 1, server.public)
        reply = answer(self, message)
        if reply.has_content():
            groups = {name: from_record(record) for name, record in reply.content.array_records.items()}
            if first and "identity" in groups:
                server.meet({0: groups["identity"]["key"].tobytes()})
            if first and "1" in groups.get("envelopes", {}):
                seen.append(server.open(0, f"acquire {len(seen) + 1}", groups["envelopes"]["1"]))
        return reply

    monkeypatch.setattr(InlineGrid, "_call", call)
    with pytest.raises(RunFailed, match="cannot open the envelope"):
        trainer(run, tmp_path)("strategy=fedstruct", "rounds=1")
    assert seen[0].keys() >= {"values", "columns"}
