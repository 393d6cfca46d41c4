"""Matching of records between parties: its result is the partition of the whole graph, and its messages reveal nothing else."""

import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ec import SECP384R1, generate_private_key
from safetensors.numpy import load
from torch import Tensor

from fedgraph_flwr import cli
from fedgraph_flwr.clients.description import describe
from fedgraph_flwr.config import SplitConfig, compose
from fedgraph_flwr.data.graph import ClientGraph, read_digest, unpack_words
from fedgraph_flwr.data.pyg import client_graph
from fedgraph_flwr.data.schema import Schema
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.partition import client_files
from fedgraph_flwr.partition.clients import cut, pool
from fedgraph_flwr.party.link import matching
from fedgraph_flwr.party.link.client import LinkClient
from fedgraph_flwr.party.link.files import canonical
from fedgraph_flwr.party.link.matching import A, Mask, P, bucket, jacobi, points, shared
from fedgraph_flwr.party.link.policy import LinkPolicy
from fedgraph_flwr.party.link.protocol import LinkParty, _bytes, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.link.uplink import ENVELOPES
from fedgraph_flwr.party.tables.columns import Treatment
from fedgraph_flwr.party.tables.importing import from_tables
from fedgraph_flwr.party.tables.roles import Columns
from fedgraph_flwr.secure.keyring import Keyring
from fedgraph_flwr.secure.sealed import Sealer
from fedgraph_flwr.tasks.edges import Edges
from tests.party.linked_banks import BANKS, KEY, banks
from tests.safety.fuzz import typed_client
from tests.support import assert_same_arrays

PAYMENTS = LinkRules()
ROOT = Path(__file__).parents[3]


def link(files, rules=PAYMENTS, relay=None):
    """Link files as `--simulate` does."""
    parties = [LinkParty(graph, rules, Keyring(graph.client), repeatable=True) for graph in files]
    simulate(parties, relay)
    return sorted(parties, key=lambda party: party.client)


def assert_equal(
    actual, expected, skip=("far_id", "far_name", "book", "book_ids")
):  # a partition knows far ends only where they share columns, and its records are those of the whole graph's table
    for f in fields(expected):
        left, right = getattr(actual, f.name), getattr(expected, f.name)
        if isinstance(right, Tensor) and f.name not in skip:
            assert left.dtype == right.dtype, f.name
            assert left.shape == right.shape, f.name
            assert torch.equal(left, right), f.name


@pytest.mark.parametrize("match", ["payments", "routed"])
@pytest.mark.parametrize("data", [True, False])
def test_linked_files_equal_the_partition_of_the_whole_graph(tmp_path, match, data):
    made = banks(tmp_path, data=data)
    parties = link([made.client(bank) for bank in BANKS], LinkRules(match=match))
    linked = [party.result() for party in parties]
    whole = made.whole(linked)
    starts = [0, *torch.tensor([graph.num_nodes for graph in linked]).cumsum(0).tolist()]
    parts = [torch.arange(a, b) for a, b in itertools.pairwise(starts)]
    for actual, expected in zip(linked, cut(whole, parts), strict=True):
        assert actual.cut_out.size(1) > 20
        assert_equal(actual, expected)
        assert unpack_words(actual.ids).tolist() == unpack_words(expected.ids).tolist()
        assert (actual.client, actual.num_clients, actual.num_global_nodes) == (
            expected.client,
            expected.num_clients,
            expected.num_global_nodes,
        )
    print("\n".join(parties[0].report()))


@pytest.mark.parametrize("match", ["payments", "routed"])
def test_each_party_keeps_the_columns_of_its_own_records(tmp_path, match):
    """With ``windows``, a bank's incoming cut edges have the counts of its own book, and no envelope holds them."""
    made = banks(tmp_path)
    made.columns = replace(made.columns, windows="30")
    files = [made.client(bank) for bank in BANKS]
    for graph, party in zip(files, link(files, LinkRules(match=match)), strict=True):
        linked_graph, words = party.result(), unpack_words(graph.ids)
        assert linked_graph.num_shared_edge_features == 1
        for cut_edges, outgoing in (("cut_out", True), ("cut_in", False)):
            booked = graph.foreign_out == outgoing
            records = Counter(
                (words[node], *row)
                for node, row in zip(
                    graph.foreign[0, booked].tolist(), graph.foreign_edge_attr[booked, 1:].tolist(), strict=True
                )
            )
            ends, attr = (
                getattr(linked_graph, cut_edges)[0].tolist(),
                getattr(linked_graph, f"{cut_edges}_edge_attr")[:, 1:].tolist(),
            )
            linked = Counter((word, *row) for word, row in zip(unpack_words(linked_graph.ids)[ends], attr, strict=True))
            assert linked.total() > 20
            assert linked <= records
        sent = party._data(np.arange(graph.foreign.size(1)), "")
        assert sent["edge_attr"].shape == (graph.foreign.size(1), 1)


def test_messages_between_clients_carry_no_columns_of_own_records(tmp_path):
    made = banks(tmp_path)
    made.columns = replace(made.columns, windows="30")
    graph = link([made.client(bank) for bank in BANKS])[0].result()
    cfg = compose(["task=edges", "split.kind=ratio"])
    task = Edges(cfg, graph)
    read = task.graph.edge_attr
    inner = graph.edge_index.size(1)
    assert torch.equal(read[:inner], graph.edge_attr)
    assert torch.equal(read[inner:, :1], torch.cat([graph.cut_out_edge_attr, graph.cut_in_edge_attr])[:, :1])
    assert not read[inner:, 1:].any()
    items = task.item_attr(0)
    assert torch.equal(items, torch.cat([graph.edge_attr, graph.cut_out_edge_attr]))
    assert items[inner:, 1:].any()
    pooled = pool([replace(graph, client=0)])
    part = torch.arange(pooled.num_nodes) % 2
    central = Edges(cfg, replace(pooled, part=part))
    between = part[pooled.edge_index[0]] != part[pooled.edge_index[1]]
    assert not central.graph.edge_attr[between, 1:].any()
    assert torch.equal(central.graph.edge_attr[~between], pooled.edge_attr[~between])
    assert torch.equal(central.item_attr(0), pooled.edge_attr)


