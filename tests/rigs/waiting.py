"""The one way in which a test waits: for a condition, with one generous limit, which fails with what it last saw."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.rigs.late import LATE, TEST

_T = TypeVar("_T")

LIMIT_S = 300
"""The longest wait of a test for anything, in seconds. It ends before the limit of pytest."""


def until(
    look: Callable[[], _T],
    accepted: Callable[[_T], object] = bool,
    *,
    alive: Callable[[], object] = lambda: True,
    report: Callable[[], str] = lambda: "",
    limit_s: float = LIMIT_S,
) -> _T:
    """Return the first value of `look` that is accepted.

    Fail with the last value and what `report` adds after the limit, or once `alive` is false: then the value that is
    waited for cannot come any more.
    """
    LATE.wait(TEST)
    end, pause_s, why = time.monotonic() + limit_s, 0.01, ""
    while True:
        seen = look()
        if accepted(seen):
            LATE.wait(TEST)
            return seen
        if why:
            raise AssertionError(f"{why}, last seen: {repr(seen)[:4000]}\n{report()}")
        if not alive():
            why = "what was waited for cannot come any more"
        elif time.monotonic() > end:
            why = f"not within {limit_s:g} s"
        else:
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, 0.2)
