"""Names of engines, and the function that runs each."""

SIMULATIONS = {
    "inline": "fedgraph_flwr.engine.inline:run_inline",
    "ray": "fedgraph_flwr.engine.ray:run_ray",
    "flower-simulation": "fedgraph_flwr.engine.flower:run_flower",
}
"""Engines that run all clients, and the function of each: ``run(cfg, on_round, on_wait) -> summary``."""

STACKING = ("inline", "ray")
"""Engines whose clients share a process and get their messages together, so that `stack` can compute them as one."""

FLEET = "fedgraph_flwr.engine.flower:run_flower"
"""The function of every other name, that of a SuperLink connection."""
