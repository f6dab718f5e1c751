"""Other drivers and users at the same tables of BigQuery, and kills between statements."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.destinations.bigquery.warehouse import ORDERS, Warehouse, apply, copy, error_of
from tests.destinations.memory import MemoryRows
from tests.servers.bigquery import PROJECT

from levada.destinations.bigquery import BigQueryDestination
from levada.destinations.bigquery.rest import RestClient
from levada.destinations.bigquery.served_table import ServedTable
from levada.errors import DestinationChanged, StaleEpoch, Transient
from levada.schema import Kind, TableTarget
from levada.testing import ArrowRows, column
from levada.values import QualifiedTable, TableId, TableMode


def test_two_drivers_of_one_epoch_write_a_batch_once(warehouse: Warehouse) -> None:
    """Of two processes that apply the same changes to a changelog at the same time, one changes nothing."""
    first, second = warehouse.destination(), warehouse.destination()
    stream = copy(warehouse, first, mode=TableMode.CHANGELOG)
    for destination in (first, second):
        assert destination.applied(ORDERS.id) == warehouse.mark(1000)
    stream.insert(id=4, item="once", note=None)
    batch = stream.batch()
    first.write_events(batch, warehouse.mark(batch.until))
    # The second still knows the state from before.
    assert error_of(lambda: second.write_events(batch, warehouse.mark(batch.until))).code == "commit_conflict"
    second.write_events(batch, warehouse.mark(batch.until))
    assert [r[0] for r in warehouse.rows(columns="item")].count("once") == 1


@pytest.mark.nightly
def test_the_shadow_copy_of_a_newer_driver_stays(warehouse: Warehouse) -> None:
    """An older driver neither drops nor replaces the shadow copy of a newer one."""
    older, newer = warehouse.destination(), warehouse.destination()
    copy(warehouse, older)
    target = TableTarget.of(ORDERS, TableMode.UPSERT)
    assert older.copy_replacement(target, ArrowRows.of(ORDERS, []), warehouse.mark(1000))
    fresh = [{"id": 1, "item": "fresh", "note": None}]
    assert newer.copy_replacement(target, ArrowRows.of(ORDERS, fresh), warehouse.mark(1000, 2))
    with pytest.raises(StaleEpoch):
        older.copy_replacement(target, ArrowRows.of(ORDERS, []), warehouse.mark(1000))
    with pytest.raises(StaleEpoch):
        older.drop_replacement(ORDERS.id)
    assert newer.swap_replacement(ORDERS.id, warehouse.mark(1000, 2))
    assert warehouse.items() == {1: "fresh"}


def test_only_the_shadow_copy_of_this_process_is_swapped_in(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a shadow copy that took the place of another one never become those of the table."""
    one, two = warehouse.destination(), warehouse.destination()
    copy(warehouse, one)
    target, mark = TableTarget.of(ORDERS, TableMode.UPSERT), warehouse.mark(1000)
    assert one.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
    assert two.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
    assert not one.swap_replacement(ORDERS.id, mark)
    assert one.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
    change = ServedTable.change

    def overtaken(self: ServedTable, *arguments: Any) -> Any:
        monkeypatch.undo()
        assert two.copy_replacement(target, ArrowRows.of(ORDERS, []), mark)
        return change(self, *arguments)

    monkeypatch.setattr(ServedTable, "change", overtaken)
    with pytest.raises(Transient):
        one.swap_replacement(ORDERS.id, mark)
    assert len(warehouse.items()) == 3


