"""Requests to retry or resync tables, which the engine reads from the store, now or at its next start."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from levada import codes
from levada.errors import NeedsOperator
from levada.postgres.append_publication import existing_names, list_streamed
from levada.postgres.catalog import read_table_ids, read_table_names
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, pipeline_config
from levada.runtime.host.owner_check import require_ownership
from levada.runtime.source.preparation import covered_tables
from levada.runtime.tables.table_names import table_names
from levada.spec import Manifests
from levada.stores.interface import PipelineStore, TableAction
from levada.stores.phases import Errored, TableReplicationPhase
from levada.values import QualifiedTable, TableId

_LISTED: Final = 20
"""The number of tables whose names a hint has."""


def retry_tables(
    manifests: Manifests, names: Sequence[str] | None = None, *, secrets: Path | None = None
) -> dict[QualifiedTable, TableReplicationPhase | None]:
    """Request a retry of the named tables that are errored, or of every errored table if ``names`` is None.

    Return the phase of each named table, None for one that was not started. Raise NeedsOperator ``unknown_table`` for a
    name that is no table of the pipeline, and ``not_the_owner`` as `resync_tables` does.
    """
    with _opened(manifests, secrets) as (config, store):
        known = _requestable(config, store)
        states = store.get_table_replication_states()
        errored = [t for t, id_ in _once(known).items() if isinstance(states.get(id_), Errored)]
        phases = {t: states.get(known[t]) for t in (errored if names is None else resolve(names, known))}
        for table, phase in phases.items():
            if isinstance(phase, Errored):
                store.request_table_action(known[table], TableAction.RETRY)
    return phases


def resync_tables(
    manifests: Manifests, names: Sequence[str] | None = None, *, secrets: Path | None = None
) -> tuple[QualifiedTable, ...]:
    """Request a resync of the named tables, or of all tables if ``names`` is None. Return these tables.

    Without any state in the store, all tables are those that a start replicates, also if the publication was lost with
    the state. Raise NeedsOperator ``unknown_table`` for a name that is no table of the pipeline, and ``not_the_owner``
    if the state, the slot, the publication or the staged changes belong to another Pipeline.
    """
    with _opened(manifests, secrets) as (config, store):
        begins = names is None and not store.get_table_replication_states()
        known = _tables_of_start(config) if begins else _requestable(config, store)
        tables = tuple(sorted(_once(known)) if names is None else resolve(names, known))
        for table in tables:
            store.request_table_action(known[table], TableAction.RESYNC)
    return tables


def _tables_of_start(config: PipelineConfig) -> Mapping[QualifiedTable, TableId]:
    with config.source.connect(application="tables") as connection:
        return read_table_ids(connection, covered_tables(config, connection))


def _requestable(config: PipelineConfig, store: PipelineStore) -> dict[QualifiedTable, TableId]:
    """Return the tables of the pipeline, and those in its state by their names at the source and in the store.

    Such a table may have been renamed, may have lost what a table of the pipeline needs, or may never have been copied,
    and its hint must work. The current names come first.
    """
    known, recorded = known_tables(config), table_names(store)
    states = store.get_table_replication_states()
    found = dict(known)
    for names in (current_names(config, states), recorded):
        for id_, name in names.items():
            if id_ in states:
                found.setdefault(name, id_)
    return found


def current_names(config: PipelineConfig, tables: Collection[TableId]) -> Mapping[TableId, QualifiedTable]:
    """Return the names at the source of those tables that exist there."""
    with config.source.connect(application="tables") as connection:
        return read_table_names(connection, tables)


def _once(known: Mapping[QualifiedTable, TableId]) -> dict[QualifiedTable, TableId]:
    """Return each table under the first of its names."""
    first = {id_: name for name, id_ in reversed(list(known.items()))}
    return {name: id_ for id_, name in first.items()}


def verifiable_tables(
    manifests: Manifests, names: Sequence[str] | None = None, *, secrets: Path | None = None
) -> tuple[QualifiedTable, ...]:
    """Return the named tables, or all tables of the pipeline if ``names`` is None.

    Raise NeedsOperator ``unknown_table`` for a name that is no table of the pipeline, and ``not_the_owner`` as
    `resync_tables` does.
    """
    config = pipeline_config(manifests, secrets=secrets)
    require_ownership(manifests, config, secrets)
    known = known_tables(config)
    return tuple(sorted(known) if names is None else resolve(names, known))


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


def resolve(names: Sequence[str], known: Mapping[QualifiedTable, TableId]) -> list[QualifiedTable]:
    """Return the tables of these names. Raise NeedsOperator ``unknown_table``, which lists every unknown name."""
    tables = [QualifiedTable.parse(name) for name in names]
    unknown = [str(table) for table in tables if table not in known]
    if unknown:
        raise NeedsOperator(
            "unknown_table",
            f"not a table of this pipeline: {', '.join(unknown)}",
            hint=_known_names(known),
        )
    return tables


def _known_names(known: Collection[QualifiedTable]) -> str:
    """Return a hint with the names of these tables, or of the first ones if they are many."""
    names = [table.argument for table in sorted(known)]
    if len(names) > _LISTED:
        return (
            f"its tables are: {' '.join(names[:_LISTED])} and {len(names) - _LISTED} more. All: levada status MANIFEST"
        )
    return f"its tables are: {' '.join(names) or 'none'}"


@contextmanager
def _opened(manifests: Manifests, secrets: Path | None) -> Iterator[tuple[PipelineConfig, PipelineStore]]:
    if manifests.pipeline.spec.store.memory is not None:
        raise _kept_by_engine()
    config = pipeline_config(manifests, secrets=secrets)
    require_ownership(manifests, config, secrets)
    store = open_store(manifests, config, secrets)
    try:
        if store.volatile:
            raise _kept_by_engine()
        store.load_table_replication_states()
        store.load_table_schemas()
        yield config, store
    finally:
        store.close()


def _kept_by_engine() -> NeedsOperator:
    return NeedsOperator(
        "store_is_memory",
        "the pipeline's state is in the memory of its engine: a request from another process cannot reach it",
        hint="use spec.store.postgres. An engine that keeps its state in memory copies every table when restarted",
    )
