"""Secure aggregation with dropouts (Bonawitz et al., CCS 2017, Figure 4): the server learns only a weighted sum.

For every sum, client i of n participants draws three new key pairs and a new seed b_i. With x_i its values and p_i its share
of the weights:

    keys      up: three public keys (envelopes, masks, signatures), a commitment to b_i, and the client's sizes
    shares    up: for every peer an envelope with Shamir shares of b_i and of the mask key's seed, any t of n
    reply     up: y_i = round(2^bits p_i x_i) + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij)   mod 2^64
    agree     up: a signature on the list of survivors, the clients whose y_j arrived
    unmask    down: at least t of these signatures
              up: a share of b_j for every survivor, and of the mask key for every other member: one or the other

The server reconstructs b_i of the clients that replied, and the mask keys of those that dropped out. It subtracts the masks and
obtains Σ p_i x_i.

Keys and seeds are new for each sum, also if the server requests it again. Because b_i is revealed, it must be new, and with it
the shares. A mask key is revealed if its owner drops out. A long-lived key would then open all its earlier sums to a server
that received its seeds. A client deletes its secrets when it masks, and no checkpoint stores them. Each reconstructed secret is
compared with its owner's publication: a wrong share ends the round. Secrets are `LIMBS` elements of Shamir's field
(`fedgraph_flwr.secure.shamir`); the mask's X25519 key and the stream of b_i derive from them.

The server names no weights. Each client publishes its sizes with its keys, under one signature of its pinned key
(`fedgraph_flwr.secure.keyring`), and every member computes all p_j from them and the configuration
(`fedgraph_flwr.methods.weighting`). Masks are keyed by a digest of the weights, of the published keys and sizes, of the members
and of the model received (`agreed`): if the server sends two clients different ones, no pair of masks cancels and the sum is
useless. A member refuses clients outside its batch, a list in which one client's share exceeds `Member.max_share`, and fewer
than `Member.floor` clients with weight.

Without noise, a sum with a client and one without it show its values: their difference is its update, up to what the model moved
(a cosine of 0.92 in round 2, of 1.0000 by round 50). So a run has one list of clients per kind of values, that of its first sum
(`Member.fixed`, `Member.lists`). Runs with different lists, sizes or seeds add up likewise: members fix all three in an agreement
(`fedgraph_flwr.fleet.agreements`), without which a node knows of no other run.

t = ⌊2n/3⌋ + 1 (Bonawitz et al., Section 6.2). For two lists of survivors a server needs t signatures on each, and an honest
client signs one list per sum: 2t − n > n/3 clients would have to collude. t tolerates no dropout of 3 clients, one of 4 to 6,
two of 7 to 9.

Not detected: a client that adds other values than it trained, within the range. If clients pin no keys, a server that
distributes its own keys is not detected either, so a fleet's nodes refuse secure sums without pins.
"""

import contextlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from numpy.typing import NDArray
from safetensors.numpy import save

from fedgraph_flwr.errors import RunFailed
from fedgraph_flwr.secure.distributed import DistributedNoise
from fedgraph_flwr.secure.masked import (
    added,
    digest,
    from_fixed,
    joined_groups,
    keys_of,
    pairwise,
    split_groups,
    to_fixed,
)
from fedgraph_flwr.secure.sealed import OVERHEAD, Sealer, derived, key_stream
from fedgraph_flwr.secure.shamir import LIMBS, PRIME, combine, random_elements, split
from fedgraph_flwr.wire.messages import Arrays
from fedgraph_flwr.wire.reply_schema import ArrayField, check

HEADROOM = 8
"""Bits: a sum of random integers, the result of wrong masks, passes for valid with probability 2^-8 per value."""
MIN_CLIENTS = 3  # in a sum of two clients, each knows the other's term
CLIENTS, KEYS, SIZES, ENVELOPES, SHARES = "clients", "keys", "sizes", "envelopes", "shares"
MEMBERS, WEIGHTS, AGREED, SURVIVORS, CONSENT = "members", "weights", "agreed", "survivors", "consent"
PUBLISH, DEAL, AGREE, UNMASK, SECAGG = "secagg_keys", "secagg_shares", "secagg_agree", "unmask", "secagg"
"""Phases, and the group of arrays: keys and sizes for `PUBLISH`; envelopes of shares for `DEAL`; envelopes and members for a
term of a sum; survivors and signatures for `AGREE`; signatures and shares for `UNMASK`."""
STEPS = (PUBLISH, DEAL, AGREE, UNMASK)
SIGNED = 64  # bytes of a signature on a list of survivors
SIGNERS = "signers"
MODELS = "models"
"""Kind of all groups that are models or updates of one."""
_DEALT = {SHARES: ArrayField((2, LIMBS), "uint32", 0, PRIME - 1)}


