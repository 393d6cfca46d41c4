"""Rules of a link run (`linking`)."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from fedgraph_flwr.config import choice, number
from fedgraph_flwr.config.schema import Section
from fedgraph_flwr.data.far_ends import EDGES, parse_share
from fedgraph_flwr.errors import RunFailed

MATCHES = ("payments", "routed", "ids")
ONE_SIDED = ("drop", "stub", "disclose")
ENTITIES = ("edges", "overlap", "columns")

_LEARNT = {
    "payments": "each peer reads shared records: the rows of both ends, the edge's columns and label",
    "routed": "each peer reads shared records: the rows of both ends, the edge's columns and label; it can test guesses",
    "ids": "each peer learns which identities both have, and reads their rows",
}
_OF_ONE_SIDE = {
    "drop": "nothing of records that only one party has",
    "stub": "how many accounts only one party's records name",
    "disclose": "ALL RECORDS that only one party has",
}
_FORMS = {"exact": "unchanged", "buckets": "rounded down to a power of two"}

NOTHING = "shares no record with any party that its records name"
"""Part of the error message of a party whose link found nothing."""

ANNOUNCE, SHARE, WRITE, COUNT = "announce", "share", "write", "count"


class NothingShared(RunFailed):
    """Error: a link run took all its steps, and a party shares nothing; its exit code differs from that of a failed run."""

    exit_code = 3


@dataclass
class LinkRules(Section):
    """Rules of a link run, the same at all parties.

    Attributes:
        match: ``payments`` (private intersection of records), ``routed`` (hashes of records, for parties that know each other's
            accounts) or ``ids`` (private intersection of identities).
        one_sided: what becomes of records that only one party has: ``drop``, ``stub`` (a node without features, at that party
            only) or ``disclose`` (the other party learns of it).
        entities: what becomes of shared identities: ``edges`` between two nodes, ``overlap``: one node at both clients, or
            ``columns``: a party gets the columns ``share`` of its nodes that only the other party has (`join`).
        max_ids: most records or identities of a party for one peer.
        min_shared: fewest shared ones of a pair; a pair that shares fewer, but at least one, is refused.
        max_ratio: largest padded set of records of a peer, relative to the own records for it; a set of 64 is always accepted.
        max_shared: largest share of the own set that may be shared.
        share: columns of its own accounts in shared records that each party tells the party at the other end (`data.far_ends`).
        min_records: fewest records of an account of which a party tells; with ``columns``, of an account that it asks for.
        increment: whether records that the last link matched are not sent again (`ledger`).
        dry_run: whether only numbers are learnt; not with ``routed``, whose hashes show which records are shared.
    """

    match: str = choice("payments", MATCHES)
    one_sided: str = choice("drop", ONE_SIDED)
    entities: str = choice("edges", ENTITIES)
    max_ids: int = number(1_000_000, low=1)
    max_ratio: float = number(4.0, low=1)
    min_shared: int = 0
    max_shared: float = number(1.0, high=1, without_low=True)
    share: list[str] = field(default_factory=list)
    min_records: int = number(1, low=1)
    increment: bool = False
    dry_run: bool = False

    refusals = (
        (
            lambda c: c.joins and not parse_share(c.share),
            "entities=columns brings columns of nodes to other parties: pass --share COLUMNS",
        ),
        (
            lambda c: c.joins and c.match == "payments",
            "entities=columns matches nodes, not records: pass --match ids, or --match routed for hashes",
        ),
        (
            lambda c: any(entry.pattern.startswith(EDGES) for entry in parse_share(c.share)) and c.identities,
            f"share: columns of edges ({EDGES}...) need records, but accounts are matched: leave them out",
        ),
        (
            lambda c: c.share and c.entities == "overlap",
            "share needs edges between parties, but entities=overlap makes two nodes one: leave out share or entities",
        ),
        (
            lambda c: c.identities and c.one_sided != "drop",
            "one_sided={c.one_sided} applies to records, not to match=ids or entities=columns: leave it out (one_sided=drop)",
        ),
        (
            lambda c: c.identities and c.increment,
            "--since applies to records, not to match=ids or entities=columns, whose accounts are matched again: leave it out",
        ),
        (
            lambda c: c.match == "routed" and c.dry_run,
            "dry_run with match=routed would show which records are shared, not only their number: use match=payments, or leave"
            " dry_run out",
        ),
    )

    def in_words(self, runs: int = 1) -> Iterator[str]:
        """Yield lines that say what these rules tell a peer, in at most so many runs."""
        if self.dry_run:
            yield f"match={self.match}, a dry run: each peer learns the number of matches, and nothing is written"
            return
        yield f"match={self.match}, entities={self.entities}: {_LEARNT[self.match]}"
        yield f"one_sided={self.one_sided}: each peer learns {_OF_ONE_SIDE[self.one_sided]}"
        for entry in parse_share(self.share):
            epsilon = (
                f"local ε = {entry.epsilon:g} per account, column and link, {entry.epsilon * runs:g} in {runs} runs"
            )
            told = _FORMS.get(entry.form, f"drawn by randomised response: {epsilon}")
            yield f"each peer reads columns {entry.pattern} of accounts with {self.min_records} records or more, {told}"

    @property
    def joins(self) -> bool:
        """Whether parties bring each other columns of the nodes that both have."""
        return self.entities == "columns"

    @property
    def identities(self) -> bool:
        """Whether nodes are matched, not records."""
        return self.match == "ids" or self.joins

    @property
    def phases(self) -> list[str]:
        """The phases in order; each is named for what a party sends in it."""
        sets = ["ask_commit", "ask"] if self.match == "routed" else ["commit", "mask", "seal", "double"]
        proof = [] if self.match == "routed" else ["prove", "agree"]
        optional = [*(["resolve"] if self.discloses else []), *([SHARE] if self.share else [])]
        rows = [*proof, "match", *optional, "confirm", WRITE]
        return [ANNOUNCE, "introduce", *sets, *([COUNT] if self.dry_run else rows)]

    @property
    def discloses(self) -> bool:
        """Whether a party's one-sided records become known to the other party."""
        return self.one_sided == "disclose" and not self.dry_run

    @property
    def common(self) -> dict[str, Any]:
        """The rules that all parties must have alike; the others are limits of each party."""
        values = asdict(self)
        return {key: values[key] for key in ("match", "one_sided", "entities", "share", "increment", "dry_run")}
