"""The owner of a pipeline's state, slot, publication and staged changes: claimed at a start, handed over, released.

The owner is a Pipeline object by its UID, so that a Pipeline of the same name in another namespace, or one that was
deleted and created again, is another one. An engine outside of Kubernetes generates a UID at its first start and keeps
it in the store. Each place names its owner: the store's record, the publication's comment, a file in the staging
folder. A slot has no comment. Its owner is the one of the store whose state goes with it.
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
from levada.postgres.publications import mark_publication, read_publication_owner
from levada.runtime.config import PipelineConfig
from levada.segments.owner_file import claim_folder, read_owner, replace_owner
from levada.segments.staging import Staging
from levada.stores.interface import OwnerRecord, PipelineStore
from levada.stores.memory import MemoryStore
from levada.stores.slot_owners import slot_owners
from levada.values import LOCAL_OWNER, PipelineOwner

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 10


@dataclass(frozen=True, slots=True)
class Holding:
    """One place, and the Pipeline that it belongs to."""

    place: str
    owner: PipelineOwner


@dataclass(slots=True)
class Claim:
    """The claim of one start. ``new``: the store had no owner before."""

    owner: PipelineOwner
    new: bool
    store: PipelineStore
    staging: Staging

    def give_back(self, config: PipelineConfig) -> None:
        """Release what this start has claimed first, unless another process has begun with it since.

        What cannot be released is logged.
        """
        if not self.new:
            return
        try:
            # Refused if another process has the pipeline: then the claim is that one's.
            self.store.require_epoch()
            release(config, self.store, self.staging, self.owner, forget=True)
        except LevadaError as error:
            _log.warning("the claim of the failed start stays: %s", error)


def identify(config: PipelineConfig, record: OwnerRecord | None, *, volatile: bool = False) -> PipelineOwner:
    """Return this process's Pipeline. ``volatile``: its store does not outlive the process.

    Without a UID of Kubernetes it is the generated one that the store has for this name, else a new one. A volatile
    store has none to return to, so the UID is derived from the source's address.
    """
    if config.uid:
        return PipelineOwner(config.uid, config.full_name)
    kept = None if record is None else record.owner
    if kept is not None and kept.local and kept.name == config.full_name:
        return kept
    if volatile:
        made = uuid.uuid5(uuid.NAMESPACE_URL, f"levada:{config.source.where}/{config.full_name}")
    else:
        made = uuid.uuid4()
    return PipelineOwner(f"{LOCAL_OWNER}{made}", config.full_name)


def claim(config: PipelineConfig, store: PipelineStore, staging: Staging) -> Claim:
    """Make this Pipeline the owner of the store's state and of the staging folder, where there is none.

    ``config.take_over_from`` is an owner that it takes over from. Raise NeedsOperator ``not_the_owner`` for any other,
    and ``other_slot`` if the state that is taken over goes with another slot or publication.
    """
    owner, new = _claim_store(config, store)
    claimed = Claim(owner, new, store, staging)
    try:
        _claim_staging(config, store, staging, owner)
    except BaseException:
        # Only the record in the store is this start's: the folder is another's.
        if new:
            with suppress(LevadaError):
                _release_store(store, owner, forget=True)
        raise
    return claimed


def claim_source(
    config: PipelineConfig, store: PipelineStore, connection: psycopg.Connection[Any], owner: PipelineOwner
) -> None:
    """Raise NeedsOperator ``not_the_owner`` if the slot or the managed publication belongs to another Pipeline.

    The name of the owner that this one takes over from is kept in the store.
    """
    held = tuple(source_holdings(config, connection))
    refuse(config, owner, held)
    _keep_former(config, store, owner, held)


def source_holdings(config: PipelineConfig, connection: psycopg.Connection[Any]) -> Iterator[Holding]:
    """Yield the owners of the managed publication and of the slot."""
    if config.publication.managed:
        named = read_publication_owner(connection, config.publication.name)
        if named is not None:
            yield Holding(f"publication {config.publication.name}", named)
    for owner in slot_owners(connection, config.slot.name):
        yield Holding(f"slot {config.slot.name}", owner)


def store_holdings(config: PipelineConfig, record: OwnerRecord | None) -> Iterator[Holding]:
    """Yield the owner of the store's state."""
    if record is not None and record.owner is not None:
        yield Holding(f"the state of pipeline {config.name} in the store", record.owner)


def staging_holdings(config: PipelineConfig, staging: Staging) -> Iterator[Holding]:
    """Yield the owner of the pipeline's folder, unless it is scratch."""
    folder = read_owner(staging, config.name)
    if folder is not None and staging.durable:
        yield Holding(_folder(config, staging), folder)


def holdings(config: PipelineConfig, record: OwnerRecord | None, staging: Staging) -> Iterator[Holding]:
    """Yield the owner of each place that has one. Raise what keeps a place from being read."""
    yield from store_holdings(config, record)
    yield from staging_holdings(config, staging)
    with config.source.connect(application="owner") as connection:
        yield from source_holdings(config, connection)


