"""The operator as a process, and a driver's endpoint and pod, in one namespace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.cluster.kubectl import LIMIT_S, Kubectl, eventually
from tests.rigs.late import OPERATOR
from tests.servers.ports import free_port

ROOT: Final = Path(__file__).parents[3]


def has_controllers() -> bool:
    """Return whether the cluster has a controller-manager, by the account of its first namespace."""
    return Kubectl("default").get("serviceaccount", "default") is not None


@dataclass
class Operator:
    """The operator as a process, for one namespace, or for those in ``serves``. Its Lease is in the first one."""

    namespace: str
    log: Path
    image: str = "levada:test"
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    serves: str | None = None
    """The namespaces that it serves, by commas, if others than the one. Empty: all."""
    enter: Callable[[], None] | None = None
    """Called in the process before it becomes the operator."""

    def start(self) -> None:
        """Start the process. The Lease is free, so that it leads without waiting."""
        kubectl, name = Kubectl(self.namespace), "levada-operator"
        kubectl.delete("lease", name)
        kubectl.create({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}})
        self.join()

    def join(self) -> None:
        """Start the process with the Lease as it is."""
        self.port = free_port()
        tokens = self.log.with_name("driver-tokens")
        tokens.mkdir(exist_ok=True)
        (tokens / self.namespace).write_text("only-a-test")
        environment = os.environ | {
            "LEVADA_NAMESPACES": self.namespace if self.serves is None else self.serves,
            "LEVADA_IMAGE": self.image,
            "LEVADA_DRIVER_TOKENS": str(tokens),
            "LEVADA_ADDRESS": "127.0.0.1",
            "LEVADA_PORT": str(self.port),
            "LEVADA_SWEEP_SECONDS": "0.3",
            "POD_NAMESPACE": self.namespace,
        }
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", OPERATOR],
                env=environment,
                cwd=ROOT,
                stdout=out,
                stderr=out,
                preexec_fn=self.enter,
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
            address = f"http://127.0.0.1:{self.port}/metrics"
            with urllib.request.urlopen(address, timeout=5) as answer:  # paced: the next look asks again
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}

    def is_live(self) -> bool:
        """Return what the liveness probe does: an operator for which it fails is restarted."""
        import urllib.request

        try:
            address = f"http://127.0.0.1:{self.port}/livez"
            with urllib.request.urlopen(address, timeout=5):  # paced: it is asked once
                return True
        except OSError:
            return False

    def swept_twice(self) -> None:
        """Wait until the operator has looked at everything twice from now on, and has written what follows from it."""
        # The first sweep may have begun before, and the last one's Pipelines may not be queued yet.
        for _ in range(3):
            before = self._swept()
            eventually(lambda before=before: self._swept() > before)  # type: ignore[misc]  # bound on purpose
        eventually(lambda: self.metrics().get("levada_operator_queued_pipelines") == 0)

    def _swept(self) -> float:
        return self.metrics().get("levada_operator_last_sweep_timestamp_seconds", 0.0)


@dataclass
class FakeDriver:
    """An endpoint that only reports progress."""

    address: str
    document: dict[str, Any] = field(default_factory=dict)


def make_pod(kubectl: Kubectl, address: str, name: str = "shop-driver-0") -> None:
    """Make the driver's pod as its StatefulSet would, if no controller has, and let it be ready at that address."""
    stateful_set = eventually(lambda: kubectl.get("statefulset", "shop-driver"))
    if has_controllers():
        eventually(lambda: kubectl.get("pod", name))
    else:
        template = stateful_set["spec"]["template"]
        own = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "shop-driver", "controller": True,
               "uid": stateful_set["metadata"]["uid"]}  # fmt: skip
        metadata = {"name": name, "labels": template["metadata"]["labels"], "ownerReferences": [own]}
        kubectl.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    ready = {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running", "conditions": [
        {"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]}  # fmt: skip
    kubectl.patch("pod", name, {"status": ready}, "status")
