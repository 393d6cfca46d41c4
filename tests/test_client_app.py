"""The process that a fleet starts for every message: what it does not import."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from fedgraph_flwr.client_app import app
print("torch" in sys.modules)
from flwr.app import ConfigRecord, Context, Message, RecordDict
from fedgraph_flwr.engine.inline import run_identity
from fedgraph_flwr.version import PROTOCOL
context = Context(1, 2, {"graph": sys.argv[1]}, RecordDict(), {"overrides": "model.hidden=4", "config": ""})
with run_identity(1):
    content = RecordDict({"config": ConfigRecord({"phase": "describe", "round": 0, "protocol": PROTOCOL})})
    answer = app(Message(content, dst_node_id=2, message_type="query"), context)
assert answer.content["metrics"]["num_features"] == 5
heavy = {"torch", "torch_geometric", "scipy.stats", "sklearn", "networkx", "pandas", "matplotlib", "ray"}
print(sorted(heavy & set(sys.modules)))
"""


@pytest.mark.slow
def test_torch_is_imported_with_the_first_message_and_other_heavy_packages_not_at_all(client_files):
    folder = client_files((12,)).removeprefix("graph=")
    command = [sys.executable, "-c", SCRIPT, f"{folder}/client_0000.safetensors"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["False", "['torch']"], done.stderr
