"""The creation of the pipeline's slot, within the guard's limits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import psycopg

from levada.errors import LevadaError, Transient
from levada.postgres.slot_waits import waiting_error
from levada.postgres.slots import create_slot
from levada.runtime.config import PipelineConfig
from levada.runtime.source.start_guard import release_limits, wal_figures
from levada.runtime.tables.guard_rules import comparison, in_force
from levada.runtime.watching import repeated
from levada.values import Lsn

_log = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
_OPEN_TRANSACTIONS: Final = (
    "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start;"
)

Waiting = Callable[[LevadaError | None], None]
"""Handle what the start waits for. None: it waits no longer."""


def create_guarded_slot(config: PipelineConfig, connection: psycopg.Connection[Any], waiting: Waiting) -> Lsn:
    """Create the slot and return its consistent point.

    A slot that is being created waits for the transactions that are open, and keeps all WAL from then on. ``waiting``
    gets which. Raise Transient ``slot_creation_ended``, without a slot, if that WAL passes a limit at which the guard
    drops a slot.
    """
    passed: list[str] = []
    logged = ""

    def sample(ended: threading.Event) -> bool:
        nonlocal logged
        try:
            if (text := _passed_limit(config)) and not ended.is_set():
                passed.append(text)
                with suppress(psycopg.Error):
                    connection.cancel()
            with config.source.connect(application="wait") as look:
                found = waiting_error(look, config.slot.name)
        except LevadaError as error:
            _log.warning("sampling the slot that is being created failed: %s", error.message)
            return True
        if not ended.is_set():
            waiting(found)
            if found is not None and found.hint != logged:
                # Once for each holder. The status has its age.
                _log.warning("%s", found)
                logged = found.hint
        return True

    try:
        with repeated(sample, _EVERY_S, "levada-slot-creation"):
            return create_slot(connection, config.slot.name, failover=config.slot.failover)
    except LevadaError as error:
        if not passed:
            raise
        raise Transient(
            "slot_creation_ended",
            f"the guard ended the creation of slot {config.slot.name}, which waits for open transactions, because"
            f" {passed[0]}",
            hint=f"end the transactions, or wait for them: {_OPEN_TRANSACTIONS}",
        ) from error
    finally:
        waiting(None)


def _passed_limit(config: PipelineConfig) -> str:
    """Return which limit at which the slot is dropped is passed, empty without one."""
    if not (limits := release_limits(config)):
        return ""
    known = wal_figures(config)
    for limit in in_force(limits, known, frozenset()):
        return comparison(limit, known[limit.measure])
    return ""
