"""A running pipeline under a changing configuration: what is taken up, and how often."""

from __future__ import annotations

import gc
import os
import signal
import threading
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, public, table, wait_for
from tests.rigs.recording import Recording
from tests.rigs.waiting import LIMIT_S, until

from levada.errors import NeedsOperator, Transient
from levada.runtime.config import (
    PipelineConfig,
    RetryLimits,
)
from levada.runtime.report.liveness import Liveness
from levada.segments.batch import EventBatch
from levada.stores import PostgresStore
from levada.stores.codecs import SCHEMA
from levada.values import Durability, Lsn, TableMode, Watermark


def test_selectors_add_and_remove_tables(rig: Rig, db: Database) -> None:
    """A table that is selected now is copied and streamed, though the stream skipped it. One left out is forgotten."""
    db.execute(f"CREATE PUBLICATION levada_{db.name} FOR TABLE orders, items, others")
    rig.start()
    rig.wait_caught_up()
    db.execute("INSERT INTO others VALUES (100)", "INSERT INTO orders VALUES (100)")
    rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
    rig.change(selects=Only("orders", "others"))
    rig.wait(lambda p: {t.table.name for t in p.tables} == {"orders", "others"})
    rig.wait(lambda p: p.ready)
    db.execute("INSERT INTO others VALUES (101)")
    rig.wait(lambda p: rig.destination.applied_rows.get("others") == 1)
    assert [c[3] for c in rig.destination.copies if c[0] == "others"] == [8]
    rig.change(selects=Only("orders", "others", "items"))
    rig.wait(lambda p: rig.destination.copies_of("items") == 2)
    assert rig.destination.copies_of("orders") == 1


def test_a_suspended_table_rests_and_goes_on(rig: Rig, db: Database) -> None:
    """Its changes are held, the other tables go on, and nothing is copied again when it is resumed."""
    rig.start()
    rig.wait_caught_up()
    rig.say("orders", suspended=True)
    rig.wait(lambda p: table(p, "orders").suspended)
    db.execute("INSERT INTO orders VALUES (100)", "INSERT INTO items VALUES (1)")
    rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1 and table(p, "orders").pending_rows == 1)
    assert "orders" not in rig.destination.applied_rows
    rig.say("orders", suspended=False)
    rig.wait_caught_up()
    assert rig.destination.applied_rows["orders"] == 1
    assert rig.destination.copies_of("orders") == 1


