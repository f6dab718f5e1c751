"""The messages of the event trigger as evidence: which of them it wrote, and whether every change has one.

`levada.postgres.seal` explains when the absence of a message shows that a table was not altered.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from levada.capture.source_catalog import SourceCatalog
from levada.pgoutput.changes import LogicalMessage
from levada.postgres.ddl import read_ddl_seal
from levada.postgres.ddl_functions import DDL_PREFIX
from levada.postgres.seal import DdlSeal
from levada.values import Lsn, SnapshotId

_log = logging.getLogger(__name__)

_WARN_EVERY_S: Final = 60.0
"""The minimum interval, in seconds, of log entries on forged messages. Any role could write millions of them."""


class Announcements:
    """The trust in the trigger's messages within one session. For one thread."""

    def __init__(self, catalog: SourceCatalog) -> None:
        self._catalog = catalog
        self._seal: DdlSeal | None = None
        self._seal_read = False
        self._unreadable = False
        self._warn_at = 0.0

    def begin_session(self) -> None:
        """Trust the messages again, which the server sends again in a new session."""
        self._unreadable = False

    def release(self) -> None:
        """Read the seal again for the next slice."""
        self._seal_read = False

    def one_unreadable(self) -> None:
        """Trust no absence of a message until the next session, because one could not be read."""
        self._unreadable = True

    def content(self, message: LogicalMessage) -> bytes | None:
        """Return the content of a message, or None if its seal does not prove that the trigger wrote it."""
        seal = self._read_seal()
        content = None if seal is None or not message.transactional else seal.open(message.content, message.xid)
        if content is None and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + _WARN_EVERY_S
            _log.warning(
                "ignoring a message with prefix %s at %s: %s",
                DDL_PREFIX,
                message.lsn,
                _why_ignored(seal, message.lsn),
            )
        return content

    def complete(self, at: SnapshotId) -> bool:
        """Return True if every schema change up to transaction ``at`` was announced by a readable message."""
        seal = self._read_seal()
        return seal is not None and at >= seal.since and not self._unreadable

    def _read_seal(self) -> DdlSeal | None:
        """Return the seal of the event trigger, read once per slice and after the slice was received.

        If the trigger has been installed without a gap until now, it was installed when the messages were written.
        """
        if not self._seal_read:
            self._seal = read_ddl_seal(self._catalog.connected())
            self._seal_read = True
        return self._seal


def _why_ignored(seal: DdlSeal | None, at: Lsn) -> str:
    """Return why a message that was written at ``at`` is not believed."""
    if seal is None:
        return "the source has no event trigger of Levada"
    if at < seal.since:
        return "Levada's event trigger was installed again since, so tables are compared with the catalog"
    return "Levada's event trigger did not write it"
