"""Rollback of a failed start at the source.

A failed start drops the objects that it created, and none that existed before.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada import codes
from levada.errors import LevadaError, StaleEpoch
from levada.postgres.ddl import remove_ddl_trigger
from levada.postgres.ddl_functions import TRIGGER
from levada.postgres.failures import source_errors
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.publications import drop_publication, read_publication
from levada.postgres.slots import drop_slot, inspect_slot, is_foreign
from levada.postgres.withdrawals import withdraw_statement
from levada.runtime.config import PipelineConfig
from levada.stores.interface import PipelineStore
from levada.stores.slot_owners import other_pipelines
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)

_MEMBERS: Final = """
SELECT n.nspname, c.relname FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class SourceObjects:
    """The existing objects that a start creates if they are missing.

    ``members`` are the tables of the publication, or None without a publication. ``trigger`` is the event trigger, and
    ``appended`` the second publication.
    """

    slot: bool
    members: frozenset[QualifiedTable] | None
    trigger: bool
    appended: bool = False


def read_source_objects(config: PipelineConfig) -> SourceObjects | None:
    """Return the pipeline's objects that exist at the source, before a start creates any.

    Return None if they cannot be read. The start then fails with the same error before it creates anything.
    """
    try:
        with SESSIONS.session(config.source, "start") as connection:
            return _read(connection, config)
    except LevadaError as error:
        _log.debug("the objects at the source cannot be read, which the start reports as well: %s", error)
        return None


def roll_back_start(config: PipelineConfig, store: PipelineStore, before: SourceObjects, error: BaseException) -> None:
    """Drop the slot, the trigger and the publication that a failed start created, or the tables that it published.

    ``error`` is the error of the start. Nothing is dropped if another process has taken over the pipeline, or if
    another Pipeline owns it. A slot that another process uses stays. The trigger stays while another pipeline has a
    slot in the database, because it serves all of them. Failures are logged.
    """
    if isinstance(error, StaleEpoch) or (isinstance(error, LevadaError) and error.code == codes.NOT_THE_OWNER):
        # A start of another owner is refused before it creates anything. Any new object is the owner's.
        return
    try:
        # If another process has taken over the pipeline meanwhile, the slot belongs to that process.
        store.require_epoch()
    except Exception as refused:
        _log.warning("the objects that the failed start created at the source are kept: %s", refused)
        return
    try:
        with SESSIONS.session(config.source, "start") as connection:
            _roll_back(connection, config, before)
    except Exception as failure:
        _log.warning(
            "cannot drop slot %s and publication %s of the failed start, the next start uses them: %s",
            config.slot.name,
            config.publication.name,
            failure,
        )


def _roll_back(connection: psycopg.Connection[Any], config: PipelineConfig, before: SourceObjects) -> None:
    now = _read(connection, config)
    if now.slot and not before.slot:
        drop_slot(connection, config.slot.name, wait_s=0)
        _log.info("dropped slot %s, which the failed start had created", config.slot.name)
    others = other_pipelines(connection, config.slot.name, config.publication.name)
    if now.trigger and not before.trigger and not others:
        remove_ddl_trigger(connection)
    if not config.publication.managed or now.members is None:
        return
    if now.appended and not before.appended:
        drop_publication(connection, config.publication.append)
        _log.info("dropped publication %s, which the failed start had created", config.publication.append)
    name = config.publication.name
    if before.members is None:
        drop_publication(connection, name)
        _log.info("dropped publication %s, which the failed start had created", name)
    elif added := sorted(now.members - before.members):
        for table in added:
            with source_errors(f"changing publication {name}"):
                connection.execute(withdraw_statement(name, table).encode())


@source_errors("reading the pipeline's slot, publication and trigger")
def _read(connection: psycopg.Connection[Any], config: PipelineConfig) -> SourceObjects:
    status = inspect_slot(connection, config.slot.name)
    slot = status is not None and not is_foreign(status, config.source.database)
    members = None
    if read_publication(connection, config.publication.name) is not None:
        rows = connection.execute(_MEMBERS, [config.publication.name]).fetchall()
        members = frozenset(QualifiedTable(*row) for row in rows)
    found = connection.execute("SELECT FROM pg_event_trigger WHERE evtname = %s", [TRIGGER]).fetchone()
    append = config.publication.append
    appended = bool(append) and read_publication(connection, append) is not None
    return SourceObjects(slot, members, found is not None, appended)
