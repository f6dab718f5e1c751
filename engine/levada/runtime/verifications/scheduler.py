"""The thread that runs the verifications that the manifest asks for, see `levada.runtime.verifications.schedule`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from levada import codes
from levada.errors import DestinationChanged, LevadaError, NeedsOperator
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.record import error_progress
from levada.runtime.tables.retries import as_levada_error, park
from levada.runtime.tables.rules import awaits_comparison
from levada.runtime.verifications.continuous import ContinuousVerifier
from levada.runtime.verifications.messages import NotCompared, VerificationBegan, VerificationEnded
from levada.runtime.verifications.schedule import Due, lacks_end, next_verification, pending_comparisons
from levada.runtime.verifications.verifier import Verifier
from levada.status import ErrorProgress, Progress, TableProgress
from levada.stores.interface import TableAction
from levada.threads import marked_thread
from levada.values import TableId, resync_command
from levada.verify.table import VerifyOptions

_log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_REPAIR_AGAIN_S: Final = 30.0
_STOP_S: Final = 10.0
"""The longest wait for a verification to end. Tasks of Spark cannot be interrupted."""


class VerificationScheduler:
    """Verifies tables by schedule and by ``verifyNonce``, one after the other."""

    def __init__(self, config_ref: ConfigRef, progress: Callable[[], Progress], verifier: Verifier) -> None:
        self._config_ref = config_ref
        self._progress = progress
        self._verifier = verifier
        self._continuous = ContinuousVerifier(config_ref, verifier)
        self._inbox = verifier.inbox
        self._stopping = verifier.stopping
        self._waits_for: datetime | None = None
        self._not_before: dict[TableId, float] = {}
        """When the comparisons that failed are tried again, on the monotonic clock."""
        self._cancelled = threading.Event()
        self._thread = marked_thread(self._run, "levada-verify-schedule")

    def start(self) -> None:
        """Start the thread. It ends when the pipeline does."""
        self._thread.start()

    def stop(self) -> None:
        """End the running verification and the thread, after the pipeline's ``stopping`` was set."""
        self._cancelled.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            progress, now = self._progress(), datetime.now(UTC)
            if lacks_end(progress, self._waits_for, now):
                continue
            pending = pending_comparisons(progress, self._config_ref.current)
            repaired = [self._repair(table) for table in pending]
            if any(repaired):
                continue
            due = next_verification(progress, self._config_ref.current, now)
            if due is not None:
                self._verify(due)
                continue
            self._cancelled = cancelled = threading.Event()
            if self._continuous.step(progress, cancelled):
                self._waits_for = datetime.now(UTC)

    def _repair(self, table: TableProgress) -> bool:
        """Compare a table that missed changes, and write the rows that differ. Return False if it is not its turn yet.

        A table that cannot be compared or repaired is copied again.
        """
        if self._stopping.is_set() or time.monotonic() < self._not_before.get(table.id, 0.0):
            return False
        if not awaits_comparison(self._verifier.store.get_table_replication_state(table.id)):
            # The progress shows a table that waits for its copy by itself as one that is retried, too.
            return False
        self._cancelled = cancelled = threading.Event()
        with self._verifier.turns.offer(cancelled) as taken:
            if not taken:
                return False
            patience_s = self._config_ref.current.limits.verifications.patience_s
            try:
                report = self._verifier.run_in_turn(
                    table.table, VerifyOptions(repair=True, patience_s=patience_s), cancelled
                )
            except BaseException as failure:
                if not cancelled.is_set():
                    self._not_compared(table, as_levada_error(failure))
                return True
        if not report.repaired_equal:
            # It may be equal, but nothing at the destination says as of which LSN.
            why = f"{table.table} cannot be repaired, so nothing says from which LSN on it would go on"
            self._not_compared(table, NeedsOperator("verify_unrepairable", why, hint=resync_command(table.table)))
            return True
        self._waits_for = datetime.now(UTC)
        _log.info("%s equals the source at %s again: wrote %d of its rows", table.table, report.lsn, report.repaired)
        return True

    def _not_compared(self, table: TableProgress, error: LevadaError) -> None:
        if error.passes or isinstance(error, DestinationChanged):
            # Another attempt, or a person, resolves it. A copy would replace what another writer has written.
            _log.warning("table %s cannot be compared yet: %s [%s]", table.table, error.message, error.code)
            self._not_before[table.id] = time.monotonic() + _REPAIR_AGAIN_S
            return
        _log.warning("table %s is copied again, and not compared: %s [%s]", table.table, error.message, error.code)
        if table.error is not None and table.error.code == codes.ROW_FILTER_CHANGED:
            # The manifest's rules for copies that are made again decide when.
            self._inbox.put(NotCompared(table.id, error))
            self._waits_for = datetime.now(UTC)
            return
        self._verifier.store.request_table_action(table.id, TableAction.RESYNC)
        self._not_before[table.id] = time.monotonic() + _REPAIR_AGAIN_S

    def _verify(self, due: Due) -> None:
        table, cancelled = due.table, threading.Event()
        self._cancelled = cancelled
        with self._verifier.turns.offer(cancelled) as taken:
            if not taken:
                return
            stored = self._inbox.ask(VerificationBegan(table.id, datetime.now(UTC))).answer
            while not wait([stored], _EVERY_S).done:
                if self._stopping.is_set():
                    return
            error = self._compare(due, cancelled)
        if not (cancelled.is_set() or self._stopping.is_set()):
            self._inbox.put(VerificationEnded(table.id, due.nonce, error))
        self._waits_for = datetime.now(UTC)

    def _compare(self, due: Due, cancelled: threading.Event) -> ErrorProgress | None:
        name, config = due.table.table, self._config_ref.current
        patience_s = config.limits.verifications.patience_s
        options = VerifyOptions(sample=1.0 if due.requested else config.verify_of(name).sample, patience_s=patience_s)
        try:
            report = self._verifier.run_in_turn(name, options, cancelled)
        except BaseException as failure:
            error = as_levada_error(failure)
            if not cancelled.is_set():
                known = isinstance(failure, LevadaError)
                _log.warning("verifying %s failed: %s [%s]", name, error.message, error.code, exc_info=not known)
            # The command that retries a table does not repeat its verification.
            parked = replace(park(error, 1, config.retries, datetime.now(UTC)), solution=error.hint)
            return error_progress(parked)
        if report.equal:
            _log.info("%s equals the source at %s: %d rows", name, report.lsn, report.source_rows)
        else:
            _log.warning("table %s differs from the source at %s: %d keys", name, report.lsn, report.differences)
        return None
