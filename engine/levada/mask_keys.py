"""The keys of HMAC masks, read from the files of Secrets.

A key has an identifier, which is an HMAC with it of a fixed text. It shows whether two keys are the same, and not what
they are. The store has it with each copy and each version of a table. So another key is another mask, after which the
table is copied again, and a file whose content changed in between is never used in place of the former one.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from levada.errors import NeedsOperator
from levada.schema.masks import key_missing

LEAST_BYTES: Final = 16
"""The shortest key. A shorter one could be found by trying all of them."""
_IDENTIFIED: Final = b"levada: the identifier of a mask's key"
_ID_DIGITS: Final = 32

_read: Final[dict[str, bytes]] = {}
"""The keys that this process has read, by their identifiers. So a file that changes does not end what runs."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """The file of a key. ``key_id`` identifies the content that it had when it was opened."""

    key_id: str
    path: Path

    @classmethod
    def open(cls, path: Path) -> KeyFile:
        """Read the key in a file. Line breaks at its end do not belong to it.

        Raise NeedsOperator ``mask_key_unreadable`` and ``mask_key_weak``.
        """
        key = _content(path)
        key_id = _identify(key)
        _read[key_id] = key
        return cls(key_id, path)


@dataclass(frozen=True, slots=True)
class MaskKeyFiles:
    """The files of a pipeline's keys. It has no key itself, so it can be pickled into the tasks of a copy."""

    files: tuple[KeyFile, ...] = field(default=())

    @property
    def newest(self) -> str:
        """The identifier of the key that new masks have, empty without one."""
        return self.files[0].key_id if self.files else ""

    def key(self, key_id: str) -> bytes:
        """Return the key with this identifier. Raise NeedsOperator ``mask_key_missing`` if no file has it."""
        if key_id in _read:
            return _read[key_id]
        for file in self.files:
            if file.key_id == key_id and _identify(content := _content(file.path)) == key_id:
                _read[key_id] = content
                return content
        raise key_missing()


NO_KEY_FILES: Final = MaskKeyFiles()


def _identify(key: bytes) -> str:
    return hmac.digest(key, _IDENTIFIED, "sha256").hex()[:_ID_DIGITS]


def _content(path: Path) -> bytes:
    try:
        key = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise NeedsOperator(
            "mask_key_unreadable",
            f"key {path.name} of Secret {path.parent.name}, which masks columns, cannot be read: {error.strerror}",
            hint=f"give Secret {path.parent.name} the key {path.name}",
        ) from None
    if len(key) < LEAST_BYTES:
        raise NeedsOperator(
            "mask_key_weak",
            f"key {path.name} of Secret {path.parent.name}, which masks columns, has {len(key)} bytes, and needs at"
            f" least {LEAST_BYTES}",
            hint=f"make one with: openssl rand -hex 32 > {path}",
        )
    return key
