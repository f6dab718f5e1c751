"""The parts that the supervisor's stages share."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Final

from levada.destinations import Destination
from levada.runtime.config_ref import LiveConfig
from levada.runtime.stages.messages import Report
from levada.runtime.tables.registry import Roster
from levada.stores.interface import PipelineStore

MAX_COPIES: Final = 64
"""The most threads for copies that the manifest may ask for. Each thread is started when it is needed."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """The state that stages work on, and the ``inbox`` in which their jobs report to the supervisor."""

    live: LiveConfig
    roster: Roster
    store: PipelineStore
    destination: Destination
    inbox: queue.SimpleQueue[Report]


class Stage:
    """Runs jobs in threads of its own. The methods belong to the supervisor's thread, unless marked otherwise."""

    def __init__(self, parts: StageParts) -> None:
        self._live = parts.live
        self._roster = parts.roster
        self._store = parts.store
        self._destination = parts.destination
        self._inbox = parts.inbox
