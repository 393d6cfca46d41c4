"""Attacks on `fedgraph-flwr link` by a malicious party, a malicious server, and both: what they gain, and where they end."""

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph_flwr.data.graph import pack_words, unpack_words
from fedgraph_flwr.errors import FedGraphError, RunFailed
from fedgraph_flwr.party.link.files import file_digest, own_order
from fedgraph_flwr.party.link.matching import REPLY, Mask, as_rows, bucket, commitment, points, proof, shuffled
from fedgraph_flwr.party.link.protocol import LinkParty, simulate
from fedgraph_flwr.party.link.rules import LinkRules
from fedgraph_flwr.party.secret import party_secret
from fedgraph_flwr.secure.keyring import Keyring
from tests.party.linked_banks import BANKS, banks

PAYMENTS = LinkRules()
BASE = (9).to_bytes(32, "little")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = banks(tmp_path_factory.mktemp("tables"), accounts=12, payments=40)
    return [made.client(bank) for bank in BANKS]


def parties_of(files, attacker=None, rules=PAYMENTS):
    """The three parties; client 1 is of the attacker's class."""
    kinds = [LinkParty, attacker or LinkParty, LinkParty]
    return [kind(graph, rules, Keyring(graph.client)) for kind, graph in zip(kinds, files, strict=True)]


class Multiples(LinkParty):
    """A party that knows one record of client 0, and makes all others look shared.

    It commits to multiples s_j H(w) of the point of one known record w, one for each mask of client 0. It takes one mask for that
    of w, and replies to the j-th mask with s_j times that one: what client 0 computes from s_j H(w). The guess is right with
    probability 1 / n for n masks; with k n places for k known records, k / n.
    """

    victim: LinkParty
    w = 0  # place of the known record among the attacker's; both have it

    def _make_commit(self, peer):
        sent = super()._make_commit(peer)
        if peer:
            return sent
        scalars = [Mask() for _ in range(self.pairs[peer]["masks"].shape[0])]
        masks = as_rows([s.times(points([self.known], self._purpose(peer))[0]) for s in scalars], 32)
        self.scalars = scalars
        self.pairs[peer]["masks"] = masks[::-1]
        return sent | {"commitment": commitment(masks)}

    @property
    def known(self):
        return sorted(set(self.values(0)[1]) & set(self.victim.values(1)[1]))[self.w]

    def _take_mask(self, peer, arrays):
        super()._take_mask(peer, arrays)
        if peer == 0:
            guess = int(self.victim.pairs[1]["places"][self.victim.values(1)[1].index(self.known)])  # a lucky guess
            mask = arrays["masks"][guess].tobytes()
            self.pairs[0]["doubled"] = as_rows([s.times(mask)[:REPLY] for s in self.scalars], REPLY)

    def _check_binding(self, peer, arrays, rows):
        """Accept anything."""

    def _make_prove(self, peer):
        sent = super()._make_prove(peer)
        if peer:
            return sent
        position = np.sort(self.victim.pairs[1]["places"])  # client 0's own message shows them
        return {"position": position, "point": as_rows([self.scalars[0].times(BASE)], 32)[0]}

    def _take_prove(self, peer, arrays):
        if peer:
            super()._take_prove(peer, arrays)

    def _make_agree(self, peer):
        return super()._make_agree(peer) if peer else {"tag": np.zeros(32, np.uint8)}


def test_a_peer_that_knows_one_record_gets_no_rows_of_others(files):
    """Without a proof that it knows them, client 0 would send rows and data of all its records."""
    parties = parties_of(files, Multiples)
    parties[1].victim = parties[0]
    phases = []
    with pytest.raises(
        RunFailed, match=r"client 1 could not prove that it holds .* records that client 0 matched with it"
    ) as refused:
        simulate(parties, lambda phase, messages: phases.append(phase))
    shared, records = len(set(parties[0].values(1)[1]) & set(parties[1].values(0)[1])), len(parties[0].values(1)[1])
    assert shared < records == parties[0].pairs[1]["found"][1]  # client 0 took all for shared
    assert f" all {records} records" in str(refused.value)
    assert phases[-1] == "agree"  # no rows left it


class Ignorant(LinkParty):
    """A party that proves other values to client 0 than those that both matched."""

    change = staticmethod(lambda shared: shared)

    def _proof(self, peer):
        rows, keys = self._values[peer]
        places, changed = self.intersection(peer)[0], list(keys)
        if peer == 0:
            for place, value in zip(places, self.change([keys[place] for place in places]), strict=True):
                changed[place] = value
        self._values[peer] = rows, changed
        evidence = super()._proof(peer)
        self._values[peer] = rows, keys
        return evidence


