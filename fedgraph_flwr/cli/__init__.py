"""The command line ``fedgraph-flwr``: `app` finds the command, and each command is a module."""

from fedgraph_flwr.cli.app import main

__all__ = ["main"]
