"""Secure aggregation with dropouts (Bonawitz et al., CCS 2017, Figure 4): the server learns only a weighted sum.

For every sum, client i of n participants draws two new key pairs and a new seed b_i. With x_i its values and p_i its public share
of the weights:

    keys      up: two public keys (envelopes, masks) and a commitment to b_i
    shares    up: for every peer an envelope with Shamir shares of b_i and of the mask key's seed, any t of n
    reply     up: y_i = round(2^bits p_i x_i) + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)   mod 2^64
    unmask    up: a share of b_j for every peer whose y_j arrived, and of the mask key for every other peer: one or the other

The server reconstructs b_i of the clients that replied, and the mask keys of those that dropped out. It subtracts the masks and
obtains Σ p_i x_i.

Keys and seeds are new for each sum, also if the server requests it again. Because b_i is revealed, it must be new, and with it
the shares. A mask key is revealed if its owner drops out. A long-lived key would then open all its earlier sums to a server
that received its seeds. Renewing keys on a schedule would save only one of four exchanges. A client deletes its secrets when it
masks, and no checkpoint stores them. Each reconstructed secret is compared with its owner's publication: a wrong share ends the
round. Secrets are `LIMBS` elements of Shamir's field (`fedgraph_flwr.secure.shamir`); the mask's X25519 key and the stream of
b_i derive from them.

Every client receives all p_j. Its masks are keyed by a digest of them, of the published keys, of the members and of the model it
received (`agreed`). If a server sends two clients different lists, no pair of masks cancels and the sum is useless. A client
refuses a list (and its survivors) in which one client's share exceeds `Member.max_share`, or fewer than `Member.floor` clients
have weight. The threshold t exceeds half of the clients that published keys, so no secret is reconstructed both ways.

Not detected: a client that adds other values than it trained, within the range. If clients pin no keys
(`fedgraph_flwr.secure.keyring`), a server that distributes its own keys is not detected either.
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
    8  # bits: a sum of random integers, the result of wrong masks, passes for valid with probability 2^-8 per value
)
MIN_CLIENTS = 3  # in a sum of two clients, each knows the other's term
CLIENTS, KEYS, ENVELOPES, SHARES, SURVIVORS = "clients", "keys", "envelopes", "shares", "survivors"
MEMBERS, RATIOS, AGREED = "members", "ratios", "agreed"
PUBLISH, DEAL, UNMASK, SECAGG = "secagg_keys", "secagg_shares", "unmask", "secagg"
"""Phases, and the group of arrays: keys for `PUBLISH`; envelopes of shares for `DEAL`; envelopes, members and the client's
share of the weights for a term of a sum; survivors and shares for `UNMASK`."""
_DEALT = {SHARES: ArrayField((2, LIMBS), "uint32", 0, PRIME - 1)}


def limit(bits: int) -> float:
    """Return the bound of every value: sums of values below it, with weights that sum to 1, leave the `HEADROOM`."""
    return 2.0 ** (63 - HEADROOM - bits)


def threshold(share: float, clients: int) -> int:
    """Return how many of the clients that published keys must reply: always more than half of them."""
    return max(math.ceil(share * clients - 1e-9), clients // 2 + 1)


def commitment(secret: bytes) -> bytes:
    """Return SHA-256 of a seed, which commits its owner to the seed without revealing it."""
    digest = Hash(SHA256())
    digest.update(b"fedgraph self-mask" + secret)
    return digest.finalize()


def mask_sealer(client: int, secret: bytes) -> Sealer:
    """Return the end of a client's mask streams, whose key pair follows from a secret."""
    return Sealer(client, HKDF(SHA256(), 32, salt=None, info=b"fedgraph mask key").derive(secret))


def self_stream(secret: bytes, step: str, count: int) -> NDArray[np.uint64]:
    """Return PRG(b) [count]."""
    return key_stream(HKDF(SHA256(), 32, salt=None, info=b"fedgraph self-mask" + step.encode()).derive(secret), count)


def _step(server_round: int, agreed: bytes = b"") -> str:
    return f"secagg {server_round} {agreed.hex()}" if agreed else f"secagg {server_round}"


