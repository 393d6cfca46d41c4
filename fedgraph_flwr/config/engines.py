"""Names of engines, and the function behind each."""

GRIDS = {
    "inline": "fedgraph_flwr.engine.inline:open_grid",
    "ray": "fedgraph_flwr.engine.ray:open_grid",
}
"""Engines whose nodes this command's process calls, and the context manager that opens each one's grid."""

STACKING = tuple(GRIDS)
"""Engines whose clients share a process and get their messages together, as `stack` requires."""

FLOWER = "fedgraph_flwr.engine.flower:run_flower"
"""Function of all other engines, in which Flower's own commands start server and clients."""

SIMULATIONS = (*GRIDS, "flower-simulation")
"""Engines that run all clients; every other name is a SuperLink connection, to a fleet."""
