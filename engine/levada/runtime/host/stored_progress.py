"""The progress of a pipeline that does not run on this machine: the content of its store, and its slot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from levada.errors import LevadaError
from levada.postgres.lag import sample_lag
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, pipeline_config, store_connection
from levada.runtime.host.plugins import target_names
from levada.runtime.host.table_requests import known_tables
from levada.runtime.tables.places import TargetNameOf, target_name
from levada.runtime.tables.record import error_progress
from levada.runtime.tables.requests import last_copy_settings
from levada.spec import Manifests
from levada.status import PipelineState, Progress, SlotProgress, StagingProgress, TableProgress
from levada.stores.interface import PipelineStore
from levada.stores.phases import Errored, TableReplicationPhase
from levada.stores.readiness import postgres_store_exists
from levada.values import QualifiedTable, SnapshotId, TableId


def slot_progress(manifests: Manifests, *, secrets: Path | None = None) -> SlotProgress:
    """Return the slot's lag and retained WAL as of now. Without a slot, every number is None."""
    return _sample_slot(pipeline_config(manifests, secrets=secrets))


def stored_progress(manifests: Manifests, *, secrets: Path | None = None, work_dir: Path | None = None) -> Progress:
    """Return the progress of a pipeline that does not run here, from its store and its slot.

    Numbers of a running process are None.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    now = datetime.now(UTC)
    return Progress(
        pipeline=config.name,
        epoch=0,
        state=PipelineState.STOPPED,
        started_at=now,
        at=now,
        slot=_reachable_slot(config),
        staging=StagingProgress(durable=config.staging.durable is not False),
        tables=tuple(sorted(_stored_tables(manifests, config, secrets), key=lambda t: t.table)),
    )


def _sample_slot(config: PipelineConfig) -> SlotProgress:
    sample = sample_lag(config.source, config.slot.name)
    if sample is None:
        return SlotProgress(config.slot.name)
    return SlotProgress(
        config.slot.name,
        sample.lag_bytes,
        sample.retained_bytes,
        sample.status.wal_status,
        sample.status.safe_wal_size,
        sample.status.active,
        datetime.now(UTC),
    )


def _stored_tables(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> list[TableProgress]:
    """Return the tables in the store. There are none before the first run, which creates the store."""
    postgres = manifests.pipeline.spec.store.postgres
    if postgres is not None:
        connection = store_connection(manifests, config, secrets)
        if not postgres_store_exists(connection, postgres.schema_name):
            return []
    store = open_store(manifests, config, secrets)
    try:
        store.load_table_schemas()
        store.load_table_replication_states()
        store.load_table_controls()
        names, targets = _table_names(store) | _published_names(config), target_names(manifests)
        return [
            replace(
                _table(id_, names.get(id_, QualifiedTable("", f"oid {int(id_)}")), phase),
                destination_table=_place(store, id_, names.get(id_), targets),
            )
            for id_, phase in store.get_table_replication_states().items()
        ]
    finally:
        store.close()


def _table_names(store: PipelineStore) -> dict[TableId, QualifiedTable]:
    """Return the newest name of each table whose schema is in the store."""
    newest: dict[TableId, tuple[SnapshotId, QualifiedTable]] = {}
    for schema in store.get_table_schemas():
        newest[schema.id] = max(
            newest.get(schema.id, (schema.snapshot_id, schema.name)), (schema.snapshot_id, schema.name)
        )
    return {id_: name for id_, (_, name) in newest.items()}


def _published_names(config: PipelineConfig) -> dict[TableId, QualifiedTable]:
    """Return the current names of the pipeline's tables at the source, or none if the source is unavailable."""
    try:
        return {id_: name for name, id_ in known_tables(config).items()}
    except LevadaError:
        return {}


def _place(store: PipelineStore, id_: TableId, name: QualifiedTable | None, targets: TargetNameOf) -> str:
    copied = last_copy_settings(store.get_table_controls(id_))
    return "" if name is None or copied is None else target_name(targets, name, copied)


def _table(id_: TableId, name: QualifiedTable, phase: TableReplicationPhase) -> TableProgress:
    return TableProgress(
        id=id_,
        schema=name.schema,
        name=name.name,
        phase=phase.name,
        error=error_progress(phase) if isinstance(phase, Errored) else None,
    )


def _reachable_slot(config: PipelineConfig) -> SlotProgress:
    try:
        return _sample_slot(config)
    except LevadaError:
        return SlotProgress(config.slot.name)
