"""A proxy between an HTTP client and its server, which loses or holds the requests that a test chooses."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.rigs.waiting import LIMIT_S


class Fate(Enum):
    """The treatment of a request."""

    PASSED = "passed"
    LOST = "lost"
    """The server never gets it, and the client's connection is closed."""
    UNANSWERED = "unanswered"
    """The server carries it out, and the client's connection is closed instead of an answer."""
    HELD = "held"
    """The server gets it after `HttpProxy.release`, even if the client is gone."""
    LATE = "late"
    """The server carries it out, and the client gets the answer after `HttpProxy.release`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request. ``path`` has the query."""

    method: str
    path: str
    body: bytes


@dataclass
class HttpProxy:
    """Forwards requests to a port of this machine. ``fate`` decides about each one, before it is sent."""

    target: int
    fate: Callable[[Seen], Fate] = lambda _: Fate.PASSED
    seen: list[Seen] = field(default_factory=list)
    caught: threading.Event = field(default_factory=threading.Event)
    """Set once a request had another fate than PASSED, and was carried out unless it is held or lost."""
    _released: threading.Event = field(default_factory=threading.Event)
    _done: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def catch(self, fate: Fate, chosen: Callable[[Seen], bool]) -> None:
        """Give the first chosen request from now on this fate, and pass all others."""
        self.caught.clear()
        self._released.clear()
        self._done.clear()
        lock, left = threading.Lock(), [fate]

        def decide(request: Seen) -> Fate:
            with lock:
                return left.pop() if left and chosen(request) else Fate.PASSED

        self.fate = decide

    def release(self) -> None:
        """Send the held request to the server, and wait for its answer."""
        self._released.set()
        assert self._done.wait(LIMIT_S)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Treat one request."""
        length = int(handler.headers.get("Content-Length") or 0)
        request = Seen(handler.command, handler.path, handler.rfile.read(length) if length else b"")
        self.seen.append(request)
        fate = self.fate(request)
        if fate is Fate.HELD:
            self._caught()
        answer = None if fate is Fate.LOST else self._forward(request, dict(handler.headers))
        if fate is Fate.LATE:
            self._caught()
        if fate is not Fate.PASSED:
            self.caught.set()
            self._done.set()
        if answer is None or fate is Fate.UNANSWERED:
            handler.close_connection = True
            return
        status, headers, data = answer
        with suppress(OSError):
            handler.send_response_only(status)
            for name, value in headers:
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(data)))
            handler.end_headers()
            if request.method != "HEAD":
                handler.wfile.write(data)

    def _caught(self) -> None:
        self.caught.set()
        self._released.wait(LIMIT_S)

    def _forward(self, request: Seen, headers: dict[str, str]) -> tuple[int, list[tuple[str, str]], bytes] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=LIMIT_S)
        try:
            connection.request(request.method, request.path, request.body or None, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def http_proxy(target: int) -> Iterator[HttpProxy]:
    """Run a proxy to this port for as long as the block lasts."""
    proxy = HttpProxy(target)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            proxy.answer(self)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_PATCH = do  # noqa: N815 - the names of http.server

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    proxy.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    try:
        yield proxy
    finally:
        proxy._released.set()
        server.shutdown()
        server.server_close()
