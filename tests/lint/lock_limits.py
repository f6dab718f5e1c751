"""Limits of the locks that Levada's statements wait for at the source.

A session has a limit for each statement. A statement that waits longer holds up those of applications that come later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tests.lint.tree import Finding, Tree

MOST_MS: Final = 1000.0

_OTHER_SERVERS: Final = ("engine/levada/stores/", "engine/levada/destinations/")
"""Their sessions have limits of their own."""
_LIMIT: Final = re.compile(r"lock_timeout(?:', '|\s*=\s*'?)(?:(?P<number>\d+)(?P<unit>ms|s|min)?|\{(?P<name>\w+))")
_CONSTANT: Final = re.compile(
    r"^(?P<name>_?[A-Z_]*LOCK[A-Z_]*_(?P<unit>S|MS)): Final = (?P<number>[\d.]+)", re.MULTILINE
)
_MS: Final = {None: 1.0, "ms": 1.0, "MS": 1.0, "s": 1000.0, "S": 1000.0, "min": 60_000.0}
LONGER: Final[Mapping[tuple[str, str], str]] = {
    ("postgres/slots.py", "0"): "the creation of a slot waits for transactions, and takes no lock of a table",
    ("postgres/connection.py", "0"): "the same, in a walsender",
    ("postgres/sessions.py", "5s"): "an advisory lock, which applications do not take",
    ("postgres/table_locks.py", "_VACUUM_LOCK_MS"): "after a second PostgreSQL cancels an autovacuum, and no row waits",
}
"""Longer limits, with reasons. They must not hold up a statement of an application."""


def lock_limits(tree: Tree) -> Iterator[Finding]:
    """Report limits of more than a second, or none, for locks at the source."""
    for path in tree.below("engine/levada"):
        if path.startswith(_OTHER_SERVERS):
            continue
        text, short = tree.text(path), path.removeprefix("engine/levada/")
        found = [(m, m["number"] + (m["unit"] or ""), m["unit"]) for m in _LIMIT.finditer(text) if m["number"]]
        found += [(m, m["name"], m["unit"]) for m in _CONSTANT.finditer(text)]
        for match, what, unit in found:
            limit = float(match["number"]) * _MS[unit]
            if not 0 < limit <= MOST_MS and (short, what) not in LONGER:
                line = text.count("\n", 0, match.start()) + 1
                yield Finding(path, line, f"a lock is waited for longer than a second ({what}): the caller tries again")
