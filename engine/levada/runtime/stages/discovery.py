"""Discovery of tables that were created, dropped or may have missed changes, in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.errors import Transient
from levada.runtime.config import PipelineConfig
from levada.runtime.source.mask_comments import adopt_comments, comments_now
from levada.runtime.stages.messages import Discovered, StorageRead, TableFailed
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.catalog_reports import IdentitiesLent, LeavesStreamed, TablesUnpublished, TriggerLost
from levada.runtime.tables.publication_gaps import has_identified, read_gaps
from levada.runtime.tables.retries import as_levada_error
from levada.threads import MarkedPool

if TYPE_CHECKING:
    from levada.runtime.tables.source_tables import SourceTables
    from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


_CHECK_S: Final = 5.0
"""Seconds between two checks for gaps. A check is one query, which compares the publication with the copied tables."""
_TABLE_S: Final = 0.06
"""Seconds by table between two discoveries, of which each takes about 60 µs of the source's CPU for a table."""
_TABLE_CHECK_S: Final = 0.009
"""The same for checks, which take about 12 µs. So both take at most 0.3 % of one core."""


def discovery_interval_s(configured_s: float, tables: int) -> float:
    """Return the seconds between two discoveries of this number of tables."""
    return max(configured_s, tables * _TABLE_S)


def check_interval_s(tables: int) -> float:
    """Return the seconds between two checks of this number of tables."""
    return max(_CHECK_S, tables * _TABLE_CHECK_S)


class Discovery(Stage):
    """Calls ``discover`` every ``discovery_s`` seconds, after `soon`, and when the publication lacks a table.

    While tables are locked, which cannot be added then, it is called every few seconds.

    One call runs at a time, in a thread. The methods are for the supervisor's thread, except `soon`.
    """

    def __init__(
        self,
        parts: StageParts,
        discover: Callable[[PipelineConfig], SourceTables],
    ) -> None:
        super().__init__(parts)
        self._discover = discover
        self._next = float("inf")
        self._soon = threading.Event()
        self._next_check = 0.0
        self._running = False
        self._table_count = 0
        self._check_fails = False
        self._names: Mapping[TableId, QualifiedTable] = {}
        """The tables' names in the last snapshot of the catalog."""
        self._copy_after_session = 0
        self._pool = MarkedPool(1, "levada-discovery")
        parts.inbox.on(Discovered, self._ended)
        # A table that failed is added back to a managed publication that lost it.
        parts.inbox.on(TableFailed, lambda _: self.soon())
        parts.inbox.on(TablesUnpublished, lambda report: self._became_partitions(report.tables))
        parts.inbox.on(LeavesStreamed, lambda report: self._became_partitions(report.leaves))
        parts.inbox.on(StorageRead, self._notice_names)
        parts.inbox.on(IdentitiesLent, self._identities_lent)
        parts.inbox.on(TriggerLost, self._trigger_lost)

    def later(self, now: float) -> None:
        """Run next after the usual interval. ``now`` is in seconds, monotonic."""
        self._next = now + discovery_interval_s(self._config_ref.current.discovery_s, self._table_count)

    def soon(self) -> None:
        """Run next as soon as no run is under way. From any thread."""
        self._soon.set()

    def selection_changed(self, session: int) -> None:
        """Run soon. A table that is selected now is copied in this session of the stream or a later one.

        The server sends a RELATION message once per session. Capture ignores a table not selected at that time.
        """
        self._copy_after_session = session
        self.soon()

    def start(self, now: float) -> None:
        """Start a discovery or a check for gaps if one is due. ``now`` is in seconds, monotonic."""
        due = self._soon.is_set() or now >= self._next
        if self._running or not (due or now >= self._next_check):
            return
        self._running, self._next_check = True, now + check_interval_s(self._table_count)
        if not due:
            self._pool.submit(self._check, self._config_ref.current)
            return
        self._soon.clear()
        self.later(now)
        self._pool.submit(self._run, self._config_ref.current)

    def _check(self, config: PipelineConfig) -> None:  # in a pool
        try:
            found = bool(read_gaps(config, self._store)) or has_identified(config, self._store)
            found = found or comments_now(config) != config.mask_comments
            self._check_fails = False
        except BaseException as error:
            if not self._check_fails:
                _log.warning("the check of the publication for gaps failed: %s", error)
            found, self._check_fails = False, True
        if found:
            self._run(config)
        else:
            self._inbox.put(Discovered(config, None))

    def _run(self, config: PipelineConfig) -> None:  # in a pool
        try:
            self._inbox.put(Discovered(config, self._discover(config)))
        except BaseException as error:
            known = as_levada_error(error)
            _log.warning("the discovery of tables failed: %s", known)
            # An error of the source's connection is shown with the stream.
            lasts = known.code == codes.SELECTS_FAILED or not isinstance(known, Transient)
            self._inbox.put(Discovered(config, None, known if lasts else None))

    def _ended(self, report: Discovered) -> None:
        """Adopt the tables, unless the source could not be read or the table selectors have changed since."""
        membership = self._registry.membership
        self._running = False
        if report.error is not None:
            membership.discovery_failed(report.error)
        if report.tables is None:
            return
        self._table_count = len(report.tables.published)
        if report.tables.locked is not None:
            self._next = min(self._next, time.monotonic() + _CHECK_S)
        if report.config.selects != self._config_ref.current.selects:
            return
        if report.tables.comments is not None:
            # Before a new table is added, which is copied with them.
            adopt_comments(self._config_ref, report.tables.comments)
        try:
            if not membership.discovered(report.tables, self._copy_after_session):
                self.soon()
        except Transient as error:
            if error.code != codes.SELECTS_FAILED:
                raise
            membership.discovery_failed(error)

    def _identities_lent(self, report: IdentitiesLent) -> None:
        self._registry.membership.identities_lent(report.error)

    def _trigger_lost(self, report: TriggerLost) -> None:
        self._registry.membership.trigger_lost = report.error

    def _became_partitions(self, tables: frozenset[TableId]) -> None:
        if tables & self._registry.tables.keys():
            # A table that was attached for good is no longer replicated as its own.
            self.soon()

    def _notice_names(self, report: StorageRead) -> None:
        """Run soon if a table has another name at the source than before."""
        if report.snapshot is None:
            return
        names, tables = report.snapshot.names, self._registry.tables
        if any(t in tables and self._names.get(t, tables[t].name) != name for t, name in names.items()):
            self.soon()
        self._names = names

    def close(self) -> None:
        """Wait for the run that is under way."""
        self._pool.shutdown(cancel_futures=True)
