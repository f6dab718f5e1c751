"""HTTP servers in the place of a driver, of which each answers as its namespace's tenant wants."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from levada_operator.desired.pod import HTTP_PORT


@dataclass
class OddDriver:
    """The address of such a server, and the headers of the requests that it got."""

    address: str
    asked: list[dict[str, str]] = field(default_factory=list)


@contextlib.contextmanager
def odd_driver(address: str, answer: str) -> Iterator[OddDriver]:
    """Serve at the address. ``answer`` is one of the names below."""
    driver, over = OddDriver(address), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            driver.asked.append(dict(self.headers))
            with contextlib.suppress(OSError):
                _ANSWERS[answer](self, over)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of clients that do not read to the end."""

    server = Server((address, HTTP_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield driver
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _head(handler: BaseHTTPRequestHandler, size: int, **headers: str) -> socketserver._SocketWriter:
    handler.send_response(200)
    handler.send_header("Content-Length", str(size))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    return handler.wfile  # type: ignore[return-value]  # typeshed has the abstract class


def _slow(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    out = _head(handler, 60 << 20)
    while not over.wait(1):
        out.write(b" ")


def _slow_head(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while not over.wait(1):
        handler.wfile.write(f"X-{time.monotonic()}: a\r\n".encode())


def _endless(
    piece: bytes, head: bytes = b"HTTP/1.1 200 OK\r\n"
) -> Callable[[BaseHTTPRequestHandler, threading.Event], None]:
    """Return an answer of a head, and of the piece for ever."""

    def answer(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
        handler.wfile.write(head)
        while not over.is_set():
            handler.wfile.write(piece * (1 + (1 << 17) // len(piece)))

    return answer


def _large(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    out = _head(handler, 57 << 20)
    out.write(b"[" + b"[]," * ((57 << 20) // 3 - 1) + b"0]")


def _dense(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    body = b'{"a":[' + b"[]," * ((7 << 20) // 3) + b"[]]}"
    _head(handler, len(body)).write(body)


def _deep(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    body = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    _head(handler, len(body)).write(body)


def _bomb(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    import gzip

    body = gzip.compress(b"[" * (32 << 20), 1)
    _head(handler, len(body), Content_Encoding="gzip").write(body)


def _elsewhere(handler: BaseHTTPRequestHandler, _: threading.Event) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/")
    handler.send_header("Content-Length", "0")
    handler.end_headers()


_ANSWERS = {
    "slow": _slow,
    "slow head": _slow_head,
    "large": _large,
    "dense": _dense,
    "deep": _deep,
    "bomb": _bomb,
    "elsewhere": _elsewhere,
    "headers": _endless(b"X: a\r\n"),
    "one header": _endless(b"a", b"HTTP/1.1 200 OK\r\nX: "),
    "interim": _endless(b"HTTP/1.1 100 Continue\r\n\r\n", b""),
    "chunks": _endless(b"1\r\n \r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "no length": _endless(b" ", b"HTTP/1.1 200 OK\r\n\r\n"),
    "length of digits": _endless(b"9", b"HTTP/1.1 200 OK\r\nContent-Length: "),
    "negative": _endless(b" ", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"),
    "no HTTP": _endless(b"\r\n", b""),
}
ANSWERS = tuple(_ANSWERS)
SLOW = ("slow", "slow head")
"""Those that only the time limit ends."""
