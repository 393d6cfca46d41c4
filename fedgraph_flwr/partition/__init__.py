"""From one graph to the private graphs of M clients: who owns which nodes, the clients' files, where they are kept."""

from fedgraph_flwr.partition.clients import assign, cut, pool
from fedgraph_flwr.partition.store import (
    client_files,
    content,
    files,
    input_spec,
    load,
    load_client,
    num_clients,
    outline,
    parties,
    resolved,
)
