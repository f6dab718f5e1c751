"""The list of deleted Pipelines whose clean-up was given up: a ConfigMap in the operator's own namespace.

Their Events are gone after an hour, and a namespace that was deleted has no objects. The slot at the source stays, and
keeps WAL. An entry stays until a person has removed what is left, and takes the entry off the list.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor
from datetime import datetime
from typing import Final

from levada_operator.act.elector import LeaseKey
from levada_operator.act.metrics import ABANDONED
from levada_operator.decide.conditions import shortened, timestamp
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import FIELD_MANAGER, MANAGED_BY
from levada_operator.observe.objects import PipelineKey

_log = logging.getLogger(__name__)

MAX_ENTRIES: Final = 500
MAX_OF_NAMESPACE: Final = 20
"""Entries of one namespace. A tenant may delete Pipelines without end."""
_MAX_TEXT: Final = 1024
_MAX_KEY: Final = 253


class AbandonedCleanups:
    """The list. Use it within one event loop. A failed request is logged, because a deletion does not wait for it."""

    def __init__(self, cluster: Cluster, executor: Executor, lease: LeaseKey) -> None:
        self._cluster = cluster
        self._executor = executor
        self._namespace = lease.namespace
        self._name = f"{lease.name}-abandoned"
        self._turn = asyncio.Lock()

    async def add(self, key: PipelineKey, message: str, now: datetime) -> None:
        """Add a deleted Pipeline."""
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._add, key, message, now)

    async def count(self) -> None:
        """Set the metric."""
        async with self._turn:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._count)

    def _add(self, key: PipelineKey, message: str, now: datetime) -> None:
        entry = f"{key.namespace}.{key.name}"[:_MAX_KEY]
        try:
            known = dict(self._read())
            of_namespace = Counter(name.partition(".")[0] for name in known)[key.namespace]
            if entry not in known and (len(known) >= MAX_ENTRIES or of_namespace >= MAX_OF_NAMESPACE):
                _log.warning("the list of abandoned clean-ups has no room for %s/%s: %s", *key, message)
                return
            known[entry] = shortened(f"{timestamp(now)} {message}", _MAX_TEXT)
            metadata = {"name": self._name, "namespace": self._namespace, "labels": {MANAGED_BY: FIELD_MANAGER}}
            self._cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": known})
            ABANDONED.set(len(known))
        except RequestFailed as error:
            _log.warning("ConfigMap %s/%s: %s", self._namespace, self._name, error)

    def _count(self) -> None:
        try:
            ABANDONED.set(len(self._read()))
        except RequestFailed as error:
            _log.warning("ConfigMap %s/%s: %s", self._namespace, self._name, error)

    def _read(self) -> Mapping[str, str]:
        found = self._cluster.get("ConfigMap", self._namespace, self._name)
        return (found or {}).get("data") or {}
