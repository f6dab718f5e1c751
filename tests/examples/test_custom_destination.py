"""The example of a destination of one's own, against a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.conftest import Database
from tests.examples.load import load_example

from levada.destinations import Destination
from levada.errors import NeedsOperator, Transient
from levada.schema import Column, TableTarget
from levada.testing import DestinationConformance, DestinationPlace
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


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The example, as a module."""
    return load_example("custom_destination")


def test_what_a_service_cannot_do_now_is_posted_again(
    example: ModuleType, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    """Three failures cost three tries and nothing else. The log says why."""
    service.refusals = [503, 429, 500]
    example.HttpDestination(service.url, first_delay_s=0.001)._post({"type": "drop", "table": "public.t"})
    assert service.posted == [{"type": "drop", "table": "public.t"}]
    assert caplog.messages == [
        f"posting again: {service.url} answers {code} [http_unavailable]" for code in (503, 429, 500)
    ]


def test_what_a_service_refuses_is_for_a_person(example: ModuleType, service: Service) -> None:
    """A client error is not repeated; a service that stays away is given up on in the end."""
    service.refusals = [422]
    with pytest.raises(NeedsOperator) as refused:
        example.HttpDestination(service.url, first_delay_s=0.001)._post({})
    assert refused.value.code == "http_refused"
    with pytest.raises(Transient) as unreachable:
        example.HttpDestination("http://127.0.0.1:1/", attempts=2, first_delay_s=0.001)._post({})
    assert unreachable.value.code == "http_unavailable"


def test_rows_and_changes_arrive_in_commit_order(
    example: ModuleType, service: Service, db: Database, tmp_path: Path
) -> None:
    """A copy, then inserts, updates, deletes and truncates of two tables, whole transactions, in order."""
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY, body text)",
        "CREATE TABLE b (id int PRIMARY KEY, amount numeric(10,2))",
        "INSERT INTO a SELECT i, 'row ' || i FROM generate_series(1, 2500) i",
    )
    with example.pipeline(db.connection, service.url, tmp_path) as running:
        running.run_until(running.caught_up(), timeout_s=300)
        service.refusals = [503]
        with db.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO b VALUES (1, 9.99)")
            connection.execute("UPDATE a SET body = 'new' WHERE id = 1")
            connection.execute("UPDATE a SET id = -2 WHERE id = 2")
            connection.execute("DELETE FROM a WHERE id = 3")
        db.execute("TRUNCATE b")
        running.run_until(running.caught_up(), timeout_s=300)
    copied = [row for message in service.posted if message["type"] == "rows" for row in message["rows"]]
    assert sorted(row["id"] for row in copied) == list(range(1, 2501))
    assert {message["table"] for message in service.posted if message["type"] == "create"} == {"public.a", "public.b"}
    changes = service.changes()
    assert [(c["op"], c["table"]) for c in changes] == [
        ("insert", "public.b"),
        ("update", "public.a"),
        ("update", "public.a"),
        ("delete", "public.a"),
        ("truncate", "public.b"),
    ]
    assert [c["ordinal"] for c in changes[:4]] == sorted(c["ordinal"] for c in changes[:4])
    assert len({c["lsn"] for c in changes[:4]}) == 1
    assert changes[0]["row"] == {"id": 1, "amount": "9.99"}
    assert changes[1]["row"] == {"id": 1, "body": "new"}
    assert "old" not in changes[1]
    assert (changes[2]["old"], changes[2]["row"]["id"]) == ({"id": 2}, -2)
    assert changes[3]["old"] == {"id": 3}


def _open(url: str) -> Destination:
    destination: Destination = load_example("custom_destination").HttpDestination(url, first_delay_s=0.001)
    return destination


class TestConformance(DestinationConformance):
    """The example under the conformance suite."""

    @pytest.fixture
    def place(self, service: Service, example: ModuleType) -> DestinationPlace:
        """Return a service, and the rows that it has received."""

        def read(target: TableTarget) -> list[dict[str, Any]]:
            return service.rows(str(target.name))

        def shown(column: Column, value: Any) -> Any:
            return example.json_value(value)

        opening = partial(_open, service.url)
        return DestinationPlace(open=opening, read=read, shown=shown, in_child=opening)
