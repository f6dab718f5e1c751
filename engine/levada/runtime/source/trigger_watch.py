"""The look for Levada's event trigger, which another session may drop, disable or change while the engine runs."""

from __future__ import annotations

import logging
from typing import Any

import psycopg

from levada.errors import NeedsOperator
from levada.postgres.ddl import WITHOUT_TRIGGER, read_ddl_seal
from levada.postgres.ddl_functions import TRIGGER
from levada.runtime.inbox import Inbox
from levada.runtime.tables.catalog_reports import TriggerLost

_log = logging.getLogger(__name__)


class TriggerWatch:
    """Puts `TriggerLost` into ``inbox`` once the trigger that was seen is in place no longer, and once it is again."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._seen = False
        self._lost = False

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """Read whether messages of the trigger are trusted, and report a change of that."""
        in_place = read_ddl_seal(connection) is not None
        if in_place and self._lost:
            _log.info("event trigger %s is in place again", TRIGGER)
            self._inbox.put(TriggerLost(None))
        elif not in_place and self._seen and not self._lost:
            error = _lost()
            _log.warning("%s [%s]. %s", error.message, error.code, error.hint)
            self._inbox.put(TriggerLost(error))
        self._lost = self._seen and not in_place
        self._seen = self._seen or in_place


def _lost() -> NeedsOperator:
    return NeedsOperator(
        "ddl_trigger_lost",
        f"event trigger {TRIGGER} was dropped, disabled or changed by another session. Without it {WITHOUT_TRIGGER}",
        hint="restart the engine, which creates it again. Or set spec.source.ddlTrigger to None, which accepts this",
    )
