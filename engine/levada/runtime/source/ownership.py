"""Ownership of a pipeline's state, slot, publication and staging folder: claim, take-over and release.

The owner is the UID of a Pipeline object. A Pipeline of the same name in another namespace is another owner, and so is
one that was deleted and created again. An engine outside of Kubernetes generates a UID at its first start and stores
it. The owner is recorded in the store, in the publication's comment and in a file in the staging folder. A slot has no
comment. It belongs to the owner in the store that records the slot.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from levada.errors import LevadaError, NeedsOperator, Transient
from levada.owners import not_the_owner
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.publication_owners import mark_publication, read_publication_owner
from levada.runtime.config import PipelineConfig
from levada.runtime.source.staging_place import require_same_staging
from levada.segments.owner_file import OWNER_FILE, claim_folder, read_owner, replace_owner
from levada.segments.staging import Staging
from levada.stores.interface import OwnerRecord, PipelineStore
from levada.stores.slot_owners import slot_owners
from levada.values import LOCAL_OWNER, PipelineOwner

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Holding:
    """A place, as messages name it, and the Pipeline that owns it."""

    place: str
    owner: PipelineOwner


@dataclass(frozen=True, slots=True)
class Takeover:
    """The owner after a takeover, and the places that belonged to the former one."""

    owner: PipelineOwner
    places: tuple[str, ...]


@dataclass(slots=True)
class Claim:
    """The claim of one start. ``new`` is True if the store had no owner record before."""

    owner: PipelineOwner
    new: bool
    store: PipelineStore
    staging: Staging

    def undo(self, config: PipelineConfig) -> None:
        """Release a new claim after its start failed, unless another process has started with it since.

        A failure is logged.
        """
        if not self.new:
            return
        try:
            # Raises if another process has taken over the pipeline. The claim is then in use by that process.
            self.store.require_epoch()
            release(config, self.store, self.staging, self.owner, forget=True)
        except Exception as error:
            _log.warning("the failed start could not release its claim: %s", error)


def identify(config: PipelineConfig, record: OwnerRecord | None, *, volatile: bool = False) -> PipelineOwner:
    """Return the owner that this process runs as. ``volatile`` is True for a store that ends with the process.

    Without a UID from Kubernetes it has the generated UID in the store's ``record`` for this name, or a new one. A
    volatile store keeps no UID, so it is derived from the source's address and the same at each start.
    """
    if config.uid:
        return PipelineOwner(config.uid, config.full_name)
    kept = None if record is None else record.owner
    if kept is not None and kept.local and kept.name == config.full_name:
        return kept
    if volatile:
        generated = uuid.uuid5(uuid.NAMESPACE_URL, f"levada:{config.source.where}/{config.full_name}")
    else:
        generated = uuid.uuid4()
    return PipelineOwner(f"{LOCAL_OWNER}{generated}", config.full_name, new=not volatile)


def claim(config: PipelineConfig, store: PipelineStore, staging: Staging) -> Claim:
    """Make this Pipeline the owner of the store's state and of the staging folder, and return the claim.

    Both may have no owner, this one, or the one in ``config.take_over_from``. Raise NeedsOperator ``not_the_owner`` for
    any other owner, and ``other_slot`` if the state belongs to another slot or publication than the manifest names.
    Raise InvalidManifest ``immutable_field_changed`` if staged changes wait in another place than the manifest's.
    """
    owner, new = _claim_store(config, store)
    claimed = Claim(owner, new, store, staging)
    try:
        _claim_staging(config, store, staging, owner)
    except BaseException:
        # Only the record in the store was claimed. The folder still has its other owner.
        if new:
            with suppress(LevadaError):
                _release_store(store, owner, forget=True)
        raise
    return claimed


def claim_source(
    config: PipelineConfig, store: PipelineStore, connection: psycopg.Connection[Any], owner: PipelineOwner
) -> None:
    """Raise NeedsOperator ``not_the_owner`` if the slot or the managed publication belongs to another Pipeline.

    In a take-over, add the name of the former owner to the store.
    """
    held = tuple(source_holdings(config, connection))
    require_own(config, owner, held)
    _add_former_name(config, store, owner, held)


def source_holdings(config: PipelineConfig, connection: psycopg.Connection[Any]) -> Iterator[Holding]:
    """Yield the owner of the managed publication and each owner of the slot, if they have any."""
    if config.publication.managed:
        for publication in config.publication.names:
            named = read_publication_owner(connection, publication)
            if named is not None:
                yield Holding(f"publication {publication}", named)
    for owner in slot_owners(connection, config.slot.name):
        yield Holding(f"slot {config.slot.name}", owner)


def store_holdings(config: PipelineConfig, record: OwnerRecord | None) -> Iterator[Holding]:
    """Yield the owner of the store's state, if it has one."""
    if record is not None and record.owner is not None:
        yield Holding(f"the state of pipeline {config.name} in the store", record.owner)