def test_suspending_ends_a_copy(rig: Rig) -> None:
    """The running copy is cancelled, and made again when the table is resumed. It leaves no error on the table."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "orders":
            begun.set()
            go_on.wait(LIMIT_S)

    rig.destination.before_copy = hold
    rig.start()
    assert begun.wait(LIMIT_S)
    rig.say("orders", suspended=True)
    rig.wait(lambda p: table(p, "orders").suspended)
    go_on.set()
    rig.wait(lambda p: table(p, "orders").phase == "Init")
    assert rig.destination.copies_of("orders") == 0
    rig.say("orders", suspended=False)
    rig.wait_caught_up()
    assert rig.destination.copies_of("orders") == 1


def test_a_resync_nonce_copies_once(rig: Rig) -> None:
    """Each new value makes one new copy, also over a restart. A value at first sight and 0 make none."""
    rig.say("orders", resync_nonce=7)
    rig.start()
    assert table(rig.wait_caught_up(), "orders").resync_nonce == 7
    assert rig.destination.copies_of("orders") == 1
    rig.say("orders", resync_nonce=8)
    rig.wait(lambda p: table(p, "orders").resync_nonce == 8 and p.ready)
    assert rig.destination.copies_of("orders") == 2
    rig.stop()
    rig.start()
    rig.wait_caught_up()
    assert rig.destination.copies_of("orders") == 2
    rig.stop()
    rig.say("orders", resync_nonce=9)
    rig.start()
    assert table(rig.wait_caught_up(), "orders").resync_nonce == 9
    assert rig.destination.copies_of("orders") == 3
    rig.say("orders", resync_nonce=0)
    rig.wait(lambda p: table(p, "orders").resync_nonce == 0)
    rig.wait_caught_up()
    assert rig.destination.copies_of("orders") == 3
    assert rig.destination.copies_of("items") == 1


def test_a_retry_nonce_retries_once(rig: Rig, db: Database) -> None:
    """A table that waits for a person goes on where it was, once for each value, also over a restart."""
    failing = True

    def fail(name: str) -> None:
        if name == "orders" and failing:
            raise NeedsOperator("refused", "no room")

    rig.destination.before_apply = fail
    rig.start()
    rig.wait_caught_up()
    db.execute("INSERT INTO orders VALUES (100)")
    rig.wait(lambda p: table(p, "orders").phase == "Errored")
    rig.say("orders", retry_nonce=1)
    rig.wait(lambda p: table(p, "orders").retry_nonce == 1 and table(p, "orders").phase == "Errored")
    rig.stop()
    failing = False
    rig.start()
    assert table(rig.wait(lambda p: bool(p.tables)), "orders").phase == "Errored"
    rig.say("orders", retry_nonce=2)
    assert table(rig.wait_caught_up(), "orders").retry_nonce == 2
    assert rig.destination.applied_rows["orders"] == 1
    assert rig.destination.copies_of("orders") == 1


@pytest.mark.parametrize("restart", [False, True], ids=["running", "restarted"])
def test_other_settings_make_a_new_copy(rig: Rig, db: Database, *, restart: bool) -> None:
    """The existing rows keep the settings of their copy. The new copy and the stream have the new ones."""
    rig.say("orders", excluded_columns=frozenset({"secret"}))
    rig.start()
    rig.wait_caught_up()
    if restart:
        rig.stop()
    rig.say("orders", excluded_columns=frozenset({"note"}), mode=TableMode.CHANGELOG, destination_table="o2")
    if restart:
        rig.start()
    rig.wait(lambda p: rig.destination.copies_of("orders") == 2)
    db.execute("INSERT INTO orders VALUES (100, 'n', 's')")
    rig.wait_caught_up()
    old, new = (TableMode.UPSERT, public("orders")), (TableMode.CHANGELOG, public("o2"))
    assert [(c[1], c[2]) for c in rig.destination.copies if c[0] == "orders"] == [
        (old, ("id", "note")),
        (new, ("id", "secret")),
    ]
    assert [d[1] for d in rig.destination.dropped if d[0] == "orders"][-2:] == [old, new]
    assert rig.destination.applied_as["orders"] == new
    assert rig.destination.copies_of("items") == 1


class Reading(Recording):
    """Keeps the column ``secret`` of each row that is applied, by the row's id."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: dict[int, str | None] = {}

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        for changed in events.tables:
            rows = events.changes(changed).read()
            self.secrets |= {r["id"]: r.get("secret") for r in ([] if rows is None else rows.to_pylist())}
        return super().write_events(events, mark)


@pytest.mark.nightly
def test_a_renamed_table_is_copied_with_the_columns_of_its_stream(rig: Rig, db: Database) -> None:
    """Its TableSync has the former name. A resync copies all columns, and the stream has them too from then on."""
    reading = rig.destination = Reading()
    rig.config = replace(rig.config, selects=Only("orders", "bills"))
    rig.say("orders", excluded_columns=frozenset({"secret"}))
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    db.execute("ALTER TABLE orders RENAME TO bills")
    rig.start()
    rig.wait_caught_up()
    rig.say("bills", resync_nonce=1)
    rig.wait(lambda p: reading.copies_of("bills") == 1)
    db.execute("INSERT INTO bills VALUES (100, 'n', 's')")
    rig.wait_caught_up()
    [copied] = [c[2] for c in reading.copies if c[0] == "bills"]
    assert copied == ("id", "note", "secret")
    assert reading.secrets == {100: "s"}


def test_nothing_keeps_a_configuration(rig: Rig) -> None:
    """After a change, no part of the pipeline has the former configuration or a copy of its values."""
    rig.start()
    rig.wait_caught_up()
    rig.change(
        copy_tables=7,
        copy_connections=7,
        batch_bytes=7 << 20,
        batch_fill_s=0.7,
        heartbeat_s=7.0,
        freshness_s=0.7,
        batch_rows=7,
        retries=RetryLimits(7, 7.0, 7.0),
    )
    running = rig.running
    assert running is not None
    rig.wait(lambda p: running.config == rig.config)
    rig.wait_caught_up()
    gc.collect()
    kept = [o for o in gc.get_objects() if isinstance(o, PipelineConfig) and o.work_dir == rig.config.work_dir]
    assert kept
    assert all(o == rig.config for o in kept)
    assert running._replication is not None
    capture = running._replication.worker
    settings = capture._state.settings
    assert (settings.batch_bytes, settings.fill_s, settings.heartbeat_s) == (7 << 20, 0.7, 7.0)


