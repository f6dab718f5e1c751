"""Tables that the manifest no longer selects and that the managed publication still has.

The source would send their changes for nothing. A table is recorded together with the end of its state, and withdrawn
by a later discovery. So a process that ends in between, or a table that is locked, leaves none in the publication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from levada.errors import LevadaError
from levada.postgres.publication_owners import read_publication_owner
from levada.postgres.withdrawals import read_members, withdraw
from levada.runtime.config import PipelineConfig

if TYPE_CHECKING:
    from levada.stores.interface import PipelineStore
    from levada.values import PipelineOwner, TableId

_WHY: Final = "because spec.tables no longer selects it"


def record_deselected(store: PipelineStore, table: TableId) -> None:
    """Store that the pipeline has replicated the table and does so no longer."""
    store.store_fingerprint(_subject(table), "")


def forget_deselected(store: PipelineStore, table: TableId) -> None:
    """Remove the record of a table that is selected again, or has left the publication."""
    if store.get_fingerprint(_subject(table)) is not None:
        store.delete_fingerprint(_subject(table))


def withdraw_deselected(
    config: PipelineConfig, connection: psycopg.Connection[Any], store: PipelineStore, owner: PipelineOwner | None
) -> tuple[LevadaError, ...]:
    """Take the recorded tables out of the managed publication. Return the errors of those that stay for now.

    Nothing is changed in a publication without this pipeline's comment. Tables that another hand has added stay.
    """
    name = config.publication.name
    members = {
        table: member
        for table, member in read_members(connection, name).items()
        if not config.is_selected(member) and store.get_fingerprint(_subject(table)) is not None
    }
    named = read_publication_owner(connection, name) if members else None
    if owner is None or named is None or named.uid != owner.uid:
        return ()
    errors = withdraw(connection, name, sorted(members.values()), check=store.require_epoch, why=_WHY)
    for table in members.keys() - read_members(connection, name).keys():
        forget_deselected(store, table)
    return errors


def _subject(table: TableId) -> str:
    return f"deselected_{int(table)}"
