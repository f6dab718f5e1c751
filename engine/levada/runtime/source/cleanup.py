"""The removal of what a pipeline left behind, as a deletionPolicy specifies, and the release of the rest.

It can be repeated. Nothing is removed if any part belongs to another Pipeline, while an engine streams, or if the
destination of tables to drop cannot be opened. A slot or a publication that may be another program's is kept.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

from levada.destinations.interface import Destination
from levada.postgres.ddl import foreign_trigger_owner, remove_ddl_trigger
from levada.postgres.ddl_functions import DROP_TRIGGER, TRIGGER
from levada.postgres.publication_owners import read_publication_owner
from levada.postgres.publications import drop_publication, read_publication
from levada.postgres.seal import SEAL_SCHEMA
from levada.postgres.slots import drop_slot, inspect_slot, wait_until_inactive
from levada.postgres.table_locks import locks_named
from levada.printable import counted
from levada.runtime.config import PipelineConfig
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.cleanup_tables import CleanupTables
from levada.runtime.source.destination_place import require_same_place
from levada.runtime.source.lost_state import has_record
from levada.runtime.source.ownership import (
    holdings,
    release,
    require_own,
    require_owner,
    staging_holdings,
)
from levada.runtime.source.removal import Proofs, is_own, why_publication_stays, why_slot_stays
from levada.segments.log import SegmentLog
from levada.spec.running import DeletionAction, DeletionPolicy
from levada.stores.interface import PipelineStore
from levada.stores.slot_owners import other_pipelines
from levada.values import PipelineOwner

_DROP_TRIGGER: Final = f"DROP EVENT TRIGGER {TRIGGER}; DROP EVENT TRIGGER IF EXISTS {DROP_TRIGGER};"


@dataclass(frozen=True, slots=True)
class Step:
    """One object to remove. ``remove`` returns a line for the user, and does not fail if the object is gone."""

    what: str
    remove: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Kept:
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


def remove_pipeline(
    config: PipelineConfig, store: PipelineStore, destination: Destination, *, drop_tables: bool
) -> tuple[str, ...]:
    """Remove a pipeline that does not run, and return a line for each step and each thing that is kept.

    The tables at the destination are kept unless ``drop_tables`` is True. Raise the errors of `open_cleanup` in
    `levada.runtime.host.cleanup`.
    """
    owner = require_owner(config, store)
    require_own(config, owner, holdings(config, store.get_owner_record(), open_staging(config.staging)))
    store.load_fingerprints()
    action = DeletionAction.DELETE if drop_tables else DeletionAction.RETAIN
    policy = DeletionPolicy.model_validate({"publication": DeletionAction.DELETE, "destinationTables": action})
    found = prepare_cleanup(config, policy, owner, store, CleanupTables(config, store, _Given(destination)))
    return (*found.kept, *found.run())


def prepare_cleanup(
    config: PipelineConfig, policy: DeletionPolicy, owner: PipelineOwner, store: PipelineStore, tables: CleanupTables
) -> Cleanup:
    """Return the removal steps. Nothing is removed before `Cleanup.run`.

    Raise InvalidManifest ``immutable_field_changed`` if the destination is another one than that of the state.
    """
    require_same_place(config, store)
    kept = read_kept(config, owner, store)
    opened = tables.opened() if policy.destination_tables is DeletionAction.DELETE else nullcontext()
    steps = tuple(plan(config, policy, owner, store, tables, kept))
    # A retained slot or publication is no news.
    slot = kept.slot if policy.slot is DeletionAction.DELETE else ""
    publication = kept.publication if policy.publication is DeletionAction.DELETE else ""
    told = tuple(line for line in (slot, publication) if line)
    stays = (*retained(config, policy, kept), *left_kept_rows(policy, tables))
    return Cleanup(config, store, steps, told, stays, waits=not kept.slot, opened=opened)


@dataclass(frozen=True, slots=True)
class _Given:
    """The destination of a library user, which is there already."""

    destination: Destination

    @property
    def guards(self) -> bool:
        return self.destination.capabilities.guards

    @contextmanager
    def open(self) -> Iterator[Destination]:
        yield self.destination


def read_kept(config: PipelineConfig, owner: PipelineOwner, store: PipelineStore) -> Kept:
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
    return Kept(
        why_slot_stays(config, status, owner, proofs),
        why_publication_stays(config, exists=found is not None, owner=owner, proofs=proofs),
        frozenset(name for name, value in existing.items() if value is not None),
    )


def retained(config: PipelineConfig, policy: DeletionPolicy, kept: Kept) -> Iterator[str]:
    """Yield a line for each object that stays because the deletionPolicy retains it."""
    objects = (
        ("slot", policy.slot, f"slot {config.slot.name}", "slot" in kept.found),
        ("publication", policy.publication, f"publication {config.publication.name}", "publication" in kept.found),
        ("destinationTables", policy.destination_tables, "the tables at the destination", True),
        ("state", policy.state, "the pipeline's state and its staged changes", True),
    )
    for field, action, what, exists in objects:
        if exists and action is DeletionAction.RETAIN:
            yield f"{what} (deletionPolicy.{field}: Retain)"


def left_kept_rows(policy: DeletionPolicy, tables: CleanupTables) -> Iterator[str]:
    """Yield a line about kept rows that stay at the destination, and that a later first copy does not replace."""
    stay = policy.destination_tables is DeletionAction.RETAIN and policy.state is DeletionAction.DELETE
    if stay and tables.keeping_rows:
        yield (
            f"the kept rows of {counted(tables.keeping_rows, 'table')}: a later Pipeline does not copy to these places"
            " (kept_rows_replaced). It continues with them if slot and state of deletionPolicy are Retain"
        )


def plan(
    config: PipelineConfig,
    policy: DeletionPolicy,
    owner: PipelineOwner,
    store: PipelineStore,
    tables: CleanupTables,
    kept: Kept,
) -> Iterator[Step]:
    """Yield the removal steps. Their order lets a second run finish what a failed first run left.

    A step raises StaleEpoch, and removes nothing, if an engine has started since this process took the pipeline over.
    """
    if policy.slot is DeletionAction.DELETE and not kept.slot:
        yield Step(f"slot {config.slot.name}", lambda: _drop_slot(config, store))
    if policy.destination_tables is DeletionAction.DELETE:
        yield Step("the tables at the destination, with their data", tables.drop)
    elif policy.state is DeletionAction.DELETE and tables.guarded:
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
    with (
        config.source.connect(application="cleanup") as connection,
        locks_named(connection, lambda table: table.schema == SEAL_SCHEMA),
    ):
        others = other_pipelines(connection, slot, config.publication.name)
        if others:
            return f"event trigger: kept for {', '.join(sorted(others))}"
        if (owner := foreign_trigger_owner(connection)) is not None:
            return f"event trigger: kept, because role {owner} owns it. To remove it, as {owner}: {_DROP_TRIGGER}"
        return "event trigger: " + ("removed" if remove_ddl_trigger(connection) else "does not exist")
