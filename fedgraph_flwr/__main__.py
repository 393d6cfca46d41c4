"""``python -m fedgraph_flwr``: the command line."""

import sys

from fedgraph_flwr.cli import main

sys.exit(main())
