"""Row filters of the manifest in a running pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import public, table
from tests.runtime.publication_rig import Published

import levada.runtime.source.row_filters
from levada.postgres.managed_filters import set_filter
from levada.postgres.publications import ensure_coverage
from levada.runtime.config import RetryLimits
from levada.runtime.source.row_filters import settle_filters
from levada.spec.source import IncludedTables
from levada.stores import MemoryStore

pytestmark = pytest.mark.since(15)


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Published]:
    """A pipeline of two small tables, not started, that looks at the publication often."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, kind int)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT i, i FROM generate_series(1, 10) i",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
    )
    made = Published(db, tmp_path)
    made.config = replace(made.config, discovery_s=0.5)
    yield made
    made.stop()


def where(text: str | None) -> tuple[IncludedTables, ...]:
    """Return the entries of a manifest with this filter of ``orders``."""
    return (IncludedTables(schema="public", name="orders", where=text),)


def copied(rig: Published) -> list[int]:
    """Return the rows of each copy of ``orders``."""
    return [copy[3] for copy in rig.destination.copies if copy[0] == "orders"]


def test_a_changed_filter_copies_the_table_again(rig: Published, db: Database) -> None:
    """In a running pipeline, with the rows of the new filter. One that is refused is reported and changes nothing."""
    rig.config = replace(rig.config, include=where("kind > 4"))
    rig.copy_again()
    rig.start()
    rig.wait_caught_up()
    assert copied(rig) == [6]
    rig.change(include=where("kind > 8"))
    rig.wait(lambda p: p.ready and copied(rig) == [6, 2])
    rig.change(include=where("nothing > 8"))
    seen = rig.wait(lambda p: p.publication.error is not None).publication.error
    assert seen is not None
    assert seen.code == "row_filter_refused"
    db.execute("INSERT INTO orders VALUES (11, 11), (12, 1)", "INSERT INTO items VALUES (1)")
    rig.wait(lambda p: rig.destination.applied_rows == {"orders": 1, "items": 1})
    rig.change(include=where(None))
    rig.wait(lambda p: p.ready and copied(rig) == [6, 2, 12] and p.publication.error is None)


@pytest.mark.sampled
@pytest.mark.parametrize("trigger", [True, False])
def test_an_identity_that_loses_the_column_parks_the_table(rig: Published, db: Database, *, trigger: bool) -> None:
    """Its UPDATEs work, and it is copied again with its filter once its identity has the column."""
    rig.config = replace(rig.config, include=where("kind > 4"), ddl_trigger=trigger)
    rig.copy_again()
    rig.start()
    rig.wait_caught_up()
    db.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    error = rig.parked("orders")
    assert error.code == "table_not_published"
    db.execute("UPDATE orders SET kind = 1 WHERE id = 10", "INSERT INTO items VALUES (1)")
    rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1)
    db.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    rig.wait(lambda p: p.ready and table(p, "orders").phase == "Ready" and copied(rig) == [6, 5])


def test_a_publication_of_the_whole_schema(rig: Published, db: Database) -> None:
    """PostgreSQL ignores the filter there, so the table is not copied before it has an effect again."""
    retries = RetryLimits(max_attempts=100, delay_s=0.2, max_delay_s=0.2)
    rig.config = replace(rig.config, include=where("kind > 4"), retries=retries)
    rig.copy_again()
    rig.start()
    rig.wait_caught_up()
    rig.sql("ALTER PUBLICATION {p} ADD TABLES IN SCHEMA public", "INSERT INTO orders VALUES (11, 1)")
    rig.wait(lambda p: (e := table(p, "orders").error) is not None and e.code == "row_filter_missing")
    seen = rig.wait(lambda p: p.publication.error is not None).publication.error
    assert seen is not None
    assert seen.code == "row_filter_refused"
    db.execute(seen.solution.encode())  # type: ignore[arg-type]  # a statement for the operator
    rig.wait(lambda p: p.ready and p.publication.error is None and len(copied(rig)) > 1)
    assert set(copied(rig)) == {6}


def test_a_process_that_ends_while_it_sets_a_filter(
    rig: Published, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one knows that the filter is the pipeline's own, and removes it with where."""
    orders, store = public("orders"), MemoryStore("shop")
    store.next_epoch()

    def ends(*arguments: Any, **options: Any) -> int:
        set_filter(*arguments, **options)
        raise KeyboardInterrupt

    def settle(text: str | None) -> list[tuple[bool]]:
        config = replace(rig.config, include=where(text))
        with db.connection.connect() as connection:
            settle_filters(config, connection, store, {orders}, 1.0)
        return db.query("SELECT prqual IS NOT NULL FROM pg_publication_rel")

    with db.connection.connect() as connection:
        ensure_coverage(connection, rig.publication, {orders}, manage=True)
    with monkeypatch.context() as patched:
        patched.setattr(levada.runtime.source.row_filters, "set_filter", ends)
        with pytest.raises(KeyboardInterrupt):
            settle("kind > 4")
    assert settle(None) == [(False,)]
    assert settle("kind > 4") == [(True,)]
    rig.sql("ALTER PUBLICATION {p} DROP TABLE orders", "ALTER PUBLICATION {p} ADD TABLE orders WHERE (kind > 1)")
    assert settle(None) == [(True,)], "another session has set this one"
