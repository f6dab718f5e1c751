"""Fixtures: an API server that $KUBECONFIG names, a namespace for each test, an operator as a process of its own.

There need be no node: where a test needs a pod, it is made by hand, and its status is written as a kubelet would.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api.processes import FakeDriver, Operator, has_controllers
from tests.cluster.kubectl import Kubectl, eventually

from levada_operator.desired.pod import HTTP_PORT


@pytest.fixture
def controllers(kubectl: Kubectl) -> None:
    """A controller-manager: it gives every namespace an account."""
    if not has_controllers():
        pytest.skip("the cluster has no controller-manager")
    eventually(lambda: kubectl.get("serviceaccount", "default"))


@pytest.fixture
def operator(kubectl: Kubectl, tmp_path: Path) -> Iterator[Operator]:
    """A running operator. Its log is in the test's folder."""
    one = Operator(kubectl.namespace, tmp_path / "operator.log")
    one.start()
    yield one
    # Before it ends: what is cut off by that may say so in a traceback.
    text = one.log.read_text()
    one.stop()
    print(one.log.read_text())
    assert "Traceback" not in text


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    """A driver's HTTP port on an address of its own."""
    fake = FakeDriver(f"127.77.{uuid.uuid4().int % 250}.{uuid.uuid4().int % 250 + 1}")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(fake.document or {"state": "Starting"}).encode()
            self.send_response(200 if fake.document else 503)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((fake.address, HTTP_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield fake
    server.shutdown()
    server.server_close()
    thread.join()
