"""The masks of columns: what the manifest says by name, and what a column of a version has. Pure.

A mask is applied where a value is decoded, by `levada.pgoutput.masking`. So nothing after the decoder, such as a
segment or a file of a copy, has a value in clear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from levada.errors import NeedsOperator
from levada.values import MaskMethod


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask. ``length`` is the number of characters that TRUNCATE and LAST keep.

    ``key_id`` identifies the key of an HMAC, and does not contain it. Two keys never have the same one.
    """

    method: MaskMethod
    length: int = 0
    key_id: str = ""

    def to_json(self) -> list[Any]:
        """Return the mask as plain values for JSON."""
        return [self.method.value, self.length, self.key_id]

    @classmethod
    def from_json(cls, data: list[Any]) -> Mask:
        """Parse the result of `to_json`."""
        return cls(MaskMethod(data[0]), data[1], data[2])


@dataclass(frozen=True, slots=True)
class ColumnMask:
    """The mask of one column of a version. ``named`` is the name by which the manifest has it.

    The column may have another name since, because a renamed column keeps its mask.
    """

    named: str
    mask: Mask

    def to_json(self) -> list[Any]:
        """Return the mask as plain values for JSON."""
        return [self.named, self.mask.to_json()]

    @classmethod
    def from_json(cls, data: list[Any]) -> ColumnMask:
        """Parse the result of `to_json`."""
        return cls(data[0], Mask.from_json(data[1]))


@dataclass(frozen=True, slots=True)
class TableMasks:
    """The masks of a table's columns by name, as the manifest has them. ``entries`` are in the order of the names."""

    entries: tuple[tuple[str, Mask], ...] = ()

    @classmethod
    def of(cls, masks: Mapping[str, Mask]) -> TableMasks:
        """Return the masks of a mapping."""
        return cls(tuple(sorted(masks.items())))

    def get(self, name: str) -> Mask | None:
        """Return the mask of the column with this name in the manifest, None if it has none."""
        return next((mask for known, mask in self.entries if known == name), None)

    @property
    def names(self) -> frozenset[str]:
        """The names of the masked columns."""
        return frozenset(name for name, _ in self.entries)

    def __bool__(self) -> bool:
        """Return True if a column is masked."""
        return bool(self.entries)

    def to_json(self) -> list[Any]:
        """Return the masks as plain values for JSON."""
        return [[name, mask.to_json()] for name, mask in self.entries]

    @classmethod
    def from_json(cls, data: Iterable[list[Any]]) -> TableMasks:
        """Parse the result of `to_json`."""
        return cls(tuple((name, Mask.from_json(mask)) for name, mask in data))


NO_MASKS: Final = TableMasks()


class MaskKeys(Protocol):
    """The keys of HMACs."""

    @property
    def newest(self) -> str:
        """The identifier of the key that new masks have, empty without one."""
        ...

    def key(self, key_id: str) -> bytes:
        """Return the key with this identifier. Raise NeedsOperator ``mask_key_missing`` if there is none."""
        ...


class NoKeys:
    """The keys of a pipeline that masks no column by HMAC."""

    newest = ""

    def key(self, key_id: str) -> bytes:
        """Raise NeedsOperator ``mask_key_missing``."""
        raise key_missing()


NO_KEYS: Final = NoKeys()


def key_missing() -> NeedsOperator:
    """Return the error of a key that no Secret has."""
    return NeedsOperator(
        "mask_key_missing",
        "no Secret of the manifest has the key by which a column was masked (columns.mask, method HMAC)",
        hint="give the Secret the former key again, or copy the table again with the present one:"
        " levada resync MANIFEST TABLE",
    )
