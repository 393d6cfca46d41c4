"""Flower's entry point on a client; thin, and quick to import."""

import fedgraph_flwr.party  # noqa: F401 - registers what a party's own node reads
from fedgraph_flwr.node.app import app as node_app

app = node_app  # Flower reads this file for an assignment of this name
