"""Requests to retry or resync tables, which the engine reads from the store, now or at its next start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from levada.errors import NeedsOperator
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, pipeline_config
from levada.runtime.host.owner_check import require_ownership
from levada.runtime.source.requestable_tables import (
    known_tables,
    once,
    request_resync,
    request_retry,
    requestable_tables,
    require_known,
)
from levada.spec import Manifests
from levada.stores.interface import PipelineStore
from levada.stores.phases import Errored, TableReplicationPhase
from levada.values import QualifiedTable, TableId


def retry_tables(
    manifests: Manifests, names: Sequence[str] | None = None, *, secrets: Path | None = None
) -> dict[QualifiedTable, TableReplicationPhase | None]:
    """Request a retry of the named tables that are errored, or of every errored table if ``names`` is None.

    Return the phase of each named table, None for one that was not started. Raise NeedsOperator ``unknown_table`` for a
    name that is no table of the pipeline, and ``not_the_owner`` as `resync_tables` does.
    """
    with _opened(manifests, secrets) as (config, store):
        known = requestable_tables(config, store)
        states = store.get_table_replication_states()
        errored = [t for t, id_ in once(known).items() if isinstance(states.get(id_), Errored)]
        wanted = errored if names is None else resolve(names, known)
        request_retry(config, store, wanted)
        return {t: states.get(known[t]) for t in wanted}


def resync_tables(
    manifests: Manifests, names: Sequence[str] | None = None, *, secrets: Path | None = None
) -> tuple[QualifiedTable, ...]:
    """Request a resync of the named tables, or of all tables if ``names`` is None. Return these tables.

    Without any state in the store, all tables are those that a start replicates, also if the publication was lost with
    the state. Raise NeedsOperator ``unknown_table`` for a name that is no table of the pipeline, and ``not_the_owner``
    if the state, the slot, the publication or the staged changes belong to another Pipeline.
    """
    with _opened(manifests, secrets) as (config, store):
        return request_resync(config, store, None if names is None else [QualifiedTable.parse(name) for name in names])


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


def resolve(names: Sequence[str], known: Mapping[QualifiedTable, TableId]) -> tuple[QualifiedTable, ...]:
    """Return the tables of these names. Raise NeedsOperator ``unknown_table``, which lists every unknown name."""
    return require_known([QualifiedTable.parse(name) for name in names], known)


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
