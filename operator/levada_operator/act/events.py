"""Kubernetes Events. A repeated Event is one object with a count, written at most every five minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from levada.values import age_of
from levada_operator.decide.conditions import shortened, timestamp
from levada_operator.decide.events import EVENT_REASONS, EventDraft
from levada_operator.names import API_VERSION, FIELD_MANAGER, MAX_NAME, digest

REPEAT_AFTER: Final = timedelta(minutes=5)
_MAX_MESSAGE: Final = 1024
"""Maximum length of a message that the API server accepts."""
_MAX_ABOUT: Final = MAX_NAME - 17
"""Characters of its object's name that an Event's name begins with. The name of a TableSync may be as long as any."""
_MAX_REMEMBERED: Final = 10_000
_ONE_OF_ALL_MESSAGES: Final = ("ObjectsUnread",)
"""Reasons whose message changes with each object of the namespace. All Pipelines there would get each as an Event."""


@dataclass(frozen=True, slots=True)
class About:
    """A draft of an Event, with the namespace and the UID of its object."""

    namespace: str
    uid: str
    draft: EventDraft


class EventAggregator:
    """Counts repeated Events, as client-go's event correlator does."""

    def __init__(self) -> None:
        self._recorded: dict[tuple[str, str, str], tuple[int, datetime, datetime]] = {}

    def event(self, about: About, now: datetime) -> dict[str, Any] | None:
        """Return the Event to write, or None if the same Event was written within `REPEAT_AFTER`."""
        draft = about.draft
        # A message may be as long as a spec, of which a tenant can write one after the other.
        key = (about.uid, draft.reason, "" if draft.reason in _ONE_OF_ALL_MESSAGES else digest(draft.message))
        count, first, last = self._recorded.get(key, (0, now, None))
        if last is not None and age_of(last, now) < REPEAT_AFTER:
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
        name = f"{draft.about.name[:_MAX_ABOUT].rstrip('-.')}.{digest(repr(key))}"
        return _event(name, about.namespace, involved, draft, (count + 1, first, now))


def namespace_event(about: About, now: datetime) -> dict[str, Any]:
    """Return an Event about the namespace, in namespace default. A namespace that is being deleted accepts no Event."""
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
