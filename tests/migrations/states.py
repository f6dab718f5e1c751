"""The numbers of rows that each table had at the source, in order, and those that a reader of the lake saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

_NAMES: Final = """
SELECT c.oid::int, c.relname FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
"""


@dataclass
class SourceStates:
    """The numbers of rows by the table's OID. None stands for any number of states that were not recorded."""

    counts: dict[int, list[int | None]] = field(default_factory=lambda: defaultdict(list))

    def record(self, connection: psycopg.Connection[Any], tables: Iterable[int], *, gaps: bool = False) -> None:
        """Record the number of rows of tables. With ``gaps`` they had others since the last one."""
        names = dict(connection.execute(_NAMES).fetchall())
        for oid in tables:
            if oid not in names:
                continue
            query = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier("public", names[oid]))
            [(count,)] = connection.execute(query).fetchall()
            states = self.counts[oid]
            if gaps:
                states.append(None)
            if not states or states[-1] != count:
                states.append(count)

    def record_all(self, connection: psycopg.Connection[Any], *, gaps: bool) -> None:
        """Record the number of rows of all tables."""
        self.record(connection, dict(connection.execute(_NAMES).fetchall()), gaps=gaps)


def unexplained(source: Sequence[int | None], seen: Sequence[int]) -> Iterator[int]:
    """Yield the numbers that a reader saw and that the source did not have then, in this order."""
    at = 0
    for count in seen:
        found = next((i for i in range(at, len(source)) if source[i] in (count, None)), None)
        if found is None:
            yield count
        else:
            at = found