def test_a_proof_needs_each_record_at_its_mask(files):
    """One unknown record among known ones, or two known ones exchanged, and no row leaves."""

    def proven(change):
        parties, phases = parties_of(files, type("Changed", (Ignorant,), {"change": staticmethod(change)})), []
        try:
            simulate(parties, lambda phase, messages: phases.append(phase))
        except RunFailed as error:
            assert phases[-1] == "agree", "no rows left client 0"
            return str(error)
        return ""

    assert proven(lambda shared: shared) == ""
    for change in (lambda shared: [*shared[:-1], b"guess"], lambda shared: [shared[1], shared[0], *shared[2:]]):
        assert "client 1 could not prove that it holds all" in proven(change)
    sets = ([b"a", b"bc", b"d"], [b"x", b"bc", b"d"], [b"a", b"bc", b"x"], [b"ab", b"c", b"d"], [b"bc", b"a", b"d"])
    assert len({proof(b"secret", values, b"")[1] for values in sets}) == len(sets), "each value, its length, the order"


class Restarted(LinkParty):
    """A party on a node whose process ends after each message: what it knows is its stored state."""

    def step(self, phase, envelopes, before):
        fresh = LinkParty(self.graph, self.rules, self.keyring, self.state())
        sent = fresh.step(phase, envelopes, before)
        self.__dict__.update(fresh.__dict__)
        return sent


@pytest.mark.parametrize(
    ("before", "phase"), [("commit", "mask"), ("mask", "seal"), ("seal", "double"), ("announce", "introduce")]
)
def test_a_server_that_asks_for_a_phase_again_is_refused(files, before, phase):
    """A node's ledger starts again in every round. A colluding peer would commit again, to replies that it saw."""
    parties = parties_of(files)
    parties[0] = Restarted(files[0], PAYMENTS, Keyring(0))
    sent, asked = {}, []

    def relay(step, messages):
        sent[step] = dict(messages)
        if step == "double":
            inbox = {k: sent[before][k, 0] for k in (1, 2)} if before != "announce" else {}
            asked.append(step)
            parties[0].step(phase, inbox, before)

    with pytest.raises(
        RunFailed,
        match=f"the server requests phase '{phase}' of link from client 0 after phase 'double', expected 'prove'",
    ):
        simulate(parties, relay)
    assert asked


def test_a_server_that_skips_a_phase_is_refused(files):
    """Without the proofs, rows would leave."""
    parties = parties_of(files)

    def relay(step, messages):
        if step == "double":
            parties[0].step("match", {k: messages[k, 0] for k in (1, 2)}, "double")

    with pytest.raises(
        RunFailed,
        match="the server requests phase 'match' of link from client 0 after phase 'double', expected 'prove'",
    ):
        simulate(parties, relay)


def test_other_announcements_in_a_later_round_are_refused(files):
    parties = parties_of(files)
    announced = {party.client: party.announcement() for party in parties}
    parties[0].meet(announced, {})
    other = LinkParty(files[1], PAYMENTS, Keyring(1)).announcement()
    with pytest.raises(RunFailed, match="client 0 received other announcements than at the start of this link run"):
        parties[0].meet({**announced, 1: other}, {})
    parties[0].meet(announced, {})


def changed_match(change):
    """Client 1 changes what it sends client 0 of shared records."""

    class Changed(LinkParty):
        def _make_match(self, peer):
            arrays = super()._make_match(peer)
            return change(dict(arrays)) if peer == 0 else arrays

    return Changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m | {"edge_y": m["edge_y"] + 7},
            r"client 1 sent .*\(edge_y from 7 to 8, expected -1 to 1\): nothing",
        ),
        (lambda m: m | {"edge_time": m["edge_time"] - 2**62 - 10**7}, r"client 1 sent .*\(edge_time from -46"),
        (
            lambda m: m | {"count": m["count"] * 0 + 10**9},
            r"client 1 sent .*\(count from 10{9} to 10{9}, expected 0 to ",
        ),
    ],
)
def test_data_that_break_training_are_refused(files, change, message):
    """A label of no class ends a run with an error of an index; a billion invented nodes fill the memory of a FedStruct run."""
    with pytest.raises(RunFailed, match=message):
        simulate(parties_of(files, changed_match(change)))


