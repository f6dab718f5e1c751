"""Random delays that show what a test reads too early, or too late.

`$LEVADA_TEST_LATE` switches them on. It has a seed and the kinds of what is late. ``7:test`` delays a test before and
after each wait. Of an operator that a test starts, ``7:Event`` delays Events, ``7:Pipeline/status,Job`` statuses of
Pipelines and Jobs, ``7:writes`` all of its writes, and ``7:lists`` the answers to its lists.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final

VARIABLE: Final = "LEVADA_TEST_LATE"
TEST: Final = "test"
WRITES: Final = "writes"
LISTS: Final = "lists"
_SHARE: Final = 0.5
_RANGE_S: Final = (0.2, 3.0)
"""More than the pause between two looks of a test that waits, and less than a time-out of the operator's requests."""


class Late:
    """The delays. Several threads may wait. The processes of each test have others."""

    def __init__(self, wanted: str, test: str = "") -> None:
        seed, _, kinds = wanted.partition(":")
        self._random = random.Random(f"{seed} {test}")
        self._kinds = frozenset(kinds.split(",")) - {""}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def wait(self, *kinds: str) -> None:
        """Wait for a random time, in half of the calls, if one of the kinds is late."""
        if not self._kinds.isdisjoint(kinds) and self._random.random() < _SHARE:
            time.sleep(self._random.uniform(*_RANGE_S))


LATE: Final = Late(os.environ.get(VARIABLE, ""), os.environ.get("PYTEST_CURRENT_TEST", ""))
OPERATOR: Final = "tests.cluster.late_operator" if LATE else "levada_operator"
"""The module that starts the operator. The first one needs the repository as its working folder."""
