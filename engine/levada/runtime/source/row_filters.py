"""The row filters of the manifest, and those that the publication has by them.

PostgreSQL prints a filter differently from what was written. So the store has the text that was applied, with the OID
of the membership that it made, which changes whenever another filter is set.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg

from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.catalog import read_table_ids
from levada.postgres.managed_filters import filter_problem, ignored_filter, read_members, read_schemas, set_filter
from levada.postgres.replica_identity import FILTERS
from levada.runtime.config import PipelineConfig
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore

_RECORD: Final = "row_filters"
_UNKNOWN: Final = 0
"""The OID of a membership whose filter is being set."""

_Filter: TypeAlias = tuple[str | None, int]
"""The filter of a table, and the OID of the membership that has it."""


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of `settle_filters`.

    ``unfiltered`` are the tables that must not be copied, because the publication has no filter of this pipeline's for
    them, and the manifest's could not be set. ``refused`` is the
    first of the errors that last, and ``locked`` that of a table which another session has locked.
    """

    unfiltered: frozenset[TableId] = frozenset()
    refused: NeedsOperator | None = None
    locked: Transient | None = None

    def with_unfiltered(self, tables: frozenset[TableId]) -> Settled:
        """Return the result with more tables that must not be copied."""
        return replace(self, unfiltered=self.unfiltered | tables)


def settle_filters(
    config: PipelineConfig,
    connection: psycopg.Connection[Any],
    store: PipelineStore,
    tables: Collection[QualifiedTable],
    lock_timeout_s: float,
    publication: str = "",
) -> Settled:
    """Publish each table with the manifest's row filter, where the publication has another one from this pipeline.

    ``publication`` is the one of these tables, by default the pipeline's first one.

    The filter of another session on a table without one in the manifest is left as it is.
    """
    kept = _read(store)
    wanted = {t: where for t in tables if (where := config.row_filter(t)) is not None}
    if not wanted and not kept:
        return Settled()
    publication = publication or config.publication.name
    members, schemas = read_members(connection, publication), read_schemas(connection, publication)
    unfiltered, errors = set[TableId](), list[LevadaError]()
    for name, id_ in sorted(read_table_ids(connection, tables).items()):
        where, record, member = wanted.get(name), kept.get(id_), members.get(id_)
        if where is not None and name.schema in schemas:
            unfiltered.add(id_)
            errors.append(ignored_filter(publication, name))
            continue
        if (where, member) == ((None, member) if record is None else record):
            continue
        if where is None and record is not None and record[1] not in (member, _UNKNOWN):
            kept.pop(id_)
        else:
            # First, so that a process that ends here leaves no filter that is taken for another session's.
            kept[id_] = (where, _UNKNOWN)
            _write(store, kept)
            try:
                kept[id_] = (where, _apply(publication, connection, store, (id_, name), where, lock_timeout_s))
            except LevadaError as error:
                errors.append(error)
                _restore(kept, id_, record)
                _write(store, kept)
                if where is not None and (record is None or record[1] != member):
                    unfiltered.add(id_)
                continue
        if where is None:
            kept.pop(id_, None)
        _write(store, kept)
    return Settled(
        frozenset(unfiltered),
        next((e for e in errors if isinstance(e, NeedsOperator)), None),
        next((e for e in errors if isinstance(e, Transient)), None),
    )


def applied_filters(store: PipelineStore) -> Mapping[TableId, str | None]:
    """Return the row filters that the publication has by the manifest. The store's fingerprints are loaded."""
    return {id_: where for id_, (where, _) in _read(store).items()}


def _restore(kept: dict[TableId, _Filter], table: TableId, record: _Filter | None) -> None:
    if record is None:
        del kept[table]
    else:
        kept[table] = record


def _apply(
    publication: str,
    connection: psycopg.Connection[Any],
    store: PipelineStore,
    table: tuple[TableId, QualifiedTable],
    where: str | None,
    lock_timeout_s: float,
) -> int:
    if where is not None and connection.info.server_version < FILTERS:
        error = filter_problem(connection, publication, table, where)
        assert error is not None
        raise error
    check = store.require_epoch
    return set_filter(connection, publication, table, where, check=check, lock_timeout_s=lock_timeout_s)


def _read(store: PipelineStore) -> dict[TableId, _Filter]:
    text = store.get_fingerprint(_RECORD)
    return {} if text is None else {TableId(int(t)): (where, member) for t, (where, member) in json.loads(text).items()}


def _write(store: PipelineStore, kept: Mapping[TableId, _Filter]) -> None:
    store.store_fingerprint(_RECORD, json.dumps({str(int(t)): its for t, its in kept.items()}))
