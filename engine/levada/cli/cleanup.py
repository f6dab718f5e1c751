"""`levada cleanup`: remove what a pipeline left behind, as its deletionPolicy says, and release the rest.

May be run again. Nothing is removed if any part of it belongs to another Pipeline.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import typer

from levada.cli.engine import running_progress, sole_user
from levada.cli.exits import Exit
from levada.cli.output import console
from levada.destinations import Destination
from levada.errors import DestinationChanged, LevadaError, NeedsOperator
from levada.postgres.ddl import remove_ddl_trigger
from levada.postgres.publications import drop_publication
from levada.postgres.slots import drop_slot, inspect_slot
from levada.runtime.config import PipelineConfig
from levada.runtime.destination_errors import destination_errors
from levada.runtime.host.access_token import request_headers
from levada.runtime.host.assembly import build, open_store, pipeline_config
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.ownership import (
    identify,
    refuse,
    release,
    require_owner,
    source_holdings,
    staging_holdings,
    store_holdings,
)
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.requests import made
from levada.schema import ReplicatedTableSchema
from levada.segments.log import SegmentLog
from levada.spec import Manifests, Remains
from levada.stores.readiness import postgres_store_exists
from levada.stores.slot_owners import slots_of_others
from levada.values import PipelineOwner

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
    owner = _required_owner(manifests, config)
    steps = list(plan(manifests, config, secrets, owner))
    out = console()
    for step in steps:
        out.print(f"to be removed: {step.what}", markup=False)
    if not confirmed and not typer.confirm("Remove them?"):
        raise typer.Abort
    for step in steps:
        out.print(step.remove(), markup=False)
    return Exit.OK


def _required_owner(manifests: Manifests, config: PipelineConfig) -> PipelineOwner:
    """Return this process's Pipeline; raise NeedsOperator ``not_the_owner`` if any place belongs to another one."""
    record = None
    if _has_store(manifests, config):
        store = open_store(manifests, config)
        try:
            record = store.get_owner_record()
        finally:
            store.close()
    owner = identify(config, record, volatile=manifests.pipeline.spec.store.memory is not None)
    # The former owner is still the owner as long as nothing was taken over.
    config = replace(config, take_over_from="")
    refuse(config, owner, store_holdings(config, record))
    try:
        refuse(config, owner, staging_holdings(config, open_staging(config.staging)))
    except LevadaError as error:
        # A staging area that does not answer keeps no slot from being dropped. Its owner is read again before use.
        if error.code in ("not_the_owner", "owner_unreadable"):
            raise
    with config.source.connect(application="cleanup") as connection:
        refuse(config, owner, source_holdings(config, connection))
    return owner


def _has_store(manifests: Manifests, config: PipelineConfig) -> bool:
    """Return False if the store would have to be made first."""
    postgres = manifests.pipeline.spec.store.postgres
    return postgres is None or postgres_store_exists(config.source, postgres.schema_name)


def plan(manifests: Manifests, config: PipelineConfig, secrets: Path | None, owner: PipelineOwner) -> Iterator[Step]:
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
    forget = policy.state is Remains.DELETE
    yield Step(
        "the ownership of what stays, so that another Pipeline may claim it",
        lambda: _release(manifests, config, owner, forget=forget),
    )


def _take_over(manifests: Manifests, config: PipelineConfig) -> None:
    """Take the pipeline over, so that an engine that is still starting elsewhere fails before it makes a slot.

    One that streams is left alone: the slot that it holds cannot be dropped.
    """
    if not _has_store(manifests, config):
        return
    with config.source.connect(application="cleanup") as connection:
        slot = inspect_slot(connection, config.slot.name)
    if slot is None or not slot.active:
        store = open_store(manifests, config)
        try:
            require_owner(config, store)
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
        # First: an engine that still runs somewhere may write no more.
        owner = require_owner(config, store)
        staging = open_staging(config.staging)
        refuse(config, owner, staging_holdings(config, staging))
        store.next_epoch()
        store.delete_pipeline_state()
    finally:
        store.close()
    log = SegmentLog(staging, config.name)
    log.collect_garbage()
    segments = log.list()
    for segment in segments:
        log.remove(segment)
    shutil.rmtree(config.work_dir / "destination", ignore_errors=True)
    return f"state: forgotten, with {len(segments)} staged segments"


def _release(manifests: Manifests, config: PipelineConfig, owner: PipelineOwner, *, forget: bool) -> str:
    store = open_store(manifests, config)
    try:
        release(config, store, open_staging(config.staging), owner, forget=forget)
    finally:
        store.close()
    return "ownership: released"


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
        others = slots_of_others(connection, config.slot.name)
        if others:
            return f"event trigger: kept for {', '.join(f'slot {slot}' for slot in sorted(others))}"
        return "event trigger: " + ("removed" if remove_ddl_trigger(connection) else "there is none")
