"""A storage whose calls are repeated while its place is away, for storages that do not repeat them themselves."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential_jitter

from levada.errors import Transient
from levada.stores.patience import Patience
from levada.stores.storage import Change, Document, DocumentKind, Key, Storage, Versions

_log = logging.getLogger(__name__)

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
FIRST_PATIENCE_S: Final = 3.0
PATIENCE_S: Final = 600.0
"""Seconds to wait for a place that has answered before. This is about the duration of a maintenance window."""

_T = TypeVar("_T")


class RetryingStorage(Storage):
    """Calls another storage, again after each Transient. After ten minutes, or three seconds at first, it is raised."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._patience = Patience(FIRST_PATIENCE_S, PATIENCE_S)

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        return self._repeat(lambda: self._storage.next_epoch(key, check))

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        return self._repeat(lambda: self._storage.scan(kind))

    def get(self, key: Key[Any]) -> Document | None:
        return self._repeat(lambda: self._storage.get(key))

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        return self._repeat(lambda: self._storage.update(epoch, keys, change))

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        self._repeat(lambda: self._storage.clear(epoch, kept))

    def require_epoch(self, epoch: int) -> None:
        self._repeat(lambda: self._storage.require_epoch(epoch))

    def put(self, epoch: int | None, documents: Mapping[Key[Any], Document]) -> None:
        self._repeat(lambda: self._storage.put(epoch, documents))

    def delete(self, epoch: int, keys: Collection[Key[Any]]) -> dict[Key[Any], Document]:
        return self._repeat(lambda: self._storage.delete(epoch, keys))

    def stop_waiting(self) -> None:
        self._patience.stop_waiting()
        self._storage.stop_waiting()

    def close(self) -> None:
        self._storage.close()

    def _repeat(self, call: Callable[[], _T]) -> _T:
        if self._patience.over and self.last_error is not None:
            raise self.last_error
        retrying = Retrying(
            stop=self._patience.gives_up,
            wait=wait_exponential_jitter(multiplier=_FIRST_DELAY_S, max=_LONGEST_DELAY_S),
            sleep=self._patience.pause,
            retry=retry_if_exception_type(Transient),
            after=self._record_error,
            reraise=True,
        )
        answer: _T = retrying(call)
        if self.last_error is not None:
            _log.info("the store answers again")
        self._patience.reached, self.last_error = True, None
        return answer

    def _record_error(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        # Once an outage. The status has the newest error.
        _log.log(logging.WARNING if self.last_error is None else logging.DEBUG, "%s", error)
        self.last_error = error if isinstance(error, Transient) else None
