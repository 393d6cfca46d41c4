"""A node's way to its server as a proxy on loopback, which tests cut as networks do."""

import contextlib
import socket
import threading
from typing import Literal

Way = Literal["open", "closes", "silent"]


class Link:
    """Proxy to a port of this machine.

    Args:
        target: the port.

    Attributes:
        port: the proxy's own.
    """

    def __init__(self, target: int):
        self.target, self.way = target, "open"
        self.pairs: set[socket.socket] = set()
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def become(self, way: Way) -> None:
        """Forward (``open``), close each connection at once (``closes``), or keep it and say nothing (``silent``)."""
        self.way = way
        if way == "closes":
            for one in list(self.pairs):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the proxy."""
        self.become("closes")
        with contextlib.suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self.listening.accept()
            except OSError:
                return
            if self.way == "closes":
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 10)
            except OSError:
                near.close()
                continue
            self.pairs |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            source.settimeout(None)
            while data := source.recv(65536):
                while self.way == "silent":  # as a network that drops packets, which arrive later
                    threading.Event().wait(0.05)
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            self.pairs.discard(one)
            one.close()
