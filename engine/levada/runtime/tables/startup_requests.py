"""What was asked of tables while no engine ran: taken before the slot is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from levada.runtime.config import PipelineConfig
from levada.runtime.tables.requests import CopySettings, TableRequest, last_copy_settings, pending_request
from levada.stores.interface import PipelineStore, TableAction
from levada.stores.phases import Init

if TYPE_CHECKING:
    from collections.abc import Iterable

    from levada.postgres.catalog import PublishedTable


def apply_requested_resyncs(store: PipelineStore) -> None:
    """Put the tables that a resync was requested of back to Init: then a lost slot is no loss for them."""
    for table, action in store.take_table_actions().items():
        if action is TableAction.RESYNC:
            store.update_table_replication_states({table: Init()})
        else:
            store.request_table_action(table, action)


def apply_manifest_resyncs(config: PipelineConfig, store: PipelineStore, tables: Iterable[PublishedTable]) -> None:
    """Do the same for the tables of which the manifest now says something that makes their copy anew."""
    for table in tables:
        controls, phase = store.get_table_controls(table.id), store.get_table_replication_state(table.id)
        if controls is None or phase is None or isinstance(phase, Init):
            continue
        said = config.table(table.name)
        if (
            pending_request(controls, said, CopySettings.of(config, table.name, last_copy_settings(controls)))
            is TableRequest.RESYNC
        ):
            store.update_table_replication_states({table.id: Init()})
            nonces = replace(controls, retry_nonce=said.retry_nonce, resync_nonce=said.resync_nonce)
            store.store_table_controls(table.id, nonces)