class Member:
    """One client's part in the sum of a round.

    Args:
        client: index of the client.
        share: share of the clients that must reply (``privacy.secagg_threshold``).
        bits: fractional bits of the fixed point (``privacy.secagg_bits``).
        noise: noise added to the terms (``privacy.dp=distributed``).

    Attributes:
        state: secret state between the messages of a round, arrays by name.
        floor: fewest clients that its party accepts in a sum, checked in each step.
        max_share: largest share of one client in the weights of a sum.
    """

    def __init__(self, client: int, share: float, bits: int, noise: DistributedNoise | None = None):
        self.client, self.share, self.bits, self.noise = client, share, bits, noise
        self.floor, self.max_share = 1, 1.0
        self.state: Arrays = {}
        self._envelopes: Sealer | None = None  # from `deal` for `masked`, if both run in one process

    def publish(self, server_round: int, exchange: int = 0) -> Arrays:
        """Draw new keys for a sum of a round, forget all earlier ones, and return public keys [32] each and the commitment [32].

        Args:
            server_round: the round.
            exchange: index of the sum in the round.
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
        """Index of the sum that the keys are for."""
        return int(self.state["exchange"][0])

    @property
    def published(self) -> NDArray[np.uint8]:
        """The public keys and the commitment of this round, [3, 32], until the secrets are deleted."""
        sealer = Sealer(self.client, self.state["envelope"].tobytes())
        mask, own = self.state["mask"].tobytes(), self.state["self"].tobytes()
        return np.stack([_bytes(k) for k in (sealer.public, mask_sealer(self.client, mask).public, commitment(own))])

    def deal(self, clients: NDArray[np.int64], keys: NDArray[np.uint8], server_round: int) -> Arrays:
        """Return envelopes with shares of both secrets, one row for each of ``clients``, its own row empty: [n, B].

        Args:
            clients: clients that published keys, ascending [n].
            keys: their keys, [n, 3, 32].
            server_round: the round.

        Raises:
            RunFailed: the keys belong to another round, were dealt before, are too few, or differ from this client's own.
        """
        self._expect("self", CLIENTS, server_round)
        if len(clients) < (least := max(MIN_CLIENTS, self.floor)):
            raise RunFailed(
                f"client {self.client} should join a secure sum with {len(clients) - 1} others, expected at least {least - 1}"
            )
        places = {int(client): place for place, client in enumerate(clients)}
        if not np.array_equal(self.published, keys[places.get(self.client, 0)]) or len(places) < len(clients):
            raise RunFailed(
                f"client {self.client} received a list of keys in which its own differ from those it published"
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
        """Return y_i, uint64 groups of the same names and shapes; secrets are deleted, the digest stays in ``state["agreed"]``.

        Args:
            values: groups of float arrays.
            ratios: p_j of all members [m], by group of the values.
            members: the clients that take part, ascending [m].
            envelopes: their envelopes for this client, [m, B].
            server_round: the round.
            received: `digest` of the model from which the values were trained; all members must have received the same.

        Raises:
            RunFailed: as `deal`; too few peers; ratios that reveal one client's values; or values beyond the fixed-point range.
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
                f"client {self.client} should add its values to those of {len(chosen - {self.client})} others with weights "
                f"{weights} for its groups {list(values)}, where {len(self.state[CLIENTS])} clients published keys: expected at"
                f" least {least} members, each once, and a weight from 0 to 1 for each in each group"
            )
        for own in ratios.values():
            self._check_weights(own, own > 0)
        held, step = (
            self._opened(dict(zip(members.tolist(), envelopes, strict=True)), server_round),
            _step(server_round),
        )
        clients, keys = self.state[CLIENTS], self.state[KEYS]
        inputs = {
            CLIENTS: clients,
            KEYS: keys,
            MEMBERS: members,
            **{f"{RATIOS}/{group}": own.astype(np.float64) for group, own in ratios.items()},
            "model": _bytes(received),
        }
        agreed = digest(inputs)
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
        """Refuse a sum that would reveal one client's values.

        A server may name other survivors to each client. To leave out a client with weight, it must send t of the n clients a
        list without it. If no list leaves out more than e clients, at most ⌊n e / t⌋ are left out in total. The rest must
        suffice.

        Args:
            ratios: p_j of all members [m].
            left: which of them are in the sum, as far as this client knows, [m].

        Raises:
            RunFailed: too few of them have weight, or one has too much.
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
                f"client {self.client} should join a secure sum with weights {ratios[left].tolist()}: one client may have a share"
                f" of {share:.3g}, and only {max(count, 0)} clients may have weight. Its node's policy accepts shares of at"
                f" most {self.max_share:g} (max_share) and at least {self.floor} clients (min_clients)"
            )

    def _opened(self, envelopes: Mapping[int, NDArray[np.uint8]], server_round: int) -> list[NDArray[np.uint32]]:
        """Open the shares that each member dealt this client, [2, LIMBS] each."""
        sealer = self._envelopes or self._sealer(0)
        shares = {self.client: self.state["kept"]}
        for client, envelope in envelopes.items():
            if client != self.client:
                dealt = sealer.open(client, _step(server_round), envelope)
                check(dealt, _DEALT, f"client {client} dealt client {self.client}")
                shares[client] = dealt[SHARES]
        return [shares[client] for client in envelopes]

    def reveal(self, survivors: NDArray[np.int64], server_round: int) -> Arrays:
        """Return for each member the share of b of a survivor, else of the mask key, [m, LIMBS]; then forget everything.

        Raises:
            RunFailed: nothing was masked in this round, this step has run before, or the survivors are not members.
        """
        self._expect(SHARES, "", server_round)
        members, alive = self.state[MEMBERS], set(survivors.tolist())
        needed = max(self.floor, threshold(self.share, len(self.state[CLIENTS])))
        if not {self.client} <= alive <= set(members.tolist()) or len(alive) < needed:
            raise RunFailed(
                f"client {self.client} was asked to unmask a sum over clients {sorted(alive)} of {members.tolist()},"
                f" expected at least {needed} clients, including itself"
            )
        for own in self.state[RATIOS]:
            self._check_weights(own, np.isin(members, list(alive)))
        shares = np.stack([held[int(c in alive)] for c, held in zip(members.tolist(), self.state[SHARES], strict=True)])
        self.state = {}
        return {SHARES: shares}

    def _expect(self, present: str, absent: str, server_round: int) -> None:
        if present not in self.state or absent in self.state or int(self.state["round"][0]) != server_round:
            raise RunFailed(
                f"client {self.client} accepts each step of a secure sum once and in order: it holds no keys for this step of "
                f"round {server_round}"
            )

    def _sealer(self, which: int) -> Sealer:
        """Return the end of the envelopes (0) or of the masks (1), with the peers' keys."""
        secret = self.state["mask" if which else "envelope"].tobytes()
        sealer = mask_sealer(self.client, secret) if which else Sealer(self.client, secret)
        sealer.meet(keys_of(self.state[CLIENTS], self.state[KEYS][:, which]))
        return sealer