def test_cut_edges_follow_the_temporal_split_of_their_party(tmp_path):
    made = banks(tmp_path)
    split = SplitConfig(kind="temporal")
    graphs = [
        client_graph(made.read(*write(made, bank), own=bank), client, 3, split) for client, bank in enumerate(BANKS)
    ]
    for party in link(graphs):
        graph = party.result()
        for cut_edges in ("cut_out", "cut_in"):
            time, stage = (getattr(graph, f"{cut_edges}_edge_{key}") for key in ("time", "split"))
            assert set(stage.tolist()) == {0, 1, 2}
            for limit in (0, 1):
                last = graph.edge_time[graph.edge_split <= limit].max()
                assert bool((time[stage <= limit] <= last).all())
                assert bool((time[stage > limit] > last).all())
        assert graph.until(0).cut_in.size(1) < graph.cut_in.size(1)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    made = banks(tmp_path_factory.mktemp("tables"), accounts=12, payments=40)
    return [made.client(bank) for bank in BANKS]


@pytest.fixture
def files(imported):
    """The three client files, which a test may change."""
    return [replace(graph) for graph in imported]


def content(messages):
    """All bytes that cross the server in one phase."""
    if messages and isinstance(next(iter(messages.values())), dict):
        return [array.tobytes() for arrays in messages.values() for array in arrays.values()]
    return [envelope.tobytes() for envelope in messages.values()]


def pieces(transcript):
    return {raw[i : i + 16] for raw in transcript for i in range(len(raw) - 15)}


def test_a_transcript_holds_no_id_and_nothing_of_an_earlier_run(files):
    transcripts = []
    for _ in range(2):
        seen = []
        link(files, relay=lambda phase, messages, seen=seen: seen.extend(content(messages)))
        transcripts.append(seen)
    first, second = map(pieces, transcripts)
    assert len(first) > 50_000
    assert not first & second
    words = {word.encode() for graph in files for word in unpack_words(graph.ids)}
    joined = b"\n".join(transcripts[0])
    assert not [word for word in words if word in joined]


def test_masks_hide_values_also_from_who_opens_them(files):
    """What a peer opens of two runs has nothing in common either, and no hash of a known value."""
    seen = []
    for _ in range(2):
        parties = [LinkParty(graph, LinkRules(), Keyring(graph.client)) for graph in files]
        opened = parties[1].sealer.open
        rows = set()

        def spy(sender, step, envelope, opened=opened, rows=rows):
            arrays = opened(sender, step, envelope)
            if step == "link mask":
                raw = arrays["content"].tobytes()
                size = int.from_bytes(raw[:8], "little")
                rows.update(row.tobytes() for row in load(raw[8 : 8 + size])["masks"])
            return arrays

        parties[1].sealer.open = spy
        simulate(parties)
        seen.append(rows)
    assert len(seen[0]) >= 64
    assert not seen[0] & seen[1]
    sizes = {len(rows) for rows in seen}
    assert sizes <= {64, 96, 128}  # of two peers, each a power of two, whatever the number of records


def test_scalars_are_new_for_every_run_and_peer(files):
    secrets = []
    for _ in range(2):
        parties = link(files)
        secrets += [party._mask(peer).secret for party in parties for peer in party.peers]
    assert len(set(secrets)) == len(secrets) == 12


def test_sizes_of_messages_are_powers_of_two(files, monkeypatch):
    sizes, seal = set(), Sealer.seal

    def spy(self, receiver, step, arrays):
        sizes.add(arrays["content"].size)
        return seal(self, receiver, step, arrays)

    monkeypatch.setattr(Sealer, "seal", spy)
    link(files)
    assert min(sizes) == 1024
    assert [size for size in sizes if size & (size - 1)] == []


def test_a_second_reply_of_one_party_is_refused(files):
    def again(phase, messages):
        if phase == "mask":
            parties[1].step("seal", {0: messages[0, 1], 2: messages[2, 1]}, "mask")

    parties = [LinkParty(graph, PAYMENTS, Keyring(graph.client)) for graph in files]
    with pytest.raises(
        RunFailed, match="the server requests phase 'seal' of link from client 1 after phase 'seal', expected 'double'"
    ):
        simulate(parties, again)


def swapped(phase_wanted):
    """A relay that gives two receivers each other's message of one sender."""

    def relay(phase, messages):
        if phase == phase_wanted:
            messages[0, 1], messages[0, 2] = messages[0, 2], messages[0, 1]

    return relay


def altered(phase_wanted):
    def relay(phase, messages):
        if phase == phase_wanted:
            envelope = messages[0, 1].copy()
            envelope[40] ^= 1
            messages[0, 1] = envelope

    return relay


def replayed(phase_wanted):
    """A relay that sends an earlier phase's message again."""
    earlier = {}

    def relay(phase, messages):
        if phase == phase_wanted:
            messages[0, 1] = earlier[0, 1]
        if phase != "announce":
            earlier.update(messages)

    return relay


def wrong_key(phase, messages):
    """A server that replaces a party's key."""
    if phase == "announce":
        messages[0] = {**messages[0], "key": messages[1]["key"]}


@pytest.mark.parametrize(
    "phase", ["introduce", "commit", "mask", "seal", "double", "prove", "agree", "match", "confirm"]
)
@pytest.mark.parametrize("attack", [swapped, altered, replayed])
def test_a_server_that_swaps_alters_or_repeats_a_message_is_refused(files, phase, attack):
    if attack is replayed and phase == "introduce":
        pytest.skip("nothing was sealed before")
    with pytest.raises(RunFailed, match="cannot open the envelope"):
        link(files, relay=attack(phase))


def test_a_replaced_key_is_refused(files):
    with pytest.raises(RunFailed, match="received a list of keys in which its own differs"):
        link(files, relay=wrong_key)


