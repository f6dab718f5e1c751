"""A plan: the writes and Events due for one Pipeline. `levada_operator.act` executes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from levada_operator.decide.events import EventDraft
from levada_operator.observe.objects import ObjectKey


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """A status to write. It is written without delay if ``beyond_counters``: something other than counters changed."""

    key: ObjectKey
    status: dict[str, Any]
    beyond_counters: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes and Events due for a Pipeline.

    ``rehearse`` are objects that the API server validates by a dry run before anything is applied. Some of them are
    never applied. If it refuses one, nothing is applied. ``held`` is True if it has refused one before: ``apply`` is
    then what the last accepted spec needs, and is applied in any case.

    ``release`` is True if the finalizer can be removed, because there is nothing left to clean up.
    ``abandoned`` has what may be left then, or is empty.

    ``takes_turn`` is True if the plan replaces a ready driver's pod without a user's change. The driver then holds one
    of the turns of updatePolicy.maxConcurrent. ``waits`` is True if the pod is due to be replaced, but no turn is free.
    """

    rehearse: tuple[dict[str, Any], ...] = ()
    held: bool = False
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectKey, ...] = ()
    statuses: tuple[StatusWrite, ...] = ()
    events: tuple[EventDraft, ...] = ()
    release: bool = False
    abandoned: str = ""
    takes_turn: bool = False
    waits: bool = False

    @property
    def empty(self) -> bool:
        """Return True if there is nothing to write."""
        return not (self.rehearse or self.apply or self.delete or self.statuses or self.events)
