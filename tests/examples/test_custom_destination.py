"""The example of a destination of one's own, against a real HTTP server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.examples.load import load_example
from tests.rigs.database import Database
from tests.rigs.http_service import Service
from tests.rigs.waiting import LIMIT_S

from levada.destinations import Destination
from levada.errors import NeedsOperator, Transient
from levada.schema import Column, TableTarget
from levada.testing import DestinationConformance, DestinationPlace
from levada.testing.destinations.crashes import Crashes


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
    """A client error is not retried. A service that stays away ends the attempts."""
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
        running.run_until(running.caught_up(), timeout_s=LIMIT_S)
        service.refusals = [503]
        with db.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO b VALUES (1, 9.99)")
            connection.execute("UPDATE a SET body = 'new' WHERE id = 1")
            connection.execute("UPDATE a SET id = -2 WHERE id = 2")
            connection.execute("DELETE FROM a WHERE id = 3")
        db.execute("TRUNCATE b")
        running.run_until(running.caught_up(), timeout_s=LIMIT_S)
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