def staging_holdings(config: PipelineConfig, staging: Staging) -> Iterator[Holding]:
    """Yield the owner of the pipeline's staging folder, if it has one. A scratch folder counts as having none."""
    folder = read_owner(staging, config.name)
    if folder is not None and staging.durable:
        yield Holding(_folder(config, staging), folder)


def holdings(config: PipelineConfig, record: OwnerRecord | None, staging: Staging) -> Iterator[Holding]:
    """Yield the owner of each place that has one. Raise the error of a place that cannot be read."""
    yield from store_holdings(config, record)
    yield from staging_holdings(config, staging)
    with SESSIONS.session(config.source, "owner") as connection:
        yield from source_holdings(config, connection)


def require_own(config: PipelineConfig, owner: PipelineOwner, held: Iterable[Holding]) -> None:
    """Raise NeedsOperator ``not_the_owner`` for the first place that belongs to another Pipeline.

    Places of the owner in ``config.take_over_from`` are allowed.
    """
    for holding in held:
        if holding.owner.uid not in (owner.uid, config.take_over_from):
            raise not_the_owner(holding.place, holding.owner, owner)


def former_names(store: PipelineStore) -> tuple[str, ...]:
    """Return the full names of the pipeline's former owners from the store."""
    record = store.get_owner_record()
    return () if record is None else record.former


def require_owner(config: PipelineConfig, store: PipelineStore) -> PipelineOwner:
    """Return the owner that this process runs as.

    Raise NeedsOperator ``not_the_owner`` if the store's state belongs to another one.
    """
    record = store.get_owner_record()
    owner = identify(config, record, volatile=store.volatile)
    if record is not None and record.owner is not None and record.owner.uid != owner.uid:
        raise not_the_owner(f"the state of pipeline {config.name} in the store", record.owner, owner)
    return owner


def take_over(config: PipelineConfig, store: PipelineStore, staging: Staging, former: str) -> Takeover:
    """Make this Pipeline the owner of everything that the Pipeline with the UID ``former`` owns.

    From then on a running engine of the former owner is refused by its epoch. If ``former`` owns nothing, because it
    never did or because everything was taken over before, nothing changes, and this Pipeline's own engine runs on.
    Raise NeedsOperator ``not_the_owner`` if a place belongs to a third owner, and ``unknown_owner`` if no place belongs
    to ``former`` or to this one.
    """
    config = replace(config, take_over_from=former)
    record = store.get_owner_record()
    owner = identify(config, record, volatile=store.volatile)
    held = list(holdings(config, record, staging))
    require_own(config, owner, held)
    if not held:
        raise NeedsOperator(
            "unknown_owner",
            f"no state, slot, publication or staging folder of pipeline {config.full_name} belongs to UID {former}",
            hint="levada run MANIFEST",
        )
    places = tuple(h.place for h in held if h.owner.uid != owner.uid)
    if not places:
        return Takeover(replace(owner, new=False), ())
    owner = claim(config, store, staging).owner
    store.next_epoch()
    _add_former_name(config, store, owner, held)
    if config.publication.managed:
        with SESSIONS.session(config.source, "owner") as connection:
            for publication in config.publication.names:
                mark_publication(connection, publication, owner)
    return Takeover(replace(owner, new=False), places)


def release(
    config: PipelineConfig, store: PipelineStore, staging: Staging, owner: PipelineOwner, *, forget: bool
) -> None:
    """Remove the owner from the publication, the staging folder and the store, so that any Pipeline may claim them.

    Places of another owner stay as they are, and calling it again changes nothing. The store is released last, because
    it has the UID that the other places are compared with. ``forget`` deletes the store's whole owner record, for a
    store that keeps no state. Otherwise the record keeps the slot and the publication that the state belongs to.
    """
    with SESSIONS.session(config.source, "owner") as connection:
        for publication in config.publication.names:
            named = read_publication_owner(connection, publication)
            if named is not None and named.uid == owner.uid:
                mark_publication(connection, publication, None)
    folder = read_owner(staging, config.name)
    if folder is not None and folder.uid == owner.uid:
        replace_owner(staging, config.name, None)
    _release_store(store, owner, forget=forget)


