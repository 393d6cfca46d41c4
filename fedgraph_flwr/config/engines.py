"""Names of engines, and the function that runs each."""

SIMULATIONS = {
    "inline": "fedgraph_flwr.engine.inline:run_inline",
    "ray": "fedgraph_flwr.engine.ray:run_ray",
    "flower-simulation": "fedgraph_flwr.engine.flower:run_flower",
}
"""Engines that run all clients, and the function of each: ``run(cfg, on_round, on_wait) -> summary``."""

STACKING = ("inline", "ray")
"""Engines whose clients share a process and get their messages together, as `stack` requires."""

FLEET = "fedgraph_flwr.engine.flower:run_flower"
"""Function of every other name, which is a SuperLink connection."""
