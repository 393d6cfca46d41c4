"""Scores of a model, and what an adversary learns from it."""
