"""Seams: methods and functions of a client that an engine may compute for many clients at once; else they run as written."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Handler = Callable[[Callable[..., Any], Any, tuple[Any, ...]], Any]
"""Computes a call from the method, the client and the other arguments."""

_handler: Handler | None = None


class Seam:
    """A method, or a function whose first argument is a client."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        functools.update_wrapper(self, function)

    def __get__(self, client: Any, kind: type | None = None) -> Callable[..., Any]:
        """Return the client's method itself, so that without a handler a call passes through no code of this module."""
        if client is None:
            return self.function
        return MethodType(self.function if _handler is None else self, client)

    def __call__(self, client: Any, *args: Any) -> Any:
        """Call the function, or let the present handler compute the call."""
        return self.function(client, *args) if _handler is None else _handler(self.function, client, args)


def seam(function: Function) -> Function:
    """Route calls of a client method, or of a function of a client, through the current handler."""
    return cast(Function, Seam(function))


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Let a handler compute the calls of all seams in this process."""
    global _handler
    previous, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = previous
