"""Runs: preparation, server, records and prediction."""
