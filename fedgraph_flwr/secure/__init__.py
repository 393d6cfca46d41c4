"""Modules that protect data: sealed envelopes between clients, and sums whose terms no one sees."""
