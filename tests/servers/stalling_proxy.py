"""A TCP proxy that can stop forwarding without closing a connection, as a NAT or a hung pooler does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class _Link:
    """One connection of a client, and the proxy's own to the server."""

    def __init__(self, client: socket.socket, server: socket.socket, *, stalled: bool) -> None:
        self._sockets = (client, server)
        self._flows = threading.Event()
        if not stalled:
            self._flows.set()
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def stall(self) -> None:
        self._flows.clear()

    def resume(self) -> None:
        self._flows.set()

    def close(self) -> None:
        self._flows.set()
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                self._flows.wait()
                target.sendall(data)
        except OSError:
            pass
        # The end of a connection is not forwarded while it is stalled, as a lost network does not.
        self._flows.wait()
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class StallingProxy:
    """Forwards connections to a port of this machine. What was stalled goes on where it was after `resume`."""

    def __init__(self, target: int, address: str = "127.0.0.1") -> None:
        self._target = target
        self._links: list[_Link] = []
        self._stalled = False
        self._lock = threading.Lock()
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def stall(self, *, new: bool = True) -> None:
        """Stop forwarding on all connections that are open, and, with ``new``, on those to come."""
        with self._lock:
            self._stalled = new
            for link in self._links:
                link.stall()

    def resume(self) -> None:
        """Forward again, what was held back as well."""
        with self._lock:
            self._stalled = False
            for link in self._links:
                link.resume()

    def lead_to(self, target: int) -> None:
        """End every connection, and forward those to come to another port, as an address does after a failover."""
        with self._lock:
            self._target = target
            for link in self._links:
                link.close()
            self._links.clear()

    def close(self) -> None:
        """End every connection."""
        self._listener.close()
        with self._lock:
            for link in self._links:
                link.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._links.append(_Link(client, server, stalled=self._stalled))


@contextmanager
def stalling_proxy(target: int, address: str = "127.0.0.1") -> Iterator[StallingProxy]:
    """A proxy to this port for as long as the block lasts."""
    proxy = StallingProxy(target, address)
    try:
        yield proxy
    finally:
        proxy.close()
