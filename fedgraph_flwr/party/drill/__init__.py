"""Typology drill: agreed laundering patterns in copies of the parties' books, and how many of them each model finds."""
