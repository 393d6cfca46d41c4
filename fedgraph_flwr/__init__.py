"""Federated graph neural networks on Flower."""

__version__ = "0.1.0"
