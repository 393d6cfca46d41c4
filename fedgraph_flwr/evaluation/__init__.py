"""Scores of models, and attacks on them."""
