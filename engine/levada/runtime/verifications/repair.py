"""Repairs a table that differs from the source, while nothing is applied to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Final, Protocol

import pyarrow as pa

from levada.copy.stored_rows import OwnValues, marked
from levada.destinations.interface import Destination
from levada.destinations.verification import KEY_HASH, FixedTable, Repair
from levada.errors import NeedsOperator
from levada.printable import counted
from levada.runtime.config_ref import ConfigRef
from levada.runtime.verifications.moment import Moment
from levada.schema.kept_rows import has_deleted_at
from levada.schema.metadata import ReadMoment
from levada.stores.interface import PipelineStore, TableAction
from levada.values import Watermark, resync_command
from levada.verify.report import TableReport
from levada.verify.rows import rows_of_other_keys
from levada.verify.table import Compared, VerifyOptions

_log = logging.getLogger(__name__)

_TOLD_EVERY_S: Final = 1.0
_MOST_PASSES: Final = 3
"""The passes of a repair, each of which computes the hashes of both sides. A copy reads the source once."""


class Comparison(Protocol):
    """Compares a version of a table at the destination with the source."""

    def __call__(
        self, moment: Moment, lake: FixedTable, options: VerifyOptions, former: Compared | None, /
    ) -> Compared:
        """Compare. What a former comparison has computed of the same files is used again."""


@dataclass(frozen=True, slots=True)
class TableRepair:
    """The repair of one table."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    epoch: int
    compare: Comparison

    def run(self, moment: Moment, first: Compared, options: VerifyOptions) -> Compared:
        """Write the rows that differ, until nothing differs any more. Return the first result.

        A parked table that is equal is guarded against other writers, and compared again.
        """
        name, found, lake, shown = moment.schema.name, first, moment.lake, first.report
        if options.sample < 1:
            found = self.compare(moment, lake, options := replace(options, sample=1.0), None)
            shown = found.report
        mark, repaired, done = Watermark(self.config_ref.current.name, self.epoch, moment.lsn), 0, 0
        for _ in range(self.config_ref.current.limits.verifications.rounds):
            self._require_cheap(moment, found)
            after = "without the damaged files"
            if found.damage:
                options.told("removing the damaged files from the table")
                if not self.destination.forget_missing_files(moment.target, lake, mark):
                    break
            elif found.rows.total or found.report.problems or first.report.equal:
                done += 1
                after, of = f"after pass {done}", max(done, done - 1 + found.passes)
                self._write_rows(moment, lake, found, options, mark, f"pass {done} of {of}")
                repaired += found.rows.total
            else:
                break
            fixed = self.destination.fixed(moment.target)
            assert fixed is not None
            lake = fixed
            moment.versions.callback(lake.close)
            found = self.compare(moment, lake, _with_steps(options, after), found)
            shown = _with_counts(shown, found.report)
            if found.report.equal:
                moment.source.guard.release()
                self.destination.accept_repair(moment.target, lake, mark)
                moment.repaired.set()
                return replace(first, report=replace(shown, repaired=repaired, repaired_equal=True))
        raise NeedsOperator(
            "verify_unrepairable",
            f"{name} still differs from the source after its repair, which wrote {counted(repaired, 'key')} again",
            hint=resync_command(name),
        )

    def _write_rows(
        self,
        moment: Moment,
        lake: FixedTable,
        found: Compared,
        options: VerifyOptions,
        mark: Watermark,
        doing: str,
    ) -> None:
        """Write the rows that differ. Delete those that only the destination has, or mark them."""
        moment.source.check()
        rows, name = found.rows, moment.schema.name
        options.told(f"{doing}: writing {counted(rows.lost.num_rows, 'row')} again")
        repair = Repair(found.comparisons.comparison, rows.gone, rows.lost[KEY_HASH].combine_chunks())
        read = _with_progress(self._source_rows(moment, rows.lost), rows.lost.num_rows, doing, options.told)
        now = ReadMoment(moment.lsn, datetime.now(UTC))
        read = map(OwnValues.of(moment.target, now).add, read)
        if has_deleted_at(moment.target.schema):
            # Read before, because a repair may end the transaction of the comparison.
            extra = list(lake.whole_rows(moment.target.schema, rows_of_other_keys(rows.gone, rows.lost)))
            read = chain(read, (marked(batch, now) for batch in extra))
        self.destination.repair(moment.target, lake, repair, read, mark)
        _log.info("%s: wrote the rows of %d keys again", name, rows.total)

    def _require_cheap(self, moment: Moment, found: Compared) -> None:
        """Raise if a copy reads less than the repair, and request it if the table may be copied again by itself."""
        if found.passes <= _MOST_PASSES:
            return
        name, config = moment.schema.name, self.config_ref.current
        why = (
            f"a copy of {name} reads less than its repair, which would compare both sides in {found.passes} passes,"
            f" as rows differ in {counted(found.passes * found.comparisons.most, 'row')} or so"
        )
        if config.table(name).resyncs_by_itself:
            self.store.request_table_action(moment.schema.id, TableAction.RESYNC)
            raise NeedsOperator("verify_unrepairable", f"{why}. The copy is requested", hint="levada status MANIFEST")
        raise NeedsOperator("verify_unrepairable", why, hint=resync_command(name))

    def _source_rows(self, moment: Moment, lost: pa.Table) -> Iterator[pa.RecordBatch]:
        for some in moment.source.reads(lost):
            moment.source.check()
            yield from moment.reader.batches(some)


def _with_counts(shown: TableReport, now: TableReport) -> TableReport:
    """Return the report of a repair so far, with what another pass has found."""
    counts = {kind: shown.counts.get(kind, 0) + now.counts.get(kind, 0) for kind in now.counts or shown.counts}
    shown = replace(shown, counts=counts, examples=shown.examples or now.examples)
    # Before the first pass, files may have been damaged, so that no rows were compared.
    return shown if shown.source_rows else replace(shown, source_rows=now.source_rows, lake_rows=now.lake_rows)


def _with_progress(
    rows: Iterator[pa.RecordBatch], of: int, doing: str, told: Callable[[str], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches. Report now and then how many of ``of`` rows were read, and the time left."""
    begun = last = time.monotonic()
    done = 0
    for batch in rows:
        yield batch
        done += batch.num_rows
        if (now := time.monotonic()) - last > _TOLD_EVERY_S:
            last, left = now, (now - begun) / done * (of - done)
            told(f"{doing}: wrote {done:,} of {of:,} rows, about {left:.0f} s left")


def _with_steps(options: VerifyOptions, after: str) -> VerifyOptions:
    """Return the options of a comparison whose steps say after which step of a repair they are."""
    return replace(options, told=lambda step: options.told(f"{after}: {step}"))
