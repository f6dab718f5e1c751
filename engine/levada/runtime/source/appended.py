"""The tables of the second publication: those without a replica identity that the manifest appends."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.append_publication import create_append, create_append_statement, read_append, settle_members
from levada.postgres.publication_owners import mark_publication, read_publication_owner
from levada.postgres.publications import read_publication
from levada.runtime.config import PipelineConfig
from levada.runtime.source.row_filters import settle_filters
from levada.runtime.tables.append_record import is_streamed, record_append, record_streamed
from levada.runtime.tables.publication_gaps import has_publication_record
from levada.values import PipelineOwner, QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore

_LOCK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of `settle_appended`.

    ``tables`` are those that are appended, once they are streamed. ``unfiltered``, ``refused`` and ``locked`` are those
    of `levada.runtime.source.row_filters.Settled`. ``waits`` is True while the stream
    lacks the publication, and ``locked`` says so.
    """

    tables: frozenset[QualifiedTable] = frozenset()
    unfiltered: frozenset[TableId] = frozenset()
    refused: NeedsOperator | None = None
    locked: Transient | None = None
    waits: bool = False


def settle_appended(
    config: PipelineConfig,
    connection: psycopg.Connection[Any],
    store: PipelineStore,
    owner: PipelineOwner | None,
    unidentified: Collection[QualifiedTable],
) -> Appended:
    """Let the second publication have the tables without a replica identity that the manifest appends.

    A table that has got an identity leaves it. The publication is created with the first such setting, and recorded.
    """
    name, check = config.publication.append, store.require_epoch
    if not config.appends_any and read_publication(connection, name) is None:
        return Appended()
    wanted = {t for t in unidentified if config.appends(t)}
    refused = None
    if config.appends_any:
        try:
            create_append(connection, name, check=check)
        except NeedsOperator as error:
            refused = _not_created(name, error)
    found = read_append(connection, name)
    if found is None:
        record_streamed(store, 0)
        return Appended(refused=refused or (_of_another(name) if wanted else None))
    if owner is not None and read_publication_owner(connection, name) is None:
        mark_publication(connection, name, owner, check=check)
    filtered = {t for t in wanted if config.row_filter(t) is not None}
    errors = list(settle_members(connection, name, wanted, filtered, check=check, lock_timeout_s=_LOCK_S))
    filters = settle_filters(config, connection, store, wanted, _LOCK_S, name)
    record_append(store, found, before_slot=not has_publication_record(store))
    errors += [e for e in (filters.refused, filters.locked) if e is not None]
    waits = bool(wanted) and not is_streamed(store, found)
    if waits:
        errors.append(_waits(name))
    return Appended(
        frozenset(wanted),
        filters.unfiltered,
        next((e for e in errors if isinstance(e, NeedsOperator)), None),
        next((e for e in errors if isinstance(e, Transient)), None),
        waits,
    )


def _waits(name: str) -> Transient:
    return Transient(
        "append_waits",
        f"publication {name} was created after the slot, so its tables are copied once the stream begins after"
        " transactions that are older than it",
        hint="SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL ORDER BY xact_start",
    )


def _not_created(name: str, error: LevadaError) -> NeedsOperator:
    return NeedsOperator(
        "publication_incomplete",
        f"publication {name} of tables without a key cannot be created: {error.message}",
        hint=f"as a role that may create and own it: {create_append_statement(name)}",
    )


def _of_another(name: str) -> NeedsOperator:
    return NeedsOperator(
        "publication_incomplete",
        f"publication {name} publishes UPDATEs or DELETEs, so tables without a key are not added to it",
        hint="give it another name, and the pipeline creates its own one",
    )