def test_a_key_that_its_party_did_not_sign_is_refused(files):
    """A server in the middle, against pinned keys: it can replace key and signature, not sign as the party."""
    keys = [generate_private_key(SECP384R1()) for _ in files]
    rings = [
        Keyring(k, 7, key, {j: other.public_key() for j, other in enumerate(keys) if j != k})
        for k, key in enumerate(keys)
    ]
    parties = [LinkParty(graph, PAYMENTS, ring) for graph, ring in zip(files, rings, strict=True)]
    announced = {party.client: party.announcement() for party in parties}
    signed = {str(k): arrays["signature"] for k, arrays in announced.items()}
    parties[1].meet(announced, signed)
    server = LinkParty(files[0], PAYMENTS, Keyring(0, 7, generate_private_key(SECP384R1()))).announcement()
    more = {**announced[0], "nodes": announced[0]["nodes"] + 1}
    old = LinkParty(files[0], PAYMENTS, Keyring(0, 6, keys[0])).announcement()  # of another run
    for first in (server, more, old):
        with pytest.raises(
            RunFailed, match=r"public key of client 0 \(announce\) without a valid signature of the pinned key"
        ):
            parties[1].meet({**announced, 0: first}, {**signed, "0": first["signature"]})
    with pytest.raises(RunFailed, match="that is not signed"):
        parties[1].meet(announced, {k: v for k, v in signed.items() if k != "0"})
    simulate(parties)


def test_a_missing_message_is_refused(files):
    def relay(phase, messages):
        if phase == "mask":
            del messages[0, 1]

    with pytest.raises(
        RunFailed, match=r"client 1 needs messages of clients \[0, 2\] in phase 'mask' of link, got those of \[2\]"
    ):
        link(files, relay=relay)


class Echo:
    """Client 1 and the server together: it sees client 0's replies first, and sends them back as its own.

    Args:
        attacker: client 1.
        steps: phases of the commitment and of the replies.
        group: name of the replies in their message.
        change: what it does with the replies.
        copies: whether it also sends back client 0's commitment.
    """

    def __init__(self, attacker, steps, group, change, copies):
        self.attacker, self.steps, self.group, self.change, self.copies = attacker, steps, group, change, copies
        self.phases = []

    def __call__(self, phase, messages):
        self.phases.append(phase)
        if phase not in self.steps:
            return
        seen = self.attacker._opened(0, phase, messages[0, 1])
        self.attacker.sealer._opened.clear()  # it opens the message again in its own step
        if phase == self.steps[1]:
            replies = seen[self.group]
            nonce = seen["nonce"] if self.copies else _bytes(self.attacker._nonce(0))
            messages[1, 0] = self.attacker._sealed(0, phase, {self.group: self.change(replies), "nonce": nonce})
        elif self.copies:
            messages[1, 0] = self.attacker._sealed(0, phase, seen)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows, "client 1 copied the replies of client 0, expected its own: no rows are sent"),
        (
            lambda rows: np.roll(rows, 1, axis=0),
            "client 1 sent client 0 replies that do not match its commitment: no rows are sent",
        ),
    ],
)
@pytest.mark.parametrize(
    ("match", "steps", "group"),
    [("payments", ("seal", "double"), "doubled"), ("routed", ("ask_commit", "ask"), "hashes")],
)
def test_a_peer_that_echoes_replies_is_refused_before_rows_leave(files, match, steps, group, change, message, copies):
    """Else all of client 0's records would look shared, and it would send rows and data of them."""
    parties = [LinkParty(graph, LinkRules(match=match), Keyring(graph.client)) for graph in files]
    relay = Echo(parties[1], steps, group, change, copies)
    with pytest.raises(RunFailed, match=message):
        simulate(parties, relay)
    assert relay.phases[-1] == steps[1]  # nothing was sent after the replies


def test_a_commitment_is_bound_to_sender_receiver_run_and_nonce(files):
    party, other = (link(files)[0] for _ in range(2))
    rows, nonce = np.zeros((64, 16), np.uint8), bytes(32)
    bindings = [
        party._binding(0, 1, nonce, rows),
        party._binding(1, 0, nonce, rows),
        party._binding(0, 2, nonce, rows),
        party._binding(0, 1, bytes(31) + b"1", rows),
        party._binding(0, 1, nonce, rows + np.uint8(1)),
        other._binding(0, 1, nonce, rows),
    ]
    assert len({binding.tobytes() for binding in bindings}) == 6
    assert len({party._nonce(1), party._nonce(2), other._nonce(1)}) == 3


def test_a_peer_that_repeats_a_commitment_is_refused(files):
    """Else it could send the masks of client 0 as its own, once it sees them."""
    parties = [LinkParty(graph, PAYMENTS, Keyring(graph.client)) for graph in files]
    phases = []

    def relay(phase, messages):
        phases.append(phase)
        if phase == "commit":
            seen = parties[1]._opened(0, phase, messages[0, 1])
            messages[1, 0] = parties[1]._sealed(0, phase, seen)

    with pytest.raises(
        RunFailed, match="client 1 copied the commitment of client 0, expected its own: no masks are sent"
    ):
        simulate(parties, relay)
    assert phases[-1] == "commit"


class Malicious(LinkParty):
    """A party that changes one phase's message to client 1, or its replies before it commits to them."""

    phase = ""
    change = staticmethod(lambda arrays: arrays)

    def _replies(self, peer):
        rows = super()._replies(peer)
        return self.change({"doubled": rows})["doubled"] if (self.phase, peer) == ("replies", 1) else rows

    def _sealed(self, peer, step, arrays):
        return super()._sealed(peer, step, self.change(dict(arrays)) if (step, peer) == (self.phase, 1) else arrays)


def reordered(arrays):
    return arrays | {"doubled": arrays["doubled"][::-1]}


def other_masks(arrays):
    return arrays | {"masks": np.concatenate([arrays["masks"][1:], arrays["masks"][:1] ^ 4])}


def small_order(arrays):
    return arrays | {"masks": np.zeros_like(arrays["masks"])}


def doubled_twice(arrays):
    return arrays | {"doubled": np.repeat(arrays["doubled"][:1], len(arrays["doubled"]), axis=0)}


def other_binding(arrays):
    return {"binding": arrays["binding"] ^ 1}


def no_nonce(arrays):
    return {"doubled": arrays["doubled"]}


def short(arrays):
    return arrays | {"doubled": arrays["doubled"][1:]}


def huge(arrays):
    return arrays | {"size": np.array([2**30])}


def odd_size(arrays):
    return arrays | {"size": np.array([100])}


def far_row(arrays):
    return arrays | {"row": arrays["row"] + 1000}


def other_row(arrays):
    return arrays | {"row": np.where(arrays["row"] == 0, 1, 0)}


def other_count(arrays):
    return arrays | {"count": arrays["count"] + 1}


def small_type(arrays):
    """The sum of such a row and the place where a party's ids start would overflow."""
    return arrays | {"row": arrays["row"].astype(np.int8)}


