"""Resources of the containers: those of the manifest, and defaults that depend on the destination."""

from __future__ import annotations

from typing import Any, Final

from levada.spec.running import Resources
from levada.spec.table_sync import TableCopy
from levada_operator.desired.owner import Owner

WITH_SPARK: Final = {"cpu": "1", "memory": "3Gi"}
"""The requests of a driver by default. The memory is also the limit."""
WITHOUT_SPARK: Final = {"cpu": "500m", "memory": "1Gi"}
"""The same without a JVM. The engine takes 0.3 GiB at most, and each of its worker processes a tenth of a GiB."""


def driver_resources(owner: Owner) -> dict[str, Any]:
    """Return the resources of the driver, of its preflight, and of the Job that cleans up.

    The manifest may set one amount only. The other then has its default.
    """
    default = WITH_SPARK if owner.spec.destination.spark else WITHOUT_SPARK
    memory = {name: amount for name, amount in default.items() if name == "memory"}
    return _completed(owner.spec.driver.resources, {"requests": default, "limits": memory})


def copy_resources(owner: Owner, copy: TableCopy) -> dict[str, Any]:
    """Return the resources of a dedicated copy. An amount that the table does not set is that of the driver."""
    return _completed(copy.resources, driver_resources(owner))


def _completed(resources: Resources, default: dict[str, Any]) -> dict[str, Any]:
    """Add the amounts of each resource that is in neither requests nor limits."""
    own = resources.model_dump(mode="json", by_alias=True)
    given = {*own["requests"], *own["limits"]}
    return {
        kind: {**{name: amount for name, amount in default[kind].items() if name not in given}, **own[kind]}
        for kind in ("requests", "limits")
    }


def executor_resources(owner: Owner) -> dict[str, Any]:
    """Return the resources of an executor: spec.executor.resources if set, else the driver's."""
    own = owner.executor.resources
    return own.model_dump(mode="json", by_alias=True) if own.requests or own.limits else driver_resources(owner)
