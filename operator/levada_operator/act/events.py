"""Events of Kubernetes: one object for what is said again, counted, and not more often than every five minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from levada_operator.decide.conditions import shortened, timestamp
from levada_operator.decide.events import EVENT_REASONS, EventDraft
from levada_operator.names import API_VERSION, FIELD_MANAGER, digest

REPEAT_AFTER: Final = timedelta(minutes=5)
_MAX_MESSAGE: Final = 1024
"""What the API server takes."""
_MAX_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about."""

    namespace: str
    uid: str
    draft: EventDraft


class EventAggregator:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._recorded: dict[tuple[str, str, str], tuple[int, datetime, datetime]] = {}

    def event(self, about: About, now: datetime) -> dict[str, Any] | None:
        """Return the Event to write, None if the same was said just now."""
        draft = about.draft
        key = (about.uid, draft.reason, draft.message)
        count, first, last = self._recorded.get(key, (0, now, None))
        if last is not None and now - last < REPEAT_AFTER:
            return None
        if len(self._recorded) > _MAX_REMEMBERED:
            self._recorded.clear()
        self._recorded[key] = (count + 1, first, now)
        involved = {
            "apiVersion": API_VERSION,
            "kind": draft.about.kind,
            "name": draft.about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        }
        return _event(
            f"{draft.about.name}.{digest(repr(key))}", about.namespace, involved, draft, (count + 1, first, now)
        )


def namespace_event(about: About, now: datetime) -> dict[str, Any]:
    """Return the same as an Event about the namespace: into one that is being deleted, nothing can be written."""
    draft = about.draft
    involved = {"apiVersion": "v1", "kind": "Namespace", "name": about.namespace}
    name = f"{about.namespace}.{digest(about.uid + draft.reason)}"
    qualified = EventDraft(
        draft.about, draft.reason, f"{draft.about.kind} {about.namespace}/{draft.about.name}: {draft.message}"
    )
    return _event(name, "default", involved, qualified, (1, now, now))


def _event(
    name: str, namespace: str, involved: Mapping[str, Any], draft: EventDraft, seen: tuple[int, datetime, datetime]
) -> dict[str, Any]:
    count, first, last = seen
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": dict(involved),
        "type": EVENT_REASONS[draft.reason],
        "reason": draft.reason,
        "message": shortened(draft.message, _MAX_MESSAGE),
        "count": count,
        "firstTimestamp": timestamp(first),
        "lastTimestamp": timestamp(last),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
    }
