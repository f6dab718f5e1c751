"""Memory of the objects that the API server did not take, so that they are not asked for at every turn."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Final

from levada_operator.kube.interface import RequestFailed
from levada_operator.names import digest
from levada_operator.observe.objects import Body, ObjectKey, Refusal

_RETRY_AFTER: Final = timedelta(seconds=30)
_REFUSED_AFTER: Final = timedelta(seconds=10)
"""How long one object must have failed, with any code, to count as refused. An overloaded server recovers sooner."""
_MAX_REMEMBERED: Final = 10_000


class RefusalCache:
    """Remembers refusals by namespace and object. An object with another content is tried at once."""

    def __init__(self) -> None:
        self._refused: dict[tuple[str, ObjectKey], tuple[datetime, str, Refusal]] = {}
        self._failing_since: dict[tuple[str, ObjectKey], datetime] = {}

    def known(self, namespace: str, body: Body, now: datetime) -> Refusal | None:
        """Return the refusal of exactly this object if it is too recent to ask again."""
        refused = self._refused.get((namespace, key_of(body)))
        if refused is None or refused[1] != _content(body) or now - refused[0] >= _RETRY_AFTER:
            return None
        return refused[2]

    def failed(self, namespace: str, body: Body, error: RequestFailed, now: datetime) -> Refusal | None:
        """Return a refusal for a failed request, None if the failure may pass by itself.

        Lasting errors may have the code of passing ones: for a field that its schema does not have, it answers 500.
        """
        key = key_of(body)
        if error.status == 0:
            # An answer that comes after an outage is the first.
            self._failing_since.pop((namespace, key), None)
            return None
        since = self._failing_since.setdefault((namespace, key), now)
        if not error.refused and now - since < _REFUSED_AFTER:
            return None
        if len(self._refused) >= _MAX_REMEMBERED:
            self._refused.clear()
            self._failing_since.clear()
        refusal = Refusal(key, error.message, error.namespace_terminating)
        self._refused[namespace, key] = (now, _content(body), refusal)
        return refusal

    def succeeded(self, namespace: str, body: Body) -> None:
        """Forget what was remembered of an object that was taken."""
        self._refused.pop((namespace, key_of(body)), None)
        self._failing_since.pop((namespace, key_of(body)), None)


def key_of(body: Body) -> ObjectKey:
    """Return the kind and the name of an object."""
    return ObjectKey(body["kind"], body["metadata"]["name"])


def _content(body: Body) -> str:
    # Without the metadata, which may have the time.
    return digest(json.dumps({k: v for k, v in body.items() if k != "metadata"}, sort_keys=True))