def test_a_hung_destination_is_death(rig: Rig, db: Database) -> None:
    """A batch that never returns fails liveness, though capture goes on. The idle time before it does not."""
    release, liveness = threading.Event(), Liveness(2.0)

    def hang(name: str) -> None:
        if name == "orders":
            release.wait(LIMIT_S)

    rig.destination.before_apply = hang
    rig.start()
    try:
        idle_since = rig.wait_caught_up().at
        rig.wait(lambda p: p.at - idle_since > timedelta(seconds=3) and not liveness.observe(p, p.at))
        db.execute("INSERT INTO orders VALUES (100)")
        rig.wait(lambda p: table(p, "orders").job == "apply")
        db.execute("INSERT INTO items VALUES (1)")
        rig.wait(lambda p: table(p, "items").rows_applied == 1)
        dead = rig.wait(lambda p: "apply of table public.orders" in liveness.observe(p, p.at))
        assert dead.capture.connected
    finally:
        release.set()


@pytest.mark.since(16)  # pg_hba.conf has patterns of roles
def test_a_password_can_be_changed(rig: Rig, db: Database, tmp_path: Path) -> None:
    """Refused logins are retried until the Secret is new: by capture, copies, the store and the lag's sampler."""
    role = f"secret_{db.name}"
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "username").write_text(role)
    (secret / "password").write_text("first")
    db.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'first'")
    connection = replace(db.connection, credentials=secret, user=None)
    rig.config = replace(rig.config, source=connection, retries=RetryLimits(100, 0.2, 0.2), selects=Only("orders"))
    rig.store = lambda: PostgresStore(connection, "shop")
    try:
        rig.start()
        rig.wait_caught_up()
        db.execute(f"ALTER ROLE {role} PASSWORD 'second'")
        sampled = rig.wait(lambda p: p.slot.sampled_at is not None).slot.sampled_at
        db.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", role)
        failed = rig.wait(lambda p: p.capture.error is not None and p.capture.error.code == "source_auth_failed")
        assert failed.slot.sampled_at is not None
        (secret / "password").write_text("second")
        db.execute("INSERT INTO orders VALUES (100)")
        rig.wait(lambda p: p.capture.connected and rig.destination.applied_rows.get("orders") == 1)
        rig.say("orders", resync_nonce=1)
        rig.change(selects=Only("orders", "items"))
        rig.wait(lambda p: p.ready and len(p.tables) == 2 and rig.destination.copies_of("orders") == 2)
        rig.wait(lambda p: p.slot.sampled_at != sampled)
    finally:
        rig.stop()
        db.execute(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_the_stream_is_told_of_while_the_store_waits(rig: Rig, db: Database) -> None:
    """A store that does not answer holds up the phases, not what is known of the stream."""
    rig.store = lambda: PostgresStore(db.connection, "shop")
    rig.start()
    before = rig.wait_caught_up()
    with db.connect() as holder, holder.transaction():
        holder.execute("LOCK TABLE levada.documents IN ACCESS EXCLUSIVE MODE")
        until(lambda: db.query("SELECT FROM pg_locks WHERE NOT granted"))
        db.execute("INSERT INTO orders VALUES (100)")
        during = rig.wait(lambda p: p.capture.rows > before.capture.rows)
        assert not table(during, "orders").pending_rows
    rig.wait_caught_up()
    assert rig.destination.applied_rows["orders"] == 1


def test_a_source_that_does_not_answer_is_not_connected(rig: Rig, db: Database) -> None:
    """Nor while it is tried again, which may take as long as a login may: the error stays until the stream is open."""
    rig.change(retries=RetryLimits(100, 0.1, 0.1))
    rig.start()
    rig.wait_caught_up()
    postmaster = int((db.server.data / "postmaster.pid").read_text().split()[0])
    with db.connect() as admin:
        os.kill(postmaster, signal.SIGSTOP)
        try:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'")
            since = rig.wait(lambda p: not p.capture.connected and p.capture.error is not None).at
            seen = []
            rig.wait(lambda p: seen.append(p.capture) or p.at - since > timedelta(seconds=1))
            assert not any(capture.connected or capture.error is None for capture in seen)
        finally:
            os.kill(postmaster, signal.SIGCONT)
    assert rig.wait(lambda p: p.capture.connected).capture.error is None
    rig.wait_caught_up()


def test_a_destination_that_does_not_answer_holds_up_no_stream(rig: Rig, db: Database) -> None:
    """The engine reads and stages while a restart waits for the destination's watermarks. Then the tables continue."""
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    go_on = threading.Event()
    rig.destination.before_look = lambda: wait_for(go_on)
    rig.start()
    db.execute("INSERT INTO orders VALUES (100)")
    try:
        told = rig.wait(lambda p: p.capture.rows == 1 and table(p, "orders").pending_rows == 1)
        assert {t.applied_lsn for t in told.tables} == {None}
        assert not told.has_reached(Lsn(1))
    finally:
        go_on.set()
    rig.wait_caught_up()
    assert rig.destination.applied_rows["orders"] == 1
    assert rig.destination.copies_of("orders") == 1


def test_a_destination_that_is_away_when_the_engine_begins(rig: Rig, db: Database) -> None:
    """Each table waits for its retry with the reason, and resumes at its watermark. No table is copied again."""
    rig.change(retries=RetryLimits(1000, 0.1, 0.1))
    rig.start()
    rig.wait_caught_up()
    rig.stop()

    def fail() -> None:
        raise Transient("destination_unavailable", "nobody answers")

    rig.destination.before_look = fail
    rig.start()
    db.execute("INSERT INTO orders VALUES (100)")
    rig.wait(lambda p: any(t.error is not None and t.error.code == "destination_unavailable" for t in p.tables))
    rig.destination.before_look = lambda: None
    rig.wait_caught_up()
    assert rig.destination.applied_rows["orders"] == 1
    assert rig.destination.copies_of("orders") == 1


@pytest.mark.nightly
def test_a_running_pipeline_removes_versions_and_resumes_without_them(rig: Rig, db: Database) -> None:
    """After three ALTERs one version is stored. A restart applies a fourth one and its rows on top of that."""
    rig.start()
    rig.wait_caught_up()
    for n in range(3):
        db.execute(f"ALTER TABLE orders ADD COLUMN c{n} int", f"INSERT INTO orders (id) VALUES ({100 + n})")
        rig.wait_caught_up()
    rig.stop()
    (kept,) = [s for s in map(SCHEMA.decode, rig.storage.scan(SCHEMA).values()) if s.name.name == "orders"]
    assert [c.name for c in kept.columns][-1] == "c2"
    rig.start()
    db.execute("ALTER TABLE orders DROP COLUMN c0", "INSERT INTO orders (id) VALUES (103)")
    rig.wait_caught_up()
    assert rig.destination.applied_rows["orders"] == 4


def test_the_batches_of_a_backlog_follow_the_destination(rig: Rig, db: Database) -> None:
    """A destination that applies three usual batches at the same time gets them as one."""
    release, totals = threading.Event(), []
    rig.destination.parallel_batches = lambda: 3  # type: ignore[method-assign]  # of this destination
    rig.change(batch_rows=2, batch_fill_s=0.01)
    rig.start()
    rig.wait_caught_up()

    def counted(name: str) -> None:
        if name == "orders":
            totals.append(rig.destination.applied_rows.get("orders", 0))
            release.wait(LIMIT_S)

    rig.destination.before_apply = counted
    for i in range(13):
        db.execute(f"INSERT INTO orders VALUES ({1000 + i})")
        rig.wait(lambda p, i=i: bool(totals) and table(p, "orders").pending_rows == i + 1)
    release.set()
    rig.wait_caught_up()
    ends = [*totals, rig.destination.applied_rows["orders"]]
    assert [b - a for a, b in pairwise(ends)] == [1, 6, 6]
