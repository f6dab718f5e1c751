"""The removal of what a pipeline left behind, as its deletionPolicy specifies, and the release of the rest.

It can be repeated. Nothing is removed if any part belongs to another Pipeline, or while an engine streams.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from levada.destinations import Destination
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, SlotLost
from levada.postgres.ddl import TRIGGER, foreign_trigger_owner, remove_ddl_trigger
from levada.postgres.publications import drop_publication
from levada.postgres.slots import drop_slot, inspect_slot, validate_slot, wait_until_inactive
from levada.printable import counted
from levada.runtime.config import PipelineConfig
from levada.runtime.host.access_token import request_headers
from levada.runtime.host.assembly import assemble, open_store, pipeline_config, store_connection
from levada.runtime.host.work_dir import engine_running, locked_work_dir, running_pid, running_progress
from levada.runtime.resources.destination_start import start_up
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.ownership import (
    identify,
    release,
    require_own,
    require_owner,
    source_holdings,
    staging_holdings,
    store_holdings,
)
from levada.runtime.tables.requests import table_target
from levada.schema import TableTarget
from levada.segments.log import SegmentLog
from levada.spec import DeletionAction, Manifests
from levada.stores import MemoryStore, PipelineStore
from levada.stores.readiness import postgres_store_exists
from levada.stores.slot_owners import other_pipelines
from levada.values import PipelineOwner

_NOT_CREATED: Final = frozenset({"destination_name_unusable", "table_not_ours"})
"""Codes of errors for which the pipeline never created the table at the destination."""
_DROP_TRIGGER: Final = f"DROP EVENT TRIGGER {TRIGGER};"
WAIT_S: Final = 30.0
"""Seconds to wait for the database session of an engine that has ended."""


@dataclass(frozen=True, slots=True)
class Step:
    """One object to remove. ``remove`` returns a line for the user, and does not fail if the object is gone."""

    what: str
    remove: Callable[[], str]


class Cleanup:
    """The removal steps of one pipeline. See `open_cleanup`."""

    def __init__(
        self, config: PipelineConfig, store: PipelineStore, steps: tuple[Step, ...], foreign: NeedsOperator | None
    ) -> None:
        self.steps = steps
        self.foreign = foreign
        """The error of a slot that has the pipeline's name and is not its own. It stays."""
        self._config = config
        self._store = store

    def run(self) -> Iterator[str]:
        """Remove everything, and yield a line for each step that has ended.

        Raise Transient ``slot_active`` if an engine streams, and StaleEpoch if an engine starts meanwhile.
        """
        _take_over(self._config, self._store, own_slot=self.foreign is None)
        for step in self.steps:
            yield step.remove()


@contextmanager
def open_cleanup(
    manifests: Manifests, *, secrets: Path | None = None, work_dir: Path | None = None
) -> Iterator[Cleanup]:
    """Yield the removal steps of a pipeline whose engine has ended. Nothing is removed before `Cleanup.run`.

    ``work_dir`` is the work folder of the engine, which is locked during the block. Raise NeedsOperator
    ``engine_running`` if an engine uses it, and ``not_the_owner`` if any object belongs to another Pipeline.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    work_dir = config.work_dir
    if running_progress(work_dir, config.name, request_headers(manifests, secrets)) is not None:
        raise engine_running(work_dir, running_pid(work_dir))
    # An engine that is still starting reports no progress, but holds the lock of its work folder.
    with (
        locked_work_dir(work_dir) if work_dir.is_dir() else nullcontext(),
        closing(_open_store(manifests, config, secrets)) as store,
    ):
        owner = _required_owner(manifests, config, store)
        foreign = _foreign_slot(config)
        steps = plan(manifests, config, secrets, owner, store, own_slot=foreign is None)
        yield Cleanup(config, store, tuple(steps), foreign)


def _required_owner(manifests: Manifests, config: PipelineConfig, store: PipelineStore) -> PipelineOwner:
    """Return this process's Pipeline. Raise NeedsOperator ``not_the_owner`` if any object belongs to another one."""
    record = store.get_owner_record()
    owner = identify(config, record, volatile=manifests.pipeline.spec.store.memory is not None)
    # The former owner stays the owner until something is taken over.
    config = replace(config, take_over_from="")
    require_own(config, owner, store_holdings(config, record))
    try:
        require_own(config, owner, staging_holdings(config, open_staging(config.staging)))
    except LevadaError as error:
        # An unreachable staging area must not keep the slot from being dropped. Its owner is read again before use.
        if error.code in ("not_the_owner", "owner_unreadable"):
            raise
    with config.source.connect(application="cleanup") as connection:
        require_own(config, owner, source_holdings(config, connection))
    return owner


def _foreign_slot(config: PipelineConfig) -> NeedsOperator | None:
    """Return the error of a slot that no pipeline of this database can have created, or None."""
    with config.source.connect(application="cleanup") as connection:
        status = inspect_slot(connection, config.slot.name)
    try:
        if status is not None:
            validate_slot(status, config.source.database)
    except SlotLost:
        return None
    except NeedsOperator as error:
        return error
    return None


