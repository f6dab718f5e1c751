"""Resyncs requested while the engine was stopped. They are applied before the slot is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from levada.runtime.config import PipelineConfig
from levada.runtime.tables.kept_copies import store_kept_copy
from levada.runtime.tables.requests import CopySettings, TableRequest, last_copy_settings, pending_request
from levada.stores.interface import PipelineStore, TableAction
from levada.stores.phases import Init

if TYPE_CHECKING:
    from collections.abc import Iterable

    from levada.postgres.catalog import StreamedTable


def apply_requested_resyncs(store: PipelineStore) -> None:
    """Put the tables with a requested resync back to Init, so that a lost slot does not park them.

    Other requests stay in the store for the supervisor.
    """
    for table, action in store.take_table_actions().items():
        if action is TableAction.RESYNC:
            store_kept_copy(store, table, None)
            store.update_table_replication_states({table: Init()})
        else:
            store.request_table_action(table, action)


def apply_manifest_resyncs(config: PipelineConfig, store: PipelineStore, tables: Iterable[StreamedTable]) -> None:
    """Put the tables back to Init whose settings or ``resyncNonce`` in the manifest request a resync."""
    for table in tables:
        controls, phase = store.get_table_controls(table.id), store.get_table_replication_state(table.id)
        if controls is None or phase is None or isinstance(phase, Init):
            continue
        table_config = config.table(table.name)
        before = last_copy_settings(controls)
        wanted = CopySettings.of(config, table.name, before)
        if pending_request(controls, before, table_config, wanted) is TableRequest.RESYNC:
            store_kept_copy(store, table.id, None)
            store.update_table_replication_states({table.id: Init()})
            nonces = replace(controls, retry_nonce=table_config.retry_nonce, resync_nonce=table_config.resync_nonce)
            store.store_table_controls(table.id, nonces)
