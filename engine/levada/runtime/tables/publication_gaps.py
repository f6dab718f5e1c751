"""The membership of each table in the publication at its copy, from which later gaps in the stream are found.

A copy records the membership that its snapshot sees. The record becomes the table's when the copy is used. So does a
comparison after which a table goes on without a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import psycopg

from levada import codes
from levada.capture.requirements import table_not_published
from levada.errors import NeedsOperator, SlotLost, Transient
from levada.postgres.append_publication import PublicationNames, list_published, read_state
from levada.postgres.catalog import PublishedTable
from levada.postgres.identity_remedies import publish_all_hint
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.membership import Membership, PublicationState, find_gap
from levada.postgres.publications import leave_out_unidentified
from levada.postgres.streamed import streamed_names
from levada.runtime.config import PipelineConfig
from levada.runtime.tables.append_record import publication_names
from levada.runtime.tables.phases import STREAMING
from levada.runtime.tables.rules import awaits_comparison, needs_resync
from levada.stores.phases import Errored, TableReplicationPhase
from levada.stores.workers import table_worker

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore
    from levada.values import QualifiedTable, TableId

ROW_OPERATIONS: Final = frozenset({"insert", "update", "delete"})

_PUBLICATION: Final = "publication"
_WAS_MISSING: Final = "missing"
"""The record once the stream has met WAL in which there was no publication, whatever is there now."""
_TOLERATES: Final = 180000
"""The first version of PostgreSQL that can decode WAL from before the publication was created."""

UNPUBLISHED: Final = frozenset({codes.TABLE_NOT_PUBLISHED, codes.PUBLICATION_MISSING, codes.PUBLICATION_OPERATIONS})
"""Codes of tables that a copy cannot repair until the publication is changed."""


def published_table(
    connection: psycopg.Connection[Any], names: PublicationNames, table: TableId, name: QualifiedTable
) -> PublishedTable:
    """Return the table as the publication has it now, before it is copied.

    Raise NeedsOperator ``table_not_published`` if the publication no longer has it.
    """
    for published in list_published(connection, names, [table]):
        return published
    raise table_not_published(connection, names.main, [name])


def membership_text(
    connection: psycopg.Connection[Any], state: PublicationState, table: TableId, name: QualifiedTable
) -> str:
    """Return the table's membership in the publication as text. ``state`` is of the snapshot of its copy.

    Raise NeedsOperator ``table_not_published``, or ``publication_operations`` if the publication does not publish all
    of INSERT, UPDATE and DELETE, unless it is the second one. Raise Transient ``append_identified`` for a table of that
    one which has got a replica identity, so that all of its changes can be streamed.
    """
    publication, membership = state.name, state.members.get(table)
    if membership is None:
        raise find_gap(None, state, table) or _dropped(name)
    if table in state.appended:
        if leave_out_unidentified(connection, publication, {name})[0]:
            raise append_identified(name)
        return membership.to_text()
    if lacking := ROW_OPERATIONS.difference(membership.publication.operations):
        raise NeedsOperator(
            "publication_operations",
            f"publication {publication} does not publish {', '.join(sorted(lacking))}, so a copy of table {name} would"
            " miss such changes",
            hint=f"{publish_all_hint(connection, publication)}; the table is copied then, within a minute",
        )
    return membership.to_text()


def append_identified(name: QualifiedTable) -> Transient:
    """Return the error of a table of the second publication that has got a replica identity."""
    return Transient(
        "append_identified",
        f"table {name} has a replica identity now, and is copied once all of its changes are published",
        hint="if it lasts, levada check MANIFEST says why the table cannot be added to the publication",
    )


def record_membership(store: PipelineStore, table: TableId, membership: str) -> None:
    """Store the membership in the publication of a table whose copy or comparison is made."""
    store.store_fingerprint(_copy_of(table), membership)


def adopt_membership(store: PipelineStore, table: TableId) -> None:
    """Make the membership of the newest copy or comparison the table's, before changes are applied after it."""
    noted = store.get_fingerprint(_copy_of(table))
    if noted is not None:
        store.store_fingerprint(table_worker(table), noted)
        store.delete_fingerprint(_copy_of(table))


def renew_memberships(store: PipelineStore, state: PublicationState, tables: Iterable[TableId]) -> None:
    """Store the present memberships of tables that are compared with the source before they go on from a new slot.

    What they missed before it does not matter then.
    """
    for table in tables:
        if (membership := state.members.get(table)) is not None:
            store.store_fingerprint(table_worker(table), membership.to_text())


def forget_membership(store: PipelineStore, table: TableId) -> None:
    """Delete the recorded memberships of a table that begins with a new copy."""
    for subject in (table_worker(table), _copy_of(table)):
        if store.get_fingerprint(subject) is not None:
            store.delete_fingerprint(subject)


