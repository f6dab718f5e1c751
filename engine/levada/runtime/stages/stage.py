"""The parts that the supervisor's stages share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from levada.destinations import Destination
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Inbox
from levada.runtime.tables.registry import TableRegistry
from levada.stores.interface import PipelineStore

MAX_COPIES: Final = 64
"""The highest number of concurrent copies in a manifest. Each thread is started when it is needed."""


@dataclass(frozen=True, slots=True)
class StageParts:
    """The state that all stages share, and the supervisor's ``inbox`` for the reports of their jobs."""

    config_ref: ConfigRef
    registry: TableRegistry
    store: PipelineStore
    destination: Destination
    inbox: Inbox


class Stage:
    """Runs jobs in threads of its own, and handles their messages.

    Methods without another note are for the supervisor's thread.
    """

    def __init__(self, parts: StageParts) -> None:
        self._config_ref = parts.config_ref
        self._registry = parts.registry
        self._store = parts.store
        self._destination = parts.destination
        self._inbox = parts.inbox