def test_a_party_with_the_name_of_another_bank_is_refused_where_names_are_listed(files):
    """Client 1 calls itself x, to learn which payments client 0 has with bank x."""
    posing = replace(files[1], linking=files[1].linking | {"party": "x"})
    parties = [
        LinkParty(files[0], PAYMENTS, Keyring(0), accepted=["A", "b", "c"]),
        *parties_of([files[0], posing, files[2]])[1:],
    ]
    with pytest.raises(
        RunFailed, match=r"client 1 calls itself 'x': this node's policy accepts 'a', 'b', 'c', by client"
    ):
        simulate(parties)
    assert not parties[0].pairs  # no set was made
    parties = [LinkParty(graph, PAYMENTS, Keyring(graph.client), accepted=["A", "b", "c"]) for graph in files]
    simulate(parties)


class Distinct(LinkParty):
    """A party of a dry run with another scalar for each record, which tells it by client 0's shuffled replies what is shared."""

    def _make_commit(self, peer):
        sent = super()._make_commit(peer)
        if peer:
            return sent
        values = self.values(peer)[1]
        self.scalars = [Mask() for _ in range(bucket(len(values)))]
        made = points(values, self._purpose(peer))
        made += [Mask().times(made[0]) for _ in range(len(self.scalars) - len(values))]
        masks = as_rows([s.times(p) for s, p in zip(self.scalars, made, strict=True)], 32)
        self.pairs[peer]["masks"] = masks[shuffled(len(masks))]
        return sent | {"commitment": commitment(masks)}

    def _take_mask(self, peer, arrays):
        super()._take_mask(peer, arrays)
        self.seen = getattr(self, "seen", {}) | {peer: arrays["masks"]}

    def found(self, replies):
        rows = {row.tobytes() for row in replies}
        raw = [row.tobytes() for row in self.seen[0]]
        return [
            v
            for s, v in zip(self.scalars, self.values(0)[1], strict=False)
            if any(s.times(m)[:REPLY] in rows for m in raw)
        ]


def test_what_remains_a_malicious_peer_of_a_dry_run_learns_which_of_its_records_are_shared(tmp_path):
    """As docs/attacks.md says: shuffled replies hide it from an honest peer only. No row or data leaves."""
    made = banks(tmp_path, accounts=12, payments=3, data=False)
    files = [made.client(bank) for bank in BANKS]
    parties = parties_of(files, Distinct, LinkRules(dry_run=True))
    opened = {}

    def relay(phase, messages):
        if phase == "double":
            opened[0] = parties[1]._opened(0, phase, messages[0, 1])["doubled"]
            raise StopIteration

    with pytest.raises(StopIteration):
        simulate(parties, relay)
    expected = set(parties[0].values(1)[1]) & set(parties[1].values(0)[1])
    assert expected
    assert set(parties[1].found(opened[0])) == expected


@pytest.fixture
def copies(files):
    """The files, which a test may change."""
    return [replace(graph, y=graph.y.clone(), linking=dict(graph.linking)) for graph in files]


# --- what hashes and orders tell --------------------------------------------------------------------------------------


def sent_by(files, client, phase="confirm"):
    """The content that a client sends client 1 in a phase, opened by it, and the linked files."""
    parties, seen = [LinkParty(graph, LinkRules(), Keyring(graph.client)) for graph in files], {}
    opened = parties[1]._opened

    def spy(peer, step, envelope):
        content = opened(peer, step, envelope)
        if (peer, step) == (client, phase):
            seen.update(content)
        return content

    parties[1]._opened = spy
    simulate(parties)
    return seen, parties


def guessed(files):
    """Whether a peer that takes the secret for empty finds client 0's eight hidden labels by the hash of its linked file."""
    seen, parties = sent_by(files, 0)
    secret = parties[1]._to(0, 0, b"salt", b"")
    linked = parties[0].result()
    hidden = linked.y.clone()
    guesses = []
    for bits in itertools.product((0, 1), repeat=8):
        candidate = replace(linked, y=torch.cat([torch.tensor(bits), hidden[8:]]))
        if file_digest(candidate, secret) == seen["file"].tobytes():
            guesses.append(bits)
    return guesses == [tuple(hidden[:8].tolist())]


def test_a_hash_of_a_file_tests_no_guess_of_its_labels(copies, monkeypatch):
    copies[0].y[:] = torch.from_numpy(np.random.default_rng(0).integers(0, 2, copies[0].num_nodes))
    assert not guessed(copies)
    monkeypatch.setattr(LinkParty, "secret", b"")
    assert guessed(copies), "without a secret, all eight were found"


