"""`levada status` and `levada lag`: read from the running engine, or else from the store and the source."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from levada.cli.exit_codes import Exit
from levada.cli.formatting import size
from levada.cli.output import Output, console, write_json
from levada.cli.render import dashboard
from levada.errors import LevadaError
from levada.postgres.lag import sample_lag
from levada.runtime.config import PipelineConfig
from levada.runtime.host.access_token import request_headers
from levada.runtime.host.assembly import open_store, pipeline_config, target_names
from levada.runtime.host.table_requests import known_tables
from levada.runtime.host.work_dir import engine_is_starting, running_progress
from levada.runtime.tables.places import TargetNameOf, target_name
from levada.runtime.tables.record import error_progress
from levada.runtime.tables.requests import last_copy_settings
from levada.spec import Manifests
from levada.status import (
    PipelineState,
    Progress,
    SlotProgress,
    StagingProgress,
    TableProgress,
)
from levada.stores.interface import PipelineStore
from levada.stores.phases import Errored, TableReplicationPhase
from levada.stores.readiness import postgres_store_exists
from levada.values import QualifiedTable, SnapshotId, TableId

_STARTING: Final = "an engine is starting on this machine. This is the state in the store"


def status(manifests: Manifests, secrets: Path | None, work_dir: Path, output: Output) -> Exit:
    """Print the progress of each table.

    Return `Exit.TABLE_ERRORED` if a table is errored, and `Exit.FAILED` if the pipeline is.
    """
    headers = request_headers(manifests, secrets)
    progress = running_progress(work_dir, manifests.pipeline.metadata.name, headers)
    if progress is None:
        progress = stored_progress(manifests, pipeline_config(manifests, secrets=secrets, work_dir=work_dir))
    if output is Output.JSON:
        write_json(progress.to_json())
    else:
        console().print(dashboard(progress))
        if progress.state == PipelineState.STOPPED:
            words = _STARTING if engine_is_starting(work_dir, headers) else _without_engine(manifests)
            console().print(words, style="dim")
    return verdict(progress)


def verdict(progress: Progress) -> Exit:
    """Return the exit code for scripts: whether the pipeline, or one of its tables, is errored. Pure."""
    if progress.error is not None:
        return Exit.FAILED
    return Exit.TABLE_ERRORED if any(t.error is not None for t in progress.tables) else Exit.OK


def lag(manifests: Manifests, secrets: Path | None, output: Output) -> Exit:
    """Print the slot's lag and its retained WAL."""
    slot = slot_progress(pipeline_config(manifests, secrets=secrets))
    if output is Output.JSON:
        write_json(slot.to_json())
        return Exit.OK
    if slot.sampled_at is None:
        console().print(f"slot {slot.name} does not exist", markup=False)
        return Exit.OK
    console().print(
        f"slot {slot.name}: lag {size(slot.lag_bytes)}, retained {size(slot.retained_bytes)},"
        f" WAL {slot.wal_status or 'unknown'}, {'active' if slot.active else 'inactive'}",
        markup=False,
    )
    return Exit.OK


def slot_progress(config: PipelineConfig) -> SlotProgress:
    """Sample the slot. Without a slot, every number is None."""
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


def stored_progress(manifests: Manifests, config: PipelineConfig) -> Progress:
    """Return the stored progress of a pipeline that does not run here. Numbers of a running process are None."""
    now = datetime.now(UTC)
    return Progress(
        pipeline=config.name,
        epoch=0,
        state=PipelineState.STOPPED,
        started_at=now,
        at=now,
        slot=_reachable_slot(config),
        staging=StagingProgress(durable=config.staging.durable is not False),
        tables=tuple(sorted(stored_tables(manifests, config), key=lambda t: t.table)),
    )


def stored_tables(manifests: Manifests, config: PipelineConfig) -> list[TableProgress]:
    """Return the tables in the store. There are none before the first run, which creates the store."""
    postgres = manifests.pipeline.spec.store.postgres
    if postgres is not None and not postgres_store_exists(config.source, postgres.schema_name):
        return []
    store = open_store(manifests, config)
    try:
        store.load_table_schemas()
        store.load_table_replication_states()
        store.load_table_controls()
        names, targets = table_names(store) | published_names(config), target_names(manifests)
        return [
            replace(
                _table(id_, names.get(id_, QualifiedTable("", f"oid {int(id_)}")), phase),
                destination_table=_place(store, id_, names.get(id_), targets),
            )
            for id_, phase in store.get_table_replication_states().items()
        ]
    finally:
        store.close()


def table_names(store: PipelineStore) -> dict[TableId, QualifiedTable]:
    """Return the newest name of each table whose schema is in the store."""
    newest: dict[TableId, tuple[SnapshotId, QualifiedTable]] = {}
    for schema in store.get_table_schemas():
        newest[schema.id] = max(
            newest.get(schema.id, (schema.snapshot_id, schema.name)), (schema.snapshot_id, schema.name)
        )
    return {id_: name for id_, (_, name) in newest.items()}


def published_names(config: PipelineConfig) -> dict[TableId, QualifiedTable]:
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
        return slot_progress(config)
    except LevadaError:
        return SlotProgress(config.slot.name)


def _without_engine(manifests: Manifests) -> str:
    if manifests.pipeline.spec.store.memory is not None:
        return "no engine answers on this machine. Its store is memory, which does not outlive the process"
    return "no engine answers on this machine. This is the state in the store"
