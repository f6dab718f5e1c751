"""The delay of the stream: for how long the staging area has lacked changes that are in the source's WAL. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from levada.runtime.report.outlook import SMALL_WAL
from levada.status import SlotProgress
from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class Delay:
    """The seconds by which staged changes trail the source, 0 if they do not.

    If it is not ``known``, no transaction of the WAL that waits was staged yet, and the real delay may be longer.
    """

    seconds: float = 0.0
    known: bool = True


class StreamDelay:
    """Measures the delay in one process. Times are in seconds, of the monotonic clock.

    The lag of a table counts from its oldest staged change. Changes that wait in the source's WAL have no such time, as
    after a restart or while a large transaction arrives.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._reached = False

    def add(self, now: float, unstaged: int | None, commit_age_s: float | None) -> Delay:
        """Add the bytes of WAL that are not staged, and return the delay. ``unstaged`` is None if they are not known.

        ``commit_age_s`` is the age of the last transaction that this process has staged, None without one.
        """
        if self._since is None:
            self._since = now
        if unstaged is None or unstaged <= SMALL_WAL:
            self._since, self._reached = now, self._reached or unstaged is not None
            return Delay()
        waited_s = now - self._since
        if commit_age_s is None or (self._reached and commit_age_s >= waited_s):
            return Delay(waited_s, known=False)
        return Delay(max(0.0, commit_age_s))


def bytes_after(slot: SlotProgress, reached: Lsn | None, acknowledged: Lsn | None) -> int | None:
    """Return the bytes of WAL above the LSN ``reached`` as of the slot's last sample, or None without one.

    The slot's lag counts from the acknowledged LSN. Without one, as before the stream is open, all of it is returned.
    """
    if slot.lag_bytes is None or reached is None or acknowledged is None:
        return slot.lag_bytes
    return max(0, slot.lag_bytes - max(0, reached - acknowledged))
