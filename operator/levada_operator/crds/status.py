"""The schema of both kinds' status: all that the operator writes, typed, with units."""

from __future__ import annotations

from typing import Any, Final

from levada_operator.decide.conditions import PIPELINE_REASONS, TABLE_SYNC_REASONS
from levada_operator.decide.phase import PipelinePhase, TablePhase
from levada_operator.decide.pipeline_status import MAX_ATTENTION


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}


def _integer(description: str) -> dict[str, Any]:
    return {"type": "integer", "format": "int64", "description": description}


def _time(description: str) -> dict[str, Any]:
    return _text(description, format="date-time")


def _object(description: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "description": description, "properties": properties}


def _conditions(reasons: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    known = sorted({reason for each in reasons.values() for reason in each})
    condition = {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": _text("What is told of.", enum=list(reasons)),
            "status": _text("Whether it holds.", enum=["True", "False", "Unknown"]),
            "reason": _text("Why, in one word of a closed list.", enum=known),
            "message": _text("Why, for a reader, and what to do.", maxLength=32768),
            "lastTransitionTime": _time("When the status last changed."),
            "observedGeneration": _integer("The metadata.generation that this was decided for."),
        },
    }
    return {
        "type": "array",
        "description": "What holds, for machines: kubectl wait --for=condition=Ready.",
        "items": condition,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
    }


_OBSERVED: Final = _integer("The metadata.generation that was looked at last.")

_DRIVER: Final = _object(
    "The driver.",
    {
        "pod": _text("The pod's name, also while there is none."),
        "image": _text("The image that was chosen."),
        "epoch": _integer("The number of the driver's incarnation; an older one is refused everywhere."),
        "restarts": _integer("How often the container of this pod was restarted."),
        "startedAt": _time("When the engine began."),
        "lastTermination": _object(
            "How the driver's container, or the preflight before it, ended last.",
            {
                "reason": _text("Why, as the node tells: OOMKilled, Error."),
                "exitCode": _integer("The exit code; docs/cli.md lists them."),
                "code": _text("The code of the error that the engine told, if it did."),
                "at": _time("When."),
            },
        ),
    },
)

_SLOT: Final = _object(
    "The replication slot, as sampled last by the driver, or by a short Job while there is none. Rounded.",
    {
        "name": _text("The slot's name."),
        "lagBytes": _integer("Bytes of WAL that the slot has not confirmed."),
        "retainedBytes": _integer("Bytes of WAL that the slot keeps on the source's disk."),
        "walStatus": _text("PostgreSQL's word for it: reserved, extended, unreserved, lost."),
        "safeWalBytes": _integer(
            "Bytes that may still be written before the slot can be lost. Absent: no limit is set."
        ),
        "active": {"type": "boolean", "description": "Whether a driver reads from it."},
        "sampledAt": _time("When."),
    },
)

_ATTENTION: Final = _object(
    "A table that waits for somebody.",
    {
        "name": _text("The table, as schema.name."),
        "phase": _text("Its phase."),
        "reason": _text("The error's code."),
        "message": _text("What is wrong, cut to 256 characters; the TableSync has all of it."),
    },
)

_COPY: Final = {
    "rows": _integer("Rows copied."),
    "bytes": _integer("Bytes of the source's storage copied."),
    "percent": _integer("Percent of the bytes."),
    "secondsLeft": _integer("Seconds until it is done, by the rate so far."),
}

PIPELINE_STATUS: Final = _object(
    "What was last seen. Conditions are the interface; phase and display are for people.",
    {
        "observedGeneration": _OBSERVED,
        "phase": _text("A summary of the conditions, derived from them.", enum=[p.value for p in PipelinePhase]),
        "display": _object(
            "What kubectl get prints.",
            {
                "tables": _text("Tables that stream, of all."),
                "lag": _text("slot.lagBytes, for people."),
                "retained": _text("slot.retainedBytes, for people."),
            },
        ),
        "conditions": _conditions(PIPELINE_REASONS),
        "driver": _DRIVER,
        "slot": _SLOT,
        "tables": _object(
            "The tables, counted.",
            {
                "total": _integer("All."),
                "byPhase": {
                    "type": "object",
                    "description": "How many there are of each phase; phases without tables are left out.",
                    "additionalProperties": {"type": "integer", "format": "int64"},
                },
                "attention": {
                    "type": "array",
                    "description": f"At most {MAX_ATTENTION} tables that wait for somebody.",
                    "maxItems": MAX_ATTENTION,
                    "items": _ATTENTION,
                    "x-kubernetes-list-type": "atomic",
                },
            },
        ),
        "progressAt": _time("When the driver last told of its progress, at the time of the last other change."),
    },
)

TABLE_SYNC_STATUS: Final = _object(
    "What was last seen of the table.",
    {
        "observedGeneration": _OBSERVED,
        "phase": _text("The engine's own phase, or Pending, Suspended, Removed.", enum=[p.value for p in TablePhase]),
        "display": _object(
            "What kubectl get prints.",
            {
                "table": _text("The table, as schema.name."),
                "copied": _text("How much of the copy is done."),
                "rows": _text("Rows copied, for people."),
                "lag": _text("lagSeconds, for people."),
                "left": _text("copy.secondsLeft, for people."),
            },
        ),
        "conditions": _conditions(TABLE_SYNC_REASONS),
        "destinationTable": _text("The table's name at the destination."),
        "mode": _text("What the destination's table holds."),
        "note": _text("Why the mode is not the one asked for."),
        "copy": _object("The last copy. Rounded.", _COPY),
        "resync": _object(
            "A new copy that is made beside the table, which goes on meanwhile.",
            {
                "step": _text("Waiting, Copying or CatchingUp; GivenUp after an error that needs somebody."),
                "copy": _object("How far it is. Rounded.", _COPY),
                "message": _text("What went wrong with it last."),
            },
        ),
        "retryNonce": _integer("The value of spec.retryNonce that was acted on last."),
        "resyncNonce": _integer("The value of spec.resyncNonce that was acted on last."),
        "appliedLsn": _text("The position up to which changes are at the destination, at the last other change."),
        "lagSeconds": _integer("The age of the oldest change that is not at the destination, in seconds. Rounded."),
        "error": _object(
            "Why the table waits.",
            {
                "code": _text("The error's stable code; docs/errors.md lists them."),
                "reason": _text("What is wrong."),
                "solution": _text("What mends it."),
                "retryPolicy": _text("Who brings the table back: NoRetry, ManualRetry, TimedRetry."),
                "attempts": _integer("How often it was tried."),
                "nextRetry": _time("When it is tried next by itself."),
            },
        ),
    },
)
