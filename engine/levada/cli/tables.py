"""`levada retry` and `levada resync`: requests that the engine takes from the store, now or when it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from levada.cli.exits import Exit
from levada.cli.output import console
from levada.errors import NeedsOperator
from levada.postgres.catalog import published_tables
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, pipeline_config
from levada.spec import Manifests
from levada.stores.interface import PipelineStore, TableAction
from levada.stores.phases import Errored
from levada.values import QualifiedTable, TableId


def retry(manifests: Manifests, secrets: Path | None, names: Sequence[str] | None) -> Exit:
    """Ask for a retry of the named tables, None for every errored one."""
    with _opened(manifests, secrets) as (config, store):
        known = known_tables(config)
        states = store.get_table_replication_states()
        asked = [t for t, id_ in known.items() if isinstance(states.get(id_), Errored)]
        for table in asked if names is None else resolve(names, known):
            phase = states.get(known[table])
            if isinstance(phase, Errored):
                store.request_table_action(known[table], TableAction.RETRY)
                _say(f"{table}: will be retried")
            else:
                _say(f"{table}: {'not begun' if phase is None else phase.name}, there is nothing to retry")
        if names is None and not asked:
            _say("no table is errored")
    return Exit.OK


def resync(manifests: Manifests, secrets: Path | None, names: Sequence[str] | None) -> Exit:
    """Ask for a new copy of the named tables, None for all."""
    with _opened(manifests, secrets) as (config, store):
        known = known_tables(config)
        for table in sorted(known) if names is None else resolve(names, known):
            store.request_table_action(known[table], TableAction.RESYNC)
            _say(f"{table}: will be copied again")
    return Exit.OK


def known_tables(config: PipelineConfig) -> Mapping[QualifiedTable, TableId]:
    """Return the pipeline's tables with their ids, from the source's catalog; raise ``publication_missing``."""
    try:
        with config.source.connect(application="tables") as connection:
            published = published_tables(connection, config.publication.name)
    except NeedsOperator as error:
        if error.code != "publication_missing" or not config.publication.managed:
            raise
        # A statement that publishes all tables would break the UPDATEs of those without a replica identity.
        raise NeedsOperator(error.code, f"{error.message}; a start creates it", hint="levada run MANIFEST") from None
    return {t.name: t.id for t in published if config.selects(t.name)}


def resolve(names: Sequence[str], known: Mapping[QualifiedTable, TableId]) -> list[QualifiedTable]:
    """Return the tables of these names; raise NeedsOperator ``unknown_table`` that lists all that are not known."""
    tables = [QualifiedTable.parse(name) for name in names]
    unknown = [str(table) for table in tables if table not in known]
    if unknown:
        raise NeedsOperator(
            "unknown_table",
            f"not a table of this pipeline: {', '.join(unknown)}",
            hint=f"its tables are: {' '.join(t.argument for t in sorted(known)) or 'none'}",
        )
    return tables


@contextmanager
def _opened(manifests: Manifests, secrets: Path | None) -> Iterator[tuple[PipelineConfig, PipelineStore]]:
    if manifests.pipeline.spec.store.memory is not None:
        raise NeedsOperator(
            "store_is_memory",
            "the pipeline's state is in the memory of its engine: a request from another process cannot reach it",
            hint="use spec.store.postgres; an engine that keeps its state in memory copies every table when restarted",
        )
    config = pipeline_config(manifests, secrets=secrets)
    store = open_store(manifests, config)
    try:
        store.load_table_replication_states()
        yield config, store
    finally:
        store.close()


def _say(line: str) -> None:
    console().print(line, markup=False)
