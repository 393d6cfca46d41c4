"""Seams: client methods that an engine may compute for many clients at once. Without an engine they run as written."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])
Handler = Callable[[Callable[..., Any], Any, tuple[Any, ...]], Any]
"""Computes a call from the method, the client and the other arguments."""

_handler: Handler | None = None


def seam(method: Method) -> Method:
    """Route calls of a client method through the current handler."""

    @functools.wraps(method)
    def call(client: Any, *args: Any) -> Any:
        return method(client, *args) if _handler is None else _handler(method, client, args)

    return call  # type: ignore[return-value]


@contextmanager
def handled_by(handler: Handler) -> Iterator[None]:
    """Let a handler compute the calls of all seams in this process."""
    global _handler
    previous, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = previous
