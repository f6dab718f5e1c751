"""Events of Kubernetes: one object for what is said again, counted, and not more often than every five minutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from levada_operator.decide.conditions import shortened, timestamp
from levada_operator.decide.events import EVENT_REASONS, Note
from levada_operator.names import API_VERSION, FIELD_MANAGER, digest

AGAIN_AFTER: Final = timedelta(minutes=5)
_MAX_MESSAGE: Final = 1024
"""What the API server takes."""
_MAX_REMEMBERED: Final = 10_000


@dataclass(frozen=True, slots=True)
class About:
    """The object that an Event is about."""

    namespace: str
    uid: str
    note: Note


class EventBook:
    """Remembers what was said."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, str, str], tuple[int, datetime, datetime]] = {}

    def event(self, about: About, now: datetime) -> dict[str, Any] | None:
        """Return the Event to write, None if the same was said just now."""
        note = about.note
        key = (about.uid, note.reason, note.message)
        count, first, last = self._said.get(key, (0, now, None))
        if last is not None and now - last < AGAIN_AFTER:
            return None
        if len(self._said) > _MAX_REMEMBERED:
            self._said.clear()
        self._said[key] = (count + 1, first, now)
        involved = {
            "apiVersion": API_VERSION,
            "kind": note.about.kind,
            "name": note.about.name,
            "namespace": about.namespace,
            "uid": about.uid,
        }
        return _event(
            f"{note.about.name}.{digest(repr(key))}", about.namespace, involved, note, (count + 1, first, now)
        )


def namespace_event(about: About, now: datetime) -> dict[str, Any]:
    """Return the same as an Event about the namespace: into one that is being deleted, nothing can be written."""
    note = about.note
    involved = {"apiVersion": "v1", "kind": "Namespace", "name": about.namespace}
    name = f"{about.namespace}.{digest(about.uid + note.reason)}"
    told = Note(note.about, note.reason, f"{note.about.kind} {about.namespace}/{note.about.name}: {note.message}")
    return _event(name, "default", involved, told, (1, now, now))


def _event(
    name: str, namespace: str, involved: Mapping[str, Any], note: Note, said: tuple[int, datetime, datetime]
) -> dict[str, Any]:
    count, first, last = said
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": dict(involved),
        "type": EVENT_REASONS[note.reason],
        "reason": note.reason,
        "message": shortened(note.message, _MAX_MESSAGE),
        "count": count,
        "firstTimestamp": timestamp(first),
        "lastTimestamp": timestamp(last),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
    }
