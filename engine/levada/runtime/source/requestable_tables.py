"""The tables of a pipeline that a retry, a resync or a verification can be requested for, and these requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from levada import codes
from levada.errors import NeedsOperator
from levada.postgres.append_publication import existing_names, list_streamed
from levada.postgres.catalog import read_table_ids, read_table_names
from levada.runtime.config import PipelineConfig
from levada.runtime.source.preparation import covered_tables
from levada.runtime.tables.table_names import selected_name, table_names
from levada.stores.interface import PipelineStore, TableAction
from levada.stores.phases import Errored
from levada.values import QualifiedTable, TableId

_LISTED: Final = 20
"""The number of tables whose names a hint has."""


def request_retry(
    config: PipelineConfig, store: PipelineStore, tables: Collection[QualifiedTable] | None
) -> tuple[QualifiedTable, ...]:
    """Request a retry of those of the tables that are errored, or of every errored table. Return these tables.

    ``store`` is loaded. Raise NeedsOperator ``unknown_table``.
    """
    known = requestable_tables(config, store)
    states = store.get_table_replication_states()
    wanted = once(known) if tables is None else require_known(tables, known)
    errored = tuple(table for table in wanted if isinstance(states.get(known[table]), Errored))
    for table in errored:
        store.request_table_action(known[table], TableAction.RETRY)
    return errored


def request_resync(
    config: PipelineConfig, store: PipelineStore, tables: Collection[QualifiedTable] | None
) -> tuple[QualifiedTable, ...]:
    """Request a resync of the tables, or of all tables of the pipeline. Return these tables.

    ``store`` is loaded. Raise NeedsOperator ``unknown_table``.
    """
    known = requestable_tables(config, store)
    wanted = tuple(sorted(once(known)) if tables is None else require_known(tables, known))
    for table in wanted:
        store.request_table_action(known[table], TableAction.RESYNC)
    return wanted


def _tables_of_start(config: PipelineConfig) -> dict[QualifiedTable, TableId]:
    with config.source.connect(application="tables") as connection:
        return dict(read_table_ids(connection, covered_tables(config, connection)))


def requestable_tables(config: PipelineConfig, store: PipelineStore) -> dict[QualifiedTable, TableId]:
    """Return the tables of the pipeline, and those in its state by their names at the source and in the store.

    Such a table may have been renamed, may have lost what a table of the pipeline needs, or may never have been copied,
    and its hint must work. The current names come first. Without any state in the store, they are the tables that a
    start replicates, also if the publication was lost with the state.
    """
    if not store.get_table_replication_states() and config.publication.managed:
        return _tables_of_start(config)
    states, recorded = store.get_table_replication_states(), table_names(store)
    # The name that `levada status` and the hint of a table have that was renamed without a new version.
    shown = {id_: name for id_ in states if (name := selected_name(store, id_)) is not None}
    try:
        found = dict(known_tables(config))
    except NeedsOperator as error:
        # The start creates it again, and may need this very request.
        if error.code != codes.PUBLICATION_MISSING or not config.publication.managed:
            raise
        found = {}
    for names in (current_names(config, states), shown, recorded):
        for id_, name in names.items():
            if id_ in states:
                found.setdefault(name, id_)
    return found


def current_names(config: PipelineConfig, tables: Collection[TableId]) -> Mapping[TableId, QualifiedTable]:
    """Return the names at the source of those tables that exist there."""
    with config.source.connect(application="tables") as connection:
        return read_table_names(connection, tables)


def once(known: Mapping[QualifiedTable, TableId]) -> dict[QualifiedTable, TableId]:
    """Return each table under the first of its names."""
    first = {id_: name for name, id_ in reversed(list(known.items()))}
    return {name: id_ for id_, name in first.items()}


def known_tables(config: PipelineConfig) -> Mapping[QualifiedTable, TableId]:
    """Return the pipeline's tables with their OIDs, from the source's catalog.

    Raise NeedsOperator ``publication_missing`` if there is no publication.
    """
    try:
        with config.source.connect(application="tables") as connection:
            names = existing_names(connection, config.publication.name, config.publication.append)
            published = list_streamed(connection, names)
    except NeedsOperator as error:
        if error.code != codes.PUBLICATION_MISSING or not config.publication.managed:
            raise
        # The hint is no CREATE PUBLICATION: FOR ALL TABLES would break UPDATEs of tables without a replica identity.
        raise NeedsOperator(error.code, f"{error.message}. Starting creates it", hint="levada run MANIFEST") from None
    return {t.name: t.id for t in published if config.is_selected(t.name)}


def require_known(
    tables: Collection[QualifiedTable], known: Mapping[QualifiedTable, TableId]
) -> tuple[QualifiedTable, ...]:
    """Return the tables. Raise NeedsOperator ``unknown_table``, which lists every one that is not ``known``."""
    if isinstance(tables, str) or not isinstance(tables, Collection):
        raise _no_tables(tables)
    if not all(isinstance(table, QualifiedTable) for table in tables):
        raise no_table_name(tables)
    unknown = [str(table) for table in tables if table not in known]
    if unknown:
        raise NeedsOperator(
            "unknown_table",
            f"not a table of this pipeline: {', '.join(unknown)}",
            hint=_known_names(known),
        )
    return tuple(tables)


def _no_tables(given: object) -> NeedsOperator:
    """Return the error for what a program has given in place of a list of tables, such as one table."""
    return NeedsOperator(
        "unknown_table",
        f"not a list of tables: {given!r}",
        hint='give a list with each table: [QualifiedTable("public", "orders")]',
    )


def no_table_name(given: object) -> NeedsOperator:
    """Return the error for what a program has given in place of a QualifiedTable, such as a text."""
    return NeedsOperator(
        "unknown_table",
        f"not a QualifiedTable: {given!r}",
        hint='name a table by QualifiedTable("public", "orders"), or by QualifiedTable.parse("public.orders")',
    )


def _known_names(known: Collection[QualifiedTable]) -> str:
    """Return a hint with the names of these tables, or of the first ones if they are many."""
    names = [table.argument for table in sorted(known)]
    if len(names) > _LISTED:
        return (
            f"its tables are: {' '.join(names[:_LISTED])} and {len(names) - _LISTED} more. All: levada status MANIFEST"
        )
    return f"its tables are: {' '.join(names) or 'none'}"
