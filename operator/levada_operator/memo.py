"""The last results of pure functions, for inputs that rarely change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

_K = TypeVar("_K", bound=tuple[Any, ...])
_V = TypeVar("_V")


class TextMemo(Generic[_V]):
    """The results of the texts that were used last. All texts together have at most ``limit`` characters."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, _V] = {}
        self._size = 0

    def get(self, text: str, compute: Callable[[], _V]) -> _V:
        """Return the result for a text, computed unless it is known."""
        if text in self._known:
            result = self._known.pop(text)
        else:
            result = compute()
            self._size += len(text)
        self._known[text] = result
        while self._size > self._limit:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._size -= len(oldest)
        return result


class Memo(Generic[_K, _V]):
    """The last result for each key. Inputs are compared by equality, which takes no time for the same objects.

    Neither the inputs nor the results may be modified. Keys begin with the namespace and the name of a Pipeline. Beyond
    ``limit`` keys of one, all of its results are forgotten.
    """

    def __init__(self, limit: int = 1) -> None:
        self._limit = limit
        self._all: dict[tuple[Any, ...], dict[_K, tuple[tuple[Any, ...], _V]]] = {}

    def get(self, key: _K, inputs: tuple[Any, ...], compute: Callable[[], _V]) -> _V:
        """Return the result for these inputs, computed unless the last ones of the key were equal."""
        mine = self._all.setdefault(key[:2], {})
        known = mine.get(key)
        if known is not None and known[0] == inputs:
            return known[1]
        if key not in mine and len(mine) >= self._limit:
            mine.clear()
        result = compute()
        mine[key] = inputs, result
        return result

    def forget(self, namespace: str, pipeline: str) -> None:
        """Forget the results of a Pipeline that is gone. A tenant may make and delete large ones without end."""
        self._all.pop((namespace, pipeline), None)

    def __len__(self) -> int:
        """Return the number of Pipelines with results."""
        return len(self._all)
