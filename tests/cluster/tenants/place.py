"""An operator with the chart's limit of memory, a Pipeline that it serves, and a tenant of another namespace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from tests.cluster.api.processes import Operator, has_controllers
from tests.cluster.kubectl import Kubectl, eventually
from tests.cluster.tenants.hostile import Tenant
from tests.cluster.tenants.limited import MemoryLimit

MEMORY: Final = 512 << 20
"""The limit in the chart's values."""


@dataclass
class Place:
    """The operator, a Pipeline that it serves, and a tenant of another namespace."""

    operator: Operator
    honest: Kubectl
    tenant: Tenant
    memory: MemoryLimit
    turn: Iterator[int] = field(default_factory=lambda: itertools.count(11))

    def reconciled(self) -> float:
        """Change the honest Pipeline, wait until the operator has taken it, and return the seconds."""
        wanted, begun = f"freshnessSeconds: {next(self.turn)}\n", time.monotonic()
        self.honest.patch("pipeline", "shop", {"spec": {"freshnessSeconds": int(wanted.split()[1])}})
        eventually(lambda: wanted in self.honest.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])
        return time.monotonic() - begun

    def make_pod(self, body: dict[str, Any], address: str) -> None:
        """Let the tenant's pod be ready at that address, as a kubelet would. Create it, unless a controller does."""
        owned = "ownerReferences" in body["metadata"]
        if owned and has_controllers():
            eventually(lambda: self.tenant.kubectl.get("pod", body["metadata"]["name"]))
        else:
            self.tenant.create(body)
        ready = {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running",
                 "conditions": [{"type": "Ready", "status": "True"}]}  # fmt: skip
        self.tenant.kubectl.patch("pod", body["metadata"]["name"], {"status": ready}, "status")

    def holds(self) -> None:
        """Require that the operator sweeps, reconciles the honest Pipeline, and has not been ended."""
        took = self.reconciled()
        self.operator.swept_twice()
        took = max(took, self.reconciled())
        assert self.operator.process is not None
        assert self.operator.process.poll() is None
        assert self.operator.is_live()
        assert self.memory.kills == 0
        print(f"reconciled in {took:.1f} s, peak {self.memory.peak >> 20} MiB")
