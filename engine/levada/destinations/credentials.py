"""The content of a destination's mounted Secret."""

from __future__ import annotations

from pathlib import Path

from levada.errors import LoginFailed
from levada.printable import unreadable_reason


def read_credentials(folder: Path) -> dict[str, str]:
    """Return the contents of a mounted Secret's files by name, without the trailing line break.

    Raise LoginFailed ``credentials_unreadable`` for a file that cannot be read, or that is not UTF-8 text.
    """
    files = [p for p in sorted(folder.iterdir()) if p.is_file() and p.name[:2] != ".."]
    return {p.name: _read_key(p) for p in files}


def _read_key(path: Path) -> str:
    try:
        return path.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LoginFailed(
            "credentials_unreadable",
            f"key {path.name} of Secret {path.parent.name} is unreadable: {unreadable_reason(error)}",
            hint=f"give Secret {path.parent.name} the key {path.name} as UTF-8 text, readable by this process",
        ) from None
