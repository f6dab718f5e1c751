"""The rhythm of connections to a source that is away. Pure."""

from __future__ import annotations

from typing import Final

_FIRST_S: Final = 0.5
_LONGEST_S: Final = 10.0
"""An attempt costs one connection, so an outage need not last longer than the source is away."""
_DOUBLED: Final = 5


def reconnect_delay(attempt: int) -> float:
    """Return the seconds to wait after the ``attempt``-th failure, counted from 1.

    The manifest's ``retries`` do not change it, because they are those of tables.
    """
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt - 1, _DOUBLED))
