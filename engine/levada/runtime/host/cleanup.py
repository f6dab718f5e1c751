"""The removal of what a pipeline left behind, as its deletionPolicy specifies, and the release of the rest.

It can be repeated. Nothing is removed if any part belongs to another Pipeline, while an engine streams, or if the
destination of tables to drop cannot be opened. A slot or a publication that may be another program's is kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from levada.postgres.ddl import foreign_trigger_owner, remove_ddl_trigger
from levada.postgres.ddl_functions import DROP_TRIGGER, TRIGGER
from levada.postgres.publication_owners import read_publication_owner
from levada.postgres.publications import drop_publication, read_publication
from levada.postgres.slots import drop_slot, inspect_slot, wait_until_inactive
from levada.printable import counted
from levada.runtime.config import PipelineConfig
from levada.runtime.host.access_token import request_headers
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.cleanup_tables import CleanupTables
from levada.runtime.host.owner_check import open_existing_store, require_places
from levada.runtime.host.plugins import destination_class
from levada.runtime.host.work_dir import engine_running, locked_work_dir, running_pid, running_progress
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.destination_place import require_same_place
from levada.runtime.source.lost_state import has_record
from levada.runtime.source.ownership import (
    release,
    require_own,
    require_owner,
    staging_holdings,
)
from levada.runtime.source.removal import Proofs, is_own, why_publication_stays, why_slot_stays
from levada.segments.log import SegmentLog
from levada.spec import DeletionAction, Manifests
from levada.stores import PipelineStore
from levada.stores.slot_owners import other_pipelines
from levada.values import PipelineOwner

_DROP_TRIGGER: Final = f"DROP EVENT TRIGGER {TRIGGER}; DROP EVENT TRIGGER IF EXISTS {DROP_TRIGGER};"


@dataclass(frozen=True, slots=True)
class Step:
    """One object to remove. ``remove`` returns a line for the user, and does not fail if the object is gone."""

    what: str
    remove: Callable[[], str]


@dataclass(frozen=True, slots=True)
class _Kept:
    """Why the slot and the publication are kept, as lines for the user. Empty for one that may be dropped."""

    slot: str = ""
    publication: str = ""
    found: frozenset[str] = frozenset()
    """Those of the two that exist, by their names in the deletionPolicy. A publication of others is not among them."""


class Cleanup:
    """The removal steps of one pipeline. See `open_cleanup`."""

    def __init__(
        self,
        config: PipelineConfig,
        store: PipelineStore,
        steps: tuple[Step, ...],
        kept: tuple[str, ...],
        retained: tuple[str, ...],
        *,
        waits: bool,
        opened: AbstractContextManager[None],
    ) -> None:
        self.steps = steps
        self.kept = kept
        """Lines about a slot and a publication that stay, because they may be another program's."""
        self.retained = retained
        """Lines about what stays because the deletionPolicy retains it."""
        self._config = config
        self._store = store
        self._waits = waits
        self._opened = opened

    def run(self) -> Iterator[str]:
        """Remove everything, and yield a line for each step that has ended.

        Raise the error of a destination that cannot be opened to drop its tables, Transient
        ``slot_active`` if an engine streams, and StaleEpoch if an engine starts meanwhile.
        """
        with self._opened:
            _take_over(self._config, self._store, waits=self._waits)
            for step in self.steps:
                yield step.remove()


@contextmanager
def open_cleanup(
    manifests: Manifests, *, secrets: Path | None = None, work_dir: Path | None = None
) -> Iterator[Cleanup]:
    """Yield the removal steps of a pipeline whose engine has ended. Nothing is removed before `Cleanup.run`.

    ``work_dir`` is the work folder of the engine, which is locked during the block. Raise NeedsOperator
    ``engine_running`` if an engine uses it, and ``not_the_owner`` if any object belongs to another Pipeline. Raise
    InvalidManifest ``immutable_field_changed`` if the manifest names another destination than that of the state.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    work_dir = config.work_dir
    if running_progress(work_dir, config.name, request_headers(manifests, secrets)) is not None:
        raise engine_running(work_dir, running_pid(work_dir))
    # An engine that is still starting reports no progress, but holds the lock of its work folder.
    with (
        locked_work_dir(work_dir) if work_dir.is_dir() else nullcontext(),
        closing(open_existing_store(manifests, config, secrets)) as store,
    ):
        # The former owner stays the owner until something is taken over.
        owner = require_places(manifests, replace(config, take_over_from=""), store)
        tables = CleanupTables(manifests, config, secrets, store)
        require_same_place(config, store)
        kept = _kept(config, owner, store)
        policy = manifests.pipeline.spec.deletion_policy
        opened = tables.opened() if policy.destination_tables is DeletionAction.DELETE else nullcontext()
        steps = tuple(plan(manifests, config, owner, store, tables, kept))
        # A retained slot or publication is no news.
        slot = kept.slot if policy.slot is DeletionAction.DELETE else ""
        publication = kept.publication if policy.publication is DeletionAction.DELETE else ""
        told = tuple(line for line in (slot, publication) if line)
        retained = tuple(_retained(manifests, config, kept))
        yield Cleanup(config, store, steps, told, retained, waits=not kept.slot, opened=opened)


def _kept(config: PipelineConfig, owner: PipelineOwner, store: PipelineStore) -> _Kept:
    """Return what is kept, because nothing proves that it is the pipeline's."""
    store.load_table_replication_states()
    store.load_fingerprints()
    record = store.get_owner_record()
    with config.source.connect(application="cleanup") as connection:
        status = inspect_slot(connection, config.slot.name)
        managed = config.publication.managed
        found = read_publication(connection, config.publication.name) if managed else None
        named = read_publication_owner(connection, config.publication.name) if managed else None
        appended = read_publication_owner(connection, config.publication.append) if managed else None
    proofs = Proofs(has_record(store), "" if record is None else record.slot, named)
    existing: dict[str, object] = {"slot": status, "publication": found}
    if appended is not None and is_own(appended, owner):
        existing[config.publication.append] = appended
    return _Kept(
        why_slot_stays(config, status, owner, proofs),
        why_publication_stays(config, exists=found is not None, owner=owner, proofs=proofs),
        frozenset(name for name, value in existing.items() if value is not None),
    )