def not_finite(arrays):
    return arrays | {"edge_attr": arrays["edge_attr"] * np.float32("nan")}


def fractions(arrays):
    return arrays | {"row": arrays["row"] + 0.5}


def no_rows(arrays):
    return {key: value for key, value in arrays.items() if key != "row"}


def fewer_alone(arrays):
    return arrays | {"alone_out": arrays["alone_out"][1:]}


def odd_alone(arrays):
    return arrays | {"alone_edge_attr": arrays["alone_edge_attr"] * np.float32("inf")}


def wide_alone(arrays):
    return arrays | {"alone_edge_time": arrays["alone_edge_time"].astype(np.int32)}


def endless(arrays):
    return arrays | {"size": np.array([np.inf])}


def no_object(arrays):
    introduction = json.loads(arrays["introduction"].tobytes()) | {"schema": {"nodes": {"a": ["b"]}, "edges": 3}}
    return {"introduction": np.frombuffer(json.dumps(introduction).encode(), np.uint8)}


def no_schema(arrays):
    introduction = json.loads(arrays["introduction"].tobytes()) | {"schema": {"nodes": {}, "classes": 3}}
    return {"introduction": np.frombuffer(json.dumps(introduction).encode(), np.uint8)}


def text(arrays):
    return {"introduction": np.frombuffer(b'"name"', np.uint8)}


def deep(arrays):
    return {"introduction": np.frombuffer(b"[" * 100_000, np.uint8)}


def fewer_edges(arrays):
    return arrays | {"edge_time": arrays["edge_time"][1:]}


@pytest.mark.parametrize(
    ("phase", "change", "message"),
    [
        ("double", reordered, "client 0 sent client 1 replies that do not match its commitment"),
        ("seal", other_binding, "client 0 sent client 1 replies that do not match its commitment"),
        ("double", no_nonce, "client 0 sent client 1 an invalid message in phase 'double' of link"),
        (
            "replies",
            reordered,
            "clients 0 and 1 matched different records: one of them replied to the masks in another order",
        ),
        ("mask", other_masks, "client 0 sent client 1 masks that do not match its commitment"),
        ("mask", small_order, "client 0 sent client 1 masks that do not match its commitment"),
        ("replies", doubled_twice, "a set of masks holds one value twice"),
        ("double", short, "an invalid message in phase 'double'"),
        (
            "commit",
            huge,
            "client 0 announces a padded set of 1073741824 for client 1, which accepts up to",
        ),
        ("commit", endless, "client 0 sent client 1 an invalid message in phase 'commit' of link"),
        ("introduce", text, "client 0 sent client 1 an invalid message in phase 'introduce' of link"),
        ("introduce", deep, "client 0 sent client 1 an invalid message in phase 'introduce' of link"),
        ("introduce", no_object, "client 0"),
        ("introduce", no_schema, "client 0"),
        ("commit", odd_size, "client 0 announces a padded set of 100 for client 1, which accepts up to 60"),
        ("match", far_row, r"client 0 sent .*\(row from 10\d\d to 10\d\d, expected 0 to \d+\): nothing is written"),
        ("match", other_row, "clients . and . have different edges between them: nothing is written"),
        ("match", other_count, r"client 0 sent .*\(count from \d+ to (\d+), expected 0 to "),
        ("match", small_type, r"client 0 sent .*\(row is int8 .*, expected int64 "),
        ("match", not_finite, r"client 0 sent .*\(edge_attr from nan to nan, expected -3e"),
        ("match", fractions, "an invalid message in phase 'match'"),
        ("match", no_rows, "an invalid message in phase 'match'"),
        ("match", fewer_alone, "an invalid message in phase 'match'"),
        ("match", odd_alone, r"client 0 sent .*\(alone_edge_attr from .*(inf|nan), expected -3e"),
        ("match", wide_alone, r"client 0 sent .*\(alone_edge_time is int32 .*, expected int64 "),
        ("match", fewer_edges, r"client 0 sent .*\(edge_time is int64 .*, expected int64 .*\): nothing is written"),
    ],
)
def test_a_malicious_party_is_named(files, phase, change, message):
    rules = LinkRules(one_sided="disclose" if "alone" in change.__name__ else "drop")
    first = Malicious(files[0], rules, Keyring(0))
    first.phase, first.change = phase, change
    parties = [first, *(LinkParty(graph, rules, Keyring(graph.client)) for graph in files[1:])]
    with pytest.raises(FedGraphError, match=message):
        simulate(parties)


def test_sets_are_padded_to_powers_of_two_with_points_that_match_nothing(monkeypatch):
    monkeypatch.undo()  # `small_sets`
    assert [bucket(size) for size in (0, 1, 64, 65, 128, 129)] == [64, 64, 64, 128, 128, 256]
    first, second = Mask(), Mask()
    masks, places = first.masks([b"a", b"b"] * 35, b"purpose")
    assert masks.shape == (128, 32)
    assert len(places) == 70
    distinct = first.masks([b"a", b"b"], b"purpose")[0], second.masks([b"b", b"c"], b"purpose")[0]
    own_places, other = shared(second.double(distinct[0], "one"), first.double(distinct[1], "two"))
    assert own_places.size == other.size == 1
    assert all(on_curve(row.tobytes()) for row in masks)


