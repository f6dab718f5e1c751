"""A storage whose exceptions and answers are checked, because a user may have written its class."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeGuard, TypeVar

from levada.errors import LevadaError, NeedsOperator
from levada.stores.storage import Change, Document, DocumentKind, Key, Storage, Versions

_T = TypeVar("_T")


class CheckedStorage(Storage):
    """Calls another storage, whose class is ``kind`` for messages.

    Raises NeedsOperator ``store_failed`` for an exception that is no LevadaError, and for an answer of another type.
    """

    def __init__(self, storage: Storage, kind: type[Storage]) -> None:
        self._storage = storage
        self._kind = kind

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        return self._answer(lambda: self._storage.next_epoch(key, check), _is_epoch)

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        return self._answer(lambda: self._storage.scan(kind), _are_documents)

    def get(self, key: Key[Any]) -> Document | None:
        return self._answer(lambda: self._storage.get(key))

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        return self._answer(lambda: self._storage.update(epoch, keys, change), _are_versions)

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        self._answer(lambda: self._storage.clear(epoch, kept))

    def require_epoch(self, epoch: int) -> None:
        self._answer(lambda: self._storage.require_epoch(epoch))

    def put(self, epoch: int | None, documents: Mapping[Key[Any], Document]) -> None:
        self._answer(lambda: self._storage.put(epoch, documents))

    def delete(self, epoch: int, keys: Collection[Key[Any]]) -> dict[Key[Any], Document]:
        return self._answer(lambda: self._storage.delete(epoch, keys), _are_documents)

    def close(self) -> None:
        self._storage.close()

    def _answer(self, call: Callable[[], _T], valid: Callable[[object], bool] = lambda answer: True) -> _T:
        try:
            answer = call()
        except LevadaError:
            raise
        except BaseException as error:
            # In the main thread it may be Ctrl-C or the end of the program. A panic of a library in Rust is no
            # Exception either, and would end another thread without a word.
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise
            raise self._failed(f"raised {type(error).__name__}: {error}") from error
        if not valid(answer):
            raise self._failed(
                f"returned a {type(answer).__name__} that levada.stores.Storage does not allow: {answer!r}"
            )
        return answer

    def _failed(self, how: str) -> NeedsOperator:
        return NeedsOperator(
            "store_failed",
            f"class {self._kind.__module__}.{self._kind.__qualname__} {how}",
            hint="correct the store, or ask its author. One that is away for a while must raise levada.Transient",
        )


def _is_epoch(answer: object) -> bool:
    return isinstance(answer, int) and answer > 0


def _are_documents(answer: object) -> TypeGuard[dict[Key[Any], Any]]:
    # The codecs name a document that cannot be read.
    return isinstance(answer, dict) and all(isinstance(key, Key) for key in answer)


def _are_versions(answer: object) -> bool:
    return _are_documents(answer) and all(isinstance(found, Versions) for found in answer.values())
