"""A round of secure sums by hand, and rules of distributed noise."""

import numpy as np

from fedgraph_flwr.config import PrivacyConfig
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.methods.declared import uplink_of as declared
from fedgraph_flwr.secure.eligibility import not_secure
from fedgraph_flwr.secure.secagg import MODELS, Member, threshold, unmasked
from fedgraph_flwr.wire.messages import MODEL
from tests.methods.small_runs import by_default

SECURE = "privacy.secagg=true"


class Round:
    """A round of members, message by message; every client's public key list and envelopes as the server sees them."""

    def __init__(self, count=5, share=0.6, bits=40, server_round=3, members=None):
        self.round, self.bits = server_round, bits
        self.members = members or [Member(i, share, bits) for i in range(count)]
        count = len(self.members)
        self.keys = {i: m.publish(server_round)["keys"] for i, m in enumerate(self.members)}
        self.needed = threshold(share, count)
        self.values = {
            i: {MODEL: {"w": np.random.default_rng(i).normal(size=(50, 4)), "b": np.full(3, float(i))}}
            for i in range(count)
        }

    def deal(self):
        ids, keys = np.arange(len(self.members)), np.stack(list(self.keys.values()))
        sizes = np.zeros((len(ids), 2), np.int64)
        self.dealt = {i: m.deal(ids, keys, sizes, self.round) for i, m in enumerate(self.members)}
        return self

    def mask(self, client, ratio=0.25, among=None, received=b""):
        among = range(len(self.members)) if among is None else among
        envelopes = np.stack([self.dealt[j]["envelopes"][client] for j in among])
        ratios, member = np.broadcast_to(np.asarray(ratio, float), len(among)), self.members[client]
        terms = {MODEL: (ratios, ratios)}
        kinds = {MODEL: f"{MODELS} of rounds"}
        masked = member.masked(self.values[client], terms, np.array(among), envelopes, self.round, received, kinds)
        self.agreed = member.state["agreed"].tobytes()
        return masked

    def sum(self, answers, shares, among=None):
        among = range(len(self.members)) if among is None else among
        return unmasked(answers, shares, list(among), self.keys, self.needed, self.bits, self.round, self.agreed)

    def signatures(self, survivors):
        """The signatures of all survivors on the list of survivors, by client."""
        return {i: self.members[i].agree(np.array(survivors), self.round) for i in survivors}

    def shares(self, helpers, survivors):
        signed = self.signatures(survivors)
        return {i: self.members[i].unmask(signed, self.round)["shares"] for i in helpers}


def accepted(method):
    """Whether the method declares that sums are all it needs."""
    cfg = by_default(method)
    return not not_secure(cfg, declared(locate(cfg.strategy.server), cfg))


RULES = PrivacyConfig("distributed", noise_multiplier=2.0, clipping_norm=0.5, secagg=True, secagg_bits=16)
