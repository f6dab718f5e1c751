"""Each test of a store runs over every place that has one."""

from __future__ import annotations

from tests.rigs.storages import open_storage, open_store, second_server, store

__all__ = ["open_storage", "open_store", "second_server", "store"]