def on_curve(coordinate):
    """Euler's criterion: v² = u³ + A u² + u has a solution."""
    u = int.from_bytes(coordinate, "little")
    return pow(u**3 + A * u**2 + u, (P - 1) // 2, P) == 1


def test_values_have_points_on_the_curve(monkeypatch):
    values = [b"%d" % i for i in range(40)]
    curve_points = points(values, b"purpose")
    assert len(set(curve_points)) == 40
    assert all(map(on_curve, curve_points))
    assert curve_points[7] == points(values[7:8], b"purpose")[0] != points(values[7:8], b"another")[0]


@pytest.mark.slow
def test_numba_finds_the_points_of_python(monkeypatch):
    pytest.importorskip("numba")
    from fedgraph_flwr.secure.squares_numba import symbols

    drawn = np.random.default_rng(0)
    numbers = [int.from_bytes(drawn.bytes(32), "little") % P for _ in range(2000)]
    numbers += [0, 1, 2, 4, P - 1, *(2**k for k in (63, 64, 65, 128, 192, 254))]
    overrides = [
        np.frombuffer(b"".join(n.to_bytes(32, "little") for n in integers), "<u8") for integers in (numbers, [P])
    ]
    assert symbols(overrides[0].reshape(-1, 4), overrides[1]).tolist() == [jacobi(number) for number in numbers]
    values = [b"%d" % i for i in range(100)]
    expected = points(values, b"purpose")
    monkeypatch.setattr(matching, "MANY", 1)
    assert points(values, b"purpose") == expected


def test_a_point_of_small_order_is_refused():
    with pytest.raises(
        RunFailed, match="client 3 sent a point of small order, expected one of the curve's prime-order group"
    ):
        Mask().double(np.zeros((2, 32), np.uint8), "client 3")


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_ids": 10}, "records for client 1, expected at most 10"),
        ({"min_shared": 10_000}, "clients 0 and 1 share fewer than 10000 .min_shared.: no rows are sent"),
        ({"max_shared": 0.1}, "clients 0 and 1 share more than 0.1 of the set of client 0 .max_shared."),
    ],
)
def test_limits_of_a_party(files, limits, message):
    with pytest.raises(RunFailed, match=message):
        link(files, LinkRules(**limits))


def test_a_dry_run_learns_numbers_only(files):
    phases = []
    full, dry = (link(files, LinkRules(dry_run=value)) for value in (False, True))
    link(files, LinkRules(dry_run=True), relay=lambda phase, messages: phases.append(phase))
    assert phases == ["announce", "introduce", "commit", "mask", "seal", "double", "count"]
    hits = []
    for party, other in zip(full, dry, strict=True):
        assert other.report() == party.report()
        for peer in party.peers:
            hits += np.isin(other.intersection(peer)[0], party.intersection(peer)[0]).tolist()
    assert not all(hits)  # which of its records are shared, a party cannot tell: the replies were shuffled


def test_the_order_of_files_changes_nothing(files, tmp_path):
    for name, order in (("one", files), ("two", files[::-1])):
        for party in link(order):
            party.result().save(tmp_path / name / f"{party.client}.safetensors")
    for client in range(3):
        first, second = (read_digest(tmp_path / name / f"{client}.safetensors") for name in ("one", "two"))
        assert first == second


def test_all_linked_files_have_one_name(files):
    names = {party.result().linking["link"] for party in link(files)}
    assert len(names) == 1
    other = replace(files[0], x=files[0].x + 1)
    assert link([other, *files[1:]])[1].result().linking["link"] not in names
    assert not names & {""}


def test_files_of_two_link_runs_do_not_fit(files, tmp_path):
    """Such as after one party imported its tables again."""
    other = replace(files[0], x=files[0].x + 1)
    for party in link(files):
        party.result().save(tmp_path / f"client_{party.client:04d}.safetensors")
    link([other, *files[1:]])[0].result().save(tmp_path / "client_0000.safetensors")
    with pytest.raises(
        FedGraphError, match="clients 0 and 1 have files that do not fit, one has the file of another link run"
    ):
        client_files(compose([f"graph={tmp_path}"]))
    files[0].save(tmp_path / "client_0000.safetensors")
    with pytest.raises(FedGraphError, match="clients 0 and 1 have files that do not fit, one has an unlinked file"):
        client_files(compose([f"graph={tmp_path}"]))
    assert "link" in describe(compose(), False, link(files)[0].result(), 1, 2)


@pytest.mark.parametrize(
    "rules",
    [
        LinkRules(one_sided="disclose", share=["age", "income:eps=1"]),
        LinkRules(match="routed"),
        LinkRules(dry_run=True),
    ],
)
def test_a_party_resumes_from_its_state(files, rules):
    """As on a node whose process ends between messages."""

    class Forgetful(LinkParty):
        def step(self, phase, envelopes, before):
            fresh = LinkParty(self.graph, self.rules, self.keyring, self.state(), repeatable=True)
            sent = fresh.step(phase, envelopes, before)
            self.__dict__.update(fresh.__dict__)
            return sent

    parties = [Forgetful(graph, rules, Keyring(graph.client), repeatable=True) for graph in files]
    simulate(parties)
    for party, other in zip(parties, link(files, rules), strict=True):
        if not rules.dry_run:
            assert_equal(party.result(), other.result())
        assert party.report() == other.report()


def pairs_of(graph):
    """Cut edges of a linked file as ids or global ids of both ends, with multiplicity."""
    out = torch.stack([graph.node_id[graph.cut_out[0]], graph.cut_out[1]])
    into = torch.stack([graph.cut_in[1], graph.node_id[graph.cut_in[0]]])
    return sorted(map(tuple, torch.cat([out, into], dim=1).t().tolist()))


def named(parties):
    words = [word for party in parties for word in unpack_words(party.result().ids).tolist()]
    return [[(words[a], words[b]) for a, b in pairs_of(party.result())] for party in parties]


def test_disclosed_records_are_edges_at_both(tmp_path):
    """One record of A alone becomes an edge of both; with copies, the larger number counts, never the sum."""
    made = banks(tmp_path, accounts=12, payments=40)
    parties = link([made.client(bank) for bank in BANKS], LinkRules(one_sided="disclose"))
    expected = {bank: [] for bank in BANKS}
    for a, b in itertools.permutations(BANKS, 2):
        counted = []
        for bank in (a, b):
            book = made.books[bank]
            counted.append(Counter(map(tuple, book[(book.from_bank == a) & (book.to_bank == b)][KEY].values)))
        for key, count in (counted[0] | counted[1]).items():  # the larger multiplicity
            for bank in (a, b):
                expected[bank] += [(key[1], key[3])] * count
    for bank, pairs in zip(BANKS, named(parties), strict=True):
        assert sorted(pairs) == sorted(expected[bank])
    assert "one-sided (disclose)" in parties[0].report()[0]


def test_disclosed_records_of_unknown_accounts_are_counted(tmp_path):
    made = banks(tmp_path, accounts=12, payments=40, data=False)
    odd = made.books["A"].query("to_bank == 'B'").iloc[:2].assign(target="B9999")
    made.books["A"] = pd.concat([made.books["A"], odd])
    parties = link([made.client(bank) for bank in BANKS], LinkRules(one_sided="disclose", match="routed"))
    assert "2 name accounts that it does not have" in parties[0].report()[0]


