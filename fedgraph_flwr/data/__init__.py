"""Graphs: the containers, the datasets, the user's own files, and the splits."""

from fedgraph_flwr.data.datasets import load

__all__ = ["load"]
