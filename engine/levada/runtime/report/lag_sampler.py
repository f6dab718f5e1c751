"""The lag sampler, a thread that measures how far the replication slot trails the end of the WAL.

It uses a connection of its own. A failed sample is logged and affects nothing else.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime

from levada import codes
from levada.errors import LevadaError
from levada.postgres.connection import PostgresConnection
from levada.postgres.lag import LagSample, sample_lag
from levada.status import SlotProgress
from levada.threads import marked_thread
from levada.values import Lsn

_log = logging.getLogger(__name__)


class LagSampler:
    """A thread that keeps the newest sample of the slot's lag, one every ``every_s`` seconds."""

    def __init__(self, source: PostgresConnection, slot: str, every_s: float) -> None:
        self._every_s = every_s
        self._source = source
        self._slot = slot
        self._sample: tuple[LagSample, datetime] | None = None
        self._restart_lsn: Lsn | None = None
        self._stop = threading.Event()
        self._thread = marked_thread(self._run, "levada-lag")

    def start(self) -> None:
        """Start the thread. It takes its first sample without waiting."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end. A sample under way is not waited for, because it may take 10 s to time out."""
        self._stop.set()

    def forget(self) -> None:
        """Forget the sample, which is that of a slot that was replaced."""
        self._keep(None)

    def progress(self) -> SlotProgress:
        """Return the newest sample. May be called from any thread.

        All its values are None before the first sample, and while the slot does not exist.
        """
        newest = self._sample
        if newest is None:
            return SlotProgress(self._slot, None, None, None, None, None, None)
        sample, at = newest
        return SlotProgress(
            name=self._slot,
            lag_bytes=sample.lag_bytes,
            retained_bytes=sample.retained_bytes,
            wal_status=sample.status.wal_status,
            safe_wal_bytes=sample.status.safe_wal_size,
            active=sample.status.active,
            sampled_at=at,
            restart_lsn=self._restart_lsn,
        )

    def _keep(self, sample: LagSample | None) -> None:
        """Replace the sample, and take the lower restart_lsn of the last two.

        The server has the new one in memory for a moment before it is in the slot's file, where a crash leaves it.
        """
        before = None if self._sample is None else self._sample[0].status.restart_lsn
        now = None if sample is None else sample.status.restart_lsn
        self._restart_lsn = None if before is None or now is None else min(before, now)
        self._sample = None if sample is None else (sample, datetime.now(UTC))

    def _run(self) -> None:
        while True:
            try:
                self._keep(sample_lag(self._source, self._slot))
            except LevadaError as error:
                if error.code == codes.SLOT_FOREIGN:
                    self._keep(None)
                _log.warning("sampling the lag of the slot failed: %s", error.message)
            except BaseException:
                _log.warning("sampling the lag of the slot failed", exc_info=True)
            if self._stop.wait(self._every_s):
                return