def test_stubs_are_nodes_of_one_party(tmp_path):
    made = banks(tmp_path, accounts=12, payments=40)
    files = [made.client(bank) for bank in BANKS]
    plain, stubbed = link(files), link(files, LinkRules(one_sided="stub"))
    book = made.books["A"]
    for party, other in zip(plain, stubbed, strict=True):
        before, after = party.result(), other.result()
        stubs = after.y == -1
        assert after.num_nodes > before.num_nodes
        assert int(stubs.sum()) == after.num_nodes - before.num_nodes
        assert not bool(after.x[stubs].any())
        assert before.cut_out.size(1) == after.cut_out.size(1)
        assert not bool((after.train_mask | after.val_mask | after.test_mask)[stubs].any())
    ends = book[(book.from_bank == "A") | (book.to_bank == "A")]
    after = stubbed[0].result()
    assert after.edge_index.size(1) + after.cut_out.size(1) + after.cut_in.size(1) == len(
        ends
    )  # every record counts once
    assert after.edge_index.size(1) == len(after.edge_attr) == len(after.edge_time)


def test_an_undirected_edge_is_booked_by_either_side(tmp_path):
    made = banks(tmp_path, accounts=12, payments=40, data=False, undirected=True)
    flipped = made.books["B"]
    flipped[["from_bank", "source", "to_bank", "target"]] = flipped[
        ["to_bank", "target", "from_bank", "source"]
    ].to_numpy()
    parties = link([made.client(bank) for bank in BANKS])
    for party in parties:
        graph = party.result()
        assert graph.cut_out.size(1) == graph.cut_in.size(1) > 10
        assert torch.equal(graph.cut_out.unique(dim=1), graph.cut_in.unique(dim=1))


def customers(folder, renamed):
    """Tables without payments between parties, in which some nodes of a bank are those of another one."""
    made = banks(folder, accounts=12, payments=40, data=False)
    made.books = {bank: book[(book.from_bank == bank) & (book.to_bank == bank)] for bank, book in made.books.items()}
    made.columns = replace(made.columns, party_columns="", match_columns="")
    for bank, names in renamed.items():
        made.nodes[bank]["id"] = made.nodes[bank]["id"].replace(names)
        made.books[bank] = made.books[bank].replace(names)
    return made


def test_identities_become_edges_or_one_node(tmp_path):
    renamed = {"B": {"B0001": "A0001", "B0002": "A0002"}, "C": {"C0001": "A0001", "C0005": "B0005"}}
    made = customers(tmp_path, renamed)
    files = [client_graph(made.read(*write(made, bank)), BANKS.index(bank), 3) for bank in BANKS]
    for party in link(files, LinkRules(match="ids")):
        graph = party.result()
        assert graph.num_global_nodes == sum(file.num_nodes for file in files)
        assert graph.cut_out.size(1) == graph.cut_in.size(1) == {0: 3, 1: 4, 2: 3}[party.client]
    overlapping = [party.result() for party in link(files, LinkRules(match="ids", entities="overlap"))]
    assert overlapping[0].num_global_nodes == sum(file.num_nodes for file in files) - 4
    gids = [dict(zip(unpack_words(g.ids).tolist(), g.node_id.tolist(), strict=True)) for g in overlapping]
    for one, other in itertools.combinations(gids, 2):
        for word in one.keys() & other.keys():
            assert one[word] == other[word]
        assert len(set(one.values()) & set(other.values())) == len(one.keys() & other.keys())
    assert sorted(set().union(*(g.values() for g in gids))) == list(range(overlapping[0].num_global_nodes))
    assert all(bool((g.node_id.diff() > 0).all()) for g in overlapping)


@pytest.mark.slow
def test_shared_customers_are_those_of_an_overlapping_partition(tmp_path, run):
    """Nodes and edges of the files are those of `cut`, and FedGL, which exchanges over shared nodes, has the same bits."""
    made = customers(tmp_path, {"B": {f"B{i:04d}": f"A{i:04d}" for i in range(5)}, "C": {"C0001": "A0001"}})
    whole_nodes = pd.concat(made.nodes.values()).drop_duplicates("id").set_index("id")
    for bank in BANKS:  # a customer's columns are the same at both banks
        made.nodes[bank] = whole_nodes.loc[made.nodes[bank]["id"]].reset_index()
        shared = made.books[bank][["source", "target"]].isin([f"A{i:04d}" for i in range(5)]).all(axis=1)
        made.books[bank] = made.books[bank][~shared]  # an edge of two shared customers would be in one book only
    files = [client_graph(made.read(*write(made, bank)), BANKS.index(bank), 3) for bank in BANKS]
    linked = [party.result() for party in link(files, LinkRules(match="ids", entities="overlap"))]
    names = {
        gid: word for g in linked for gid, word in zip(g.node_id.tolist(), unpack_words(g.ids).tolist(), strict=True)
    }
    whole_nodes.loc[[names[gid] for gid in range(len(names))]].reset_index().to_csv(tmp_path / "n.csv", index=False)
    pd.concat(made.books.values()).to_csv(tmp_path / "e.csv", index=False)
    whole = canonical(made.read(tmp_path / "n.csv", tmp_path / "e.csv"))
    expected = cut(whole, [g.node_id for g in linked])
    for actual, other in zip(linked, expected, strict=True):
        assert_equal(actual, other, skip=("cut_out", "cut_in", "cut_out_owner", "cut_in_owner"))
        assert actual.num_global_nodes == other.num_global_nodes
    models = []
    for name, graphs in (("linked", linked), ("parts", expected)):
        for graph in graphs:
            graph.save(tmp_path / name / f"client_{graph.client:04d}.safetensors")
        models.append(run(f"graph={tmp_path / name}", "strategy=fedgl", "rounds=3", "model.hidden=4").arrays)
    assert_same_arrays(*models)


def write(made, bank):
    paths = [made.folder / f"{bank}_{name}.csv" for name in ("nodes", "edges")]
    for path, table in zip(paths, (made.nodes[bank], made.books[bank]), strict=True):
        table.to_csv(path, index=False)
    return paths


