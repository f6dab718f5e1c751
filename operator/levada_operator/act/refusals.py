"""Cache of the objects that the API server refused, so that they are not applied again at every reconciliation."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from levada.values import age_of
from levada_operator.decide.comparison import content_digest
from levada_operator.kube.interface import RequestFailed
from levada_operator.observe.objects import Body, ObjectKey, PipelineKey, Refusal

_RETRY_AFTER: Final = timedelta(seconds=30)
_REFUSED_AFTER: Final = timedelta(seconds=10)
"""An object that fails for so long counts as refused, whatever the code. An overloaded API server recovers sooner."""
_MAX_REMEMBERED: Final = 10_000
_STORED_TYPE: Final = "failed to create typed live object"
"""The API server's words for a stored value of another type than the CRD has. A former CRD may have admitted it."""


class RefusalCache:
    """Refusals by namespace and object. An object with changed content is tried without delay."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, ObjectKey], tuple[datetime, str, Refusal]] = {}
        self._failing_since: dict[tuple[str, ObjectKey], datetime] = {}

    def known(self, namespace: str, body: Body, now: datetime) -> Refusal | None:
        """Return the refusal of an object with the same content if it is less than `_RETRY_AFTER` old, else None."""
        refused = self._refused.get((namespace, key_of(body)))
        if refused is None or refused[1] != content_digest(body) or age_of(refused[0], now) >= _RETRY_AFTER:
            return None
        return refused[2]

    def failed(self, namespace: str, body: Body, error: RequestFailed, now: datetime) -> Refusal | None:
        """Return a refusal for a failed request, or None if the failure may be temporary.

        A permanent error may have a code of temporary ones. It counts as permanent after `_REFUSED_AFTER`.
        """
        key = key_of(body)
        if error.status == 0:
            # No answer. After an outage the time of failing starts again.
            self._failing_since.pop((namespace, key), None)
            return None
        if max(len(self._refused), len(self._failing_since)) >= _MAX_REMEMBERED:
            self._refused.clear()
            self._failing_since.clear()
        since = self._failing_since.setdefault((namespace, key), now)
        if not error.refused and age_of(since, now) < _REFUSED_AFTER:
            return None
        content = content_digest(body)
        refusal = Refusal(key, error.message, error.namespace_terminating, content)
        self._refused[namespace, key] = (now, content, refusal)
        return refusal

    def succeeded(self, namespace: str, body: Body) -> None:
        """Forget the refusal of an object that the API server accepted."""
        self._refused.pop((namespace, key_of(body)), None)
        self._failing_since.pop((namespace, key_of(body)), None)


def key_of(body: Body) -> ObjectKey:
    """Return the kind and the name of an object."""
    return ObjectKey(body["kind"], body["metadata"]["name"])


def is_stored_invalid(error: RequestFailed) -> bool:
    """Return True if a Pipeline as it is stored is the reason for the failure, and no part of the request."""
    return _STORED_TYPE in error.message or error.message.startswith("Pipeline.levada.dev ")


def request_text(key: PipelineKey, error: RequestFailed) -> str:
    """Return what the API server says of a refused request about a Pipeline, after the remedy if there is one.

    An Event is cut at its end, and the API server's words may be long.
    """
    text = f"the API server refuses a request: {error.message}"
    if not is_stored_invalid(error):
        return text
    return (
        f"the stored spec does not fit the CRD, correct it: kubectl -n {key.namespace} edit pipeline {key.name}. Until"
        f" then the operator can write neither status nor finalizers, so a deletion does not end: {text}"
    )
