"""Secure aggregation in messages: names of its phases and of its group of arrays."""

PUBLISH = "secagg_keys"
DEAL = "secagg_shares"
UNMASK = "unmask"
SECAGG = "secagg"
"""With `PUBLISH`, the keys; with `DEAL`, envelopes of shares; with the question that is answered by a term of a sum, envelopes,
who adds, and the client's share of the weights; with `UNMASK`, who survived, and shares."""
