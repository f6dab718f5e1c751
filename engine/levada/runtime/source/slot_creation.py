"""The creation of the pipeline's slot, within the guard's limits."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final

import psycopg

from levada.errors import LevadaError, Transient
from levada.postgres.slots import create_slot
from levada.runtime.config import PipelineConfig
from levada.runtime.source.wal_figures import release_limits, wal_figures
from levada.runtime.tables.guard_rules import comparison, in_force
from levada.runtime.watching import repeated
from levada.values import Lsn

_log = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
_OPEN_TRANSACTIONS: Final = (
    "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start;"
)


def create_guarded_slot(config: PipelineConfig, connection: psycopg.Connection[Any]) -> Lsn:
    """Create the slot and return its consistent point.

    A slot that is being created waits for the transactions that are open, and keeps all WAL from then on. Raise
    Transient ``slot_creation_ended``, without a slot, if that WAL passes a limit at which the guard drops a slot.
    """
    passed: list[str] = []
    with _watched(config, connection, passed):
        try:
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


def _watched(
    config: PipelineConfig, connection: psycopg.Connection[Any], passed: list[str]
) -> AbstractContextManager[None]:
    """Cancel the connection's statement when the slot passes a limit. Then ``passed`` says which one."""
    if not release_limits(config):
        return nullcontext()

    def sample(ended: threading.Event) -> bool:
        try:
            text = _passed_limit(config)
        except LevadaError as error:
            _log.warning("sampling the slot that is being created failed: %s", error.message)
            return True
        if text and not ended.is_set():
            passed.append(text)
            with suppress(psycopg.Error):
                connection.cancel()
        return True

    return repeated(sample, _EVERY_S, "levada-slot-creation")


def _passed_limit(config: PipelineConfig) -> str:
    """Return which limit at which the slot is dropped is passed, empty without one."""
    known = wal_figures(config)
    for limit in in_force(release_limits(config), known, frozenset()):
        return comparison(limit, known[limit.measure])
    return ""
