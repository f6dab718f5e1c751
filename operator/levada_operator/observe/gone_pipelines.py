"""The Pipelines that went with the operator's finalizer, as they were last.

The operator removes its finalizer after the clean-up, and knows the object without it from the answer to that write. An
object that goes and is known with the finalizer has lost it by another hand: its slot may be left at the source. After
a restart nothing is known of those that went meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from levada_operator.names import FINALIZER
from levada_operator.observe.objects import Body, ObjectKey, PipelineKey


class GonePipelines:
    """Those that were not looked at yet, as they are when their Pipeline is reconciled the next time."""

    def __init__(self) -> None:
        self._gone: dict[PipelineKey, tuple[Body, dict[ObjectKey, Body]]] = {}

    def keep(self, key: PipelineKey, body: Body, children: Mapping[ObjectKey, Body]) -> None:
        """Keep a Pipeline that is gone with the objects that it owned, if it had the finalizer."""
        if FINALIZER in (body["metadata"].get("finalizers") or ()):
            self._gone[key] = body, dict(children)

    def get(self, key: PipelineKey) -> tuple[Body, dict[ObjectKey, Body]] | None:
        """Return a Pipeline and its objects."""
        return self._gone.get(key)

    def keys(self) -> list[PipelineKey]:
        """Return all of them."""
        return [*self._gone]

    def forget(self, key: PipelineKey) -> None:
        """Forget a Pipeline."""
        self._gone.pop(key, None)
