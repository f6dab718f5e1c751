"""The watch over the source's catalog, a thread that looks each second.

It takes tables out of a managed publication that have lost their replica identity. Until then PostgreSQL refuses their
UPDATEs and DELETEs. Where the DDL trigger is in place, it does so itself, and the watch reads only that after its first
look: before the trigger was there, a table may have lost its identity. If the trigger met a locked publication, its
message makes the watch look until the table is out. The table is parked by the next check of the publication.

It also requests a discovery when tables have appeared, which would otherwise wait for the next one that is due, and
reports a trigger that another session has dropped or disabled.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

import psycopg

from levada.errors import LevadaError, Transient
from levada.postgres.lent_identities import give_back, lent_for_long
from levada.postgres.withdrawals import unidentified_members, withdraw
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Inbox
from levada.runtime.source.new_tables import NewTables
from levada.runtime.source.trigger_watch import TriggerWatch
from levada.runtime.tables.catalog_reports import IdentitiesLent
from levada.threads import marked_thread

_log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_NEW_TABLES_EVERY: Final = 3
"""Looks for each look for new tables, which reads all of pg_class, and for the trigger."""
_GIVE_BACK_EVERY: Final = 30
"""Looks for each attempt to give identities back that partitions needed, see `levada.postgres.lent_identities`."""
_RETRY_S: Final = 10.0
_REFUSED_S: Final = 60.0
"""Seconds before a table is taken out again that the server refused to take out. It logs each refusal."""
_END_S: Final = 2.0


class SourceWatch:
    """A thread that looks each second, over a connection that it keeps.

    ``check`` raises an error if another process has taken over the pipeline, and ``appeared`` is called for new tables.
    ``identity_lost`` is set when a table without a replica identity may still be published. ``inbox`` gets
    `IdentitiesLent` and `TriggerLost`. A failed look is logged and affects nothing else.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        check: Callable[[], None],
        appeared: Callable[[], None],
        identity_lost: threading.Event,
        inbox: Inbox,
    ) -> None:
        self._config_ref = config_ref
        self._check = check
        self._appeared = appeared
        self._identity_lost = identity_lost
        self._inbox = inbox
        self._new_tables = NewTables()
        self._trigger = TriggerWatch(inbox)
        self._reported: frozenset[str] = frozenset()
        self._rests_until = 0.0
        self._lent_at: float | None = None
        self._lent_reported = False
        self._stop = threading.Event()
        self._thread = marked_thread(self._run, "levada-watch")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A look under way is waited for briefly, because the server may not answer."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_END_S)

    def _run(self) -> None:
        while True:
            try:
                with closing(self._config_ref.current.source.connect(application="watch")) as connection:
                    for look in itertools.count():
                        self._look(connection, look)
                        if self._stop.wait(_EVERY_S):
                            return
            except LevadaError as error:
                _log.info("the watch over the source failed: %s", error.message)
            except BaseException:
                _log.warning("the watch over the source failed", exc_info=True)
            if self._stop.wait(_RETRY_S):
                return

    def _report(self, errors: tuple[LevadaError, ...]) -> None:
        """Log the errors of tables that stay in the publication, each once, and look again."""
        for error in errors:
            if error.message not in self._reported:
                _log.warning("%s [%s]", error.message, error.code)
        self._reported = frozenset(e.message for e in errors)
        if errors:
            self._identity_lost.set()
        if any(not isinstance(e, Transient) for e in errors):
            self._rests_until = time.monotonic() + _REFUSED_S

    def _look(self, connection: psycopg.Connection[Any], look: int) -> None:
        config = self._config_ref.current
        if config.publication.managed and time.monotonic() >= self._rests_until:
            name = config.publication.name
            always = look == 0 or self._identity_lost.is_set()
            self._identity_lost.clear()
            found = unidentified_members(connection, name, always=always)
            self._report(withdraw(connection, name, found, check=self._check))
            if always or look % _GIVE_BACK_EVERY == 0:
                self._give_back(connection)
        if look % _NEW_TABLES_EVERY:
            return
        if self._new_tables.appeared(connection, config):
            self._appeared()
        if config.ddl_trigger:
            self._trigger.look(connection)

    def _give_back(self, connection: psycopg.Connection[Any]) -> None:
        """Give tables their own identities back. Log those that cannot have it for long."""
        if give_back(connection):
            self._lent_at = None
            if self._lent_reported:
                self._lent_reported = False
                self._inbox.put(IdentitiesLent(None))
            return
        self._identity_lost.set()
        now = time.monotonic()
        if self._lent_at is None:
            self._lent_at = now
            return
        if now - self._lent_at >= self._config_ref.current.limits.lent_s and (error := lent_for_long(connection)):
            self._lent_at, self._lent_reported = now, True
            self._inbox.put(IdentitiesLent(error))
            _log.warning("%s. To end it: %s [%s]", error.message, error.hint, error.code)
