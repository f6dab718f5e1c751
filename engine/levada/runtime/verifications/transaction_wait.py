"""The wait of a verification for the transactions that are open at the source when it begins."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from levada.errors import LevadaError, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.slot_waits import wait_reason
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)

_FIRST_LOOK_S: Final = 3.0
_LOOK_S: Final = 30.0


@dataclass(slots=True)
class TransactionWait:
    """A wait that may be cancelled by ``check``, and ends after ``patience_s`` seconds.

    PostgreSQL exports a snapshot for logical decoding only when every transaction has ended that has written and is
    open at that moment, in any database of the server. ``told`` is called with the oldest one now and then.
    """

    source: PostgresConnection
    name: QualifiedTable
    check: Callable[[], None]
    patience_s: float = math.inf
    told: Callable[[str], None] = field(default=lambda step: None)
    look_at: float = field(default_factory=lambda: time.monotonic() + _FIRST_LOOK_S)
    """When the open transactions are read next, on the monotonic clock."""
    _begun: float = field(default_factory=time.monotonic, init=False)

    def interrupt(self) -> None:
        """Raise the errors of ``check``, and Transient ``verify_transactions_open`` after the time."""
        self.check()
        now = time.monotonic()
        if now - self._begun > self.patience_s:
            raise Transient(
                "verify_transactions_open",
                f"the verification of {self.name} waited for {self.patience_s / 60:g} minutes for transactions that"
                " were open when it began",
                hint="SELECT pid::text, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
                " UNION ALL SELECT gid, prepared, 'prepared transaction' FROM pg_prepared_xacts ORDER BY 2",
            )
        if now >= self.look_at:
            self.look_at = now + _LOOK_S
            self._tell()

    def _tell(self) -> None:
        try:
            with self.source.connect(application="wait") as look:
                reason = wait_reason(look)
        except LevadaError as error:
            _log.debug("the reason of the wait cannot be read: %s", error.message)
            return
        if reason is not None:
            self.told(f"waiting for {reason}")
