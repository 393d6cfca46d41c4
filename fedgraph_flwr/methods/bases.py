"""Names of the two base classes, for annotations in the modules that the bases themselves import; at run time, any object."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgraph_flwr.clients.base import GraphClient
    from fedgraph_flwr.strategies.base import GraphStrategy
else:
    GraphClient = GraphStrategy = Any
