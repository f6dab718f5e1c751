"""Each test of a store runs over every place that has one."""

from __future__ import annotations

from tests.rigs.storages import elsewhere, example, in_source, memory, open_storage, open_store, second_server, store

__all__ = ["elsewhere", "example", "in_source", "memory", "open_storage", "open_store", "second_server", "store"]
