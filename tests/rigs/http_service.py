"""An HTTP service that keeps what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from levada.values import Lsn


class Service:
    """A server that keeps what is posted, and answers with the codes in ``refusals`` first."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.refusals: list[int] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = service.refusals.pop(0) if service.refusals else 200
                if status == 200:
                    service.posted.append(json.loads(body))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/changes"

    def changes(self) -> list[dict[str, Any]]:
        posted = [change for message in self.posted if message["type"] == "changes" for change in message["changes"]]
        return [change for change in posted if change["op"] != "columns"]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows that a receiver has of what was posted, each change once."""
        held: Table | None = None
        for message in list(self.posted):
            if message["type"] == "changes":
                mine = [c for c in message["changes"] if c["table"] == table]
                for change in mine if held is not None else []:
                    assert held is not None
                    held.add(change)
            elif message["table"] == table:
                if message["type"] == "rows":
                    assert held is not None
                    held.copied += message["rows"]
                else:
                    held = Table(message["columns"]) if message["type"] == "create" else None
        assert held is not None
        return held.current()


@dataclass
class Table:
    """A receiver's table: the copied rows, and each change by its place in the WAL."""

    columns: list[dict[str, Any]]
    copied: list[dict[str, Any]] = field(default_factory=list)
    changes: dict[tuple[Lsn, int, bool], dict[str, Any]] = field(default_factory=dict)

    def add(self, change: dict[str, Any]) -> None:
        # A row and the change of columns before it have the same place.
        self.changes[Lsn.parse(change["lsn"]), change["ordinal"], change["op"] != "columns"] = change

    def current(self) -> list[dict[str, Any]]:
        columns, rows = self.columns, [self.by_id(self.columns, row) for row in self.copied]
        for _, change in sorted(self.changes.items(), key=lambda item: item[0]):
            if change["op"] == "columns":
                columns = change["columns"]
            elif change["op"] == "truncate":
                rows = []
            else:
                new = self.by_id(columns, change.get("row", {}))
                # Without a key in the message, the row before has the values of the first column.
                key = self.by_id(columns, change.get("old") or change["row"])
                if change["op"] != "insert":
                    match = self.matching(columns, rows, key, "old" in change)
                    rows = [row for row in rows if row is not match]
                    new = (match or {}) | new
                if change["op"] != "delete":
                    rows.append(new)
        return [{c["name"]: row.get(c["id"]) for c in columns} for row in rows]

    def by_id(self, columns: list[dict[str, Any]], row: dict[str, Any]) -> dict[int, Any]:
        return {c["id"]: row[c["name"]] for c in columns if c["name"] in row}

    def matching(
        self, columns: list[dict[str, Any]], rows: list[dict[int, Any]], key: dict[int, Any], by_all: bool
    ) -> dict[int, Any] | None:
        ids = list(key) if by_all else [i for i in self.key if i in key]
        return next((row for row in rows if all(row.get(i) == key[i] for i in ids)), None)

    @property
    def key(self) -> list[int]:
        return [c["id"] for c in self.columns if c["key"]]


@pytest.fixture
def service() -> Iterator[Service]:
    """A service on loopback."""
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()