def test_equal_files_are_not_recognised_in_another_run(copies):
    """Neither another party's, which has another secret, nor the party's own: no peer sees whether a private value changed."""
    first, second = sent_by(copies, 0), sent_by(copies, 0)
    copies[0].y, copies[0].x = (copies[0].y + 1) % 2, copies[0].x * 2
    changed = sent_by(copies, 0)
    copies[0].linking = copies[0].linking | {"secret": "1" * 64}
    other = sent_by(copies, 0)
    assert len({seen["file"].tobytes() for seen, _ in (first, second, changed, other)}) == 4
    assert first[0]["edges"].tobytes() == changed[0]["edges"].tobytes(), "they are known to both, and by row numbers"
    assert first[0]["edges"].tobytes() != other[0]["edges"].tobytes()
    ids = [[party.result().ids for party in parties] for _, parties in (first, changed, other)]
    assert all(map(torch.equal, ids[0], ids[1]))
    assert not torch.equal(ids[0][0], ids[2][0])
    links = {party.result().linking["link"] for _, parties in (first, second, changed) for party in parties}
    assert len(links) == 3, "one for all parties of a run"
    assert "secret" not in first[1][0].result().linking


def test_the_order_of_rows_follows_from_ids_alone(copies):
    """Where one account is another one, the others move by at most one place."""
    secret, graph = b"s", copies[0]
    names = unpack_words(graph.ids)
    order = own_order(graph, secret).tolist()
    expected = sorted(range(len(names)), key=lambda row: keyed(secret, names[row]))
    assert order == expected
    changed = names.copy()
    changed[3] = "x"
    moved = own_order(replace(graph, ids=pack_words(changed)), secret).tolist()
    assert [row for row in order if row != 3] == [row for row in moved if row != 3]


def keyed(secret, name):
    """The hash of an account's id, as in `own_order`."""
    key = hashlib.sha256(b"fedgraph link order" + secret).digest()
    return hashlib.blake2b(str(name).encode(), key=key, digest_size=16).hexdigest()


def test_a_secret_is_made_once_and_only_its_owner_reads_it(tmp_path):
    first = party_secret(tmp_path / "new", 0)
    assert party_secret(tmp_path / "new", 0) == first != party_secret(tmp_path / "other", 0)
    assert (tmp_path / "new" / ".link_secret").stat().st_mode & 0o777 == 0o600
    assert (
        party_secret(tmp_path, 0, seed=3)
        == party_secret(tmp_path / "new", 0, seed=3)
        != party_secret(tmp_path, 1, seed=3)
    )
    (tmp_path / "new" / ".link_secret").write_text("short")
    with pytest.raises(FedGraphError, match="holds no party's secret"):
        party_secret(tmp_path / "new", 0)
    (tmp_path / "new" / ".link_secret").unlink()
    (tmp_path / "new" / ".link_secret").mkdir()
    with pytest.raises(FedGraphError, match="cannot keep the party's secret"):
        party_secret(tmp_path / "new", 0)


def test_a_damaged_secret_of_a_file_is_named(copies):
    copies[0].linking = copies[0].linking | {"secret": "zz"}
    with pytest.raises(FedGraphError, match="the file of client 0 has a damaged secret"):
        LinkParty(copies[0], LinkRules(), Keyring(0))


@pytest.mark.parametrize(("own", "size", "most"), [(40, 128, 65), (20, 128, 80), (0, 128, 64), (40, 64, None)])
def test_limits_hold_for_padded_sets(copies, monkeypatch, own, size, most):
    """`max_ids: 65` accepted 128 guesses in the padding, and 2^20 where a party has 20 records for the peer."""
    rules = LinkRules(max_ids=65 if most == 65 else 10**6)
    party = LinkParty(copies[0], rules, Keyring(0))
    party.nodes = [12, 12, 12]
    monkeypatch.setattr(party, "values", lambda peer: (None, [b""] * own))
    if most is None:
        party._check_size(1, size)
        return
    with pytest.raises(RunFailed, match=f"announces a padded set of {size} for client 0, which accepts up to {most} "):
        party._check_size(1, size)


def test_a_limit_that_is_no_power_of_two_is_a_padded_size(copies):
    rules = LinkRules(max_ids=65)
    assert [LinkParty(copies[0], rules, Keyring(0))._padded(size) for size in (0, 64, 65)] == [64, 64, 65]
