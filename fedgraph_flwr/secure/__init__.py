"""What keeps secrets: sealed envelopes between clients, and sums whose terms nobody sees."""
