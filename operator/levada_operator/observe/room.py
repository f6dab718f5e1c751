"""The memory that the objects of one namespace may take, so that none of them takes that of all others."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

MAX_PIPELINE: Final = 1 << 20
"""Bytes that a Pipeline may take in memory. One of 100 KiB as JSON takes about as many."""
_MAX_KEPT: Final = {"Pipeline": 16 << 20, "TableSync": 32 << 20, "Owned": 32 << 20}
"""Bytes that the objects of one namespace may take in memory."""
_MAX_DEPTH: Final = 100
_VALUE: Final = 96
_INTERNED: Final = 64
"""The length of texts that may occur in several objects. Longer ones are messages."""


class NoRoomError(ValueError):
    """An object that is not kept, because its namespace has too many. It is no fault of the operator."""

    def __init__(self, kind: str) -> None:
        # Without the object's name, so that thousands of them are told once.
        super().__init__(f"the namespace has too many of the operator's objects, so some of kind {kind} are ignored")


class Room:
    """The bytes that are taken, by object and by namespace. ``of`` is Pipeline, TableSync or Owned."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, ...], int] = {}
        self._totals: Counter[tuple[str, str]] = Counter()

    def take(self, of: str, place: tuple[str, ...], size: int) -> bool:
        """Return True if an object of that size may be kept, and count it."""
        more = size - self._sizes.get(place, 0)
        if self._totals[place[-2], of] + more > _MAX_KEPT[of]:
            return False
        self._sizes[place] = size
        self._totals[place[-2], of] += more
        return True

    def free(self, of: str, place: tuple[str, ...]) -> None:
        """Count the object of this place no more. ``place`` ends with its namespace and its name."""
        self._totals[place[-2], of] -= self._sizes.pop(place, 0)


def size_of(value: Any, depth: int = 0) -> int:
    """Return the bytes that a value takes in memory, as an upper estimate. Raise RecursionError beyond 100 levels."""
    if depth > _MAX_DEPTH:
        raise RecursionError
    if isinstance(value, Mapping):
        return 2 * _VALUE + sum(len(key) + size_of(each, depth + 1) for key, each in value.items())
    if isinstance(value, list):
        return _VALUE + sum(size_of(each, depth + 1) for each in value)
    return _VALUE + (len(value) if isinstance(value, str) else 0)


def compact(value: Any) -> Any:
    """Return a copy whose texts are stored once in the process. There are thousands of objects of the same shape."""
    if isinstance(value, Mapping):
        return {sys.intern(key): compact(each) for key, each in value.items()}
    if isinstance(value, list):
        return [compact(each) for each in value]
    return sys.intern(value) if type(value) is str and len(value) <= _INTERNED else value
