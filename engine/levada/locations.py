"""Names that are safe in a path, and the check that a file or folder lies below another.

A PostgreSQL identifier may hold any character but NUL: ``../../x`` is a table's name like any other. As part of a path
it would name another folder, so every name passes `target_name` before it becomes one. Every removal of a folder or
file that a stored text names passes `lies_below` first.
"""

from __future__ import annotations

import errno
import os
import unicodedata
from typing import Final
from urllib.parse import unquote

MAX_NAME_BYTES: Final = 255
"""The longest name of a file or folder on the usual file systems, in bytes of UTF-8."""

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The errors of a file system without room, or of a quota that is used up."""

_PLAIN: Final = frozenset("_-$@+=, ")


def target_name(name: str) -> str:
    """Return a name as one part of a path, from which `source_name` returns it.

    Letters, digits and ``_ - $ @ + = ,`` stay, and so do spaces within. Every other character becomes a ``%`` and two
    hexadecimal digits for each of its bytes in UTF-8, as in a URI.
    """
    ends = (0, len(name) - 1)
    return "".join(c if _stays(c) and not (c == " " and i in ends) else _encoded(c) for i, c in enumerate(name))


def source_name(target: str) -> str:
    """Return the name that `target_name` has encoded."""
    return unquote(target, errors="strict")


def folded_name(name: str) -> str:
    """Return the name as systems see it that ignore case and the composition of letters."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def java_folded(name: str) -> str:
    """Return the same text for names that Java's ``equalsIgnoreCase`` or ``toLowerCase`` takes for one, as Spark does.

    Each letter is mapped to one upper-case letter, and that to one lower-case letter. So i, \u0130 and \u0131 are one,
    and so are s and \u017f, k and the Kelvin sign, which Python's ``lower`` keeps apart. A dot above an i is left out,
    because ``toLowerCase`` makes it of \u0130.
    """
    return "".join(map(_java_letter, name)).replace("i\u0307", "i")


def ascii_folded(name: str) -> str:
    """Return the same text for names that differ only in the case of the letters A to Z, as DuckDB compares them."""
    return "".join(c.lower() if c.isascii() else c for c in name)


def lies_below(location: str, folder: str) -> bool:
    """Return True if a path or URI is strictly below a folder of the same kind, whatever it has in its parts.

    What follows the folder may have no empty part and no ``.`` or ``..``, percent-encoded ones included. What
    `target_name` has encoded is a name. On a local file system symbolic links are followed.
    """
    (scheme, root), (other, path) = _split(folder), _split(location)
    root = root.rstrip("/") + "/"
    if scheme != other or not folder.strip("/") or not path.startswith(root):
        return False
    if not all(map(_is_plain_part, path[len(root) :].removesuffix("/").split("/"))):
        return False
    if scheme != "file":
        return True
    real = os.path.realpath(root)
    return real != "/" and os.path.realpath(path).startswith(real + "/")


def _java_letter(c: str) -> str:
    upper = c.upper()
    lower = (upper if len(upper) == 1 else c).lower()
    return lower[0]


def _stays(c: str) -> bool:
    return c in _PLAIN or c.isalnum() or (not c.isascii() and unicodedata.category(c).startswith("M"))


def _encoded(c: str) -> str:
    return "".join(f"%{byte:02X}" for byte in c.encode())


def _split(location: str) -> tuple[str, str]:
    """Return the kind of storage with its authority, and the path there. A plain path is a file's."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return "file", location
    if scheme.lower() != "file":
        authority, _, path = rest.removeprefix("//").partition("/")
        return f"{scheme.lower()}://{authority}", f"/{path}"
    return "file", "/" + rest.removeprefix("//localhost").lstrip("/")


def _is_plain_part(part: str) -> bool:
    if part and part == target_name(unquote(part)):
        return True
    while part != (decoded := unquote(part)):
        part = decoded
    return part not in ("", ".", "..") and not any(c in "/\\\0" for c in part)
