"""Resources of the containers: those of the manifest, and defaults that depend on the destination."""

from __future__ import annotations

from typing import Any, Final

from levada_operator.desired.owner import Owner

WITH_SPARK: Final = {"cpu": "1", "memory": "3Gi"}
"""The requests of a driver by default. The memory is also the limit."""
WITHOUT_SPARK: Final = {"cpu": "500m", "memory": "1Gi"}
"""The same without a JVM. The engine takes 0.3 GiB at most, and each of its worker processes a tenth of a GiB."""


def driver_resources(owner: Owner) -> dict[str, Any]:
    """Return the resources of the driver, of its preflight, and of each Job that copies or cleans up.

    The manifest may set one amount only. The other then has its default.
    """
    own = owner.spec.driver.resources.model_dump(mode="json", by_alias=True)
    default = WITH_SPARK if owner.spec.destination.spark else WITHOUT_SPARK
    added = {name: amount for name, amount in default.items() if name not in {*own["requests"], *own["limits"]}}
    return {
        "requests": {**added, **own["requests"]},
        "limits": {**{name: amount for name, amount in added.items() if name == "memory"}, **own["limits"]},
    }


def executor_resources(owner: Owner) -> dict[str, Any]:
    """Return the resources of an executor: spec.executor.resources if set, else the driver's."""
    own = owner.executor.resources
    return own.model_dump(mode="json", by_alias=True) if own.requests or own.limits else driver_resources(owner)
