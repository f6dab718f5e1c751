"""A part of the registry, and the collaborators that it shares with the others."""

from __future__ import annotations

from dataclasses import dataclass

from levada.destinations import Destination
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.column_choices import ColumnChoices
from levada.runtime.tables.handled_requests import HandledRequests
from levada.runtime.tables.pipeline_tables import PipelineTables
from levada.runtime.tables.shadow_copies import ShadowCopies
from levada.stores.interface import PipelineStore


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The collaborators that the parts of one registry share."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    tables: PipelineTables
    handled: HandledRequests
    columns: ColumnChoices
    shadows: ShadowCopies


class Part:
    """One duty of the registry."""

    def __init__(self, shared: SharedParts) -> None:
        self._config_ref = shared.config_ref
        self._store = shared.store
        self._destination = shared.destination
        self._tables = shared.tables
        self._handled = shared.handled
        self._columns = shared.columns
        self._shadows = shared.shadows