def refuse(config: PipelineConfig, owner: PipelineOwner, held: Iterable[Holding]) -> None:
    """Raise NeedsOperator ``not_the_owner`` for the first place of another Pipeline, but the one taken over from."""
    for holding in held:
        if holding.owner.uid not in (owner.uid, config.take_over_from):
            raise not_the_owner(holding.place, holding.owner, owner)


def former_names(store: PipelineStore) -> tuple[str, ...]:
    """Return the full names of the pipeline's former owners, as the store has them."""
    record = store.get_owner_record()
    return () if record is None else record.former


def require_owner(config: PipelineConfig, store: PipelineStore) -> PipelineOwner:
    """Return this process's Pipeline; raise NeedsOperator ``not_the_owner`` if the store's state is another's."""
    record = store.get_owner_record()
    owner = identify(config, record, volatile=isinstance(store, MemoryStore))
    if record is not None and record.owner is not None and record.owner.uid != owner.uid:
        raise not_the_owner(f"the state of pipeline {config.name} in the store", record.owner, owner)
    return owner


def take_over(config: PipelineConfig, store: PipelineStore, staging: Staging, former: str) -> PipelineOwner:
    """Make this Pipeline the owner of all that belongs to the Pipeline with the UID ``former``, and return it.

    An engine of the former owner is refused from then on. May be done again. Raise NeedsOperator ``not_the_owner`` if
    a place belongs to a third one, and ``unknown_owner`` if none belongs to the former.
    """
    config = replace(config, take_over_from=former)
    record = store.get_owner_record()
    owner = identify(config, record, volatile=isinstance(store, MemoryStore))
    held = list(holdings(config, record, staging))
    refuse(config, owner, held)
    if not any(h.owner.uid in (former, owner.uid) for h in held):
        raise NeedsOperator(
            "unknown_owner",
            f"nothing of pipeline {config.full_name} belongs to a Pipeline with UID {former}, or to any other",
            hint="levada run MANIFEST",
        )
    owner = claim(config, store, staging).owner
    store.next_epoch()
    _keep_former(config, store, owner, held)
    if config.publication.managed:
        with config.source.connect(application="owner") as connection:
            mark_publication(connection, config.publication.name, owner)
    return owner


def release(
    config: PipelineConfig, store: PipelineStore, staging: Staging, owner: PipelineOwner, *, forget: bool
) -> None:
    """Release what belongs to the Pipeline, for any other to claim. May be done again.

    The store comes last, as it has the UID that the other places are compared with. ``forget``: the store keeps no
    state, so it need not name the slot that goes with it.
    """
    with config.source.connect(application="owner") as connection:
        named = read_publication_owner(connection, config.publication.name)
        if named is not None and named.uid == owner.uid:
            mark_publication(connection, config.publication.name, None)
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
        owner = identify(config, record, volatile=isinstance(store, MemoryStore))
        wanted = (record or OwnerRecord(None, "", "")).handed_over(owner, config.slot.name, config.publication.name)
        if record is not None and (record.owner is None or record.owner.uid != owner.uid):
            if record.owner is not None and record.owner.uid != config.take_over_from:
                raise not_the_owner(f"the state of pipeline {config.name} in the store", record.owner, owner)
            _require_names(record, wanted)
        if store.change_owner_record(record, wanted):
            if record is not None and record.owner is not None and record.owner.uid != owner.uid:
                _log.warning("%s takes over from %s", owner, record.owner)
            return owner, record is None
    raise _contended(config)


def _is_scratch(staging: Staging, holder: PipelineOwner, owner: PipelineOwner) -> bool:
    """Return True for the scratch of an earlier pipeline of this work folder: its slot still has what is staged."""
    return not staging.durable and holder.local and owner.local and holder.name == owner.name


def _require_names(record: OwnerRecord, wanted: OwnerRecord) -> None:
    """Raise unless the state that is taken over goes with the slot and the publication of the manifest."""
    if (record.slot, record.publication) != (wanted.slot, wanted.publication):
        raise NeedsOperator(
            "other_slot",
            f"the state in the store goes with slot {record.slot} and publication {record.publication}, and the"
            f" manifest has slot {wanted.slot} and publication {wanted.publication}",
            hint=f"set spec.source.slot.name to {record.slot} and spec.source.publication.name to {record.publication}",
        )


def _keep_former(config: PipelineConfig, store: PipelineStore, owner: PipelineOwner, held: Iterable[Holding]) -> None:
    """Keep the full name of the owner that this one takes over from, also if the store's state was not that one's."""
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
        "store_contended", f"the owner of pipeline {config.name} was changed by others {_ATTEMPTS} times in a row"
    )


def _claim_staging(config: PipelineConfig, store: PipelineStore, staging: Staging, owner: PipelineOwner) -> None:
    holder = read_owner(staging, config.name) or claim_folder(staging, config.name, owner)
    if holder.uid == owner.uid:
        return
    if holder.uid != config.take_over_from and not _is_scratch(staging, holder, owner):
        raise not_the_owner(_folder(config, staging), holder, owner)
    # Before the folder has no sign of the former owner.
    _keep_former(config, store, owner, (Holding(_folder(config, staging), holder),))
    replace_owner(staging, config.name, owner)


def _folder(config: PipelineConfig, staging: Staging) -> str:
    return f"folder {config.name} of the staging area {staging.uri}"