def _release_store(store: PipelineStore, owner: PipelineOwner, *, forget: bool) -> None:
    record = store.get_owner_record()
    if record is not None and record.owner is not None and record.owner.uid == owner.uid:
        store.change_owner_record(record, None if forget else record.released())


def _claim_store(config: PipelineConfig, store: PipelineStore) -> tuple[PipelineOwner, bool]:
    for _ in range(_ATTEMPTS):
        record = store.get_owner_record()
        owner = identify(config, record, volatile=store.volatile)
        wanted = (record or OwnerRecord(None, "", "")).handed_over(owner, config.slot.name, config.publication.name)
        if record is not None and (record.owner is None or record.owner.uid != owner.uid):
            if record.owner is not None and record.owner.uid != config.take_over_from:
                raise not_the_owner(f"the state of pipeline {config.name} in the store", record.owner, owner)
            _require_names(record, wanted)
        require_same_staging(config, store)
        if store.change_owner_record(record, wanted):
            if record is not None and record.owner is not None and record.owner.uid != owner.uid:
                _log.warning("%s takes over from %s", owner, record.owner)
            return owner, record is None
    raise _contended(config)


def _is_left_over(config: PipelineConfig, staging: Staging, holder: PipelineOwner, owner: PipelineOwner) -> bool:
    """Return True if nothing in the folder of an earlier local pipeline of the same name is needed.

    On scratch staging the slot still has the changes that were staged there. A durable folder is needed for the changes
    in it. Without any, it may be another pipeline's only if that could stage at the same place: not in a work folder.
    """
    if not (holder.local and owner.local and holder.name == owner.name):
        return False
    in_work_folder = config.staging.uri == str(config.work_dir / "staging")
    return not staging.durable or (in_work_folder and staging.list(config.name).keys() <= {OWNER_FILE})


def _require_names(record: OwnerRecord, wanted: OwnerRecord) -> None:
    """Raise NeedsOperator ``other_slot`` unless the state belongs to the slot and publication of the manifest."""
    if (record.slot, record.publication) != (wanted.slot, wanted.publication):
        raise NeedsOperator(
            "other_slot",
            f"the state in the store belongs to slot {record.slot} and publication {record.publication}, but the"
            f" manifest names slot {wanted.slot} and publication {wanted.publication}",
            hint=f"set spec.source.slot.name to {record.slot} and spec.source.publication.name to {record.publication}",
        )


def _add_former_name(
    config: PipelineConfig, store: PipelineStore, owner: PipelineOwner, held: Iterable[Holding]
) -> None:
    """Add the full name of the former owner to the store, even if it did not own the store's state.

    Lake tables carry the name, and the destination accepts those of former owners.
    """
    for name in {h.owner.name for h in held if h.owner.uid == config.take_over_from}:
        for _ in range(_ATTEMPTS):
            record = store.get_owner_record()
            if record is None or record.owner != owner or name in (owner.name, *record.former):
                break
            if store.change_owner_record(record, replace(record, former=(*record.former, name))):
                break
        else:
            raise _contended(config)


def _contended(config: PipelineConfig) -> Transient:
    return Transient(
        "store_contended",
        f"the owner of pipeline {config.name} was changed by other processes {_ATTEMPTS} times in a row",
        hint="run one engine for each pipeline, and let the takeover of another process end",
    )


def _claim_staging(config: PipelineConfig, store: PipelineStore, staging: Staging, owner: PipelineOwner) -> None:
    holder = read_owner(staging, config.name) or claim_folder(staging, config.name, owner)
    if holder.uid == owner.uid:
        return
    if holder.uid != config.take_over_from and not _is_left_over(config, staging, holder, owner):
        raise not_the_owner(_folder(config, staging), holder, owner)
    # First, because the folder no longer names the former owner afterwards.
    _add_former_name(config, store, owner, (Holding(_folder(config, staging), holder),))
    replace_owner(staging, config.name, owner)


def _folder(config: PipelineConfig, staging: Staging) -> str:
    return f"folder {config.name} of the staging area {staging.uri}"
