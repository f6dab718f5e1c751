"""A plan: what is to be done about one Pipeline. Carried out by `levada_operator.act`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from levada_operator.decide.events import EventDraft
from levada_operator.observe.objects import ObjectKey


@dataclass(frozen=True, slots=True)
class StatusWrite:
    """A status to write. ``beyond_counters``: more than counters changed."""

    key: ObjectKey
    status: dict[str, Any]
    beyond_counters: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything to do about a Pipeline. ``release``: nothing of the Pipeline is left to clean up.

    ``updates``: a running driver is replaced by this plan. No other driver has that turn until it is carried out.
    ``waits``: a running driver would be replaced, and has no turn yet.

    ``rehearse``: objects that the API server checks before anything is applied. Some of them are never applied.
    """

    rehearse: tuple[dict[str, Any], ...] = ()
    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[ObjectKey, ...] = ()
    statuses: tuple[StatusWrite, ...] = ()
    events: tuple[EventDraft, ...] = ()
    release: bool = False
    updates: bool = False
    waits: bool = False

    @property
    def empty(self) -> bool:
        """Tell whether there is nothing to do."""
        return not (self.apply or self.delete or self.statuses or self.events)
