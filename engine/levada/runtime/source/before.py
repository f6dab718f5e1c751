"""The source before a start, so that a start that fails takes back what it made, and nothing that was there before."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import LevadaError, StaleEpoch
from levada.postgres.ddl import TRIGGER, remove_ddl_trigger
from levada.postgres.failures import source_errors
from levada.postgres.publications import drop_publication, read_publication
from levada.postgres.slots import drop_slot, inspect_slot
from levada.runtime.config import PipelineConfig
from levada.stores.interface import PipelineStore
from levada.stores.slot_owners import slots_of_others
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)

_MEMBERS: Final = """
SELECT n.nspname, c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class SourceBefore:
    """What a start could make. ``members`` are the tables of the publication, None if there was no publication."""

    slot: bool
    members: frozenset[QualifiedTable] | None
    trigger: bool


def read_source_before(config: PipelineConfig) -> SourceBefore | None:
    """Return what is there of a pipeline. None if the source does not answer: then nothing is made either."""
    try:
        with config.source.connect(application="start") as connection:
            return _read(connection, config)
    except LevadaError as error:
        _log.debug("the start will report: %s", error)
        return None


def take_back(config: PipelineConfig, store: PipelineStore, before: SourceBefore, error: BaseException) -> None:
    """Drop the slot, the trigger and the publication, or its new members, that were not there before a failed start.

    ``error`` is that of the start. Nothing is dropped if another process has taken the pipeline over, or another
    Pipeline owns it. A slot that another process uses stays, and so does the trigger while another pipeline of the
    database has a slot. What cannot be dropped is logged.
    """
    if isinstance(error, StaleEpoch) or (isinstance(error, LevadaError) and error.code == "not_the_owner"):
        # A start that is refused as not the owner has made nothing, and what has come since is the owner's.
        return
    try:
        # Another process may have taken the pipeline over meanwhile: then the slot is that one's.
        store.require_epoch()
    except Exception as refused:
        _log.warning("what the failed start made at the source stays: %s", refused)
        return
    try:
        with config.source.connect(application="start") as connection:
            _copy_if_published_again(connection, config, before)
    except LevadaError as failure:
        _log.warning(
            "what the failed start made at the source stays until the next start: see slot %s and publication %s: %s",
            config.slot.name,
            config.publication.name,
            failure,
        )


def _copy_if_published_again(connection: psycopg.Connection[Any], config: PipelineConfig, before: SourceBefore) -> None:
    now = _read(connection, config)
    if now.slot and not before.slot:
        drop_slot(connection, config.slot.name, wait_s=0)
        _log.info("slot %s is dropped again", config.slot.name)
    if now.trigger and not before.trigger and not slots_of_others(connection, config.slot.name):
        remove_ddl_trigger(connection)
    if not config.publication.managed or now.members is None:
        return
    name = config.publication.name
    if before.members is None:
        drop_publication(connection, name)
        _log.info("publication %s is dropped again", name)
    elif added := sorted(now.members - before.members):
        tables = sql.SQL(", ").join(sql.Identifier(t.schema, t.name) for t in added)
        with source_errors(f"changing publication {name}"):
            connection.execute(sql.SQL("ALTER PUBLICATION {} DROP TABLE {}").format(sql.Identifier(name), tables))


@source_errors("reading what the pipeline has at the source")
def _read(connection: psycopg.Connection[Any], config: PipelineConfig) -> SourceBefore:
    slot = inspect_slot(connection, config.slot.name) is not None
    members = None
    if read_publication(connection, config.publication.name) is not None:
        rows = connection.execute(_MEMBERS, [config.publication.name]).fetchall()
        members = frozenset(QualifiedTable(*row) for row in rows)
    found = connection.execute("SELECT FROM pg_event_trigger WHERE evtname = %s", [TRIGGER]).fetchone()
    return SourceBefore(slot, members, found is not None)
