"""Seams: a marked method runs as written, or as the present handler computes it."""

import ast
import inspect

import pytest

from fedgraph_flwr.clients import base, seam
from fedgraph_flwr.engine.stacking import JOINTS


class Client:
    @seam.seam
    def double(self, value):
        """Twice the value."""
        return 2 * value


def test_a_seam_runs_as_written_without_a_handler_and_keeps_its_name():
    assert Client().double(3) == 6
    assert Client.double.__name__ == "double"
    assert Client.double.__doc__ == "Twice the value."


def test_a_handler_gets_the_method_the_client_and_the_arguments_and_ends_with_its_block():
    client, seen = Client(), []

    def handler(method, *call):
        seen.append(call)
        return method(*call[:1], *call[1]) + 1

    with seam.handled_by(handler):
        assert client.double(3) == 7
    with pytest.raises(TypeError), seam.handled_by(handler):
        client.double()  # type: ignore[call-arg]
    assert client.double(3) == 6
    assert seen[0] == (client, (3,))


def test_the_engine_knows_every_seam_of_the_base():
    tree = ast.parse(inspect.getsource(base.GraphClient))
    marked = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and "seam" in map(ast.unparse, node.decorator_list)
    }
    assert marked == set(JOINTS)
