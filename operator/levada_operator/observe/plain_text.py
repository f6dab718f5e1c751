"""Messages of Kubernetes without what only its developers can read."""

from __future__ import annotations

import re
from typing import Final

_COMBINED: Final = re.compile(r"^\(combined from similar events\): ")
_STRUCTURE: Final = re.compile(r": [&*]?(?:\[\]|map\[[\w.]*\])?[&*]?(?:\w+\.)?\w+\{")
_LONGEST: Final = 10_000
"""Characters of a message that are looked at. Each structure costs time that grows with the rest of the message."""


def plain_text(message: str) -> str:
    """Return a message without the prefix of combined Events, and without values that are printed as Go structures.

    The field that a structure belongs to, and what is wrong with it, stand before and after it.
    """
    text = _COMBINED.sub("", message[:_LONGEST])
    at = 0
    while (found := _STRUCTURE.search(text, at)) is not None:
        end = _end_of_braces(text, found.end())
        text, at = text[: found.start()] + text[end:], found.start()
    return text


def _end_of_braces(text: str, at: int) -> int:
    """Return the position after the brace that closes the one before ``at``. Braces within quotes do not count."""
    depth, quoted = 1, False
    while at < len(text) and depth:
        character = text[at]
        if character == "\\" and quoted:
            at += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in "{}":
            depth += 1 if character == "{" else -1
        at += 1
    return at
