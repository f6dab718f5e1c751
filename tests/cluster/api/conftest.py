"""Fixtures: an API server that $KUBECONFIG names, a namespace for each test, an operator as a process of its own.

There need be no node: where a test needs a pod, it is made by hand, and its status is written as a kubelet would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kubectl import LIMIT_S, Kubectl, eventually
from tests.servers.ports import free_port

from levada_operator.desired.pod import HTTP_PORT


@pytest.fixture
def controllers(kubectl: Kubectl) -> None:
    """A controller-manager: it gives every namespace an account."""
    if not has_controllers():
        pytest.skip("the cluster has no controller-manager")
    eventually(lambda: kubectl.get("serviceaccount", "default"))


def has_controllers() -> bool:
    """Return whether the cluster has a controller-manager, by the account of its first namespace."""
    return Kubectl("default").get("serviceaccount", "default") is not None


@dataclass
class Operator:
    """The operator as a process, for one namespace."""

    namespace: str
    log: Path
    image: str = "levada:test"
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. The Lease is free, so that it leads without waiting."""
        kubectl, name = Kubectl(self.namespace), "levada-operator"
        kubectl.delete("lease", name)
        kubectl.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}})
        self.join()

    def join(self) -> None:
        """Start the process with the Lease as it is."""
        self.port = free_port()
        token = self.log.with_name("driver-token")
        token.write_text("only-a-test")
        environment = os.environ | {
            "LEVADA_NAMESPACES": self.namespace,
            "LEVADA_IMAGE": self.image,
            "LEVADA_DRIVER_TOKEN_FILE": str(token),
            "LEVADA_ADDRESS": "127.0.0.1",
            "LEVADA_PORT": str(self.port),
            "LEVADA_SWEEP_SECONDS": "0.3",
            "POD_NAMESPACE": self.namespace,
        }
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "levada_operator"], env=environment, stdout=out, stderr=out
            )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(LIMIT_S)
            self.process = None

    def metrics(self) -> dict[str, float]:
        """Return the metrics that have a value, by the beginning of their line.

        Empty if the operator does not answer yet.
        """
        import urllib.request

        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def swept_twice(self) -> None:
        """Wait until the operator has looked at everything twice from now on."""
        for _ in range(2):
            before = self._swept()
            eventually(lambda before=before: self._swept() > before)  # type: ignore[misc]  # bound on purpose

    def _swept(self) -> float:
        return self.metrics().get("levada_operator_last_sweep_timestamp_seconds", 0.0)


@pytest.fixture
def operator(kubectl: Kubectl, tmp_path: Path) -> Iterator[Operator]:
    """A running operator. Its log is in the test's folder."""
    one = Operator(kubectl.namespace, tmp_path / "operator.log")
    one.start()
    yield one
    # Before it ends: a watch of kopf's that is cut off by that may say so in a traceback.
    text = one.log.read_text()
    one.stop()
    print(one.log.read_text())
    assert "Traceback" not in text


@dataclass
class FakeDriver:
    """An endpoint that only reports progress."""

    address: str
    document: dict[str, Any] = field(default_factory=dict)


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


def make_pod(kubectl: Kubectl, address: str, name: str = "shop-driver-0") -> None:
    """Make the driver's pod as its StatefulSet would, if no controller has, and let it be ready at that address."""
    stateful_set = eventually(lambda: kubectl.get("statefulset", "shop-driver"))
    if has_controllers():
        eventually(lambda: kubectl.get("pod", name))
    else:
        template = stateful_set["spec"]["template"]
        metadata = {"name": name, "labels": template["metadata"]["labels"]}
        kubectl.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    ready = {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running", "conditions": [
        {"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]}  # fmt: skip
    kubectl.patch("pod", name, {"status": ready}, "status")
