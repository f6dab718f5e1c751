"""When a table's next batch is due: late enough to be large, early enough to keep its freshness. Pure."""

from __future__ import annotations

from typing import Final

_SHARE_OF_FRESHNESS: Final = 0.25
"""Waiting for a quarter of what a table may trail leaves the rest for staging, the commit and a slow disk."""
_DUTY: Final = 3.0
"""Applying takes at most a quarter of the time, unless freshness would suffer."""
_LATEST: Final = 0.5


def due(waited_s: float, last_apply_s: float, freshness_s: float, pending_rows: int, max_rows: int) -> bool:
    """Tell whether to apply now.

    ``waited_s``: seconds since the oldest pending change, as far as its segment tells. ``last_apply_s``: seconds that
    the table's last batch took. ``freshness_s``: seconds that the table may trail its source. A full batch is always
    due.
    """
    if pending_rows >= max_rows:
        return True
    wait = max(freshness_s * _SHARE_OF_FRESHNESS, last_apply_s * _DUTY)
    return waited_s >= min(wait, freshness_s * _LATEST)
