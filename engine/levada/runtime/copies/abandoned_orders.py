"""The orders of dedicated copies that a driver left behind when it ended."""

from __future__ import annotations

from levada.runtime.copies.orders import read_answer
from levada.runtime.tables.kept_copies import store_kept_text
from levada.stores.interface import PipelineStore
from levada.stores.phases import DataSync


def withdraw_orders(store: PipelineStore) -> None:
    """Withdraw the orders of an earlier driver, and store the finished ranges that their processes recorded.

    Call it after the epoch was taken, so that such a process records no more, and before the staged segments are read.
    """
    for table, phase in store.get_table_replication_states().items():
        if not isinstance(phase, DataSync):
            continue
        order = store.get_copy_order(table)
        if order is None:
            continue
        recorded = read_answer(order).kept
        if recorded is not None:
            store_kept_text(store, table, recorded)
        store.order_copy(table, None)