@pytest.mark.parametrize("one_sided", ["drop", "stub", "disclose"])
def test_a_payment_that_one_bank_booked_twice_is_one_edge_and_a_counted_record(tmp_path, one_sided):
    made = banks(tmp_path, accounts=4, payments=0)
    for table in made.nodes.values():
        table["part"] = "train"
    row = {"from_bank": "A", "source": "A0000", "to_bank": "B", "target": "B0001", "date": "2026-01-01", "amount": 5}
    rows = pd.DataFrame([row | {"ref": "r", "time": time, "risk": 0.0, "label": "ok"} for time in (3, 4)])
    made.books = {"A": rows, "B": rows[:1], "C": rows[:0].assign(from_bank="C", to_bank="C")}
    made.books["C"].loc[0] = rows.loc[0].to_dict() | {"from_bank": "C", "to_bank": "C", "source": "C0", "target": "C0"}
    made.books["C"]["source"] = made.books["C"]["target"] = "C0000"
    parties = link([made.client(bank) for bank in BANKS], LinkRules(one_sided=one_sided))
    first, second = (party.result() for party in parties[:2])
    times = [3, 4] if one_sided == "disclose" else [3]  # the first copy, as its source has it
    assert first.cut_out_edge_time.tolist() == second.cut_in_edge_time.tolist() == times
    assert parties[0].report()[0].startswith("client 1 ('b'): 2 records, 1 shared, 1 one-sided")
    assert first.num_nodes == 4 + (
        one_sided == "stub"
    )  # the second copy leads to a node without features, or is left out


def test_books_of_different_forms_share_all_payments(tmp_path):
    """Ids with and without zeros, spaces, capitals; UTF-8 and Windows-1252; dates and amounts as each country writes them."""
    (tmp_path / "a_nodes.csv").write_text("id,age,label\n0017,30,ok\n0018,40,fraud\n")
    (tmp_path / "b_nodes.csv").write_bytes("id;age;label\n9;30;ok\nMüller 3;40;fraud\n".encode("cp1252"))
    rows = [("0017", "9", "2026-02-01", "1234.50", "r 1"), ("0018", "müller3", "2026-02-28", "7", "Straße")]
    lines = [",".join(["Bank A", source, "bank b", target, *rest]) for source, target, *rest in rows]
    (tmp_path / "a_edges.csv").write_text("\n".join(["fb,source,tb,target,date,amount,ref", *lines]) + "\n")
    rows = [("17", " 009", "01.02.2026", "1.234,50", "R1"), ("018 ", "MÜLLER 3", "28.02.2026", "7,00", "STRASSE")]
    lines = [";".join(["BANK A", source, "Bank B", target, *rest]) for source, target, *rest in rows]
    (tmp_path / "b_edges.csv").write_bytes("\n".join(["fb;source;tb;target;date;amount;ref", *lines]).encode("cp1252"))
    columns = Columns(party_columns="fb,tb", match_columns="date:date,amount:amount,ref", id_form="number")
    schema, files = None, []
    for client, bank in enumerate("ab"):
        treatment = Treatment(scaling="none", schema=schema)
        tables = tmp_path / f"{bank}_nodes.csv", tmp_path / f"{bank}_edges.csv"
        graph = from_tables(*tables, columns, classes=("ok", "fraud"), treatment=treatment, own_party=f"bank {bank}")
        schema = schema or Schema.from_dict(graph.schema["agreed"], "import")
        files.append(client_graph(graph, client, 2))
    parties = link(files)
    assert [party.report()[0].split(": ")[1] for party in parties] == ["2 records, 2 shared, 0 one-sided (drop)"] * 2
    assert [party.result().cut_out.size(1) for party in parties] == [2, 0]


def test_a_differing_label_is_counted_and_the_sources_counts(tmp_path):
    made = banks(tmp_path, accounts=12, payments=40)
    made.books["B"]["label"] = "ok"
    parties = link([made.client(bank) for bank in BANKS])
    assert "with another label there (the source's counts)" in parties[1].report()[0]
    for graph in (party.result() for party in parties):
        assert set(graph.cut_out_edge_y.tolist()) | set(graph.cut_in_edge_y.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"party": "a"}, "clients 0 and 1 both call themselves 'a'"),
        (
            {"form": "ids number; key date,amount,text"},
            "clients 0 and 1 differ in form: ids text; key date,amount,text here",
        ),
    ],
)
def test_parties_that_disagree_are_named(files, change, message):
    files[1].linking = files[1].linking | change
    with pytest.raises(RunFailed, match=message):
        link(files)


def test_parties_with_other_data_of_edges_are_named(files):
    files[1] = replace(files[1], edge_y=files[1].edge_y[:0], foreign_edge_y=files[1].foreign_edge_y[:0])
    message = (
        "clients 0 and 1 differ in data: .'edge_attr', 'edge_time', 'edge_y'. here, .'edge_attr', 'edge_time'. there"
    )
    with pytest.raises(RunFailed, match=message):
        link(files)


def test_records_of_a_party_that_is_no_client_are_counted(files):
    files[1].linking = files[1].linking | {"party": "bank b"}
    report = link(files)[0].report()
    assert report[0].startswith("client 1 ('bank b'): 0 records, 0 shared")
    assert any("records name 'b', which no client is ('a', 'bank b', 'c'): one-sided (drop)" in line for line in report)
    assert any("records name 'x', which no client is" in line for line in report)


@pytest.mark.parametrize("match", ["payments", "ids"])
def test_a_linked_file_is_refused_before_anything_is_sent(files, match):
    linked = [party.result() for party in link(files)]
    unnamed = replace(linked[1], linking={})  # its cut edges show it too
    for graph in (linked[0], unnamed):
        with pytest.raises(FedGraphError, match="is already linked: pass the file that `import` wrote"):
            LinkParty(graph, LinkRules(match=match), Keyring(graph.client))


def test_a_name_of_two_other_parties_is_refused(files):
    files[2].linking = files[2].linking | {"party": "b"}
    parties = [LinkParty(graph, PAYMENTS, Keyring(graph.client)) for graph in files]
    with pytest.raises(RunFailed, match="clients 1 and 2 both call themselves 'b': import one with another"):
        simulate(parties)  # client 0, whose own name is another, is the first to refuse
    assert not parties[0].pairs


def test_a_dry_run_of_hashes_is_refused():
    with pytest.raises(FedGraphError, match="dry_run with match=routed would show which records are shared"):
        LinkRules(match="routed", dry_run=True)


