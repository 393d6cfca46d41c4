"""Flower's entry point on the server; thin."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Compose the configuration and run it on whatever engine owns the grid."""
    from fedgraph_flwr.config import from_run_config
    from fedgraph_flwr.run import serve

    serve(grid, from_run_config(context.run_config))