def unmasked(
    masked: Mapping[int, Mapping[str, Arrays]],
    shares: Mapping[int, NDArray[np.uint32]],
    members: Sequence[int],
    keys: Mapping[int, NDArray[np.uint8]],
    needed: int,
    bits: int,
    server_round: int,
    agreed: bytes,
) -> dict[str, Arrays]:
    """Return Σ p_i x_i over the clients whose masked values arrived, float64.

    Args:
        masked: y_i by client.
        shares: shares that each client revealed in ``unmask``, [m, LIMBS].
        members: the m clients that made masks for each other, ascending.
        keys: [3, 32] by client, of all that published keys.
        needed: t.
        bits: fractional bits of the fixed point.
        server_round: the round.
        agreed: the digest under which the clients masked.

    Raises:
        RunFailed: a secret differs from its owner's publication, or the sum exceeds the possible range.
    """
    step, places = _step(server_round), {client: place for place, client in enumerate(sorted(keys), start=1)}
    like = next(iter(masked.values()))
    total = added(masked.values())
    used = sorted(shares)[:needed]
    secrets = combine([places[helper] for helper in used], np.stack([shares[helper] for helper in used]))
    for client, secret in zip(members, map(np.ndarray.tobytes, secrets), strict=True):
        if client in masked:
            true = commitment(secret) == keys[client][2].tobytes()
            mask = self_stream(secret, step, total.size)
        else:
            sealer = mask_sealer(client, secret)
            true = sealer.public == keys[client][1].tobytes()
            sealer.meet({peer: keys[peer][1].tobytes() for peer in masked})
            mask = -pairwise(
                sealer, list(masked), _step(server_round, agreed), total.size
            )  # the survivors' masks for this client
        if not true:
            raise RunFailed(
                f"round {server_round}, unmask: the shares of clients {used} do not give the secret that client {client} "
                "published: one of them revealed a wrong share, or it dealt wrong ones; the sum cannot be computed"
            )
        total = total - mask
    found = from_fixed(total, bits)
    if not np.abs(found).max(initial=0.0) < limit(bits):
        raise RunFailed(
            f"round {server_round}, unmask: the sum reaches {np.abs(found).max():g}, above the limit {limit(bits):g} for sums of "
            "valid values: a client did not mask as the protocol requires"
        )
    return shaped(found, like)


def envelope_size() -> int:
    """Return the size in bytes of every envelope with shares."""
    return OVERHEAD + len(save({SHARES: np.zeros((2, LIMBS), np.uint32)}))


def _bytes(raw: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8).copy()
