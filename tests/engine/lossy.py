"""A network that loses and delays packets: hosts as network namespaces, and a switch between them in this process.

Linux's netem does the same where a kernel has it; this needs root, ``ip`` and ``/dev/net/tun`` alone.
"""

import fcntl
import heapq
import os
import random
import selectors
import struct
import subprocess
import threading
import time
from collections.abc import Sequence

TUNSETIFF, TAP_WITHOUT_HEADER = 0x400454CA, 0x0002 | 0x1000
FRAME = 2048  # bytes; more than an Ethernet frame has


class Switch:
    """An Ethernet switch; host i of ``hosts`` has the address 10.88.0.(i + 1) in a namespace of its own.

    Args:
        hosts: names of the namespaces.
        lost: share of the frames that never arrive.
        late: share of the frames that take half a second more.
        delay: of every frame, in seconds.

    Attributes:
        cut: hosts whose frames are all lost, for as long as they stand here.
    """

    def __init__(self, hosts: Sequence[str], lost: float = 0.01, late: float = 0.01, delay: float = 0.01):
        self.hosts, self.lost, self.late, self.delay = list(hosts), lost, late, delay
        self.cut: set[str] = set()
        self.frames = self.dropped = 0
        self._random = random.Random(0)
        self._ports: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def start(self) -> None:
        """Make the hosts, and forward from now on."""
        for i, host in enumerate(self.hosts):
            _ip("netns", "add", host)
            port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            fcntl.ioctl(port, TUNSETIFF, struct.pack("16sH14x", host.encode(), TAP_WITHOUT_HEADER))
            self._ports[port] = host
            _ip("link", "set", host, "netns", host)
            _ip("-n", host, "addr", "add", f"10.88.0.{i + 1}/24", "dev", host)
            for device in ("lo", host):
                _ip("-n", host, "link", "set", device, "up")
        self._thread.start()

    def stop(self) -> None:
        """Forward nothing more, and remove the hosts."""
        self._stop.set()
        if self._thread.ident:
            self._thread.join()
        for port in self._ports:
            os.close(port)
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)

    def _forward(self) -> None:
        waiting: list[tuple[float, int, int, bytes]] = []
        place: dict[bytes, int] = {}  # of a hardware address, the port behind which it is
        with selectors.DefaultSelector() as ready:
            for port in self._ports:
                ready.register(port, selectors.EVENT_READ)
            while not self._stop.is_set():
                pause = waiting[0][0] - time.monotonic() if waiting else 0.1
                for key, _ in ready.select(max(pause, 0)):
                    frame = os.read(key.fd, FRAME)
                    place[frame[6:12]] = key.fd
                    target = place.get(frame[:6])
                    for port in [target] if target else [p for p in self._ports if p != key.fd]:
                        self.frames += 1
                        due = time.monotonic() + self.delay + 0.5 * (self._random.random() < self.late)
                        if self._random.random() >= self.lost and not self.cut & {
                            self._ports[key.fd],
                            self._ports[port],
                        }:
                            heapq.heappush(waiting, (due, self.frames, port, frame))
                        else:
                            self.dropped += 1
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, port, frame = heapq.heappop(waiting)
                    os.write(port, frame)


def _ip(*overrides: str) -> None:
    subprocess.run(["ip", *overrides], check=True, capture_output=True)
