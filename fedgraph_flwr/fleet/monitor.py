"""Health of a server or node over HTTP, for a service manager or a monitoring system: ``/live``, ``/ready``."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedgraph_flwr.errors import FedGraphError, first_line, located
from fedgraph_flwr.fleet.processes import say

Answer = Callable[[], tuple[bool, str]]
"""Returns whether all is well, and the text of the response."""


def condition(problem: Callable[[], str], notes: Sequence[str] = ()) -> Answer:
    """Return the answer of a check that returns what is wrong, or "", with further lines."""

    def answer() -> tuple[bool, str]:
        why = problem()
        return not why, "".join(f"{line}\n" for line in (why or "ok", *notes))

    return answer


@contextlib.contextmanager
def monitor(address: tuple[str, int] | None, pages: Mapping[str, Answer]) -> Iterator[None]:
    """Answer GET requests for pages during the block, from threads of this process.

    Args:
        address: host and port; None: no monitor.
        pages: path → its answer: status 200 if all is well, else 503.

    Raises:
        FedGraphError: the address is in use or not of this machine.
    """
    if address is None:
        yield
        return
    handler = type("Pages", (_Pages,), {"pages": dict(pages)})
    try:
        server = _Server((address[0].strip("[]"), address[1]), handler)
    except OSError as error:
        raise FedGraphError(f"--monitor {address[0]}:{address[1]}: {first_line(error)}: pass another port") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Say what went wrong in a line, unless the client has gone."""
        if (error := sys.exc_info()[1]) and not isinstance(error, OSError):
            say(f"warning: the monitor could not answer a request ({located(error)})")


class _Pages(BaseHTTPRequestHandler):
    pages: Mapping[str, Answer]
    timeout = 10
    server_version, sys_version = "fedgraph-flwr", ""

    def do_GET(self) -> None:
        """Respond to one request."""
        answer = self.pages.get(self.path.partition("?")[0])
        try:
            well, text = answer() if answer else (False, f"expected one of: {', '.join(self.pages)}\n")
        except Exception as error:  # a monitor reports what is wrong, whatever it is
            well, text = False, f"{first_line(error)}\n"
        body = text.encode(errors="replace")  # names of folders may have bytes that are no text
        self.send_response(200 if well else 503 if answer else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing: a monitor asks every few seconds."""
