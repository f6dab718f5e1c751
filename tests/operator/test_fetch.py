"""The operator's requests to drivers, whose answers may be anything."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.tenants.drivers import ANSWERS, SLOW, odd_driver

from levada_operator.app.fetch import Answer, DriverClient
from levada_operator.desired.pod import HTTP_PORT

LATE_S = 3600.0
"""Longer than a test may take: an answer for which the time limit is waited fails it."""


def fetch(address: str, port: int = HTTP_PORT, timeout_s: float = LATE_S, tokens: Path | None = None) -> Answer:
    """Fetch the progress from there."""
    return asyncio.run(DriverClient(tokens, timeout_s).fetch("data", address, port))


@pytest.mark.parametrize("answer", ANSWERS)
def test_odd_answers_end(answer: str) -> None:
    """Each of them is given up as soon as it is odd, by its first bytes. Only one that is slow takes the time limit."""
    with odd_driver(f"127.78.2.{ANSWERS.index(answer) + 1}", answer) as driver:
        found = fetch(driver.address, timeout_s=0.3 if answer in SLOW else LATE_S)
        # What JSON takes in memory is known later.
        assert not found.data or answer in ("deep", "dense")
        assert len(driver.asked) == 1
    if answer == "chunks":
        assert "in chunks" in found.refused
    if answer in ("large", "no length"):
        assert "more than 8 MiB" in found.refused


def test_token_that_would_be_a_header(tmp_path: Path) -> None:
    """No driver gets a token of two lines, which would be a header of its own."""
    (tmp_path / "data").write_text("sesame\r\nX: y")
    with odd_driver("127.78.2.250", "elsewhere") as driver:
        assert fetch(driver.address, tokens=tmp_path) == Answer()
    assert not driver.asked


@pytest.fixture
def plain() -> Iterator[tuple[str, int, dict[str, str]]]:
    """A driver that answers with the headers that the test sets, and one byte more than they say."""
    headers: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(b"{}x")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield "127.0.0.1", server.server_address[1], headers
    server.shutdown()
    server.server_close()
    thread.join()


def test_length_of_an_answer(plain: tuple[str, int, dict[str, str]]) -> None:
    """An answer ends at its length, or where the connection does. One that is cut off is none."""
    address, port, headers = plain
    assert fetch(address, port).data == b"{}x"
    headers["CONTENT-length"] = "2"
    assert fetch(address, port).data == b"{}"
    headers["CONTENT-length"] = "4"
    assert fetch(address, port) == Answer()
