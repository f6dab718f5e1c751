"""The error of a store that has lost the record of its pipeline, as a start would meet it. Nothing is changed."""

from __future__ import annotations

from levada.errors import LevadaError, NeedsOperator
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.slots import inspect_slot, is_foreign
from levada.runtime.config import PipelineConfig
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.lost_state import has_record, lost_state
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore, TableAction


def is_empty(store: PipelineStore) -> bool:
    """Return True if the store outlives the process and has no record of the pipeline. All of it is loaded.

    A start puts tables with a requested resync back to Init, and then has their states.
    """
    resync = TableAction.RESYNC in store.get_table_actions().values()
    return not (store.volatile or resync or has_record(store))


def find_lost_state(config: PipelineConfig) -> NeedsOperator | None:
    """Return the error ``store_empty`` if a slot or staged segments exist, for a store without a record.

    None as well if the source or the staging area does not answer.
    """
    try:
        with SESSIONS.session(config.source, "check") as connection:
            slot = inspect_slot(connection, config.slot.name)
        end = SegmentLog(open_staging(config.staging), config.name).end()
    except LevadaError:
        return None
    if slot is not None and is_foreign(slot, config.source.database):
        slot = None
    return lost_state(config, slot, end)
