"""The copies that are made again without a request, because of changes that are not in the stream.

Each further copy of a table waits longer, because the cause may persist. A table that parks again and again is held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.copied_again import copies_again
from levada.runtime.tables.copy_plan import CopyPlan, Recreate
from levada.runtime.tables.own_copy_state import OwnCopy
from levada.runtime.tables.record import TableRecord
from levada.status import ErrorProgress, RetryPolicy
from levada.stores.interface import PipelineStore
from levada.stores.phases import Errored, Ready
from levada.values import OnUnstreamable, TableId, age_of

_log = logging.getLogger(__name__)

MOST_COPIES: Final = 20
"""The number of copies in a row after which a table is held, also if each of them succeeded."""
_CALM: Final = timedelta(hours=1)
"""The time without another copy after which the count begins again."""


def hold_reason(own: OwnCopy, config: PipelineConfig, size: int | None, *, unreadable: bool) -> str:
    """Return why a table is not copied again without a request, or an empty string.

    ``size`` is that at the source in bytes, None if it is unknown. ``unreadable`` is True if the table could not be
    read during the copy.
    """
    if own.failed >= config.retries.max_attempts:
        return f"{own.failed} copies in a row ended before the table was Ready"
    if own.copies >= MOST_COPIES:
        return f"{own.copies} copies in a row were followed by another such change"
    if unreadable:
        return "the destination cannot replace the table, which could not be read during the copy"
    most = config.largest_own_copy
    if most is not None and (size is None or size > most):
        what = "its size is not known" if size is None else f"it has {size:,} bytes"
        return f"spec.approval is Manual, and {what}"
    return ""


def due_at(own: OwnCopy, config: PipelineConfig) -> datetime | None:
    """Return the time of the next copy, None if it is due now."""
    attempts = own.copies + own.refused
    return own.at + timedelta(seconds=config.retries.delay(attempts)) if attempts and own.at is not None else None


class OwnCopies:
    """Decides when a parked table is copied again by itself, and keeps why. For the supervisor's thread.

    ``plan`` plans a table's next copy, and ``size`` returns its size at the source.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        store: PipelineStore,
        plan: Callable[[TableRecord], CopyPlan],
        size: Callable[[TableId], int | None],
    ) -> None:
        self._config_ref = config_ref
        self._store = store
        self._plan = plan
        self._size = size

    def add(self, record: TableRecord) -> None:
        """Load what an earlier process has stored about a table."""
        text = self._store.get_fingerprint(_subject(record.id))
        if text is not None:
            record.keep_own_copy(OwnCopy.from_text(text))

    def is_due(self, record: TableRecord, now: datetime) -> bool:
        """Return True if the table is copied again now. Otherwise the record says why not, or when.

        A shadow copy that was abandoned with the table is removed first.
        """
        phase, config = record.phase, self._config_ref.current
        if isinstance(phase, Ready):
            if record.own.code:
                self._keep(record, replace(record.own, code="", reason="", failed=0))
            return False
        if not isinstance(phase, Errored) or not copies_again(config, record.name, phase.code, phase.retry_policy):
            return False
        if record.own.copies and record.own.at is not None and age_of(record.own.at, now) > _CALM:
            self._keep(record, OwnCopy())
        own = record.own
        held = hold_reason(own, config, self._size(record.id), unreadable=self._is_unreadable(record, config))
        next_at = None if held else due_at(own, config)
        if (held, next_at) != (own.held, own.next_at):
            if held:
                _log.error("table %s is not copied again by itself: %s", record.name, held)
            record.keep_own_copy(replace(own, held=held, next_at=next_at))
        return not held and not record.resync.has_copy and (next_at is None or now >= next_at)

    def begins(self, record: TableRecord, now: datetime) -> None:
        """Store that the table is copied again because of the error that parks it."""
        phase, own = record.phase, record.own
        assert isinstance(phase, Errored)
        # An attempt that was refused before it read anything costs nothing, and only waits longer.
        refused = bool(own.code) and record.copy.finished is None
        failed = own.failed + (1 if own.code and not refused else 0)
        copies = own.copies + (0 if refused else 1)
        begun = OwnCopy(phase.code, phase.reason, copies, failed, now, self._size(record.id))
        self._keep(record, replace(begun, refused=min(own.refused + 1, MOST_COPIES) if refused else 0))
        _log.info("table %s is copied again by itself, because of %s", record.name, phase.code)

    def error(self, record: TableRecord) -> ErrorProgress | None:
        """Return the error of a parked table, with the time of its next copy, or with why none is made by itself."""
        found, phase, own = record.error, record.phase, record.own
        if found is None or not isinstance(phase, Errored):
            return None
        if not copies_again(self._config_ref.current, record.name, phase.code, phase.retry_policy):
            return found
        if own.held:
            return replace(found, solution=f"{found.solution}. It is not copied again by itself: {own.held}")
        return replace(
            found, retry_policy=RetryPolicy.TIMED_RETRY, attempts=own.copies + own.refused, next_retry=own.next_at
        )

    @staticmethod
    def resolved(record: TableRecord) -> ErrorProgress | None:
        """Return the error because of which the table is copied again by itself now, None if it is not."""
        own = record.own
        if not own.code or isinstance(record.phase, Errored | Ready):
            return None
        return ErrorProgress(
            own.code, own.reason, retry_policy=RetryPolicy.TIMED_RETRY, attempts=own.copies + own.refused
        )

    def requested(self, record: TableRecord) -> None:
        """Begin to count again, because a user requests the copy or the retry."""
        if record.own.copies:
            self._keep(record, OwnCopy())

    def _is_unreadable(self, record: TableRecord, config: PipelineConfig) -> bool:
        if config.table(record.name).on_unstreamable is OnUnstreamable.RESYNC:
            return False
        plan = self._plan(record)
        return isinstance(plan, Recreate) and plan.former is not None

    def _keep(self, record: TableRecord, own: OwnCopy) -> None:
        record.keep_own_copy(own)
        if own == OwnCopy():
            self._store.delete_fingerprint(_subject(record.id))
        else:
            self._store.store_fingerprint(_subject(record.id), own.to_text())


def _subject(table: TableId) -> str:
    return f"own_copy_{int(table)}"
