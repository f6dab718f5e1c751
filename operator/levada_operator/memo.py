"""The last results of pure functions, for inputs that rarely change."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Memo(Generic[_K, _V]):
    """The last result for each key. Inputs are compared by equality, which takes no time for the same objects.

    Neither the inputs nor the results may be modified. Beyond ``limit`` keys all results are forgotten.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[_K, tuple[tuple[Any, ...], _V]] = {}

    def get(self, key: _K, inputs: tuple[Any, ...], compute: Callable[[], _V]) -> _V:
        """Return the result for these inputs, computed unless the last ones of the key were equal."""
        known = self._known.get(key)
        if known is not None and known[0] == inputs:
            return known[1]
        if key not in self._known and len(self._known) >= self._limit:
            self._known.clear()
        result = compute()
        self._known[key] = inputs, result
        return result
