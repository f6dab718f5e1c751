"""A copy is refused if it would have a column that was excluded under another name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, rig

from levada.errors import Transient
from levada.runtime.config import RetryLimits
from levada.runtime.copies import table_copy
from levada.status import Progress

__all__ = ["rig"]

RENAME = "ALTER TABLE orders RENAME secret TO hidden"


def is_refused(progress: Progress) -> bool:
    """Return True if the table is parked because of the rename."""
    errors = [t.error for t in progress.tables if t.table.name == "orders" and t.error is not None]
    return [error.code for error in errors] == ["excluded_column_renamed"]


def columns(rig: Rig) -> list[tuple[str, ...]]:
    """The columns of each copy of the table."""
    return [copy[2] for copy in rig.destination.copies if copy[0] == "orders"]


def begin(rig: Rig) -> None:
    """Copy the table without its secret, by a pipeline whose source announces no statement. Then end the pipeline."""
    rig.say("orders", excluded_columns=frozenset({"secret"}))
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    rig.db.execute("DROP EVENT TRIGGER levada_ddl CASCADE")


@pytest.mark.nightly
def test_a_resync_after_the_rename_is_refused(rig: Rig, db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The table of the last copy stays. Other names in the manifest make a copy, without the column or with it."""
    begin(rig)
    db.execute(RENAME)
    rig.say("orders", resync_nonce=1)
    rig.start()
    dropped = len(rig.destination.dropped)
    rig.wait(is_refused)
    rig.say("orders", retry_nonce=1)
    rig.wait(lambda p: is_refused(p) and caplog.text.count("is parked: ") == 2)
    rig.say("orders", excluded_columns=frozenset({"secret", "note"}))
    rig.wait(lambda p: is_refused(p) and caplog.text.count("is parked: ") == 3)
    assert len(rig.destination.dropped) == dropped
    assert columns(rig) == [("id", "note")]
    rig.say("orders", excluded_columns=frozenset({"secret", "hidden"}))
    rig.wait(lambda p: not is_refused(p))
    rig.wait_caught_up()
    rig.say("orders", excluded_columns=frozenset({"secret"}))
    rig.wait(lambda p: len(columns(rig)) == 3)
    rig.wait_caught_up()
    assert columns(rig) == [("id", "note"), ("id", "note"), ("id", "note", "hidden")]


def test_a_rename_before_the_snapshot_of_a_copy(rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of the last copy is dropped by then. No further attempt copies the column."""
    begin(rig)
    export, renamed = table_copy.export_snapshot, list[str]()

    @contextmanager
    def rename_before(*arguments: Any, **options: Any) -> Iterator[Any]:
        if not renamed:
            renamed.append(RENAME)
            db.execute(RENAME)
            raise Transient("source_unreachable", "the connection was lost")
        with export(*arguments, **options) as snapshot:
            yield snapshot

    monkeypatch.setattr(table_copy, "export_snapshot", rename_before)
    rig.change(retries=RetryLimits(delay_s=0.1, max_delay_s=0.1))
    rig.say("orders", resync_nonce=1)
    rig.start()
    rig.wait(is_refused)
    assert renamed
    assert columns(rig) == [("id", "note")]


def test_an_excluded_name_without_a_column_is_logged(rig: Rig, db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The copy goes on, because the column may be dropped or yet to come."""
    rig.say("orders", excluded_columns=frozenset({"secret", "later"}))
    rig.start()
    rig.wait_caught_up()
    assert "columns.exclude of public.orders has later, which is no column" in caplog.text
    db.execute("ALTER TABLE orders ADD later int DEFAULT 1", "ALTER TABLE orders DROP secret")
    db.execute("INSERT INTO orders VALUES (100, 'n', 2)")
    rig.wait_caught_up()
    rig.say("orders", resync_nonce=1)
    rig.wait(lambda p: len(columns(rig)) == 2)
    rig.wait_caught_up()
    assert columns(rig) == [("id", "note"), ("id", "note")]
