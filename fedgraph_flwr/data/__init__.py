"""Graphs: the containers, the datasets, the user's own files, and the splits."""
