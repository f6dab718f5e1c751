"""The kinds of stored facts, and how each one becomes a JSON document.

A new fact needs an entry here, and methods in the interface and in `CachedStore`. The storages need nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from levada.schema import ReplicatedTableSchema
from levada.status import CutPhase, RetryPolicy
from levada.stores.interface import CopyOrder, Cut, DestinationTableMetadata, OwnerRecord, TableAction, TableControls
from levada.stores.phases import (
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)
from levada.stores.storage import Document, DocumentKind, Key
from levada.stores.workers import table_of_worker, table_worker
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId

T = TypeVar("T")
HISTORY: Final = 16
"""The number of stored phases of a table, including the current one. Older ones are deleted."""


def phase_to_json(phase: TableReplicationPhase) -> dict[str, Any]:
    """Return the phase as plain values for JSON."""
    match phase:
        case FinishedCopy(lsn) | SyncWait(lsn) | Catchup(lsn) | SyncDone(lsn):
            return {"phase": phase.name.value, "lsn": str(lsn)}
        case Errored():
            return {
                "phase": phase.name.value,
                "code": phase.code,
                "reason": phase.reason,
                "solution": phase.solution,
                "retryPolicy": phase.retry_policy.value,
                "attempts": phase.attempts,
                "nextRetry": None if phase.next_retry is None else phase.next_retry.astimezone(UTC).isoformat(),
            }
    return {"phase": phase.name.value}


def phase_from_json(data: Document) -> TableReplicationPhase:
    """Parse the result of `phase_to_json`. Raise ValueError for an unknown phase."""
    name = data["phase"]
    for plain in (Init, DataSync, Ready):
        if plain.name == name:
            return plain()
    for at in (FinishedCopy, SyncWait, Catchup, SyncDone):
        if at.name == name:
            return at(Lsn.parse(data["lsn"]))
    if name == Errored.name:
        return Errored(
            code=data["code"],
            reason=data["reason"],
            solution=data["solution"],
            retry_policy=RetryPolicy(data["retryPolicy"]),
            attempts=data["attempts"],
            next_retry=None if data["nextRetry"] is None else datetime.fromisoformat(data["nextRetry"]),
        )
    raise ValueError(f"not a phase: {name!r}")


def push_phase(document: Document | None, phase: TableReplicationPhase) -> Document:
    """Return a table's document with another current phase. A phase that is current already adds no history."""
    history: list[Any] = [] if document is None else document["history"]
    new = phase_to_json(phase)
    return {"history": history if history[-1:] == [new] else [*history, new][-HISTORY:]}


def pop_phase(document: Document | None) -> Document | None:
    """Return a table's document with its previous phase as the current one, or the same document if there is none."""
    return document if document is None or len(document["history"]) < 2 else {"history": document["history"][:-1]}


def phase_before_error(document: Document | None) -> TableReplicationPhase | None:
    """Return the newest phase of a table's document that is no error."""
    history = [] if document is None else document["history"]
    phases = map(phase_from_json, reversed(history))
    return next((phase for phase in phases if not isinstance(phase, Errored)), None)


def _current_phase(document: Document) -> TableReplicationPhase:
    return phase_from_json(document["history"][-1])


def _owner_to_json(record: OwnerRecord) -> Document:
    return {
        "uid": None if record.owner is None else record.owner.uid,
        "name": None if record.owner is None else record.owner.name,
        "slot": record.slot,
        "publication": record.publication,
        "former": list(record.former),
    }


def _owner_from_json(document: Document) -> OwnerRecord:
    uid, name = document["uid"], document["name"]
    owner = None if uid is None else PipelineOwner(uid, name)
    return OwnerRecord(owner, document["slot"], document["publication"], tuple(document["former"]))


def _cut_to_json(cut: Cut) -> Document:
    return {
        "name": cut.name,
        "lsn": str(cut.lsn),
        "at": cut.at.astimezone(UTC).isoformat(),
        "committedAt": None if cut.committed_at is None else cut.committed_at.astimezone(UTC).isoformat(),
        "phase": cut.phase.value,
        "tables": [int(table) for table in cut.tables],
        "leftOut": [[int(table), why] for table, why in cut.left_out],
        "scheduled": cut.scheduled,
    }


