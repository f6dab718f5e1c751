"""Upper estimates of the memory that objects take once they are parsed."""

from __future__ import annotations

from typing import Final

_VALUE: Final = 96
"""Bytes that a value takes, with its place in a list or mapping. A mapping of one entry takes twice as many."""


def parsed_size(text: bytes) -> int:
    """Return the bytes that a JSON text takes at most after parsing. Each value follows a comma or a bracket."""
    return len(text) + _VALUE * (text.count(b",") + text.count(b"[") + text.count(b"{"))
