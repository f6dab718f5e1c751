"""Compares tables range by range while the pipeline runs, and writes the rows that differ again.

`levada.runtime.verifications.rolling` decides which range is next, and when. A range that differs is compared again at
another LSN before it counts, by the comparison that `levada verify --repair` makes.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from levada import codes
from levada.destinations.key_ranges import KeyRange
from levada.errors import LevadaError, Transient
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.hold_state import Held
from levada.runtime.tables.retries import as_levada_error
from levada.runtime.tables.verification_record import VerificationRecord, verification_record
from levada.runtime.verifications.messages import NotProved, Proved
from levada.runtime.verifications.rolling import OVERHEAD_S, PATIENCE_S, advanced, begun, next_rows, next_table
from levada.runtime.verifications.verifier import AGAIN, Verifier, unsupported
from levada.schema import ReplicatedTableSchema
from levada.status import Progress, TableProgress
from levada.verify.ranges import SourceRange, read_range
from levada.verify.report import TableReport
from levada.verify.source_table import SourceLoad
from levada.verify.table import VerifyOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A range that was compared. ``fresh`` is True if it is the first one of a pass."""

    held: Held
    former: VerificationRecord
    key: str
    found: SourceRange
    fresh: bool
    differs: bool


@dataclass(frozen=True, slots=True)
class ContinuousVerifier:
    """Compares one range after the other, within the allowed load of the source."""

    config_ref: ConfigRef
    verifier: Verifier

    def step(self, progress: Progress, cancelled: threading.Event) -> bool:
        """Compare the range that is due. Return False if none is.

        If ``cancelled`` is set, it ends without a result.
        """
        table = next_table(progress, self.config_ref.current, datetime.now(UTC))
        if table is None:
            return False
        with self.verifier.turns.offer(cancelled) as taken:
            if taken:
                self._prove(table, cancelled)
        return taken

    def _prove(self, table: TableProgress, cancelled: threading.Event) -> None:
        load, begin = SourceLoad(OVERHEAD_S), datetime.now(UTC)
        try:
            compared = self._compare(table, load, cancelled)
            differences = self._repair(table, compared, load, cancelled) if compared.differs else 0
        except BaseException as failure:
            error, now = as_levada_error(failure), datetime.now(UTC)
            # A table that was changed, or is verified by a command, is tried again after the usual rest.
            usual = cancelled.is_set() or error.code in AGAIN
            level = logging.INFO if usual else logging.WARNING
            _log.log(level, "a range of %s was not compared: %s [%s]", table.table, error.message, error.code,
                     exc_info=not isinstance(failure, LevadaError))  # fmt: skip
            problem = "" if usual else f"{error.message} [{error.code}]"
            self.verifier.inbox.put(NotProved(table.id, problem, load.seconds, now))
            return
        now, to, former = datetime.now(UTC), compared.found.between.upto, compared.former
        before = former.proof
        if before is None or compared.fresh:
            # Rows that were proved by another key may not be the rows of this one.
            before = begun(before if former.proved_key == compared.key else None, begin)
        after = advanced(before, compared.found.rows, load.seconds, differences, now, ended=to is None)
        self._send(Proved(compared.held, after, compared.key, to), cancelled)

    def _compare(self, table: TableProgress, load: SourceLoad, cancelled: threading.Event) -> _Compared:
        """Compare the next range at one LSN. The source's snapshot ends before the destination is read."""
        verifier, name = self.verifier, table.table
        limits = self.config_ref.current.limits.verifications
        options = VerifyOptions(patience_s=min(PATIENCE_S, limits.patience_s), load=load)
        with verifier.moment(name, options, cancelled) as moment:
            verifier.require_columns(moment)
            if (why := verifier.why_unrepairable(moment)) is not None:
                raise unsupported(name, why)
            # Read now, because a copy that has ended meanwhile begins another pass.
            former, key = verification_record(verifier.store, table.id), key_text(moment.schema)
            fresh = former.proof is None or former.proof.began is None or former.proved_key != key
            after = KeyRange(None if fresh else former.proved_to)
            scope = verifier.scope(moment, moment.lake)
            wanted = VerifyOptions(between=after, load=load)
            found = read_range(
                moment.source, moment.lake, moment.schema, scope, wanted, next_rows(former.proof, limits.range_rows)
            )
            moment.source.guard.release()
            versions = moment.versions.pop_all()
        with versions:
            differs = bool(scope.problems) or found.differs(moment.lake)
        return _Compared(moment.held, former, key, found, fresh, differs)

    def _repair(self, table: TableProgress, compared: _Compared, load: SourceLoad, cancelled: threading.Event) -> int:
        """Compare a range that differs at another LSN, and write the rows that differ. Return the number of keys."""
        options = VerifyOptions(repair=True, patience_s=PATIENCE_S, between=compared.found.between, load=load)
        report: TableReport = self.verifier.run_in_turn(table.table, options, cancelled)
        if report.differences:
            _log.warning("%s differed from the source at %s in %d keys, whose rows were written again: %s",
                         table.table, report.lsn, report.differences, _kinds(report))  # fmt: skip
        else:
            _log.info("a range of %s differed, and is equal at %s", table.table, report.lsn)
        return report.differences

    def _send(self, message: Proved, cancelled: threading.Event) -> None:
        def check() -> None:
            if cancelled.is_set() or self.verifier.stopping.is_set():
                raise Transient("verify_cancelled", "the comparison of a range was cancelled")

        try:
            self.verifier.inbox.ask(message).wait(check)
        except Transient as error:
            if error.code not in (codes.TABLE_CHANGED, codes.VERIFY_CANCELLED):
                raise


def key_text(schema: ReplicatedTableSchema) -> str:
    """Return what a pass depends on: the table's name, and the columns of its key."""
    columns = ",".join(f"{c.attnum}:{c.type_oid}" for c in schema.key_columns)
    return f"{schema.name} {columns}"


def _kinds(report: TableReport) -> str:
    return ", ".join(f"{count} {kind.value}" for kind, count in report.counts.items() if count)
