"""Sparse products, optimisers, and the constants of a graph that a network prepares once."""
