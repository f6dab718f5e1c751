"""The content of a destination's mounted Secret."""

from __future__ import annotations

from pathlib import Path

from levada.errors import LoginFailed
from levada.printable import unreadable_reason


def read_credentials(folder: Path) -> dict[str, str]:
    """Return the contents of a mounted Secret's files by name, without the trailing line break.

    Raise LoginFailed ``credentials_unreadable`` for a file that cannot be read, or that is not UTF-8 text.
    """
    try:
        files = [p for p in sorted(folder.iterdir()) if p.is_file() and p.name[:2] != ".."]
    except OSError as error:
        raise _unreadable(f"Secret {folder.name}", error, f"mount Secret {folder.name} at {folder}") from None
    return {p.name: _read_key(p) for p in files}


def _read_key(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        secret = path.parent.name
        hint = f"give Secret {secret} the key {path.name} as UTF-8 text, readable by this process"
        raise _unreadable(f"key {path.name} of Secret {secret}", error, hint) from None


def _unreadable(what: str, error: OSError | UnicodeDecodeError, hint: str) -> LoginFailed:
    return LoginFailed("credentials_unreadable", f"{what} is unreadable: {unreadable_reason(error)}", hint=hint)