def _open_store(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> PipelineStore:
    """Open the pipeline's store. If its schema does not exist, return an empty store in memory and create nothing."""
    postgres = manifests.pipeline.spec.store.postgres
    connection = store_connection(manifests, config, secrets)
    if postgres is None or postgres_store_exists(connection, postgres.schema_name):
        return open_store(manifests, config, secrets)
    return MemoryStore(config.name)


def plan(
    manifests: Manifests,
    config: PipelineConfig,
    secrets: Path | None,
    owner: PipelineOwner,
    store: PipelineStore,
    *,
    own_slot: bool,
) -> Iterator[Step]:
    """Yield the removal steps. Their order lets a second run finish what a failed first run left.

    A step raises StaleEpoch, and removes nothing, if an engine has started since this process took the pipeline over.
    """
    policy = manifests.pipeline.spec.deletion_policy
    if policy.slot is DeletionAction.DELETE and own_slot:
        yield Step(f"slot {config.slot.name}", lambda: _drop_slot(config, store))
    if policy.destination_tables is DeletionAction.DELETE:
        yield Step(
            "the tables at the destination, with their data", lambda: _drop_tables(manifests, config, secrets, store)
        )
    if policy.state is DeletionAction.DELETE:
        yield Step("the pipeline's state and its staged changes", lambda: _forget(config, owner, store))
    if policy.publication is DeletionAction.DELETE and config.publication.managed:
        yield Step(f"publication {config.publication.name}", lambda: _drop_publication(config, store))
    if policy.slot is DeletionAction.DELETE:
        yield Step("the event trigger, unless another pipeline needs it", lambda: _drop_trigger(config))
    forget = policy.state is DeletionAction.DELETE
    yield Step(
        "the ownership of what is retained, so that another Pipeline can claim it",
        lambda: _release(config, owner, store, forget=forget),
    )


def _take_over(config: PipelineConfig, store: PipelineStore, *, own_slot: bool) -> None:
    """Start a new epoch, so that an engine that is starting elsewhere fails before it creates a slot.

    Raise Transient ``slot_active`` if an engine streams. The engine then continues.
    """
    if own_slot:
        with config.source.connect(application="cleanup") as connection:
            wait_until_inactive(connection, config.slot.name, WAIT_S)
    require_owner(config, store)
    store.next_epoch()


def _drop_slot(config: PipelineConfig, store: PipelineStore) -> str:
    with config.source.connect(application="cleanup") as connection:
        dropped = drop_slot(connection, config.slot.name, check=store.require_epoch)
    return f"slot {config.slot.name}: " + ("dropped" if dropped else "does not exist")


def _forget(config: PipelineConfig, owner: PipelineOwner, store: PipelineStore) -> str:
    staging = open_staging(config.staging)
    require_own(config, owner, staging_holdings(config, staging))
    store.delete_pipeline_state()
    log = SegmentLog(staging, config.name)
    log.collect_garbage(store.require_epoch)
    segments = log.list()
    # Checked after listing, so that the list has no segment of a newer engine.
    store.require_epoch()
    for segment in segments:
        log.remove(segment)
    shutil.rmtree(config.work_dir / "destination", ignore_errors=True)
    return f"state: removed, with {counted(len(segments), 'staged segment')}"


def _release(config: PipelineConfig, owner: PipelineOwner, store: PipelineStore, *, forget: bool) -> str:
    store.require_epoch()
    release(config, store, open_staging(config.staging), owner, forget=forget)
    return "ownership: released"


def _drop_tables(manifests: Manifests, config: PipelineConfig, secrets: Path | None, store: PipelineStore) -> str:
    store.load_table_schemas()
    store.load_table_controls()
    store.load_fingerprints()
    newest = {schema.id: schema for schema in store.get_table_schemas()}
    targets = [table_target(store, config, schema) for schema in newest.values()]
    if not targets:
        return "destination: no tables in the store"
    with assemble(manifests, secrets=secrets, work_dir=config.work_dir) as parts:
        parts.store.load_fingerprints()
        start_up(parts.destination)
        try:
            errors = [drop_table(parts.destination, target, store) for target in targets]
        finally:
            parts.destination.shutdown()
    kept = [error for error in errors if error is not None]
    dropped = counted(len(targets) - len(kept), "table")
    return ", ".join([f"destination: {dropped} dropped", *(f"kept: {e.message}" for e in kept)])


def drop_table(destination: Destination, target: TableTarget, store: PipelineStore) -> NeedsOperator | None:
    """Drop the table. Return the error if it stays: it belongs to another owner, or was never created.

    Raise StaleEpoch if an engine has started since this process took the pipeline over. Only the store's epoch counts,
    because a restored store has a lower epoch than the tables.
    """
    store.require_epoch()
    try:
        destination.drop_table_for_copy(target)
    except NeedsOperator as error:
        if not isinstance(error, DestinationChanged) and error.code not in _NOT_CREATED:
            raise
        return error
    return None


def _drop_publication(config: PipelineConfig, store: PipelineStore) -> str:
    store.require_epoch()
    with config.source.connect(application="cleanup") as connection:
        dropped = drop_publication(connection, config.publication.name)
    return f"publication {config.publication.name}: " + ("dropped" if dropped else "does not exist")


def _drop_trigger(config: PipelineConfig) -> str:
    with config.source.connect(application="cleanup") as connection:
        others = other_pipelines(connection, config.slot.name, config.publication.name)
        if others:
            return f"event trigger: kept for {', '.join(sorted(others))}"
        if (owner := foreign_trigger_owner(connection)) is not None:
            return f"event trigger: kept, because role {owner} owns it. To remove it, as {owner}: {_DROP_TRIGGER}"
        return "event trigger: " + ("removed" if remove_ddl_trigger(connection) else "does not exist")