def save_publication(store: PipelineStore, state: PublicationState) -> None:
    """Store the OID of the publication with which the slot can be read."""
    if state.identity is not None and store.get_fingerprint(_PUBLICATION) != str(state.identity.oid):
        store.store_fingerprint(_PUBLICATION, str(state.identity.oid))


def record_missing_publication(store: PipelineStore) -> None:
    """Store that the stream has ended because there was no publication, see `unreadable_slot`."""
    store.store_fingerprint(_PUBLICATION, _WAS_MISSING)


def has_publication_record(store: PipelineStore) -> bool:
    """Return True if an earlier start got as far as creating the slot, see `unreadable_slot`."""
    return store.get_fingerprint(_PUBLICATION) is not None


def unreadable_slot(
    connection: psycopg.Connection[Any], store: PipelineStore, state: PublicationState
) -> SlotLost | None:
    """Return the reason why the slot must be created again, None if it can be read with the publication.

    Up to version 17, PostgreSQL cannot decode WAL from before the publication was created, or from while it had another
    name.
    """
    kept = store.get_fingerprint(_PUBLICATION)
    if kept is None:
        # Stored before the slot is created, so that a store without this record never had a slot.
        save_publication(store, state)
        return None
    if state.identity is None or kept == str(state.identity.oid) or connection.info.server_version >= _TOLERATES:
        return None
    what, when = "is not the one that the slot was created with", "before a publication was created"
    if kept == _WAS_MISSING:
        what, when = "was missing or had another name for a while", "that time"
    return SlotLost(
        "slot_lost",
        f"publication {state.name} {what}, and PostgreSQL {connection.info.server_version // 10000} cannot decode WAL"
        f" from {when}",
        hint="levada resync MANIFEST --all",
    )


def find_gaps(store: PipelineStore, state: PublicationState) -> Mapping[TableId, NeedsOperator]:
    """Return the tables that may have missed changes since their copies, each with its error.

    Record the members that also publish one of the others without a gap.
    """
    gaps = {}
    for table, phase in store.get_table_replication_states().items():
        text = store.get_fingerprint(table_worker(table))
        if not _depends(phase, text):
            continue
        kept = None if text is None else Membership.from_text(text)
        gap = find_gap(kept, state, table)
        if gap is not None and gap.code == codes.ROW_FILTER_CHANGED and awaits_comparison(phase):
            # The comparison is made with the membership at its own LSN, see `adopt_membership`.
            continue
        # If a copy in another thread has changed the record meanwhile, the comparison is void.
        if store.get_fingerprint(table_worker(table)) != text:
            continue
        if gap is not None:
            gaps[table] = gap
        elif kept is not None and table in state.members and state.members[table].members > kept.members:
            # The former members may go, and what says that others stand for them.
            store.store_fingerprint(table_worker(table), state.members[table].to_text())
    return gaps


def read_gaps(config: PipelineConfig, store: PipelineStore) -> Mapping[TableId, NeedsOperator]:
    """Read the publication and return the gaps that `find_gaps` finds."""
    # Listed before the publication is read: a copy that ends later has seen this publication or a newer one.
    tables = store.get_table_replication_states().keys()
    with SESSIONS.session(config.source, "publication") as connection:
        return find_gaps(store, read_state(connection, publication_names(config, store), list(tables)))


def has_identified(config: PipelineConfig, store: PipelineStore) -> bool:
    """Return True if a table of the second publication has got a replica identity, with which it must leave it."""
    names = publication_names(config, store)
    if not names.append:
        return False
    with SESSIONS.session(config.source, "publication") as connection:
        members = streamed_names(connection, names.append)
        return bool(members) and bool(leave_out_unidentified(connection, names.main, members)[0])


def published_again(phase: TableReplicationPhase, publication: PublicationState) -> bool:
    """Return True if a table is parked because it was not published, and the publication now has all its changes."""
    if not isinstance(phase, Errored) or needs_resync(phase) or phase.code not in UNPUBLISHED:
        return False
    return publication.identity is not None and ROW_OPERATIONS.issubset(publication.identity.operations)


def _depends(phase: TableReplicationPhase, kept: str | None) -> bool:
    if isinstance(phase, Errored):
        return kept is not None and not needs_resync(phase)
    return phase.name in STREAMING


def _copy_of(table: TableId) -> str:
    return f"copy_{int(table)}"


def _dropped(name: QualifiedTable) -> NeedsOperator:
    return NeedsOperator(
        "table_missing",
        f"table {name} was dropped before it was copied",
        hint="create the table, or exclude it in spec.tables",
    )
