"""The changes of PostgreSQL's tables as lines of JSON in a file, without a destination.

    python examples/change-capture/change_capture.py HOST PORT DATABASE changes.jsonl public.orders public.customers

First come the rows that are there, then each change. A change is confirmed once its line is on the disk. After a crash,
those that were not confirmed come again, with the same (lsn, ordinal). SIGINT and SIGTERM end the program. The slot
stays, and keeps what is changed until the next run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any

from levada import Change, ChangeCapture, Continuity, PostgresConnection, QualifiedTable, WalChangeCapture
from levada.events import Delete, Insert, TruncateEvent, Update

SLICE = 1000
"""The most changes that are written and confirmed together."""


def document(change: Change) -> dict[str, Any] | None:
    """Return a change as a document, None for an event that needs no confirmation."""
    place = {"lsn": str(change.commit_lsn), "ordinal": change.ordinal}
    match change.event:
        case Insert(schema=schema, row=row):
            return {**place, "op": "insert", "table": str(schema.name), "row": row.values}
        case Update(schema=schema, row=row, old=old):
            # A large value that did not change is not in the row. The former key is there if it changed.
            former = {} if old is None else {"old": old.values}
            return {**place, "op": "update", "table": str(schema.name), "row": row.values, **former}
        case Delete(schema=schema, old=old):
            return {**place, "op": "delete", "table": str(schema.name), "old": old.values}
        case TruncateEvent(names=names):
            return {**place, "op": "truncate", "tables": [str(name) for name in names]}
    return None


def write(changes: Iterable[Change], out: IO[str]) -> None:
    """Write changes, and confirm them once they are on the disk."""
    written = []
    for change in changes:
        if (row := document(change)) is not None:
            out.write(json.dumps(row, default=str) + "\n")
            written.append(change)
    out.flush()
    os.fsync(out.fileno())
    for change in written:
        change.ack.confirm()


def run(capture: ChangeCapture, tables: Sequence[QualifiedTable], path: Path) -> None:
    """Append the tables' rows, unless the file has them, then each change, until KeyboardInterrupt."""
    complete = path.with_suffix(".snapshot")
    with path.open("a") as out:
        if capture.prepare() is Continuity.FRESH or not complete.exists():
            complete.unlink(missing_ok=True)
            with capture.snapshot(tables) as rows:
                while read := list(islice(rows, SLICE)):
                    write(read, out)
            complete.touch()
        some: list[Change] = []
        with capture.live() as changes:
            for change in changes:
                some.append(change)
                # A transaction may be larger than the memory.
                if change.end_of_transaction or len(some) == SLICE:
                    write(some, out)
                    some.clear()


def main() -> None:
    if len(sys.argv) < 6:
        sys.exit(f"usage: python {sys.argv[0]} HOST PORT DATABASE FILE SCHEMA.TABLE ...")
    host, port, database, path, *names = sys.argv[1:]
    tables = [QualifiedTable(*name.split(".", 1)) for name in names]
    source = PostgresConnection(host, int(port), database, sslmode="prefer")
    capture = WalChangeCapture(source, slot="levada_changes", publication="levada_changes")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        run(capture.with_publication_management(set(tables), manage=True), tables, Path(path))


if __name__ == "__main__":
    main()
