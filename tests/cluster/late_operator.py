"""The operator whose requests are late: ``python -m tests.cluster.late_operator``."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from typing import Any

# As the operator does before it imports kopf.
sys.modules.setdefault("kubernetes", None)  # type: ignore[arg-type]  # as the import system documents it

from tests.rigs.late import LATE, LISTS, WRITES  # noqa: E402 - the line above must come first

from levada_operator.app import main  # noqa: E402
from levada_operator.kube.fenced import FencedCluster  # noqa: E402
from levada_operator.kube.interface import Listing  # noqa: E402
from levada_operator.observe.objects import Body  # noqa: E402


class LateCluster(FencedCluster):
    """A cluster that takes each write later than it is sent, and whose lists are outdated."""

    def list_objects(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = "", *, metadata: bool = False
    ) -> Listing:
        found = super().list_objects(kind, namespace, labels, fields, metadata=metadata)
        LATE.wait(LISTS)
        return found

    def rehearse(self, body: Body) -> None:
        LATE.wait(WRITES, "rehearsals")
        super().rehearse(body)

    def apply(self, body: Body) -> dict[str, Any]:
        LATE.wait(WRITES, body["kind"])
        return super().apply(body)

    def apply_status(self, kind: str, namespace: str, name: str, status: Body) -> dict[str, Any]:
        LATE.wait(WRITES, f"{kind}/status")
        return super().apply_status(kind, namespace, name, status)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        LATE.wait(WRITES, "deletions")
        super().delete(kind, namespace, name)

    def set_finalizers(self, body: Body, finalizers: Sequence[str]) -> dict[str, Any]:
        LATE.wait(WRITES, "finalizers")
        return super().set_finalizers(body, finalizers)


if __name__ == "__main__":
    main.FencedCluster = LateCluster  # type: ignore[misc]  # of this process alone
    runpy.run_module("levada_operator", run_name="__main__")
