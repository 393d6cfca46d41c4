"""Program of `fedgraph-flwr server`: `flower-superlink`, which also sends run folders and reads renewed certificates."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgraph_flwr.fleet.certificates import reload_in_uvicorn
from fedgraph_flwr.fleet.run_folders import RUNS, add_routes
from fedgraph_flwr.fleet.status import read_status


def listing(root: Path, filters: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the runs of the server's folder by their names, without their whole configurations."""
    from fedgraph_flwr.report.as_json import finite
    from fedgraph_flwr.report.listing import listed

    runs = listed(root, filters)
    found = [(Path(run["run"]), run) for run in runs]
    return [
        finite({**run, "run": str(path.relative_to(root)), "config": {}, "status": read_status(path)})
        for path, run in found
    ]


def main() -> None:
    """Run a SuperLink; ``sys.argv`` has its options, and the environment the folder of runs."""
    from flwr.superlink import main as superlink
    from flwr.superlink.cli import flower_superlink

    root, create = Path(os.environ[RUNS]), superlink.create_app

    def create_app(*args: Any, **kwargs: Any) -> Any:
        app = create(*args, **kwargs)
        add_routes(app, root, listing)
        return app

    superlink.create_app = create_app
    reload_in_uvicorn()
    flower_superlink()


if __name__ == "__main__":
    main()