def _retained(manifests: Manifests, config: PipelineConfig, kept: _Kept) -> Iterator[str]:
    """Yield a line for each object that stays because the deletionPolicy retains it."""
    policy = manifests.pipeline.spec.deletion_policy
    objects = (
        ("slot", policy.slot, f"slot {config.slot.name}", "slot" in kept.found),
        ("publication", policy.publication, f"publication {config.publication.name}", "publication" in kept.found),
        ("destinationTables", policy.destination_tables, "the tables at the destination", True),
        ("state", policy.state, "the pipeline's state and its staged changes", True),
    )
    for field, action, what, exists in objects:
        if exists and action is DeletionAction.RETAIN:
            yield f"{what} (deletionPolicy.{field}: Retain)"


def plan(
    manifests: Manifests,
    config: PipelineConfig,
    owner: PipelineOwner,
    store: PipelineStore,
    tables: CleanupTables,
    kept: _Kept,
) -> Iterator[Step]:
    """Yield the removal steps. Their order lets a second run finish what a failed first run left.

    A step raises StaleEpoch, and removes nothing, if an engine has started since this process took the pipeline over.
    """
    policy = manifests.pipeline.spec.deletion_policy
    if policy.slot is DeletionAction.DELETE and not kept.slot:
        yield Step(f"slot {config.slot.name}", lambda: _drop_slot(config, store))
    if policy.destination_tables is DeletionAction.DELETE:
        yield Step("the tables at the destination, with their data", tables.drop)
    elif policy.state is DeletionAction.DELETE and destination_class(manifests).capabilities.guards:
        # With its state the pipeline would go on, and must find its tables unchanged.
        yield Step("the guard of the tables at the destination, so that others can write them", tables.release)
    if policy.state is DeletionAction.DELETE:
        yield Step("the pipeline's state and its staged changes", lambda: _forget(config, owner, store))
    if policy.publication is DeletionAction.DELETE and config.publication.managed and not kept.publication:
        for name in config.publication.names:
            if name == config.publication.name or name in kept.found:
                yield Step(f"publication {name}", partial(_drop_publication, config, owner, store, name))
    if policy.slot is DeletionAction.DELETE:
        # A slot that is kept may be another pipeline's, which needs the trigger.
        slot = "" if kept.slot else config.slot.name
        yield Step("the event trigger, unless another pipeline needs it", lambda: _drop_trigger(config, slot))
    forget = policy.state is DeletionAction.DELETE
    yield Step(
        "the ownership of what is retained, so that the next Pipeline of this name can claim it",
        lambda: _release(config, owner, store, forget=forget),
    )


def _take_over(config: PipelineConfig, store: PipelineStore, *, waits: bool) -> None:
    """Start a new epoch, so that an engine that is starting elsewhere fails before it creates a slot.

    ``waits`` is False for a slot that may be another program's. Otherwise raise Transient ``slot_active`` if an engine
    streams from it. The engine then continues.
    """
    if waits:
        with config.source.connect(application="cleanup") as connection:
            wait_until_inactive(connection, config.slot.name, config.limits.session_end_s)
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


def _drop_publication(config: PipelineConfig, owner: PipelineOwner, store: PipelineStore, name: str) -> str:
    store.require_epoch()
    with config.source.connect(application="cleanup") as connection:
        # Compared again, because it may have been created again since.
        own = is_own(read_publication_owner(connection, name), owner)
        dropped = own and drop_publication(connection, name)
    return f"publication {name}: " + ("dropped" if dropped else "does not exist")


def _drop_trigger(config: PipelineConfig, slot: str) -> str:
    with config.source.connect(application="cleanup") as connection:
        others = other_pipelines(connection, slot, config.publication.name)
        if others:
            return f"event trigger: kept for {', '.join(sorted(others))}"
        if (owner := foreign_trigger_owner(connection)) is not None:
            return f"event trigger: kept, because role {owner} owns it. To remove it, as {owner}: {_DROP_TRIGGER}"
        return "event trigger: " + ("removed" if remove_ddl_trigger(connection) else "does not exist")
