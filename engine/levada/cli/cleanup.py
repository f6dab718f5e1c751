"""`levada cleanup`: remove what a pipeline left behind, as its deletionPolicy says; may be run again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from levada.cli.engine import running_progress, sole_user
from levada.cli.exits import Exit
from levada.cli.output import console
from levada.destinations import Destination
from levada.errors import DestinationChanged, NeedsOperator
from levada.postgres.ddl import remove_ddl_trigger
from levada.postgres.publications import drop_publication
from levada.postgres.slots import drop_slot, inspect_slot, pipelines
from levada.runtime.access_token import request_headers
from levada.runtime.config import PipelineConfig
from levada.runtime.controls import made
from levada.runtime.destination_errors import destination_errors
from levada.runtime.manifest import build, open_store, pipeline_config
from levada.runtime.source_record import SourceRecord
from levada.runtime.staging_area import open_staging
from levada.schema import ReplicatedTableSchema
from levada.segments.log import SegmentLog
from levada.spec import Manifests, Remains
from levada.stores.readiness import postgres_store_exists

_PLACELESS: Final = frozenset({"destination_name_unusable", "table_not_ours"})
"""Codes of tables that never had a place at the destination."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to remove; ``remove`` says what it did, and is no error if the thing is gone."""

    what: str
    remove: Callable[[], str]


def cleanup(manifests: Manifests, secrets: Path | None, work_dir: Path, *, confirmed: bool) -> Exit:
    """List what is to be removed, ask unless ``confirmed``, and remove it."""
    if running_progress(work_dir, manifests.pipeline.metadata.name, request_headers(manifests, secrets)) is not None:
        raise NeedsOperator(
            "engine_running", f"the engine of {work_dir} is running", hint="stop it first: press Ctrl-C where it runs"
        )
    # An engine that is still starting reports no progress, but holds its work folder. None starts there meanwhile.
    with sole_user(work_dir) if work_dir.is_dir() else nullcontext():
        return _cleanup(manifests, secrets, work_dir, confirmed=confirmed)


def _cleanup(manifests: Manifests, secrets: Path | None, work_dir: Path, *, confirmed: bool) -> Exit:
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    steps = list(plan(manifests, config, secrets))
    out = console()
    for step in steps:
        out.print(f"to be removed: {step.what}", markup=False)
    if not confirmed and not typer.confirm("Remove them?"):
        raise typer.Abort
    for step in steps:
        out.print(step.remove(), markup=False)
    return Exit.OK


def plan(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> Iterator[Step]:
    """Yield the steps in an order in which a failure leaves nothing that a second run would not find."""
    policy = manifests.pipeline.spec.deletion_policy
    if policy.slot is Remains.DELETE:
        yield Step(f"slot {config.slot.name}", lambda: _drop_slot(manifests, config))
    if policy.destination_tables is Remains.DELETE:
        yield Step("the tables at the destination, with their data", lambda: _drop_tables(manifests, config, secrets))
    if policy.state is Remains.DELETE:
        yield Step("what is kept of the pipeline, and what it staged", lambda: _forget(manifests, config))
    if policy.publication is Remains.DELETE and config.publication.managed:
        yield Step(f"publication {config.publication.name}", lambda: _drop_publication(config))
    if policy.slot is Remains.DELETE:
        yield Step("the event trigger, unless another pipeline needs it", lambda: _drop_trigger(config))


def _take_over(manifests: Manifests, config: PipelineConfig) -> None:
    """Take the pipeline over, so that an engine that is still starting elsewhere fails before it makes a slot.

    One that streams is left alone: the slot that it holds cannot be dropped.
    """
    postgres = manifests.pipeline.spec.store.postgres
    if postgres is not None and not postgres_store_exists(config.source, postgres.schema_name):
        return
    with config.source.connect(application="cleanup") as connection:
        slot = inspect_slot(connection, config.slot.name)
    if slot is None or not slot.active:
        store = open_store(manifests, config)
        try:
            store.next_epoch()
        finally:
            store.close()


def _drop_slot(manifests: Manifests, config: PipelineConfig) -> str:
    _take_over(manifests, config)
    with config.source.connect(application="cleanup") as connection:
        dropped = drop_slot(connection, config.slot.name)
    return f"slot {config.slot.name}: " + ("dropped" if dropped else "there is none")


def _forget(manifests: Manifests, config: PipelineConfig) -> str:
    store = open_store(manifests, config)
    try:
        # Taken over first: an engine that still runs somewhere may write no more.
        store.next_epoch()
        store.delete_pipeline_state()
    finally:
        store.close()
    log = SegmentLog(open_staging(config.staging), config.name)
    log.collect_garbage()
    segments = log.list()
    for segment in segments:
        log.remove(segment)
    shutil.rmtree(config.work_dir / "destination", ignore_errors=True)
    return f"state: forgotten, with {len(segments)} staged segments"


def _drop_tables(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> str:
    store = open_store(manifests, config)
    try:
        store.load_table_schemas()
        store.load_table_controls()
        store.load_fingerprints()
        newest = {schema.id: schema for schema in store.get_table_schemas()}
        copied_as = {id_: made(store.get_table_controls(id_)) for id_ in newest}
        former = SourceRecord(store).former
    finally:
        store.close()
    if not newest:
        return "destination: no table is known"
    with build(manifests, secrets=secrets, work_dir=config.work_dir) as parts:
        parts.source.renew(former)
        with destination_errors(type(parts.destination), "startup"):
            parts.destination.startup()
        try:
            kept = []
            for schema in newest.values():
                if (before := copied_as[schema.id]) is not None:
                    # A table that was renamed at the source is where its copy was made.
                    parts.told[schema.name] = before.settings(schema.name)
                if (error := _drop_table(parts.destination, schema)) is not None:
                    kept.append(error)
        finally:
            parts.destination.shutdown()
    return "; ".join([f"destination: {len(newest) - len(kept)} tables dropped", *(f"kept: {e.message}" for e in kept)])


def _drop_table(destination: Destination, schema: ReplicatedTableSchema) -> NeedsOperator | None:
    """Drop the table; return the error if it stays, because the one in its place is another's, or it has no place."""
    try:
        destination.drop_table_for_copy(schema)
    except NeedsOperator as error:
        if not isinstance(error, DestinationChanged) and error.code not in _PLACELESS:
            raise
        return error
    return None


def _drop_publication(config: PipelineConfig) -> str:
    with config.source.connect(application="cleanup") as connection:
        dropped = drop_publication(connection, config.publication.name)
    return f"publication {config.publication.name}: " + ("dropped" if dropped else "there is none")


def _drop_trigger(config: PipelineConfig) -> str:
    with config.source.connect(application="cleanup") as connection:
        others = pipelines(connection) - {config.name}
        if others:
            return f"event trigger: kept for {', '.join(sorted(others))}"
        return "event trigger: " + ("removed" if remove_ddl_trigger(connection) else "there is none")