def test_a_refused_introduction_books_no_run(files, tmp_path):
    """The limit of one run a day counts runs in which something that depends on records left."""
    policy = SimpleNamespace(
        trusting=False, path=str(tmp_path / "policy.yaml"), linking=LinkPolicy(match=["payments"], min_shared=0)
    )

    def node(graphs):
        parties = [LinkParty(graph, PAYMENTS, Keyring(graph.client)) for graph in graphs]
        introduced = {}

        def relay(phase, messages):
            if phase == "introduce":
                introduced.update({str(k): sealed for (k, receiver), sealed in messages.items() if receiver == 0})
                raise StopIteration

        with pytest.raises(StopIteration):
            simulate(parties, relay)
        client = LinkClient.__new__(LinkClient)
        vars(client).update(party=parties[0], policy=policy, exchange=1, keyring=Keyring(0), finished=False)
        return client.link({ENVELOPES: introduced}, {})

    other = replace(files[1], linking=files[1].linking | {"form": "ids number"})
    with pytest.raises(RunFailed, match="clients 0 and 1 differ in form"):
        node([files[0], other, files[2]])
    assert not (tmp_path / "policy.links.json").exists()
    sent, _ = node(files)
    assert sorted(sent[ENVELOPES]) == ["1", "2"]
    assert (tmp_path / "policy.links.json").exists()
    with pytest.raises(FedGraphError, match=r"the last link run with client 1 \('b'\) began 0.0 hours ago"):
        node(files)


def test_a_file_without_parties_is_refused(files):
    files[0].linking = {}
    with pytest.raises(FedGraphError, match="the file of client 0 names no party: import it with --own-party"):
        link(files)


@pytest.mark.slow
@pytest.mark.parametrize("find", ["accounts", "payments"])
def test_the_example_goes_from_tables_of_banks_to_predictions(tmp_path, find):
    """The script of `examples/banks`, shortened, in a process of its own."""
    script = ROOT / "examples" / "banks" / "between_banks.py"
    args = ["--accounts", "240", "--rounds", "2", "--find", find]
    args += (
        ["--seeds", "2"] if find == "accounts" else ["--seeds", "1", "--features", "payments", "--amounts", "passed"]
    )
    environment = {**os.environ, "FEDGRAPH_DATA": str(tmp_path / "root"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(tmp_path / "work"), *args]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("95 % interval over")[2]
    rows = [
        "Local",
        "FedAvg",
        "Central",
        "Boosting, each bank",
        "Boosting",
        "Boosting, pooled",
        "FedAvg and boosting, blended",
    ]
    for method in rows + (["FedGCN", "FedStruct"] if find == "accounts" else []):
        half = r" ± \d+\.\d" if find == "accounts" else ""  # one seed has no interval
        assert re.search(rf"^  {method} +\d+\.\d{half} +[+-]\d+\.\d{half}$", table, re.M), table
    predicted = pd.read_csv(tmp_path / "work" / "a_predictions.csv")
    if find == "accounts":
        accounts = pd.read_csv(tmp_path / "work" / "seed_0" / "a_accounts.csv")
        assert sorted(predicted["id"]) == sorted(accounts["id"])
    else:
        book = pd.read_csv(tmp_path / "work" / "seed_0" / "a_payments.csv")
        assert len(predicted) == (book["from_bank"] == "a").sum()


def test_a_heterogeneous_file_is_refused_in_one_sentence(tmp_path, capsys):
    paths = [tmp_path / f"{client}.safetensors" for client in range(2)]
    for client, path in enumerate(paths):
        replace(typed_client(), client=client, num_clients=2).save(path)
    assert cli.main(["link", "--simulate", *map(str, paths), "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "the file of client 0 holds a heterogeneous graph; link matches edges of graphs with one node type" in line


def test_the_command_links_files(tmp_path, capsys):
    made = banks(tmp_path, accounts=12, payments=40)
    paths = []
    for bank in BANKS:
        made.client(bank).save(tmp_path / f"{bank}.safetensors")
        paths.append(str(tmp_path / f"{bank}.safetensors"))
    assert cli.main(["link", "--simulate", *paths, "--out", str(tmp_path / "linked")]) == 0
    said = capsys.readouterr().out
    assert "wrote 3 files" in said
    assert "client 1 ('b')" in said
    small = ["rounds=1", "model.hidden=4", f"out={tmp_path / 'run'}", "--quiet", "--no-report"]
    assert cli.main(["run", f"graph={tmp_path / 'linked'}", "strategy=fedgcn", *small]) == 0
    capsys.readouterr()
    again = ["link", "--simulate", *paths[::-1], "--out", str(tmp_path / "again"), "--match", "routed"]
    assert cli.main(again) == 0
    for client in range(3):
        one, two = (read_digest(tmp_path / name / f"client_{client:04d}.safetensors") for name in ("linked", "again"))
        assert one == two
    assert cli.main(["link", "--simulate", *paths, "--dry-run"]) == 0
    absent = ["link", "--simulate", paths[0], paths[2], "--out", str(tmp_path / "two")]
    assert cli.main(absent) == 0
    assert "C.safetensors: client 2 is client 1 of the 2 present" in capsys.readouterr().out
    alone = [made.client(bank) for bank in "AC"]
    for client, graph in enumerate(alone):
        graph.client, graph.num_clients = client, 2
    for client, party in enumerate(link(alone, LinkRules())):  # as if no other party had ever been imported
        linked_graph, path = party.result(), tmp_path / "two" / f"client_{client:04d}.safetensors"
        assert_equal(ClientGraph.load(path), linked_graph)
        assert (ClientGraph.load(path).num_clients, ClientGraph.load(path).linking) == (2, linked_graph.linking)
    for args, message in (
        (["--simulate", *paths], "--simulate needs --out DIR"),
        (["--simulate", paths[0], "--out", "x"], "link needs the files of two parties or more, got"),
        (["--simulate", paths[0], paths[0], paths[1], "--out", "x"], "are both client 0"),
        (["--simulate", *paths, "--out", "x", "--match", "names"], "match 'names'"),
        (["--simulate", *paths, "--out", "x", "--one-sided", "stub", "--match", "ids"], "applies to records"),
        ([], "link needs the files of all parties"),
    ):
        assert cli.main(["link", *args]) == 2
        assert message in capsys.readouterr().err
