"""Seams: a marked method runs as written, or as the present handler computes it."""

import ast
import inspect

import pytest

from fedgraph_flwr.clients import base, descent, scoring, seam
from fedgraph_flwr.engine.stacking import JOINTS


class Client:
    @seam.seam
    def double(self, value):
        """Twice the value."""
        return 2 * value

    @seam.seam
    def frames(self):
        """The stack."""
        return inspect.stack()


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


@seam.seam
def triple(client, value):
    """Three times the value."""
    return 3 * value


def test_a_function_of_a_client_is_a_seam_too():
    client = Client()
    assert triple(client, 3) == 9
    with seam.handled_by(lambda function, client, args: function(client, *args) + 1):
        assert triple(client, 3) == 10
    assert triple.__name__ == "triple"


def test_a_call_passes_through_no_code_of_the_seam():
    """A deep chain of calls tires whoever reads a traceback."""
    frames = Client().frames()
    assert [frame.function for frame in frames[:2]] == ["frames", "test_a_call_passes_through_no_code_of_the_seam"]


def test_the_engine_knows_every_seam():
    marked = {
        node.name
        for module in (base, descent, scoring)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.FunctionDef) and "seam" in map(ast.unparse, node.decorator_list)
    }
    assert marked == set(JOINTS)
