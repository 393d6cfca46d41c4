"""``python -m simulations.run X.yaml`` is ``fedgraph-flwr sweep X.yaml``, which took its place."""

import sys

from fedgraph_flwr.cli import main

if __name__ == "__main__":
    sys.exit(main(["sweep", *sys.argv[1:]]))
