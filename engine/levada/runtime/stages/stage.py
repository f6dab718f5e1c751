"""The parts that the supervisor's stages share."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Final

from levada.destinations import Destination
from levada.runtime.config_ref import ConfigRef
from levada.runtime.stages.messages import Report
from levada.runtime.tables.registry import TableRegistry
from levada.stores.interface import PipelineStore

MAX_COPIES: Final = 64
"""The most threads for copies that the manifest may ask for. Each thread is started when it is needed."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """The state that stages work on, and the ``inbox`` in which their jobs report to the supervisor."""

    config_ref: ConfigRef
    registry: TableRegistry
    store: PipelineStore
    destination: Destination
    inbox: queue.SimpleQueue[Report]


class Stage:
    """Runs jobs in threads of its own. The methods belong to the supervisor's thread, unless marked otherwise."""

    def __init__(self, parts: StageParts) -> None:
        self._config_ref = parts.config_ref
        self._registry = parts.registry
        self._store = parts.store
        self._destination = parts.destination
        self._inbox = parts.inbox