@pytest.mark.sampled
@pytest.mark.parametrize("paused", ["before the drop", "before the create"])
@pytest.mark.parametrize("method", ["write_table_rows", "drop_table_for_copy"])
def test_a_driver_that_is_paused_in_a_copy_drops_nothing(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, method: str, paused: str
) -> None:
    """An older driver that continues after a newer one has copied the table neither drops nor replaces it."""
    older, newer = warehouse.destination(), warehouse.destination()
    copy(warehouse, older)
    wider = replace(ORDERS, columns=(*ORDERS.columns, column(4, "more", Kind.TEXT)))
    target = TableTarget.of(wider, TableMode.UPSERT)
    rows = [{"id": i, "item": "new", "note": None, "more": "m"} for i in range(1, 5)]
    owner, name = (RestClient, "query") if paused == "before the drop" else (ServedTable, "create")
    original = getattr(owner, name)

    def resumed(self: Any, what: Any, *arguments: Any, **more: Any) -> Any:
        if name == "create" or what.startswith("drop"):
            monkeypatch.undo()
            newer.write_table_rows(target, ArrowRows.of(wider, rows), warehouse.mark(2000, 2))
        return original(self, what, *arguments, **more)

    def copied() -> None:
        if method == "drop_table_for_copy":
            older.drop_table_for_copy(target, 1)
        older.write_table_rows(target, ArrowRows.of(wider, rows[:1]), warehouse.mark(1000, 1))

    monkeypatch.setattr(owner, name, resumed)
    with pytest.raises((StaleEpoch, Transient)):
        copied()
    assert len(warehouse.items()) == 4
    assert newer.applied(ORDERS.id) == warehouse.mark(2000, 2)


