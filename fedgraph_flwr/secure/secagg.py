"""Secure aggregation with dropouts (Bonawitz et al., CCS 2017, Figure 4): the server learns a weighted sum and no term of it.

For every sum client i of the n that take part draws two key pairs and a seed b_i, all anew, and with x_i its values and p_i its
public share of the weights:

    keys      up: two public keys (envelopes, masks) and a commitment to b_i
    shares    up: for every peer an envelope with Shamir shares of b_i and of the mask key's seed, any t of n
    answer    up: y_i = round(2^bits p_i x_i) + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)   mod 2^64
    unmask    up: for every peer whose y_j came a share of b_j, for every other a share of its mask key: one or the other

The server rebuilds b_i of those that answered, and the mask keys of those that fell, subtracts, and has Σ p_i x_i.
Keys and seeds are renewed for each sum, and when it is asked again: b_i is revealed, so that it must be new, and with it what is
dealt; a mask key is revealed where its owner falls, and one that lasted would then open all its earlier sums to a server that was
given its seeds. A schedule of renewal would save the exchange of keys, one of four, and no more. A client deletes its own secrets
as it masks, and no checkpoint keeps them. A rebuilt secret is held against what its owner published: a wrong share ends the
round. Secrets are `LIMBS` elements of Shamir's field (`fedgraph_flwr.secure.shamir`), of which the mask's X25519 key and the
stream of b_i are derived.
Every client is sent all p_j. Its masks are keyed by a digest of them, of the published keys, of who adds up and of the model it
received (`agreed`): where a server sends two clients different lists, the masks of no pair cancel and there is no sum. A client
refuses a list, and survivors of one, in which a client weighs more than `Member.max_share`, or fewer than `Member.floor` weigh
anything. t exceeds half of those that published keys, so that no secret is rebuilt both ways.
Not seen: a client that adds other values than it trained, within the range; and, where clients pin nobody's keys
(`fedgraph_flwr.secure.keyring`), a server that hands out its own.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from safetensors.numpy import save

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.masked import added, digest, flat, from_fixed, keys_of, pairwise, shaped, to_fixed
from fedgraph_flwr.secure.sealed import OVERHEAD, Sealer, key_stream
from fedgraph_flwr.secure.shamir import LIMBS, PRIME, combine, random_elements, split
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check

HEADROOM = (
    8  # bits: a sum of random integers, as wrong masks leave it, passes for one of values with chance 2^-8 a value
)
MIN_CLIENTS = 3  # clients: of a sum of two, each knows the other's term
CLIENTS, KEYS, ENVELOPES, SHARES, SURVIVORS = "clients", "keys", "envelopes", "shares", "survivors"
MEMBERS, RATIOS, AGREED = "members", "ratios", "agreed"
PUBLISH, DEAL, UNMASK, SECAGG = "secagg_keys", "secagg_shares", "unmask", "secagg"
"""Phases, and the group of arrays: with `PUBLISH`, the keys; with `DEAL`, envelopes of shares; with a request for a term of a
sum, envelopes, the members and the client's share of the weights; with `UNMASK`, who survived, and shares."""
_DEALT = {SHARES: ArrayField((2, LIMBS), "uint32", 0, PRIME - 1)}


def limit(bits: int) -> float:
    """No value that is summed reaches it: sums of them, weighted by shares of 1, leave the `HEADROOM`."""
    return 2.0 ** (63 - HEADROOM - bits)


