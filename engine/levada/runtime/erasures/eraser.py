"""Erases keys from tables of a running pipeline, in the threads of the callers.

The table is held as for a verification: it applies every change up to an LSN that the source has passed since it was
asked for the keys, and no more until the end. So no change of an erased row comes later, unless the source still has
the row. Changes that are staged already are removed when every table has applied them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from levada import codes
from levada.destinations.erasure import Erasure, Remaining
from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.failures import source_errors
from levada.postgres.lag import current_wal_lsn
from levada.postgres.table_locks import locks_named
from levada.printable import counted
from levada.runtime.config_ref import ConfigRef
from levada.runtime.erasures.keys import KeyText, SourceKeys, read_keys
from levada.runtime.erasures.report import ErasureReport
from levada.runtime.inbox import Inbox
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.hold_state import Held
from levada.runtime.tables.requests import table_target
from levada.runtime.verifications.messages import HoldAt, HoldReleased, HoldWanted
from levada.runtime.verifications.turn import Turns
from levada.schema import ReplicatedTableSchema
from levada.schema.table import NEWEST_VERSION
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore
from levada.values import Lsn, QualifiedTable, TableId, Watermark, resync_command

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_RETRY_S: Final = 2.0
_POLL_S: Final = 0.5
_AGAIN: Final = frozenset(
    {codes.TABLE_CHANGED, codes.COMMIT_CONFLICT, codes.SOURCE_UNVERIFIED, codes.ERASE_NOT_REACHED}
)
_COMPARED: Final = ", so it cannot be compared yet"
"""The end of the message of a table that cannot be held."""


@dataclass(frozen=True, slots=True)
class ErasureOptions:
    """The options of an erasure. With ``anyway``, keys of rows that the source still has are erased too.

    ``told`` is called with each step in words.
    """

    keys: Sequence[KeyText] = field(repr=False)
    dry_run: bool = False
    cuts: bool = False
    anyway: bool = False
    told: Callable[[str], None] = field(default=lambda step: None, repr=False)


@dataclass(frozen=True, slots=True)
class EraserWaits:
    """The waits of an erasure, in seconds: for the table to reach its LSN, and for staged changes to be removed."""

    held_s: float = 300.0
    staged_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Eraser:
    """Erases keys from tables of one pipeline, one table at a time, and not while one is verified. Thread-safe."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    inbox: Inbox
    epoch: int
    stopping: threading.Event
    log: SegmentLog
    turns: Turns
    waits: EraserWaits = field(default_factory=EraserWaits)

    def run(self, name: QualifiedTable, options: ErasureOptions, cancelled: threading.Event) -> ErasureReport:
        """Erase keys from one table, and return what was removed and what may still have values of the rows.

        Raise NeedsOperator ``erase_unsupported`` for a table or a destination from which nothing can be erased,
        ``erase_key_invalid``, ``erase_at_source`` if the source still has a row, and ``erase_kept_by_cuts``. Raise
        Transient ``erase_not_ready`` for a table that is not Ready, and ``erase_cancelled``. Nothing was removed then.
        After any other error, the same call removes what is left.
        """
        if not self.destination.capabilities.erases:
            raise _unsupported(name, f"the destination {self.destination.name} cannot remove former states")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self.turns.wait(self._interrupt(name, cancelled)):
                    table, report = self._attempt(name, options, cancelled)
                return self._with_staged(table, report, options, cancelled)
            except Transient as error:
                if error.code not in _AGAIN or attempt == _ATTEMPTS:
                    raise
                _log.info("erasing from %s again: %s", name, error.message)
                if cancelled.wait(_RETRY_S):
                    raise _cancelled(name) from None
        raise AssertionError

    def _attempt(
        self, name: QualifiedTable, options: ErasureOptions, cancelled: threading.Event
    ) -> tuple[TableId, ErasureReport]:
        config, check = self.config_ref.current, self._interrupt(name, cancelled)
        options.told("waiting for the table")
        with self._held(name, check, erases=not options.dry_run) as held:
            schema = self._schema(held, name)
            self._require_key(schema)
            keys, lsn = self._at_source(schema, options)
            if keys.at_source and not (options.anyway or options.dry_run):
                raise _at_source(name, keys.at_source)
            options.told(f"waiting until the table has applied every change up to {lsn}")
            self._reach(held, name, lsn, check)
            # Changes of columns may have come with these changes.
            schema = self._schema(held, name)
            target = table_target(self.store, config, schema)
            wanted = Erasure(keys.stored, options.dry_run, options.cuts)
            options.told("looking for the rows" if options.dry_run else "removing the rows")
            check()
            erased = self.destination.erase(target, wanted, Watermark(config.name, self.epoch, lsn))
        left = [*_other_texts(keys.inexact), *_elsewhere(lsn, keys.at_source)]
        report = ErasureReport(name, lsn, options.dry_run, len(options.keys), keys.at_source, erased.also(left))
        return held.table, report

    def _at_source(self, schema: ReplicatedTableSchema, options: ErasureOptions) -> tuple[SourceKeys, Lsn]:
        """Return the keys, and an LSN of the source after they were looked up.

        Raise Transient ``table_locked``, which names the session, if another one has the table locked.
        """
        config, doing = self.config_ref.current, f"looking up keys in {schema.name}"
        with (
            config.source.connect(application="erase") as connection,
            locks_named(connection, lambda table: table == schema.name),
            source_errors(doing),
        ):
            SourceRecord(self.store).require_verified(connection)
            keys = read_keys(connection, schema, options.keys, config.mask_keys)
            return keys, current_wal_lsn(connection)

    def _schema(self, held: Held, name: QualifiedTable) -> ReplicatedTableSchema:
        found = self.store.get_table_schema(held.table, NEWEST_VERSION)
        if found is None:
            raise Transient("table_changed", f"{name} has no copy any more", hint="levada status MANIFEST")
        return found

    def _require_key(self, schema: ReplicatedTableSchema) -> None:
        if not schema.key or not schema.by_attnum.keys() >= set(schema.key):
            raise _unsupported(schema.name, "its rows have no key")

    @contextmanager
    def _held(self, name: QualifiedTable, check: Callable[[], None], *, erases: bool) -> Iterator[Held]:
        """Hold a table during the block. Raise Transient ``erase_not_ready`` if it does not apply changes."""
        asked = self.inbox.ask(HoldWanted(name))
        try:
            held = asked.wait(check)
        except LevadaError as error:
            asked.decline(self.inbox)
            if error.code != codes.VERIFY_NOT_READY:
                raise
            raise _not_ready(error.message.removesuffix(_COMPARED)) from None
        try:
            if held.parked:
                raise _not_ready(f"table {name} is errored [{held.parked}], and has changes that are not applied")
            yield held
        finally:
            self.inbox.put(HoldReleased(held.table, repaired=False, erased=erases))

    def _reach(self, held: Held, name: QualifiedTable, lsn: Lsn, check: Callable[[], None]) -> None:
        until = time.monotonic() + self.waits.held_s

        def wait() -> None:
            check()
            if time.monotonic() >= until:
                raise Transient(
                    "erase_not_reached",
                    f"{name} did not apply the changes up to {lsn} within {self.waits.held_s:.0f} s",
                    hint="run the command again when the pipeline is not far behind: levada status MANIFEST",
                )

        self.inbox.ask(HoldAt(held.table, lsn)).wait(wait)

    def _with_staged(
        self, table: TableId, report: ErasureReport, options: ErasureOptions, cancelled: threading.Event
    ) -> ErasureReport:
        """Wait a moment until the staged changes of the table are removed. Add those that stay to the report."""
        until = time.monotonic() + (0 if options.dry_run else self.waits.staged_s)
        while (segments := self._staged(table, report.lsn)) and time.monotonic() < until and not cancelled.is_set():
            options.told("waiting until staged changes are removed")
            if self.stopping.wait(_POLL_S):
                break
        if not segments:
            return report
        where = f"{counted(segments, 'segment')} of the staging area"
        return report.also(Remaining(where, f"every table has applied the changes below {report.lsn}"))

    def _staged(self, table: TableId, lsn: Lsn) -> int:
        """Return the number of segments with changes of the table below ``lsn``."""
        return sum(m.start_lsn < lsn and table in m.tables for m in self.log.list())

    def _interrupt(self, name: QualifiedTable, cancelled: threading.Event) -> Callable[[], None]:
        """Return a function that raises if the erasure was cancelled or the pipeline stops."""

        def check() -> None:
            if cancelled.is_set() or self.stopping.is_set():
                raise _cancelled(name)

        return check