@pytest.mark.nightly
def test_a_replaced_table_is_never_taken_for_the_copy(warehouse: Warehouse) -> None:
    """A table that an older driver created in place of the copied one parks, and a new copy repairs it."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    path = f"/datasets/{warehouse.dataset}/tables"
    held = warehouse.server.call("GET", f"{path}/orders")
    warehouse.server.call("DELETE", f"{path}/orders")
    empty = {n: held[n] for n in ("tableReference", "schema", "clustering")}
    labels = {**held["labels"], "levada_made": "another"}
    warehouse.server.call("POST", path, {**empty, "labels": labels})
    stream.insert(id=4, item="four", note=None)
    batch = stream.batch()
    errors = [error_of(lambda: destination.write_events(batch, warehouse.mark(batch.until)))]
    errors.append(error_of(lambda: warehouse.destination().applied(ORDERS.id)))
    with pytest.raises(DestinationChanged) as caught:
        destination.maintain(ORDERS.id)
    for error in (*errors, caught.value):
        assert (error.code, "resync" in error.hint) == ("destination_table_missing", True)
    copy(warehouse, destination)
    assert len(warehouse.items()) == 3
    destination.maintain(ORDERS.id)
    assert destination.copy_replacement(TableTarget.of(ORDERS), ArrowRows.of(ORDERS, []), warehouse.mark(3000))
    assert destination.swap_replacement(ORDERS.id, warehouse.mark(3000))
    destination.maintain(ORDERS.id)


def test_tables_of_others_are_left_alone(warehouse: Warehouse) -> None:
    """A table without our label, or of another pipeline or source table, is never dropped, replaced or written."""
    mine = warehouse.destination()
    warehouse.server.call(
        "POST", "/datasets", {"datasetReference": {"projectId": PROJECT, "datasetId": warehouse.dataset}}
    )
    warehouse.server.sql(f"CREATE TABLE `{warehouse.dataset}`.orders AS SELECT 1 AS a")
    target = TableTarget.of(ORDERS)

    def acts(destination: BigQueryDestination, target: TableTarget) -> list[Callable[[], object]]:
        return [
            lambda: destination.check_place(target),
            lambda: destination.drop_table_for_copy(target, 1),
            lambda: destination.write_table_rows(target, MemoryRows(target.schema), warehouse.mark(1000)),
            lambda: destination.copy_replacement(target, MemoryRows(target.schema), warehouse.mark(1000)),
        ]

    for act in acts(mine, target):
        assert error_of(act).code == "table_not_ours"
    assert warehouse.rows() == [["1"]]
    warehouse.server.sql(f"DROP TABLE `{warehouse.dataset}`.orders")
    copy(warehouse, mine)
    for act in acts(warehouse.destination(pipeline="another"), target):
        error = error_of(act)
        assert error.code == "table_not_ours"
        assert "Pipeline shop" in error.message
    twin = TableTarget.of(replace(ORDERS, id=TableId(17000)))
    for act in acts(mine, twin):
        assert error_of(act).code == "destination_collision"
    assert len(warehouse.items()) == 3


@pytest.mark.nightly
def test_what_others_do_to_a_table(warehouse: Warehouse) -> None:
    """A dropped column, a replaced or dropped table, and a state that was set back park the table."""
    destination = warehouse.destination()
    name = f"`{warehouse.dataset}`.orders"
    stream = copy(warehouse, destination)
    warehouse.server.sql(f"ALTER TABLE {name} DROP COLUMN note")
    stream.insert(id=4, item="d", note="n")
    batch = stream.batch()
    mark = warehouse.mark(batch.until)
    assert error_of(lambda: destination.write_events(batch, mark)).code == "foreign_schema_change"
    rows = MemoryRows(ORDERS, [{"id": 1, "item": "a", "note": "n"}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), rows, mark) is False
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    stream = copy(warehouse, destination)
    state = next(t for t in warehouse.server.tables(f"{warehouse.dataset}_meta") if t.startswith("state_"))
    warehouse.server.sql(f"ALTER TABLE {name} ADD COLUMN theirs STRING")
    stream.insert(id=4, item="d", note=None)
    apply(warehouse, destination, stream)
    assert len(warehouse.items()) == 4
    warehouse.server.sql(f"UPDATE `{warehouse.dataset}_meta`.`{state}` SET lsn = 900 WHERE TRUE")
    assert error_of(lambda: destination.applied(ORDERS.id)).code == "table_rolled_back"
    warehouse.server.sql(f"CREATE OR REPLACE TABLE {name} AS SELECT 1 AS id")
    again = warehouse.destination()
    assert error_of(lambda: again.maintain(ORDERS.id) or again.applied(ORDERS.id)).code == "table_not_ours"
    warehouse.server.sql(f"DROP TABLE {name}")
    stream.insert(id=5, item="e", note=None)
    assert error_of(lambda: apply(warehouse, again, stream)).code == "destination_table_missing"
    assert again.applied(ORDERS.id) is None


@pytest.mark.nightly
def test_a_kill_between_a_statement_and_its_state(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ALTER TABLE is repeated or recognised after a kill before it or after it, also where names change places."""
    swapped = (ORDERS.columns[0], replace(ORDERS.columns[1], name="note"), replace(ORDERS.columns[2], name="item"))
    wanted = replace(ORDERS, columns=(*swapped, column(4, "n", Kind.INT4, missing_value="7")))

    class Killed(BaseException):
        pass

    plain = ServedTable.alter

    for number, (before, at) in enumerate(itertools.product((True, False), range(4))):
        schema = replace(ORDERS, id=TableId(18000 + number), name=QualifiedTable("public", f"t{number}"))
        stream = copy(warehouse, warehouse.destination(), schema)
        stream.alter(replace(wanted, id=schema.id, name=schema.name))
        stream.insert(id=4, note="was item", item="was note", n=None)
        batch = stream.batch()
        count = itertools.count()

        def alter(
            self: ServedTable, state: Any, change: str, count: Any = count, before: bool = before, at: int = at
        ) -> None:
            killed = next(count) == at
            if not (killed and before):
                plain(self, state, change)
            if killed:
                raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(ServedTable, "alter", alter)
            with pytest.raises(Killed):
                warehouse.destination().write_events(batch, warehouse.mark(batch.until))
        warehouse.destination().write_events(batch, warehouse.mark(batch.until))
        assert warehouse.rows(schema.name.name, "id, note, item, n") == [
            *([str(i), f"item {i}", "x" * 100, "7"] for i in (1, 2, 3)),
            ["4", "was item", "was note", None],
        ]
