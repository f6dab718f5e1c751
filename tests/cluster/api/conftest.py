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
from tests.cluster.api.pipelines import shop
from tests.cluster.api.processes import FakeDriver, Operator, has_controllers
from tests.cluster.kubectl import Kubectl, eventually
from tests.cluster.tenants.hostile import Tenant
from tests.cluster.tenants.limited import memory_limit
from tests.cluster.tenants.place import MEMORY, Place

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


@pytest.fixture(scope="module")
def place(cluster: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One operator for the tests of a file, which each leave their objects to the next."""
    honest, bad = (cluster.make_namespace(f"levada-{uuid.uuid4().hex[:8]}") for _ in range(2))
    tenant = Tenant(bad)
    tenant.welcome()
    # No pod can be made before its account.
    eventually(lambda: not has_controllers() or bad.get("serviceaccount", "default"))
    with memory_limit(MEMORY) as memory:
        log = tmp_path_factory.mktemp("operator") / "operator.log"
        operator = Operator(honest.namespace, log, serves=f"{honest.namespace},{bad.namespace}", enter=memory.enter)
        operator.start()
        honest.apply(shop())
        eventually(lambda: honest.get("configmap", "shop-manifest"))
        yield Place(operator, honest, tenant, memory)
        if operator.process is not None and operator.process.poll() is None:
            operator.stop()
        print(log.read_text()[-20000:])
    bad.remove_namespace()
    honest.remove_namespace()


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
