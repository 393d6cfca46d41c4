"""Sparse products, optimisers, and the constants of a graph that a model prepares once."""
