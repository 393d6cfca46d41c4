"""Start-up time of a client process: imports, and the model's inputs, prepared or read from the cache.

    python -m benchmarks.client_start [key=value ...]

On a fleet each message starts a new process, so both count in every exchange. Results are CPU seconds of new processes, the
minimum of ``REPEATS`` sequential runs.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from fedgraph_flwr.config import compose, to_json
from fedgraph_flwr.partition import store

REPEATS = 5

FLOWER = "import flwr.supernode.cli.flwr_clientapp, fedgraph_flwr.client_app"
IMPORTS = {
    "Flower's client process and our app": FLOWER,
    "and torch, with the first message": f"{FLOWER}, node.respond",
    "and PyG, were it imported too": f"{FLOWER}, node.respond, torch_geometric",
}

_WATCH = "import resource, time; used = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])\n"

_CLIENT = """
import sys, torch
from pathlib import Path
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.partition import load
torch.set_num_threads(1)
cfg, file, keep = compose(base=sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "keep"
began = used()
locate(cfg.strategy.client)(cfg, load(file), "cpu", file if keep else None)
print(used() - began)
"""


def main() -> None:
    """Print a table."""
    for what, line in IMPORTS.items():
        print(f"{what:40} {least(_WATCH + line + chr(10) + 'print(used())'):6.2f} s")
    cfg = compose(sys.argv[1:])
    graph = store.files(store.client_files(cfg))[0]
    assert isinstance(graph, Path), "benchmarks a client file of its own, not a part of a packed one"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, graph.name)
        file.write_bytes(graph.read_bytes())
        made = least(_WATCH + _CLIENT, to_json(cfg), str(file), "no")
        once(_WATCH + _CLIENT, to_json(cfg), str(file), "keep")
        read = least(_WATCH + _CLIENT, to_json(cfg), str(file), "keep")
    print(
        f"{cfg.strategy.name}'s client of {graph.parent.name}, built with inputs made {made:.3f} s, read {read:.3f} s"
    )


def once(program: str, *words: str) -> float:
    """Return the number that a new process prints."""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout.split()[-1]))


def least(program: str, *words: str) -> float:
    """Return the minimum over several runs."""
    return min(once(program, *words) for _ in range(REPEATS))


if __name__ == "__main__":
    main()