def limit(bits: int) -> float:
    """Return the bound of every value: sums of values below it, with weights that sum to 1, leave the `HEADROOM`."""
    return 2.0 ** (63 - HEADROOM - bits)


def threshold(share: float, clients: int) -> int:
    """Return t: how many of the clients that published keys must reply, always more than two thirds of them.

    Args:
        share: ``privacy.secagg_threshold``, if a run wants more than that.
        clients: n.
    """
    return max(math.ceil(share * clients - 1e-9), 2 * clients // 3 + 1)


def commitment(secret: bytes) -> bytes:
    """Return SHA-256 of a seed, which commits its owner to the seed without revealing it."""
    return sha256(b"fedgraph self-mask" + secret).digest()


def mask_sealer(client: int, secret: bytes) -> Sealer:
    """Return the end of a client's mask streams, whose key pair follows from a secret."""
    return Sealer(client, derived(secret, b"fedgraph mask key"))


def self_stream(secret: bytes, step: str, count: int) -> NDArray[np.uint64]:
    """Return PRG(b) [count]."""
    return key_stream(derived(secret, b"fedgraph self-mask" + step.encode()), count)


def _step(server_round: int, agreed: bytes = b"") -> str:
    return f"secagg {server_round} {agreed.hex()}" if agreed else f"secagg {server_round}"


def relayed(signed: Mapping[int, Arrays]) -> Arrays:
    """Pack results of `Member.agree` in two arrays: signers [s], signatures [s, `SIGNED`]."""
    return {
        SIGNERS: np.array(list(signed), np.int64),
        CONSENT: np.stack([arrays[CONSENT] for arrays in signed.values()]),
    }


def unpacked(packed: Arrays) -> dict[int, Arrays]:
    """Return the results of `Member.agree` by client, from `relayed`."""
    return {
        client: {CONSENT: consent} for client, consent in zip(packed[SIGNERS].tolist(), packed[CONSENT], strict=True)
    }


def publication(keys: NDArray[np.uint8], sizes: NDArray[np.int64]) -> bytes:
    """Return what a client signs when it publishes: its keys [4, 32] and its sizes [2]."""
    return keys.tobytes() + sizes.astype(np.int64).tobytes()


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
        fixed: whether all sums of a kind of values must have one list of clients.
        lists: that list [n], by kind.
        required: the list of all sums, of members of an agreement; empty: any.
        kept: returns the noised term of the current sum for the digest of a request: a stored one, or what its second argument
            makes.
    """

    def __init__(self, client: int, share: float, bits: int, noise: DistributedNoise | None = None):
        self.client, self.share, self.bits, self.noise = client, share, bits, noise
        self.floor, self.max_share = 1, 1.0
        self.fixed = False
        self.lists: Arrays = {}
        self.required: list[int] = []
        self.state: Arrays = {}
        self.kept: Callable[[bytes, Callable[[], NDArray[np.uint64]]], NDArray[np.uint64]] = _made
        self._envelopes: Sealer | None = None  # from `deal` for `masked`, if both run in one process

    def publish(self, server_round: int, exchange: int = 0, sizes: Sequence[int] = (0, 0)) -> Arrays:
        """Draw new keys for a sum of a round, forget all earlier ones, and return the publication: `KEYS` [4, 32], `SIZES` [2].

        Args:
            server_round: the round.
            exchange: index of the sum in the round.
            sizes: the client's numbers of training items and of nodes, as far as the server knows them.
        """
        mask, secret = random_elements((2, LIMBS))
        envelopes = Sealer(self.client)
        self.state = {
            "round": np.array([server_round]),
            "exchange": np.array([exchange]),
            "envelope": _bytes(envelopes.private),
            "sign": _bytes(Ed25519PrivateKey.generate().private_bytes_raw()),
            "mask": mask,
            "self": secret,
            SIZES: np.array(sizes, np.int64),
        }
        return {KEYS: self.published, SIZES: self.state[SIZES]}

    @property
    def exchange(self) -> int:
        """Index of the sum that the keys are for."""
        return int(self.state["exchange"][0])

    @property
    def published(self) -> NDArray[np.uint8]:
        """The public keys and the commitment of this round, [4, 32], until the secrets are deleted."""
        sealer = Sealer(self.client, self.state["envelope"].tobytes())
        mask, secret = self.state["mask"].tobytes(), self.state["self"].tobytes()
        signer = Ed25519PrivateKey.from_private_bytes(self.state["sign"].tobytes()).public_key().public_bytes_raw()
        public = sealer.public, mask_sealer(self.client, mask).public, commitment(secret), signer
        return np.stack([_bytes(key) for key in public])

    def deal(
        self,
        clients: NDArray[np.int64],
        keys: NDArray[np.uint8],
        sizes: NDArray[np.int64],
        server_round: int,
        batch: Sequence[int] | None = None,
        verify: Callable[[], None] | None = None,
    ) -> Arrays:
        """Return envelopes with shares of both secrets, one row for each of ``clients``, its own row empty: [n, B].

        Args:
            clients: clients that published keys, ascending [n].
            keys: their keys, [n, 4, 32].
            sizes: their sizes, [n, 2].
            server_round: the round.
            batch: clients that may take part in this round; None: any.
            verify: checks the signatures; it runs before the state of this client changes.

        Raises:
            RunFailed: the keys belong to another round, were dealt before, are too few, differ from this client's own, or are of
                a client outside the batch.
        """
        self._expect("self", CLIENTS, server_round)
        if len(clients) < (least := max(MIN_CLIENTS, self.floor)):
            raise RunFailed(
                f"client {self.client} should join a secure sum with {len(clients) - 1} others, expected at least {least - 1}"
            )
        places = {int(client): place for place, client in enumerate(clients)}
        index = places.get(self.client, 0)
        same = np.array_equal(self.published, keys[index]) and np.array_equal(self.state[SIZES], sizes[index])
        if not same or len(places) < len(clients):
            raise RunFailed(
                f"client {self.client} received a list of keys in which its own differ from those it published"
            )
        if self.required:
            self._check_fixed(["values"], clients)
        if batch is not None and (outside := sorted(places.keys() - set(batch))):
            raise RunFailed(
                f"client {self.client} should join a secure sum with client {outside[0]} in round {server_round}, whose batch by"
                f" the run's seed is {sorted(batch)}: the server named other clients"
            )
        if verify:
            verify()
        self.state |= {CLIENTS: clients, KEYS: keys, SIZES: sizes}
        needed = threshold(self.share, len(clients))
        shares = split(np.stack([self.state["mask"], self.state["self"]]), needed, len(clients))  # [n, 2, LIMBS]
        self.state["kept"] = shares[places[self.client]]
        self._envelopes, step = self._sealer(0), _step(server_round)
        empty = np.zeros(envelope_size(), np.uint8)
        seal, others = (
            self._envelopes.seal,
            {c: {SHARES: shares[place]} for c, place in places.items() if c != self.client},
        )
        return {ENVELOPES: np.stack([seal(c, step, others[c]) if c in others else empty for c in places])}

    def sizes_of(self, members: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """Return the sizes that members published, [2] by client.

        Raises:
            RunFailed: no keys were dealt, or a member has published none.
        """
        sizes = dict(zip(self.state.get(CLIENTS, np.empty(0, int)).tolist(), self.state.get(SIZES, ()), strict=False))
        if absent := sorted(set(members.tolist()) - sizes.keys()):
            raise RunFailed(
                f"client {self.client} should add its values to those of client {absent[0]}, which published no keys for this sum"
            )
        return sizes

    def masked(
        self,
        values: Mapping[str, Arrays],
        weights: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
        members: NDArray[np.int64],
        envelopes: NDArray[np.uint8],
        server_round: int,
        received: bytes = b"",
        kinds: Mapping[str, str] | None = None,
    ) -> dict[str, Arrays]:
        """Return y_i, uint64 groups of the same names and shapes; secrets are deleted, the digest stays in ``state["agreed"]``.

        Args:
            values: groups of float arrays.
            weights: weight and share p_j of all members, [m] each, by group of the values.
            members: the clients that take part, ascending [m].
            envelopes: their envelopes for this client, [m, B].
            server_round: the round.
            received: `digest` of the model from which the values were trained; all members must have received the same.
            kinds: the kind of values of each group; default: the group's name.

        Raises:
            RunFailed: as `deal`; too few peers; weights that reveal one client's values; or values beyond the fixed-point range.
        """
        self._expect("kept", MEMBERS, server_round)
        self._listed("mask", members, self.state[CLIENTS], max(MIN_CLIENTS, self.floor))
        names = [(kinds or {}).get(group, group) for group in weights]
        self._check_fixed(names, members)
        ratios = {group: shares for group, (_, shares) in weights.items()}
        for portions in ratios.values():
            self._check_weights(portions, portions > 0)
        held = self._dealt_shares(dict(zip(members.tolist(), envelopes, strict=True)), server_round)
        request: Arrays = {MEMBERS: members, "model": _bytes(received)}
        request |= {f"{WEIGHTS}/{group}": portions for group, portions in ratios.items()}
        agreed = digest({key: self.state[key] for key in (CLIENTS, KEYS, SIZES)} | request)
        sizes = [sum(array.size for array in group.values()) for group in values.values()]
        place = members.tolist().index(self.client)
        own_ratios = {group: float(ratios[group][place]) for group in values}
        scale = np.repeat([ratio * 2.0**self.bits for ratio in own_ratios.values()], sizes)
        advice = f": lower privacy.secagg_bits={self.bits}"
        total = to_fixed(
            joined_groups(values), scale, limit(self.bits), self.client, advice
        )  # refuses before noise, too
        if noise := self.noise:
            needed = threshold(self.share, len(self.state[CLIENTS]))
            total = self.kept(
                digest(request), lambda: noise.terms(values, own_ratios, len(members), needed).view(np.uint64)
            )
        total = total + self_stream(self.state["self"].tobytes(), _step(server_round), total.size)
        total = total + pairwise(self._sealer(1), members.tolist(), _step(server_round, agreed), total.size)
        self.state = {
            **{key: self.state[key] for key in ("round", "sign", CLIENTS, KEYS)},
            MEMBERS: members,
            WEIGHTS: np.stack([np.stack(pair) for pair in weights.values()]),  # [G, 2, m]
            "kinds": _bytes(json.dumps(names).encode()),
            SHARES: np.stack(held),
            AGREED: _bytes(agreed),
        }
        self._envelopes = None
        return split_groups(total, values)

    def _listed(self, what: str, listed: NDArray[np.int64], known: NDArray[np.int64], least: int) -> list[int]:
        """Return the clients of a list, ascending.

        Args:
            what: what the server requests with it.
            listed: the list.
            known: clients that may be in it, besides this one, which must be.
            least: fewest of them, if not more have to reply.

        Raises:
            RunFailed: it is none of these, or too short.
        """
        clients, least = set(listed.tolist()), max(least, threshold(self.share, len(self.state[CLIENTS])))
        if not {self.client} <= clients <= set(known.tolist()) or len(clients) < max(least, len(listed)):
            raise RunFailed(
                f"client {self.client} was asked to {what} a sum over clients {listed.tolist()} of {known.tolist()}, expected at"
                f" least {least} clients, each once, including itself"
            )
        return sorted(clients)

    def _check_weights(self, ratios: NDArray[np.float64], left: NDArray[np.bool_]) -> None:
        """Refuse a sum that would reveal one client's values.

        Args:
            ratios: p_j of all members [m].
            left: which of them are in the sum, [m].

        Raises:
            RunFailed: too few of them have weight, or one has too much.
        """
        if not (ratios > 0).any():
            return  # the sum is 0
        kept = ratios[left & (ratios > 0)]
        share = float(kept.max() / kept.sum()) if kept.size else 1.0
        if kept.size < self.floor or share > self.max_share:
            raise RunFailed(
                f"client {self.client} should join a secure sum with weights {ratios[left].tolist()}: one client may have a share"
                f" of {share:.3g}, and only {kept.size} clients may have weight. Its node's policy accepts shares of at"
                f" most {self.max_share:g} (max_share) and at least {self.floor} clients (min_clients)"
            )

    def _dealt_shares(self, envelopes: Mapping[int, NDArray[np.uint8]], server_round: int) -> list[NDArray[np.uint32]]:
        """Open the shares that each member dealt this client, [2, LIMBS] each."""
        sealer = self._envelopes or self._sealer(0)
        shares = {self.client: self.state["kept"]}
        for client, envelope in envelopes.items():
            if client != self.client:
                dealt = sealer.open(client, _step(server_round), envelope)
                check(dealt, _DEALT, f"client {client} dealt client {self.client}")
                shares[client] = dealt[SHARES]
        return [shares[client] for client in envelopes]

    def agree(self, survivors: NDArray[np.int64], server_round: int) -> Arrays:
        """Sign the list of survivors, once per sum.

        Returns:
            `CONSENT`, the signature [`SIGNED`].

        Raises:
            RunFailed: nothing was masked in this round, this step has run before, or the survivors are not members, too few, or
                others than in the run's first sum.
        """
        self._expect(SHARES, SURVIVORS, server_round)
        alive = self._listed("unmask", survivors, self.state[MEMBERS], self.floor)
        left = np.isin(self.state[MEMBERS], alive)
        for _, ratios in self.state[WEIGHTS]:
            self._check_weights(ratios, left)
        listed, kinds = np.array(alive, np.int64), json.loads(self.state["kinds"].tobytes())
        self._check_fixed(kinds, listed)
        self.lists = {**self.lists, **{kind: listed.copy() for kind in kinds}}
        self.state[SURVIVORS] = listed
        key = Ed25519PrivateKey.from_private_bytes(self.state["sign"].tobytes())
        return {CONSENT: _bytes(key.sign(self._statement()))}

    def _check_fixed(self, kinds: Sequence[str], clients: NDArray[np.int64]) -> None:
        """Refuse a sum over other clients than the run's first sum of these values.

        Raises:
            RunFailed: names both lists.
        """
        for kind in kinds if self.fixed else ():
            first = self.required or self.lists.get(kind, np.sort(clients)).tolist()
            if first != (group := np.sort(clients).tolist()):
                raise RunFailed(
                    f"client {self.client} adds its {kind} to those of clients {first}, and the server requests a sum over"
                    f" {group}: two lists of one run show single values by their difference; resume the run when all are back, or"
                    " use privacy.dp=distributed"
                )

    def _statement(self) -> bytes:
        """Return what a client signs: the survivors, and the digest of everything else that the sum depends on."""
        return b"fedgraph survivors" + digest({SURVIVORS: self.state[SURVIVORS], AGREED: self.state[AGREED]})

    def unmask(self, signed: Mapping[int, Arrays], server_round: int) -> Arrays:
        """Return for each member the share of b of a survivor, else of the mask key, [m, LIMBS]; then forget everything.

        Args:
            signed: results of `agree`, by client.
            server_round: the round.

        Raises:
            RunFailed: this client has signed no list in this round, this step has run before, or fewer than t survivors signed
                the same list.
        """
        self._expect(SURVIVORS, "", server_round)
        members, alive = self.state[MEMBERS], self.state[SURVIVORS]
        keys = dict(zip(self.state[CLIENTS].tolist(), self.state[KEYS][:, 3], strict=True))
        needed, statement = threshold(self.share, len(self.state[CLIENTS])), self._statement()
        asked, valid = signed.keys() & set(alive.tolist()), set()
        for signer in asked:
            with contextlib.suppress(InvalidSignature, ValueError):
                key = Ed25519PublicKey.from_public_bytes(keys[signer].tobytes())
                key.verify(signed[signer][CONSENT].tobytes(), statement)
                valid.add(signer)
        if len(valid) < needed:
            raise RunFailed(
                f"client {self.client} was asked to unmask a sum over clients {alive.tolist()}, a list that {len(valid)} of"
                f" them signed, expected at least {needed}; clients {sorted(asked - valid)} signed something else: the server"
                " named other survivors, or requested something else before, of them"
            )
        survived = np.isin(members, alive).astype(int)
        shares = np.stack([held[place] for place, held in zip(survived, self.state[SHARES], strict=True)])
        self.state = {}
        return {SHARES: shares}

    def _expect(self, present: str, absent: str, server_round: int) -> None:
        if present not in self.state or absent in self.state or int(self.state["round"][0]) != server_round:
            raise RunFailed(
                f"client {self.client} accepts each step of a secure sum once and in order: no keys of round {server_round}"
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
        keys: [4, 32] by client, of all that published keys.
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
            # the survivors' masks for this client
            mask = -pairwise(sealer, list(masked), _step(server_round, agreed), total.size)
        if not true:
            raise RunFailed(
                f"round {server_round}, unmask: the shares of clients {used} do not give the secret that client {client} "
                "published: one of them revealed a wrong share, or it dealt wrong ones; the sum cannot be computed"
            )
        total = total - mask
    sums = from_fixed(total, bits)
    if not np.abs(sums).max(initial=0.0) < limit(bits):
        raise RunFailed(
            f"round {server_round}, unmask: the sum reaches {np.abs(sums).max():g}, above the limit {limit(bits):g} for sums of "
            "valid values: a client did not mask as the protocol requires"
        )
    return split_groups(sums, like)


def envelope_size() -> int:
    """Return the size in bytes of every envelope with shares."""
    return OVERHEAD + len(save({SHARES: np.zeros((2, LIMBS), np.uint32)}))


def _made(request: bytes, make: Callable[[], NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return make()


def _bytes(raw: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(raw, np.uint8).copy()
