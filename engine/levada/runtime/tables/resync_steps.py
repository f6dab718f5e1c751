"""The transitions between the steps of a resync with a shadow copy.

========== ======================================== ==================================================
Step       Followed by                              Condition
========== ======================================== ==================================================
NoCopy     Waiting                                  A resync is requested
Waiting    Copying, Abandoned                       Fewer copies run than are allowed
Copying    CatchingUp, Waiting, Abandoned           The copy is complete
CatchingUp NoCopy, Waiting, Abandoned               The copy has replaced the table
Abandoned  NoCopy                                   The copy is removed, or has replaced the table already
========== ======================================== ==================================================

Waiting after a later step discards the copy and begins again. No step is stored. A marker in the store makes the next
process begin with Waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Step(StrEnum):
    """The steps of a resync. Progress shows the values of the three steps in which there is a copy to use."""

    NO_COPY = "NoCopy"
    """The table has no shadow copy, and none is requested."""
    WAITING = "Waiting"
    """The copy waits until fewer copies run."""
    COPYING = "Copying"
    CATCHING_UP = "CatchingUp"
    """Changes since the copy's snapshot are applied to it, until it has all changes that the table has."""
    ABANDONED = "Abandoned"
    """The copy is no longer wanted. It is removed after its job has ended."""


RESYNC_TRANSITIONS: Final[Mapping[Step, frozenset[Step]]] = {
    Step.NO_COPY: frozenset({Step.WAITING}),
    Step.WAITING: frozenset({Step.WAITING, Step.COPYING, Step.ABANDONED}),
    Step.COPYING: frozenset({Step.CATCHING_UP, Step.WAITING, Step.ABANDONED}),
    Step.CATCHING_UP: frozenset({Step.NO_COPY, Step.WAITING, Step.ABANDONED}),
    Step.ABANDONED: frozenset({Step.NO_COPY}),
}
"""The steps that may follow each step. Waiting follows itself if a resync is requested again before it began."""


def check_step(old: Step, new: Step) -> None:
    """Raise ValueError for a transition that `RESYNC_TRANSITIONS` does not have, which is a bug in Levada."""
    if new not in RESYNC_TRANSITIONS[old]:
        raise ValueError(f"{new.value} cannot follow {old.value}")
