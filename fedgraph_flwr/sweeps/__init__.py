"""Sweeps: specification of a table, its missing runs, and their summary."""
