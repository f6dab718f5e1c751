"""Rules that hold of every history.

a: a Ready table equals its source 30 s after the last statement.
b: the engine never ends by itself.
c: a table of which no statement changes more than rows is never parked. No table leaves the pipeline in silence.
d: the code of a parked table is one that its statements can cause, the command of its hint heals it, and then it is
equal. With ``onUnstreamable: Resync`` a table that will be copied again needs no command.
e: no statement fails, or waits more than a second longer, that does not without Levada.
f: the engine ends and starts again after every history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from tests.histories.causes import explained
from tests.histories.expected import Watched, expected
from tests.histories.player import Player
from tests.histories.world import EDITED, World

_DECISIONS: Final = (
    "add a primary key without", "give the table a primary key", "the table's TableSync", "in a TableSync of",
    "correct columns.types", "set deletes to Apply", "set deletes: Apply", "give the row another value",
)  # fmt: skip
"""Parts of hints that ask for something of a person's choice."""
_UNFILLED: Final = frozenset({
    "add computed column", "add identity column", "column default", "key of a new column",
})  # fmt: skip
"""Statements that give existing rows values which no change shows. A changelog has NULL for them."""
_KEYS: Final = frozenset({"replace key", "add key", "drop key", "key of a new column", "key for a while"})
"""Statements that give a table another key."""
_CHANGING: Final = frozenset({
    "update", "upsert", "move key", "swap keys", "delete", "delete all", "merge", "replace key", "drop key",
    "update much", "move many keys", "delete much", "key of a new column", "key for a while", "merge moved key",
    "table becomes partition",
    "replica identity", "identity of partitions", "attach partition for a while", "detach partition for a while",
})  # fmt: skip
"""Statements that update or delete rows, or do so before the table has no identity any more."""
SQL: Final = re.compile(r"(?:ALTER|CREATE|DROP) [A-Z]+ [^;,]*(?=[;,]|$)")
"""Statements in a hint."""
_LINES: Final = 12
UNHEALED: Final = "not copied again"
Suspect = tuple[str, str, str]
"""The letter of the oracle, the kind of fault, and the details."""


@dataclass
class Look:
    """One look at the tables of a history."""

    world: World
    player: Player
    known: Mapping[int, tuple[str, str]]
    """Tables that the pipeline had before, with their schemas and names."""

    def suspects(self, healed: Set[int] = frozenset()) -> Iterator[Suspect]:
        """Yield what is not as it must be, now. All but (c) and (d) may still come right.

        ``healed`` are the tables whose hints were followed. One of another table may have parked any other one.
        """
        space = self.player.schema
        found = self.world.tables((space,))
        existing = self.world.existing()
        for oid, name in self.world.replicable((space,)).items():
            if oid not in found:
                yield "c", "missing", f"{name} can be replicated, and is no table of the pipeline"
        for oid in self.known - found.keys():
            # One with a name that is not selected is forgotten if another table has its former name.
            replaced = {(space, name) for space, name, *_ in existing.values()} & {self.known[oid]}
            if oid in existing and not existing[oid][2] and (existing[oid][0].endswith("_h") or not replaced):
                yield "c", "vanished", f"{existing[oid][:2]} is no table of the pipeline any more"
        for oid, table in found.items():
            if oid not in existing:
                yield "a", "dropped table", f"{table['name']} was dropped and is still {table['phase']}"
            elif table["error"]:
                # Nothing heals a table that is no longer selected.
                yield from self._of_parked(table, healed=oid in healed and existing[oid][0].endswith("_h"))
            elif table["phase"] != "Ready":
                yield "a", "never Ready", f"{table['name']} is {table['phase']}"
            elif text := self._differences(table):
                yield "a", _shape(text), f"{table['name']}, which is Ready: {text}"

    def _differences(self, table: dict[str, Any]) -> str:
        watched = self.world.watched(table)
        if watched is None:
            return "is gone"
        if self.world.form.append and not watched.key and _CHANGING & self.player.kinds(table["id"]):
            return ""  # updates and deletes of tables that are only appended to are not seen
        if self.world.form.keeps and not watched.key:
            return ""  # without a key no row that is kept can be told from others
        if watched.changelog and _KEYS & self.player.kinds(table["id"]):
            return ""  # a delete has the key of its time, and no reader finds its row by the newest one
        if watched.changelog and _UNFILLED & self.player.kinds(table["id"]):
            return ""  # it goes on without the values of older rows, as the guide on schema changes says
        with self.world.db.connect() as source:
            try:
                return self.world.reader.differences(source, self._expected(source, watched))
            except Exception as error:  # whatever a reader raises, a Ready table has to be readable
                return f"cannot be read: {type(error).__name__}: {str(error)[:300]}"

    def _expected(self, source: psycopg.Connection[Any], watched: Watched) -> Watched:
        form, edit = self.world.form, None
        if form.edited and watched.name == EDITED:
            edit = self.world.edit
        if form.fixed:
            watched = replace(watched, numbers=self.player.numbers.get(watched.oid, {}))
        return expected(source, watched, self.player.publication, generated=form.generated, edit=edit)

    def _of_parked(self, table: dict[str, Any], *, healed: bool) -> Iterator[Suspect]:
        error, kinds = table["error"], self.player.kinds(table["id"])
        if healed and "levada re" in error["solution"] and not any(d in error["solution"] for d in _DECISIONS):
            what = f"{table['name']} after {error['solution']!r}: {error['reason']}\n{self._said(table)}"
            yield "d", f"not healed {error['code']}", what
        elif error["retryPolicy"] == "TimedRetry" and self.world.form.resync and not SQL.search(error["solution"]):
            yield "d", f"{UNHEALED} {error['code']}", f"{table['name']}: {error['reason']}"
        elif not explained(error["code"], kinds, calm=table["name"] == "calm", form=self.world.form):
            oracle = "c" if table["name"] in ("calm", EDITED) else "d"
            yield oracle, error["code"], f"{table['name']}: {error['reason']} Its statements: {sorted(kinds)}"

    def _said(self, table: dict[str, Any]) -> str:
        """Return the last lines of the engine's log on a table, and its copy."""
        name = f"{table['schema']}.{table['name']}"
        lines = [line[:200] for line in self.world.engine.log.splitlines() if name in line]
        return "\n".join([*lines[-_LINES:], f"its copy: {table['resync']}"])


def _shape(text: str) -> str:
    """Return the kind of a difference, without names and numbers."""
    if "cannot be read" in text:
        return text.split("cannot be read: ")[1].split(":")[0]
    for word in ("for one", "hides rows", "lacks column", "rows in the lake", "columns"):
        if word in text:
            return "columns" if word == "lacks column" else word
    return re.sub(r"[\d'\"].*", "", text)[:30]
