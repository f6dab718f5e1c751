"""The record of a table's verifications, in the store. It outlives the process, so that a schedule continues."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from levada.errors import NeedsOperator
from levada.status import ErrorProgress, ProofProgress, VerifiedProgress
from levada.status.document import Part, Time
from levada.stores.interface import PipelineStore
from levada.stores.phases import Ready, TableReplicationPhase

if TYPE_CHECKING:
    from levada.destinations.interface import Destination
    from levada.runtime.config import PipelineConfig
    from levada.values import TableId
    from levada.verify.report import TableReport

_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class VerificationRecord(Part):
    """The last comparison of a table, and the last attempt that the schedule or ``verifyNonce`` began.

    ``error`` is the error of that attempt, None if it succeeded or has not ended. ``nonce`` is the value of
    ``verifyNonce`` that was handled last. ``differs`` is the error of a table that was found to differ, until it is
    repaired, copied again, or found equal in all its values. ``proof`` is the comparison range by range. Its pass is of
    the keys of ``proved_key``, and has reached the key ``proved_to``.
    """

    last: VerifiedProgress | None = None
    tried: Time | None = None
    error: ErrorProgress | None = None
    nonce: int = 0
    differs: ErrorProgress | None = None
    proof: ProofProgress | None = None
    proved_key: str = ""
    proved_to: tuple[str, ...] | None = None

    def compared(self, result: VerifiedProgress, found: ErrorProgress | None) -> VerificationRecord:
        """Return the record after a comparison. ``found`` is the error if the table differs.

        A sample that is equal says nothing about the rows that differed before.
        """
        differs = self.differs if found is None and not (result.equal and result.sample >= 1) else found
        return replace(self, last=result, error=None, differs=differs)


_EMPTY: Final = VerificationRecord()


def verification_record(store: PipelineStore, table: TableId) -> VerificationRecord:
    """Return the table's record, an empty one if there is none that this version of Levada can read."""
    text = store.get_fingerprint(_subject(table))
    return _EMPTY if text is None else _parsed(text)


def store_verification(store: PipelineStore, table: TableId, record: VerificationRecord) -> None:
    """Store the table's record. An empty one is deleted."""
    if record == verification_record(store, table):
        return
    if record == _EMPTY:
        store.delete_fingerprint(_subject(table))
    else:
        store.store_fingerprint(_subject(table), json.dumps(record.to_json()))


def difference_of(record: VerificationRecord, phase: TableReplicationPhase) -> ErrorProgress | None:
    """Return the error of a table that streams and was found to differ, None for one that is Ready or parked."""
    return record.differs if isinstance(phase, Ready) else None


def verified_progress(report: TableReport) -> VerifiedProgress:
    """Return the result of a comparison that ended now, as the status shows it."""
    return VerifiedProgress(
        at=datetime.now(UTC),
        lsn=report.lsn,
        rows=report.source_rows,
        sample=report.sample,
        equal=report.equal or report.repaired_equal,
        differences=report.differences,
        repaired=report.repaired,
        problem=next(iter(report.problems), ""),
    )


def check_continuous(config: PipelineConfig, destination: Destination) -> None:
    """Raise NeedsOperator ``verify_unsupported`` if tables shall be compared by ranges and the destination cannot."""
    able = destination.capabilities.verifies_ranges and destination.capabilities.repairs
    own = (table.verify for table in (config.default_table, *config.tables.values()))
    if any(v is not None and v.continuous.every_s for v in (config.verify, *own)) and not able:
        raise NeedsOperator(
            "verify_unsupported",
            f"the destination {destination.name} cannot compare and repair ranges of its tables",
            hint="remove verify.continuous from the manifest, or use a destination of docs/verify.md",
        )


@lru_cache(_REMEMBERED)
def _parsed(text: str) -> VerificationRecord:
    try:
        return VerificationRecord.from_json(json.loads(text))
    except (ValidationError, ValueError):
        return _EMPTY


def _subject(table: TableId) -> str:
    return f"verified_{int(table)}"
