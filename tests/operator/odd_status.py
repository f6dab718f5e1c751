"""Statuses that their schemas admit and that the operator never writes."""

from __future__ import annotations

from typing import Any

TIMES = ("9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2030-01-01t00:00:00z")
"""Times of the format date-time, as the API server has it."""


def written_by_hand(time: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return statuses of a Pipeline and of a TableSync that their schemas admit."""
    condition = {"status": "False", "message": "x" * 2000, "lastTransitionTime": time, "observedGeneration": 1}
    ready = condition | {"type": "Ready", "reason": "NotReplicating"}
    failed = condition | {"type": "DriverAvailable", "reason": "CrashLooping"}
    of_table = {"phase": "DataSync", "conditions": [ready], "copy": {}, "verified": {"at": time}, "lagSeconds": -1}
    driver = {"startedAt": time, "lastTermination": {"at": time}}
    of_pipeline = {
        "phase": "Streaming", "conditions": [failed], "slot": {"sampledAt": time}, "tables": {}, "driver": driver,
        "progressAt": time, "cuts": {"lastComplete": {"at": time}}, "observedGeneration": -(2**63),
    }  # fmt: skip
    return of_pipeline, of_table