def _other_texts(columns: Sequence[str]) -> list[Remaining]:
    """Return the rows whose key is equal at the source and has another text, if there can be such rows."""
    if not columns:
        return []
    names = ", ".join(columns)
    return [
        Remaining(
            f"rows in files whose {names} has another text of an equal value, as 1.0 and 1.00 of a numeric",
            "their keys are erased in that text too",
        )
    ]


def _elsewhere(lsn: Lsn, at_source: int) -> list[Remaining]:
    """Return the places outside of the destination that may have values of the rows."""
    found = [
        Remaining(f"the WAL of the source below {lsn}", "the server recycles it, after the slot has confirmed it"),
        Remaining("staged rows of transactions that are open at the source", "these transactions end"),
        Remaining("backups, standbys and archived WAL of the source"),
        Remaining(
            "former versions of objects, snapshots and backups of the storage of the lake and of the staging area"
        ),
        Remaining("caches and copies that readers of the lake have made, and other pipelines"),
    ]
    rows = [Remaining(f"{counted(at_source, 'row')} at the source", "they are deleted there")]
    return [*rows, *found] if at_source else found


def _unsupported(name: QualifiedTable, why: str) -> NeedsOperator:
    return NeedsOperator(
        "erase_unsupported",
        f"rows of {name} cannot be erased by their keys: {why}",
        hint=f"delete the rows at the source, then copy the table again: {resync_command(name)}. Former states of the"
        " table have them until they expire",
    )


def _at_source(name: QualifiedTable, rows: int) -> NeedsOperator:
    return NeedsOperator(
        "erase_at_source",
        f"the source still has {counted(rows, 'row')} of {name} with these keys, so the next change or copy would bring"
        " them back",
        hint="delete the rows at the source first. To erase them in any case, add --anyway",
    )


def _not_ready(why: str) -> Transient:
    return Transient(
        "erase_not_ready",
        f"{why}, so nothing can be erased yet",
        hint="wait until levada status MANIFEST shows the table as Ready, then run the command again",
    )


def _cancelled(name: QualifiedTable) -> Transient:
    return Transient(
        "erase_cancelled",
        f"the erasure of keys of {name} was cancelled before anything was removed",
        hint="run the command again",
    )
