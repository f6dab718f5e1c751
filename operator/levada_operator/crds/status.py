"""The status schemas of both kinds, with types and units."""

from __future__ import annotations

from typing import Any, Final

from levada.status import ResyncStep, RetryPolicy, TablePhase
from levada_operator.decide.conditions import PIPELINE_REASONS, TABLE_SYNC_REASONS
from levada_operator.decide.phase import PipelinePhase, TableSyncPhase
from levada_operator.decide.pipeline_status import MAX_ATTENTION


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _integer(description: str) -> dict[str, Any]:
    return {"type": "integer", "format": "int64", "description": description}


def _time(description: str) -> dict[str, Any]:
    return _text(description, format="date-time")


def _object(description: str, properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "description": description, "properties": properties, **more}


def _conditions(reasons: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    known = sorted({reason for each in reasons.values() for reason in each})
    condition = {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": _text("The type of the condition.", enum=list(reasons)),
            "status": _text("The status of the condition.", enum=["True", "False", "Unknown"]),
            "reason": _text("The reason, one of a closed list.", enum=known),
            "message": _text("The cause in words, and what to do.", maxLength=32768),
            "lastTransitionTime": _time("The time of the last change of status."),
            "observedGeneration": _integer("The metadata.generation that the condition is based on."),
        },
    }
    return {
        "type": "array",
        "description": "The conditions, for machines: kubectl wait --for=condition=Ready.",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }


_OPERATORS_PHASES: Final = [phase.value for phase in TableSyncPhase if phase.value not in set(TablePhase)]
*_RUNNING_STEPS, _LAST_RUNNING_STEP = (step.value for step in ResyncStep if step is not ResyncStep.GIVEN_UP)
_STEPS: Final = (
    f"{', '.join(_RUNNING_STEPS)} or {_LAST_RUNNING_STEP}. {ResyncStep.GIVEN_UP} after an error that is not retried."
)
_OBSERVED: Final = _integer("The metadata.generation that was last observed.")

_UNOBSERVED: Final = {"observedGeneration": -1}
"""The status before the operator has written one. Tools would take an object without any for one that is ready."""

_DRIVER: Final = _object(
    "The driver.",
    {
        "pod": _text("The name of the pod, even while it does not exist."),
        "image": _text("The image of the driver."),
        "epoch": _integer("The number of the driver's start. A driver with a lower number can no longer write."),
        "restarts": _integer("The number of restarts of the container in this pod."),
        "startedAt": _time("The start of the engine."),
        "lastTermination": _object(
            "The last termination of the driver's container, or of the preflight.",
            {
                "reason": _text("The reason reported by the kubelet: OOMKilled, Error."),
                "exitCode": _integer("The exit code. docs/cli.md lists them."),
                "code": _text("The code of the error that the engine reported, if any."),
                "at": _time("The time of the termination."),
            },
        ),
    },
)

_SLOT: Final = _object(
    "The last sample of the replication slot, by the driver, or by a Job while no driver runs. Rounded.",
    {
        "name": _text("The slot's name."),
        "lagBytes": _integer("Bytes of WAL that the slot has not confirmed."),
        "retainedBytes": _integer("Bytes of WAL that the slot keeps on the source's disk."),
        "walStatus": _text("wal_status of pg_replication_slots: reserved, extended, unreserved, lost."),
        "safeWalBytes": _integer(
            "Bytes that may still be written before the slot can be lost. Absent: no limit is set."
        ),
        "active": {"type": "boolean", "description": "True while a driver reads from the slot."},
        "sampledAt": _time("The time of the sample."),
    },
)

_ATTENTION: Final = _object(
    "A table that needs attention.",
    {
        "name": _text("The table, as schema.name."),
        "phase": _text("The phase of the table."),
        "reason": _text("The code of the error."),
        "message": _text("The cause, cut to 256 characters. The TableSync has the full text."),
    },
)

_COPY: Final = {
    "rows": _integer("Rows copied."),
    "bytes": _integer("Bytes of the source's storage copied."),
    "percent": _integer("Percentage of the bytes copied."),
    "rowsPerSecond": _integer("Rows copied per second."),
    "secondsLeft": _integer("Estimated seconds until the copy is finished, by the rate so far."),
    "ranges": _integer("The number of ranges in which the table is read."),
    "rangesFinished": _integer("The ranges that are read, also by earlier attempts."),
    "resumable": {
        "type": "boolean",
        "description": "True if an interrupted copy continues with its finished ranges. Otherwise it begins again.",
    },
    "note": _text("Why the copy is not resumable, or why it began again."),
}

