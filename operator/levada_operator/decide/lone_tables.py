"""The status of a TableSync that names a Pipeline which does not exist."""

from __future__ import annotations

from datetime import datetime

from levada_operator.decide.comparison import beyond_counters, status_changed
from levada_operator.decide.conditions import Condition, conditions_json
from levada_operator.decide.phase import TableSyncPhase
from levada_operator.decide.plan import StatusWrite
from levada_operator.decide.table_phase import table_of
from levada_operator.observe.objects import ObjectKey, TableSyncObject


def lone_table_status(table_sync: TableSyncObject, pipeline: str, now: datetime) -> StatusWrite | None:
    """Return the write of its status, or None if the object has it already."""
    message = f"there is no Pipeline {pipeline} in this namespace: create it, or correct spec.pipelineRef.name"
    conditions = (
        Condition("Ready", False, "NotAccepted", message),
        Condition("Accepted", False, "NoPipeline", message),
        Condition("Verified", None, "Unknown"),
    )
    table, before = table_of(table_sync), table_sync.status
    display = {"table": f"{table.schema}.{table.name}"}
    status = {
        "observedGeneration": table_sync.generation,
        "phase": TableSyncPhase.PENDING.value,
        "display": display | dict.fromkeys(("copied", "rows", "lag", "left"), ""),
        "conditions": conditions_json(conditions, before.get("conditions", ()), table_sync.generation, now),
    }
    if not status_changed(before, status):
        return None
    return StatusWrite(ObjectKey("TableSync", table_sync.name), status, beyond_counters(before, status))
