"""The list of deleted Pipelines whose clean-up was given up: a ConfigMap in the operator's own namespace.

Their Events are gone after an hour, and a namespace that was deleted has no objects. The slot at the source stays, and
keeps WAL. An entry stays until a person has removed what is left and takes the entry off, as ``levada orphans`` does,
or until another Pipeline of the namespace has taken over what is left: its own deletion removes it then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from concurrent.futures import Executor
from typing import Final

from levada.status.orphans import Orphan, list_name, read_orphans
from levada_operator.act.elector import LeaseKey
from levada_operator.act.metrics import ABANDONED
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import FIELD_MANAGER, MANAGED_BY

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 900_000
"""The bytes of all entries. A ConfigMap holds 1 MiB, its metadata included."""


class AbandonedCleanups:
    """The list. Use it within one event loop. A failed request is logged, because a deletion does not wait for it."""

    def __init__(self, cluster: Cluster, executor: Executor, lease: LeaseKey) -> None:
        self._cluster = cluster
        self._executor = executor
        self._namespace = lease.namespace
        self._name = list_name(lease.name)
        self._turn = asyncio.Lock()

    async def add(self, orphan: Orphan) -> None:
        """Add a deleted Pipeline."""
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._update, orphan, ())

    async def review(self, taken_over: Collection[tuple[str, str]]) -> None:
        """Set the metric, and take off what has another owner by now.

        ``taken_over`` are the namespaces and UIDs of which a Pipeline there has taken over what was left.
        """
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._update, None, taken_over)

    def _update(self, new: Orphan | None, taken_over: Collection[tuple[str, str]]) -> None:
        try:
            known = self._read()
            kept = {o.key: o for o in known if (o.namespace, o.uid) not in taken_over}
            if new is not None:
                kept = fitting(kept | {new.key: new}, new)
            if kept != {orphan.key: orphan for orphan in known}:
                metadata = {"name": self._name, "namespace": self._namespace, "labels": {MANAGED_BY: FIELD_MANAGER}}
                data = {orphan.key: orphan.text for orphan in kept.values()}
                self._cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
            ABANDONED.set(len(kept))
        except RequestFailed as error:
            _log.warning("ConfigMap %s/%s: %s", self._namespace, self._name, error)

    def _read(self) -> list[Orphan]:
        found = self._cluster.get("ConfigMap", self._namespace, self._name)
        return list(read_orphans((found or {}).get("data") or {}))


def fitting(orphans: dict[str, Orphan], new: Orphan, most: int = MAX_BYTES) -> dict[str, Orphan]:
    """Return the entries that fit. The others are the oldest ones of the namespace with most, which is logged.

    A tenant may delete Pipelines without end. A namespace loses no entry as long as another one has more.
    """
    sizes = {key: _size(orphan) for key, orphan in orphans.items()}
    of_namespace: Counter[str] = Counter()
    for key, orphan in orphans.items():
        of_namespace[orphan.namespace] += sizes[key]
    kept, total = dict(orphans), sum(sizes.values())
    while total > most:
        largest = max(of_namespace, key=lambda namespace: (of_namespace[namespace], namespace == new.namespace))
        oldest = min((o for o in kept.values() if o.namespace == largest), key=lambda o: (o.since, o.key))
        _log.warning(
            "the list of abandoned clean-ups has no room for %s/%s any more: %s",
            oldest.namespace,
            oldest.pipeline,
            oldest.message,
        )
        del kept[oldest.key]
        total -= sizes[oldest.key]
        of_namespace[largest] -= sizes[oldest.key]
    return kept


def _size(orphan: Orphan) -> int:
    return len(orphan.key.encode()) + len(orphan.text.encode())
