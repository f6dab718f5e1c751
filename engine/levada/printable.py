"""Text for terminals and logs, in which names that other people chose cannot pass for anything else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

# Control characters of ASCII and Latin-1 (terminals obey some), line separators, and those that reorder a line.
_CONTROL: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_NEW_LINE: Final = re.compile(r"\n(?!  )")
_LISTED: Final = 10


def printable(text: str) -> str:
    """Return the text with every control character but the line feed written as an escape sequence of Python."""
    return _CONTROL.sub(lambda m: m[0].encode("unicode_escape").decode(), text)


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, which gets an ``s`` unless the number is 1: ``1 table``, ``20,000 rows``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(items: Sequence[object]) -> str:
    """Return the first ten with commas, and the number of the others: ``a, b, c and 7 more``."""
    more = f" and {len(items) - _LISTED:,} more" if len(items) > _LISTED else ""
    return ", ".join(map(str, items[:_LISTED])) + more


def unreadable_reason(error: OSError | UnicodeDecodeError) -> str:
    """Return why a text file cannot be read, in words: ``No such file or directory``, ``it is not UTF-8 text``."""
    return (error.strerror or "input/output error") if isinstance(error, OSError) else "it is not UTF-8 text"


def one_record(text: str) -> str:
    """Return the text so that no line of it looks like the begin of a record: only indented lines are kept apart."""
    return _NEW_LINE.sub(r"\\n", printable(text))
