"""What a node replies where a method's code raises: the type, the message, and the file and line to look at."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedgraph_flwr.clients.base import GraphClient
from fedgraph_flwr.config import compose
from fedgraph_flwr.config.lookup import locate
from fedgraph_flwr.errors import FedGraphError, located
from fedgraph_flwr.node.node import Simulated
from tests.nodes import Node

WORDS = ["dtype=float64", "rounds=1", "strategy.min_clients=1", "checkpoint_every=0"]
LINES = Path(__file__).read_text().splitlines()


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(LINES, 1) if line.endswith(f"# {mark}"))


class Adding(GraphClient):
    """Adds what cannot be added, in the code of this file."""

    def loss(self):
        if self.graph.client == 1:
            return super().loss() + "one"  # adds
        return super().loss()


class Unlike(GraphClient):
    """Gives a library what it refuses."""

    stacks = ()

    def logits(self, inputs):
        logits = super().logits(inputs)
        if self.cfg.rounds == 1:
            return torch.cat([logits, logits[:, :, None]])  # joins
        return logits


class Forgetting(GraphClient):
    """Forgets to return what the framework then reads."""

    def send(self):
        return None


def fails(run, kind, *overrides):
    failures = run(*WORDS, f"strategy.client={__name__}:{kind.__name__}", *overrides).summary["failures"]
    return failures["1 (train)"]


def test_the_line_of_the_users_code_is_named(run):
    message = fails(run, Adding)
    assert message.startswith("TypeError: unsupported operand type(s) for +")
    assert message.endswith(f"({__file__}, line {line_of('adds')}, in loss)")


@pytest.mark.parametrize("overrides", [[], ["stack=4"]], ids=["alone", "stacked"])
def test_what_a_library_raises_is_about_its_callers_line(run, overrides):
    with pytest.raises(Exception, match="client") as raised:
        run(*WORDS, f"strategy.client={__name__}:Unlike", *overrides)
    assert f"({__file__}, line {line_of('joins')}, in logits)" in str(raised.value)


def test_where_no_frame_is_the_users_the_line_of_the_package_is_named(run):
    with pytest.raises(Exception, match=r"TypeError: cannot unpack .*clients/replies\.py, line \d+, in "):
        run(*WORDS, f"strategy.client={__name__}:Forgetting")


def test_a_partys_node_names_no_folder(node, caplog):
    one = node(f"strategy.client={__name__}:Unlike", "rounds=1", policy={"modules": ["tests"]})
    reply = one.request("evaluate", 1)
    line = line_of("joins")
    assert reply.startswith(f"the request failed: RuntimeError (test_respond.py, line {line}, in logits); ")
    assert "same number of dimensions" not in reply  # a message may quote data
    assert "same number of dimensions" in caplog.text
    assert f'/test_respond.py", line {line}, in logits' in caplog.text


def test_a_module_that_raises_while_it_is_imported_is_an_error_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "half_written.py").write_text("import torch\n\nclass Mine(GraphClient): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    place = rf"{tmp_path}/half_written\.py, line 3, in <module>"
    with pytest.raises(FedGraphError, match=rf"cannot be imported \(NameError: name 'GraphClient' .* \({place}\)\); "):
        locate("half_written:Mine")


def test_an_exception_without_frames_or_message_is_its_type():
    assert located(KeyError()) == "KeyError"
    assert located(ValueError("wide\nand long")) == "ValueError: wide and long"


def test_a_run_without_a_folder_files_no_checkpoint():
    """A simulated node has no other place: its checkpoints would lie in the file system's root."""
    cfg = compose(["num_clients=3"])
    node = Simulated(Node(cfg).context)
    assert node.checkpoints(cfg, 0, "abc") is None
    folder = node.checkpoints(replace(cfg, out="there"), 0, "abc").folder
    assert folder == Path("there/state/fedavg-abc/client_0000")
