"""The schedule of batches: late enough for large batches, early enough for the freshness of each table. Pure."""

from __future__ import annotations

from typing import Final

_SHARE_OF_FRESHNESS: Final = 0.25
"""The wait as a share of the freshness. The rest of the time is left for staging, the commit and a slow disk."""
_DUTY: Final = 3.0
"""The wait as a multiple of the last batch's duration. Applying then takes at most a quarter of the time."""
_SHARE_OF_THREADS: Final = 0.5
"""The share of the time in which the threads apply small batches of many tables. Otherwise batches become larger."""
_LATEST: Final = 0.5
"""The longest wait as a share of the freshness. It takes precedence over the duration of batches."""
_BATCHES_PER_THREAD: Final = 2
"""The batch that a thread applies and the next one. One that waits longer lacks what is staged meanwhile."""
_MOST_PER_THREAD: Final = 32
"""The most batches that a thread has, however long it is until more can be started."""


def apply_due(
    waited_s: float,
    last_apply_s: float,
    freshness_s: float,
    pending_rows: int,
    max_rows: int,
    round_s: float = 0.0,
) -> bool:
    """Return True if the table's next batch is due. A full batch is always due.

    ``waited_s`` is the age in seconds of the oldest pending change, by its segment. ``last_apply_s`` is the duration of
    the table's last batch in seconds. ``freshness_s`` is the time in seconds by which the table may trail its source.
    ``round_s`` is the time in seconds in which all threads apply one batch of each table that has pending changes.
    """
    if pending_rows >= max_rows:
        return True
    wait = max(freshness_s * _SHARE_OF_FRESHNESS, last_apply_s * _DUTY, round_s / _SHARE_OF_THREADS)
    return waited_s >= min(wait, freshness_s * _LATEST)


def batches_per_thread(interval_s: float, batch_s: float) -> int:
    """Return how many batches a thread has at a time.

    ``interval_s`` is the time from one start of batches to the next, which is long with thousands of tables. A thread
    then has the batches of ``batch_s`` seconds that it applies meanwhile, and the next one.
    """
    needed = interval_s / batch_s if batch_s > 0 else 0
    return int(min(max(_BATCHES_PER_THREAD, 1 + needed), _MOST_PER_THREAD))