PIPELINE_STATUS: Final = _object(
    "The observed state. Programs should use conditions. phase and display are for people.",
    {
        "observedGeneration": _OBSERVED,
        "phase": _text("A summary of the conditions.", enum=[p.value for p in PipelinePhase]),
        "display": _object(
            "What kubectl get prints.",
            {
                "tables": _text("Streaming tables, of all tables."),
                "lag": _text("slot.lagBytes with a unit."),
                "retained": _text("slot.retainedBytes with a unit."),
            },
        ),
        "conditions": _conditions(PIPELINE_REASONS),
        "driver": _DRIVER,
        "slot": _SLOT,
        "tables": _object(
            "Counts of the tables.",
            {
                "total": _integer("The number of all tables."),
                "byPhase": {
                    "type": "object",
                    "description": "The number of tables in each phase. Phases without tables are omitted.",
                    "additionalProperties": {"type": "integer", "format": "int64"},
                },
                "attention": {
                    "type": "array",
                    "description": f"Tables with an error, at most {MAX_ATTENTION}.",
                    "maxItems": MAX_ATTENTION,
                    "items": _ATTENTION,
                    "x-kubernetes-list-type": "atomic",
                },
            },
        ),
        "cuts": _object(
            "The cuts of all tables.",
            {
                "lastComplete": _object(
                    "The newest complete cut.",
                    {
                        "name": _text("The name, which is that of the tag in each table."),
                        "lsn": _text("The LSN as of which every table is kept."),
                        "at": _time("The time at which the LSN was chosen."),
                    },
                ),
            },
        ),
        "cleanup": _text("What the driver removed when its namespace was deleted.", maxLength=1024),
        "operator": _text("The installation of the operator that wrote the status: its Lease.", maxLength=317),
        "progressAt": _time("The time of the driver's last progress report. Written only together with other changes."),
    },
    default=_UNOBSERVED,
)

TABLE_SYNC_STATUS: Final = _object(
    "The observed state of the table.",
    {
        "observedGeneration": _OBSERVED,
        "phase": _text(
            f"The engine's phase, or {', '.join(_OPERATORS_PHASES)}.", enum=[p.value for p in TableSyncPhase]
        ),
        "display": _object(
            "What kubectl get prints.",
            {
                "table": _text("The table, as schema.name."),
                "copied": _text("The progress of the copy."),
                "rows": _text("copy.rows with a unit."),
                "lag": _text("lagSeconds with a unit."),
                "left": _text(
                    "The time until the copy is finished or the table has caught up. never: not at this rate."
                ),
            },
        ),
        "conditions": _conditions(TABLE_SYNC_REASONS),
        "destinationTable": _text("The table's name at the destination."),
        "mode": _text("The mode of the table: what the destination's table holds."),
        "note": _text("Why the mode differs from the requested one."),
        "copiedRows": _text("The rows that the last copy took: All, None, or Part."),
        "copy": _object("The last copy. Rounded.", _COPY),
        "sourceBytes": _integer("The table's size at the source in bytes, with TOAST. Rounded."),
        "resync": _object(
            "A resync into a shadow copy. The table stays readable meanwhile.",
            {
                "step": _text(_STEPS),
                "copy": _object("The progress of the shadow copy. Rounded.", _COPY),
                "message": _text("The last error of the shadow copy."),
            },
        ),
        "copiedAgain": _object(
            "Why the table is copied again by itself. Absent once it is Ready.",
            {
                "code": _text("The code of the error that the copy resolves."),
                "reason": _text("What is wrong without the copy."),
            },
        ),
        "verified": _object(
            "The last comparison with the source.",
            {
                "at": _time("The time of the comparison."),
                "lsn": _text("The LSN at which source and destination were compared."),
                "rows": _integer("Rows at the source."),
                "equal": {"type": "boolean", "description": "True if they were equal, or were repaired."},
                "differences": _integer("Keys that differed, also if they were repaired."),
            },
        ),
        "proof": _object(
            "The comparison range by range, see spec.verify.continuous.",
            {
                "oldest": _time("Each row was found equal, or was repaired, at this time or later."),
                "differences": _integer("Keys that differed and were repaired, since the table was copied."),
                "problem": _text("The reason why the last attempt compared nothing."),
            },
        ),
        "retryNonce": _integer("The last handled value of spec.retryNonce."),
        "resyncNonce": _integer("The last handled value of spec.resyncNonce."),
        "verifyNonce": _integer("The last handled value of spec.verifyNonce."),
        "appliedLsn": _text(
            "The LSN up to which changes are at the destination. Written only together with other changes."
        ),
        "lagSeconds": _integer("The age of the oldest change that is not at the destination, in seconds. Rounded."),
        "error": _object(
            "The error of the table.",
            {
                "code": _text("The stable code of the error. docs/errors.md lists them."),
                "reason": _text("The cause."),
                "solution": _text("The remedy."),
                "retryPolicy": _text(f"The retry policy: {', '.join(RetryPolicy)}."),
                "attempts": _integer("The number of attempts."),
                "nextRetry": _time("The time of the next automatic retry."),
            },
        ),
    },
    default=_UNOBSERVED,
)