def threshold(share: float, clients: int) -> int:
    """How many clients must answer, of those that published keys: always more than half of them."""
    return max(math.ceil(share * clients - 1e-9), clients // 2 + 1)


def commitment(secret: bytes) -> bytes:
    """SHA-256 of a seed: binds its owner, and tells nobody what it is."""
    digest = Hash(SHA256())
    digest.update(b"fedgraph self-mask" + secret)
    return digest.finalize()


def mask_sealer(client: int, secret: bytes) -> Sealer:
    """The end of a client's mask streams, whose key pair follows from a secret."""
    return Sealer(client, HKDF(SHA256(), 32, salt=None, info=b"fedgraph mask key").derive(secret))


def self_stream(secret: bytes, step: str, count: int) -> NDArray[np.uint64]:
    """PRG(b) [count]."""
    return key_stream(HKDF(SHA256(), 32, salt=None, info=b"fedgraph self-mask" + step.encode()).derive(secret), count)


def _step(server_round: int, agreed: bytes = b"") -> str:
    return f"secagg {server_round} {agreed.hex()}" if agreed else f"secagg {server_round}"


class Member:
    """One client's part in the sum of a round.

    Args:
        client: its index.
        share: of the clients that must answer (``privacy.secagg_threshold``).
        bits: of the fixed point after the point (``privacy.secagg_bits``).
        noise: added to the terms (``privacy.dp=distributed``).

    Attributes:
        state: all it must keep between the messages of a round, arrays by name; secret.
        floor: fewer clients than its party wants behind a sum are refused in each step.
        max_share: of the weights of those behind a sum, the most that one client may have.
    """

    def __init__(self, client: int, share: float, bits: int, noise: DistributedNoise | None = None):
        self.client, self.share, self.bits, self.noise = client, share, bits, noise
        self.floor, self.max_share = 1, 1.0
        self.state: Arrays = {}
        self._envelopes: Sealer | None = None  # of `deal` for `masked`, where both are of one process

    def publish(self, server_round: int, exchange: int = 0) -> Arrays:
        """New keys for a sum of a round; those of any other are forgotten. Public keys [32] each, and the commitment [32].

        Args:
            server_round: the round.
            exchange: which of its sums this is.
        """
        mask, own = random_elements((2, LIMBS))
        envelopes = Sealer(self.client)
        self.state = {
            "round": np.array([server_round]),
            "exchange": np.array([exchange]),
            "envelope": _bytes(envelopes.private),
            "mask": mask,
            "self": own,
        }
        return {KEYS: self.published}

    @property
    def exchange(self) -> int:
        """Which of the round's sums the keys are for."""
        return int(self.state["exchange"][0])

    @property
    def published(self) -> NDArray[np.uint8]:
        """The public keys and the commitment of this round, [3, 32], until the own secrets are deleted."""
        sealer = Sealer(self.client, self.state["envelope"].tobytes())
        mask, own = self.state["mask"].tobytes(), self.state["self"].tobytes()
        return np.stack([_bytes(k) for k in (sealer.public, mask_sealer(self.client, mask).public, commitment(own))])

    def deal(self, clients: NDArray[np.int64], keys: NDArray[np.uint8], server_round: int) -> Arrays:
        """Envelopes with shares of both secrets, a row for each of ``clients``, the own one empty: [n, B].

        Args:
            clients: who published keys, ascending [n].
            keys: theirs, [n, 3, 32].
            server_round: the round.

        Raises:
            RunFailed: the keys are of another round, were dealt before, are too few, or the own ones are not as published.
        """
        self._expect("self", CLIENTS, server_round)
        if len(clients) < (least := max(MIN_CLIENTS, self.floor)):
            raise RunFailed(
                f"client {self.client} is to add up with {len(clients) - 1} others, expected at least {least - 1}"
            )
        places = {int(client): place for place, client in enumerate(clients)}
        if not np.array_equal(self.published, keys[places.get(self.client, 0)]) or len(places) < len(clients):
            raise RunFailed(
                f"client {self.client} was sent a list of keys in which its own are not as it published them"
            )
        self.state |= {CLIENTS: clients, KEYS: keys}
        needed = threshold(self.share, len(clients))
        shares = split(np.stack([self.state["mask"], self.state["self"]]), needed, len(clients))  # [n, 2, LIMBS]
        self.state["kept"] = shares[places[self.client]]
        self._envelopes, step = self._sealer(0), _step(server_round)
        rows = {
            c: self._envelopes.seal(c, step, {SHARES: shares[place]}) for c, place in places.items() if c != self.client
        }
        empty = np.zeros_like(next(iter(rows.values())))
        return {ENVELOPES: np.stack([rows.get(client, empty) for client in places])}

    def masked(
        self,
        values: Mapping[str, Arrays],
        ratios: Mapping[str, NDArray[np.float64]],
        members: NDArray[np.int64],
        envelopes: NDArray[np.uint8],
        server_round: int,
        received: bytes = b"",
    ) -> dict[str, Arrays]:
        """y_i, uint64 groups of the same names and shapes; the own secrets are deleted, the digest stays in ``state["agreed"]``.

        Args:
            values: groups of float arrays.
            ratios: p_j of all members [m], by group of the values.
            members: who takes part, ascending [m].
            envelopes: theirs for this client, [m, B].
            server_round: the round.
            received: `digest` of the model that the values were trained from, which all must have received alike.

        Raises:
            RunFailed: as `deal`, too few peers, ratios that show one client's values, or values that do not fit the fixed point.
        """
        self._expect("kept", MEMBERS, server_round)
        chosen = set(members.tolist())
        least = max(MIN_CLIENTS, self.floor, threshold(self.share, len(self.state[CLIENTS])))
        if (
            not {self.client} <= chosen <= set(self.state[CLIENTS].tolist())
            or len(chosen) < max(least, len(members))
            or ratios.keys() != values.keys()
            or not all(own.shape == members.shape and ((own >= 0) & (own <= 1)).all() for own in ratios.values())
        ):
            weights = {group: own.tolist() for group, own in ratios.items()}
            raise RunFailed(
                f"client {self.client} is to add its values to those of {len(chosen - {self.client})} others with weights "
                f"{weights} of its groups {list(values)}, where "
                f"{len(self.state[CLIENTS])} clients published keys: expected {least} members at least, each once, and a "
                "weight in [0, 1] for each in each group"
            )
        for own in ratios.values():
            self._check_weights(own, own > 0)
        held, step = (
            self._opened(dict(zip(members.tolist(), envelopes, strict=True)), server_round),
            _step(server_round),
        )
        clients, keys = self.state[CLIENTS], self.state[KEYS]
        told = {
            CLIENTS: clients,
            KEYS: keys,
            MEMBERS: members,
            **{f"{RATIOS}/{group}": own.astype(np.float64) for group, own in ratios.items()},
            "model": _bytes(received),
        }
        agreed = digest(told)
        sizes = [sum(array.size for array in group.values()) for group in values.values()]
        place = members.tolist().index(self.client)
        own_ratios = {group: float(ratios[group][place]) for group in values}
        scale = np.repeat([ratio * 2.0**self.bits for ratio in own_ratios.values()], sizes)
        advice = f": lower privacy.secagg_bits={self.bits}"
        total = to_fixed(flat(values), scale, limit(self.bits), self.client, advice)
        if self.noise:
            needed = threshold(self.share, len(self.state[CLIENTS]))
            total = self.noise.terms(values, own_ratios, len(members), needed).view(np.uint64)
        total = total + self_stream(self.state["self"].tobytes(), step, total.size)
        total = total + pairwise(self._sealer(1), members.tolist(), _step(server_round, agreed), total.size)
        self.state = {
            "round": self.state["round"],
            CLIENTS: self.state[CLIENTS],
            MEMBERS: members,
            RATIOS: np.stack(list(ratios.values())),
            SHARES: np.stack(held),
            AGREED: _bytes(agreed),
        }
        self._envelopes = None
        return shaped(total, values)

    def _check_weights(self, ratios: NDArray[np.float64], left: NDArray[np.bool_]) -> None:
        """Refuse a sum that would show one client's values.

        A server may name other survivors to each client. To leave out one that weighs, it needs t of the n clients to be sent
        a list without it; if no list leaves out more than e, at most ⌊n e / t⌋ are left out. The rest must be enough.

        Args:
            ratios: p_j of all members [m].
            left: which of them are in the sum, as far as this client knows, [m].

        Raises:
            RunFailed: too few of them weigh, or one weighs too much.
        """
        clients = len(self.state[CLIENTS])
        weighs, kept = ratios > 0, np.sort(ratios[left & (ratios > 0)])[::-1]
        out = clients * int((weighs & ~left).sum()) // threshold(self.share, clients)
        count = min(int(weighs.sum()) - out, kept.size)
        if not weighs.any():
            return  # the sum is 0
        share = kept[0] / (kept[0] + kept[kept.size - count + 1 :].sum()) if count > 0 else 1.0
        if count < self.floor or share > self.max_share:
            raise RunFailed(
                f"client {self.client} is to add up with weights {ratios[left].tolist()}: one client may have a share of "
                f"{share:.3g}, {max(count, 0)} clients may weigh anything. Its node's policy accepts shares of at most "
                f"{self.max_share:g} (max_share) and at least {self.floor} clients (min_clients)"
            )

    def _opened(self, envelopes: Mapping[int, NDArray[np.uint8]], server_round: int) -> list[NDArray[np.uint32]]:
        """The shares that each member dealt this client, [2, LIMBS] each."""
        sealer = self._envelopes or self._sealer(0)
        shares = {self.client: self.state["kept"]}
        for client, envelope in envelopes.items():
            if client != self.client:
                dealt = sealer.open(client, _step(server_round), envelope)
                check(dealt, _DEALT, f"client {client} dealt client {self.client}")
                shares[client] = dealt[SHARES]
        return [shares[client] for client in envelopes]

    def reveal(self, survivors: NDArray[np.int64], server_round: int) -> Arrays:
        """For each member in turn the share of b of a survivor, else of the mask key, [m, LIMBS]; then all is forgotten.

        Raises:
            RunFailed: nothing was masked in this round or it was answered before, or those are not survivors of it.
        """
        self._expect(SHARES, "", server_round)
        members, alive = self.state[MEMBERS], set(survivors.tolist())
        needed = max(self.floor, threshold(self.share, len(self.state[CLIENTS])))
        if not {self.client} <= alive <= set(members.tolist()) or len(alive) < needed:
            raise RunFailed(
                f"client {self.client} is to unmask a sum over clients {sorted(alive)} of {members.tolist()}, "
                f"expected {needed} at least, and itself among them"
            )
        for own in self.state[RATIOS]:
            self._check_weights(own, np.isin(members, list(alive)))
        shares = np.stack([held[int(c in alive)] for c, held in zip(members.tolist(), self.state[SHARES], strict=True)])
        self.state = {}
        return {SHARES: shares}

    def _expect(self, present: str, absent: str, server_round: int) -> None:
        if present not in self.state or absent in self.state or int(self.state["round"][0]) != server_round:
            raise RunFailed(
                f"client {self.client} takes each step of a secure sum once and in turn: it holds no keys for this one of "
                f"round {server_round}"
            )

    def _sealer(self, which: int) -> Sealer:
        """The end of the envelopes (0) or of the masks (1), which has met the peers."""
        secret = self.state["mask" if which else "envelope"].tobytes()
        sealer = mask_sealer(self.client, secret) if which else Sealer(self.client, secret)
        sealer.meet(keys_of(self.state[CLIENTS], self.state[KEYS][:, which]))
        return sealer


def unmasked(
    answers: Mapping[int, Mapping[str, Arrays]],
    shares: Mapping[int, NDArray[np.uint32]],
    members: Sequence[int],
    keys: Mapping[int, NDArray[np.uint8]],
    needed: int,
    bits: int,
    server_round: int,
    agreed: bytes,
) -> dict[str, Arrays]:
    """Σ p_i x_i over the clients whose masked values came, float64.

    Args:
        answers: y_i by client.
        shares: what each that answered ``unmask`` revealed, [m, LIMBS].
        members: the m clients that made masks for each other, ascending.
        keys: [3, 32] by client, of all that published some.
        needed: t.
        bits: of the fixed point.
        server_round: the round.
        agreed: the digest under which the clients masked.

    Raises:
        RunFailed: a secret is not what its owner published, or the sum is beyond what values can add up to.
    """
    step, places = _step(server_round), {client: place for place, client in enumerate(sorted(keys), start=1)}
    like = next(iter(answers.values()))
    total = added(answers.values())
    used = sorted(shares)[:needed]
    secrets = combine([places[helper] for helper in used], np.stack([shares[helper] for helper in used]))
    for client, secret in zip(members, map(np.ndarray.tobytes, secrets), strict=True):
        if client in answers:
            true = commitment(secret) == keys[client][2].tobytes()
            mask = self_stream(secret, step, total.size)
        else:
            sealer = mask_sealer(client, secret)
            true = sealer.public == keys[client][1].tobytes()
            sealer.meet({peer: keys[peer][1].tobytes() for peer in answers})
            mask = -pairwise(
                sealer, list(answers), _step(server_round, agreed), total.size
            )  # what the survivors added for it
        if not true:
            raise RunFailed(
                f"round {server_round}, unmask: the shares of clients {used} do not give the secret that client {client} "
                "published: one of them revealed a wrong share, or it dealt wrong ones; no sum can be told"
            )
        total = total - mask
    found = from_fixed(total, bits)
    if not np.abs(found).max(initial=0.0) < limit(bits):
        raise RunFailed(
            f"round {server_round}, unmask: the sum reaches {np.abs(found).max():g}, beyond the {limit(bits):g} that values "
            "can add up to: a client did not mask as the protocol says"
        )
    return shaped(found, like)


def envelope_size() -> int:
    """Bytes of every envelope with shares."""
    return OVERHEAD + len(save({SHARES: np.zeros((2, LIMBS), np.uint32)}))


def _bytes(raw: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8).copy()
