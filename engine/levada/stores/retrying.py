"""A storage whose calls are repeated while its place is away, for storages that do not repeat them themselves."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeGuard, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential_jitter

from levada.errors import LevadaError, NeedsOperator, Transient
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
    """Calls another storage, again after each Transient. After ten minutes, or three seconds at first, it is raised.

    Raises NeedsOperator ``store_failed`` for an exception that is no LevadaError, and for an answer of another type.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._patience = Patience(FIRST_PATIENCE_S, PATIENCE_S)

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        return self._repeat(lambda: self._storage.next_epoch(key, check), _is_epoch)

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        return self._repeat(lambda: self._storage.scan(kind), _are_documents)

    def get(self, key: Key[Any]) -> Document | None:
        return self._repeat(lambda: self._storage.get(key))

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        return self._repeat(lambda: self._storage.update(epoch, keys, change), _are_versions)

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        self._repeat(lambda: self._storage.clear(epoch, kept))

    def require_epoch(self, epoch: int) -> None:
        self._repeat(lambda: self._storage.require_epoch(epoch))

    def put(self, epoch: int | None, documents: Mapping[Key[Any], Document]) -> None:
        self._repeat(lambda: self._storage.put(epoch, documents))

    def delete(self, epoch: int, keys: Collection[Key[Any]]) -> dict[Key[Any], Document]:
        return self._repeat(lambda: self._storage.delete(epoch, keys), _are_documents)

    def stop_waiting(self) -> None:
        self._patience.stop_waiting()
        self._storage.stop_waiting()

    def close(self) -> None:
        self._storage.close()

    def _repeat(self, call: Callable[[], _T], valid: Callable[[object], bool] = lambda answer: True) -> _T:
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
        answer: _T = retrying(self._answer, call, valid)
        if self.last_error is not None:
            _log.info("the store answers again")
        self._patience.reached, self.last_error = True, None
        return answer

    def _answer(self, call: Callable[[], _T], valid: Callable[[object], bool]) -> _T:
        try:
            answer = call()
        except LevadaError:
            raise
        except Exception as error:
            raise self._failed(f"raised {type(error).__name__}: {error}") from error
        if not valid(answer):
            raise self._failed(
                f"returned a {type(answer).__name__} that levada.stores.Storage does not allow: {answer!r}"
            )
        return answer

    def _failed(self, how: str) -> NeedsOperator:
        kind = type(self._storage)
        return NeedsOperator(
            "store_failed",
            f"class {kind.__module__}.{kind.__qualname__} {how}",
            hint="correct the store, or ask its author. One that is away for a while must raise levada.Transient",
        )

    def _record_error(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        # Once an outage. The status has the newest error.
        _log.log(logging.WARNING if self.last_error is None else logging.DEBUG, "%s", error)
        self.last_error = error if isinstance(error, Transient) else None


def _is_epoch(answer: object) -> bool:
    return isinstance(answer, int) and answer > 0


def _are_documents(answer: object) -> TypeGuard[dict[Key[Any], Any]]:
    # The codecs name a document that cannot be read.
    return isinstance(answer, dict) and all(isinstance(key, Key) for key in answer)


def _are_versions(answer: object) -> bool:
    return _are_documents(answer) and all(isinstance(found, Versions) for found in answer.values())