def _cut_from_json(document: Document) -> Cut:
    committed = document["committedAt"]
    return Cut(
        document["name"],
        Lsn.parse(document["lsn"]),
        datetime.fromisoformat(document["at"]),
        None if committed is None else datetime.fromisoformat(committed),
        CutPhase(document["phase"]),
        tuple(map(TableId, document["tables"])),
        tuple((TableId(table), why) for table, why in document["leftOut"]),
        document["scheduled"],
    )


def _metadata_to_json(metadata: DestinationTableMetadata) -> Document:
    return {
        "name": metadata.name,
        "applied": str(metadata.applied),
        "applying": None if metadata.applying is None else str(metadata.applying),
        "details": metadata.details,
    }


def _metadata_from_json(document: Document) -> DestinationTableMetadata:
    applying = document["applying"]
    return DestinationTableMetadata(
        document["name"],
        SnapshotId.parse(document["applied"]),
        None if applying is None else SnapshotId.parse(applying),
        document["details"],
    )


def _of_fields(kind: type[T]) -> Callable[[Document], T]:
    """Return the decoder of a dataclass. It requires every field, also those with a default."""

    def decode(document: Document) -> T:
        names = {field.name for field in fields(cast(Any, kind))}
        if document.keys() != names:
            raise ValueError(f"it has {sorted(document)} instead of {sorted(names)}")
        return kind(**document)

    return decode


def _under(name: str, encode: Callable[[T], Any], decode: Callable[[Any], T]) -> dict[str, Any]:
    """Return the codec of a single value, which becomes an object with one member."""
    return {"encode": lambda value: {name: encode(value)}, "decode": lambda document: decode(document[name])}


PHASES: Final[DocumentKind[TableReplicationPhase]] = DocumentKind(
    "phases", lambda phase: push_phase(None, phase), _current_phase, reserve=True
)
SCHEMA: Final[DocumentKind[ReplicatedTableSchema]] = DocumentKind(
    "schema", ReplicatedTableSchema.to_json, ReplicatedTableSchema.from_json, cleared_by_copy=True
)
PROGRESS: Final[DocumentKind[Lsn]] = DocumentKind(
    "progress", **_under("lsn", str, Lsn.parse), pipeline_wide=True, cleared_by_copy=True, reserve=True
)
CONTROLS: Final[DocumentKind[TableControls]] = DocumentKind("controls", asdict, _of_fields(TableControls))
FINGERPRINT: Final[DocumentKind[str]] = DocumentKind(
    "fingerprint", **_under("text", str, str), pipeline_wide=True, cleared_by_copy=True
)
ORDER: Final[DocumentKind[CopyOrder]] = DocumentKind("order", asdict, _of_fields(CopyOrder), reserve=True)
ACTION: Final[DocumentKind[TableAction]] = DocumentKind(
    "action", **_under("action", str, TableAction), pipeline_wide=True
)
OWNER: Final[DocumentKind[OwnerRecord]] = DocumentKind("owner", _owner_to_json, _owner_from_json, pipeline_wide=True)

DESTINATION: Final[DocumentKind[DestinationTableMetadata]] = DocumentKind(
    "destination", _metadata_to_json, _metadata_from_json
)

CUT: Final[DocumentKind[Cut]] = DocumentKind("cut", _cut_to_json, _cut_from_json, pipeline_wide=True)

KINDS: Final[tuple[DocumentKind[Any], ...]] = (
    PHASES,
    SCHEMA,
    PROGRESS,
    CONTROLS,
    FINGERPRINT,
    ORDER,
    ACTION,
    OWNER,
    CUT,
    DESTINATION,
)
"""All kinds. Deleting a table deletes its documents of each."""


def schema_key(table: TableId, version: SnapshotId) -> Key[ReplicatedTableSchema]:
    """Return the key of one version of a table's schema."""
    return Key(SCHEMA, table, str(version))


def worker_key(kind: DocumentKind[T], worker: str) -> Key[T]:
    """Return the key of a worker's document. That of `table_worker` belongs to the table."""
    table = table_of_worker(worker)
    return Key(kind, None, worker) if table is None else Key(kind, table)


def key_worker(key: Key[Any]) -> str:
    """Return the worker of a result of `worker_key`."""
    return key.name if key.table is None else table_worker(key.table)


def action_key(table: TableId) -> Key[TableAction]:
    """Return the key of a table's request. It belongs to the pipeline, so that all requests are taken in one step."""
    return Key(ACTION, None, str(int(table)))
