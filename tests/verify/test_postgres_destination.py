"""Verification of tables in PostgreSQL, whose checksums the destination's server computes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import psycopg
import pytest
from tests.rigs.limits import PATIENT
from tests.rigs.pipeline import HELD, reach
from tests.rigs.replicated import Replicated, T, replicated
from tests.rigs.table_writers import alter, delete_some, insert_some, long_transaction, truncate, update_some, writers
from tests.rigs.waiting import LIMIT_S, until
from tests.verify.every_type import COLUMNS, TYPES, create, insert

from levada.cli.exit_codes import Exit
from levada.cli.verify import verdict
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.fixed_table import PostgresVersion
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, Transient
from levada.runtime.config import (
    TableConfig,
    VerifyConfig,
)
from levada.runtime.config_ref import ConfigRef
from levada.runtime.limits import Limits, VerificationLimits
from levada.runtime.verifications.verifier import Verifier
from levada.schema.stored_types import StoredTypes
from levada.segments.batch import EventBatch
from levada.status import RetryPolicy, TablePhase, TableProgress
from levada.values import Durability, OnUnrepresentable, Watermark
from levada.verify.differences import Kind
from levada.verify.report import NotRepaired, TableReport
from levada.verify.table import CompareLimits, VerifyOptions

__all__ = ["replicated"]

UNREPRESENTABLE = {
    "date": ["infinity", "-infinity"],
    "timestamp": ["infinity", "-infinity", "294247-01-10 04:00:54.775807", "294276-12-31 23:59:59.999999"],
    "timestamptz": ["infinity", "-infinity", "294247-01-10 04:00:54.775807+00", "294276-12-31 23:59:59.999999+00"],
    "time": ["24:00"],
    "numeric(9,2)": ["NaN"],
}
"""Values that Arrow's type cannot hold."""
LAST = {
    "date": ["5874897-12-31", "4713-01-01 BC"],
    "timestamp": ["294247-01-10 04:00:54.775806", "4713-01-01 00:00:00 BC"],
    "timestamptz": ["294247-01-10 04:00:54.775806+00", "4713-01-01 00:00:00+00 BC"],
    "time": ["23:59:59.999999", "00:00"],
    "numeric(9,2)": ["9999999.99", "-9999999.99"],
}
"""The last values on both sides that it holds."""


@pytest.mark.nightly
def test_values_that_became_null_are_equal(replicated: Replicated) -> None:
    """So are those within arrays, and arrays that no list holds. Their neighbours are compared as they are."""
    kinds = {name: f"c{i}" for i, name in enumerate(UNREPRESENTABLE)}
    columns = [f"{column} {kind}, a{column} {kind}[]" for kind, column in kinds.items()]
    inserts = []
    for kind, column in kinds.items():
        for value in (*UNREPRESENTABLE[kind], *LAST[kind]):
            good = LAST[kind][0]
            arrays = [f'{{"{value}"}}', f'{{"{good}",NULL,"{value}"}}', f'{{{{"{value}"}}}}', f'[0:0]={{"{good}"}}']
            inserts += [f"INSERT INTO t ({column}, a{column}) VALUES ('{value}', '{array}')" for array in arrays]
    create = f"CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {', '.join(columns)})"
    replicated.db.execute(create, *inserts)  # type: ignore[arg-type]  # made of constants
    replicated.start(on_unrepresentable=OnUnrepresentable.NULL)
    replicated.db.execute(*inserts)  # type: ignore[arg-type]  # as above
    replicated.wait_caught_up()
    report = replicated.verify()
    assert report.equal, report
    assert report.source_rows == 2 * len(inserts)
    for kind, column in kinds.items():
        for value in LAST[kind]:
            held = f"SELECT count(*) FROM shop_public.t WHERE {column} = '{value}'"
            assert replicated.replica.query(held) == [(8,)], value  # type: ignore[arg-type]  # as above


def test_every_type_is_equal_and_its_smallest_change_is_found(replicated: Replicated) -> None:
    """Also if other settings are the defaults of the destination's database."""
    replicated.db.execute(*TYPES, create())  # type: ignore[arg-type]  # made of constants
    replicated.db.execute(insert(1))  # type: ignore[arg-type]  # made of constants
    for name, value in {"timezone": "'Asia/Kathmandu'", "datestyle": "'German'", "intervalstyle": "'iso_8601'",
                        "extra_float_digits": "-9", "bytea_output": "'escape'"}.items():  # fmt: skip
        replicated.replica.execute(f"ALTER DATABASE {replicated.replica.name} SET {name} = {value}")  # type: ignore[arg-type]  # as above
    replicated.start()
    names = list(COLUMNS)
    values = [v[0] for _, v, _ in COLUMNS.values()]
    rows = []
    for i, name in enumerate(names):
        other = [COLUMNS[name][2] if n == name else v for n, v in zip(names, values, strict=True)]
        rows += [f"({100 + i}, {', '.join(values)})", f"({500 + i}, {', '.join(other)})"]
    replicated.db.execute(insert(11))  # type: ignore[arg-type]  # made of constants
    for row in rows:
        replicated.db.execute(f"INSERT INTO t VALUES {row}")  # type: ignore[arg-type]  # made of constants
    report = replicated.verify()
    assert report.equal, report
    assert report.source_rows == 8 + len(rows)
    for i, name in enumerate(names):
        replicated.damage(f'UPDATE t SET "{name}" = (SELECT "{name}" FROM t WHERE id = {500 + i}) WHERE id = {100 + i}')
    found = replicated.verify()
    assert {d.key[0]: d.columns for d in found.examples} == {str(100 + i): (name,) for i, name in enumerate(names)}
    repaired = replicated.verify(repair=True)
    assert repaired.repaired_equal, repaired
    assert {d.key[0]: d.columns for d in repaired.examples} == {str(100 + i): (name,) for i, name in enumerate(names)}
    assert replicated.verify().equal


def test_a_repair_writes_the_rows_that_differ_and_no_others(replicated: Replicated) -> None:
    """Missing, changed and additional rows, of a table that is followed by others. The table goes on from there."""
    replicated.db.execute(
        "CREATE TABLE t (a int, b text, v text, PRIMARY KEY (b, a))",
        "INSERT INTO t SELECT g, 'k' || g % 7, 'v' || g FROM generate_series(1, 3000) g",
    )
    replicated.start()
    replicated.damage(
        "DELETE FROM t WHERE a % 2 = 0; UPDATE t SET v = 'theirs' WHERE a = 5; UPDATE t SET a = -7 WHERE a = 7;"
        " CREATE TABLE of_t (a int, b text, FOREIGN KEY (b, a) REFERENCES t (b, a)); INSERT INTO of_t VALUES (5, 'k5')"
    )
    unchanged = "SELECT a, xmin::text FROM shop_public.t WHERE mod(a, 2) = 1 AND a > 7 ORDER BY a"
    before = replicated.replica.query(unchanged)
    steps: list[str] = []
    repaired = replicated.verify(repair=True, told=steps.append, examples=2000)
    assert repaired.repaired_equal
    assert {k: v for k, v in repaired.counts.items() if v} == {
        Kind.MISSING: 1501,
        Kind.EXTRA: 1,
        Kind.CHANGED: 1,
    }
    assert repaired.repaired == len(repaired.examples) == 1503
    assert any(step.startswith("pass 1 of 1: writing 1,502 rows again") for step in steps), steps
    assert replicated.replica.query(unchanged) == before
    replicated.db.execute("UPDATE t SET v = 'new' WHERE a < 10", "DELETE FROM t WHERE a = 8")
    assert replicated.verify().equal


def test_a_copy_that_reads_less_than_a_repair_replaces_it(replicated: Replicated) -> None:
    """If nearly all rows differ, each pass of a repair reads as much as a copy, and more than a few are not begun."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 2000) g"
    )
    replicated.start()
    replicated.damage("UPDATE t SET v = 'theirs'")
    with pytest.raises(NotRepaired, match=r"in 20 passes.*The copy is requested"):
        replicated.verify(repair=True, limits=CompareLimits(repaired_rows=100))
    until(lambda: not replicated.replica.query("SELECT FROM shop_public.t WHERE v = 'theirs'"))


def test_an_errored_table_that_is_equal_and_cannot_be_repaired(replicated: Replicated) -> None:
    """The refusal is reported with the comparison, because the table stays errored."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v')")
    replicated.start(default_table=HELD)
    replicated.db.execute("ALTER TABLE t ALTER v TYPE varchar(9) USING v || ''")
    reach(replicated.pipeline, lambda p: p.tables[0].error is not None)
    assert replicated.verify().equal
    with pytest.raises(NotRepaired, match="it missed changes") as refused:
        replicated.verify(repair=True)
    assert (refused.value.report.equal, refused.value.report.parked) == (True, "table_rewritten")
    assert verdict([{**refused.value.report.to_json(), "repairError": {}}]) is Exit.FAILED


def test_a_change_of_columns_without_a_row_is_compared(replicated: Replicated) -> None:
    """Without the event trigger as well. A comparison waits for the columns and never leaves them out."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)", "INSERT INTO t SELECT generate_series(1, 9)"
    )
    replicated.start(ddl_trigger=False)
    replicated.db.execute("ALTER TABLE t ADD c int DEFAULT 4, DROP b")
    report = replicated.verify()
    assert report.equal, report
    assert not report.not_compared
    assert replicated.replica.query("SELECT to_jsonb(t) FROM shop_public.t WHERE id = 9") == [
        ({"id": 9, "a": None, "c": 4},)
    ]


@pytest.mark.parametrize(
    "action",
    [
        "ADD c int GENERATED BY DEFAULT AS IDENTITY",
        "ADD c uuid DEFAULT gen_random_uuid()",
    ],
)
def test_computed_values_of_a_new_column_are_copied(replicated: Replicated, action: str) -> None:
    """The stream does not have them. The copy needs no command."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t SELECT generate_series(1, 9)")
    replicated.start()
    replicated.db.execute(f"ALTER TABLE t {action}")  # type: ignore[arg-type]  # of this module
    replicated.db.execute("INSERT INTO t (id) VALUES (10)")
    replicated.wait_caught_up()
    report = replicated.verify()
    assert report.equal, report
    assert (report.source_rows, report.not_compared) == (10, ())


def test_a_column_of_one_side_is_a_difference(replicated: Replicated) -> None:
    """A parked table does not get the column, and is not equal."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    replicated.start(default_table=HELD)
    replicated.db.execute("ALTER TABLE t ADD c int DEFAULT 4, DROP b, ALTER a TYPE int USING 1")
    reach(replicated.pipeline, lambda p: any(t.error for t in p.tables))  # type: ignore[arg-type]  # it runs
    report = replicated.verify()
    assert report.problems == (
        "column c is missing at the destination",
        "column b is at the destination, and not at the source",
    )
    assert not report.equal


def test_rows_that_are_missing_or_invented_are_found(replicated: Replicated) -> None:
    """So are an exchange of values, and a table that was emptied."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text)",
        "INSERT INTO t SELECT g, 'a' || g, NULL FROM generate_series(1, 500) g",
    )
    replicated.start()
    replicated.damage("DELETE FROM t WHERE id = 7")
    replicated.damage("INSERT INTO t VALUES (-1, 'x', 'y')")
    replicated.damage("UPDATE t SET a = b, b = a WHERE id = 9")
    replicated.damage("UPDATE t SET b = '' WHERE id = 10")
    found = {(d.kind, d.key[0], d.columns) for d in replicated.verify().examples}
    assert found == {
        (Kind.MISSING, "7", ()),
        (Kind.EXTRA, "-1", ()),
        (Kind.CHANGED, "9", ("a", "b")),
        (Kind.CHANGED, "10", ("b",)),
    }
    replicated.damage("DELETE FROM t")
    assert replicated.verify().counts[Kind.MISSING] == 500


def test_a_table_that_differs_is_not_ready_and_streams_on(replicated: Replicated) -> None:
    """Also after a restart, and after an equal sample. A complete comparison that is equal, or a resync, ends that."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t SELECT generate_series(1, 50)")
    replicated.start()
    replicated.damage("UPDATE t SET a = 'theirs' WHERE id = 7")
    assert not replicated.verify().equal

    def table(done: Callable[[TableProgress], bool]) -> TableProgress:
        assert replicated.pipeline is not None
        return reach(replicated.pipeline, lambda p: len(p.tables) == 1 and done(p.tables[0])).tables[0]

    found = table(lambda t: t.error is not None)
    assert found.error is not None
    assert (found.phase, found.error.code) == (TablePhase.ERRORED, "rows_differ")
    assert found.error.reason.endswith("in 1 key (1 changed) in the columns a")
    assert found.error.solution == (
        "write its rows again: levada verify MANIFEST --table public.t --repair."
        " Or copy it again: levada resync MANIFEST public.t"
    )
    assert replicated.pipeline is not None
    assert not replicated.pipeline.progress().ready  # paced: the table stays parked
    with pytest.raises(NeedsOperator, match="rows_differ"):
        replicated.wait_caught_up()

    replicated.pipeline.stop()
    replicated.start(wait=False)
    replicated.db.execute("INSERT INTO t VALUES (51)")
    count = "SELECT count(*) FROM shop_public.t"
    until(lambda: replicated.replica.query(count) == [(51,)])
    found = table(lambda t: t.lag_seconds is not None and t.rows_applied == 1)
    assert (found.phase, found.differs) == (TablePhase.ERRORED, True)

    replicated.damage("UPDATE t SET a = NULL WHERE id = 7")
    assert replicated.verify(sample=0.01).equal
    assert table(lambda t: t.verified is not None and t.verified.equal).differs
    assert replicated.verify().equal
    assert table(lambda t: not t.differs).phase is TablePhase.READY

    replicated.damage("DELETE FROM t WHERE id = 7")
    assert replicated.verify(sample=0.01).counts[Kind.MISSING] == 1
    assert table(lambda t: t.differs).phase is TablePhase.ERRORED
    pipeline = replicated.pipeline
    pipeline.reconfigure(replace(pipeline.config, tables={T: TableConfig(resync_nonce=1)}))
    assert table(lambda t: not t.differs and t.resync is None and t.resync_nonce == 1).phase is TablePhase.READY
    assert replicated.replica.query(count) == [(51,)]


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["chunks", "rows"])
def test_a_table_with_a_damaged_file_is_not_ready(
    replicated: Replicated, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The comparison that names the file parks the table, whose rows stay. A retry continues once it is restored."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 50)")
    replicated.start()
    replicated.damage("DELETE FROM t WHERE id = 7")

    def damaged(*_: Any) -> None:
        raise DestinationChanged("table_damaged", "a file is damaged: x.parquet", hint="levada resync MANIFEST TABLE")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresVersion, method, damaged)
        report = replicated.verify()
    assert (report.problems, report.parked) == (("a file is damaged: x.parquet",), "table_damaged")
    pipeline = replicated.pipeline
    assert pipeline is not None
    found = reach(pipeline, lambda p: p.tables[0].error is not None).tables[0]
    assert found.error is not None
    assert (found.phase, found.error.code) == (TablePhase.ERRORED, "table_damaged")
    assert (found.error.reason, found.error.retry_policy) == ("a file is damaged: x.parquet", RetryPolicy.MANUAL_RETRY)
    assert "levada resync MANIFEST public.t" in found.error.solution
    assert replicated.replica.query("SELECT count(*) FROM shop_public.t") == [(49,)]
    replicated.db.execute("INSERT INTO t VALUES (51)")
    pipeline.reconfigure(replace(pipeline.config, tables={T: TableConfig(retry_nonce=1)}))
    replicated.wait_caught_up()
    assert replicated.replica.query("SELECT count(*) FROM shop_public.t") == [(50,)]


def test_a_table_that_is_gone_is_not_ready(replicated: Replicated) -> None:
    """A comparison that does not find it parks it, without a change of its rows at the source."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 50)")
    replicated.start()
    replicated.damage("DROP TABLE t")
    with pytest.raises(DestinationChanged) as missing:
        replicated.verify()
    assert replicated.pipeline is not None
    parked = reach(replicated.pipeline, lambda p: p.tables[0].error is not None).tables[0].error
    assert parked is not None
    assert (parked.code, parked.reason) == (missing.value.code, missing.value.message)


@pytest.mark.nightly
def test_no_false_difference_while_rows_and_columns_change(replicated: Replicated) -> None:
    """A change of columns or a TRUNCATE does not wait for a comparison, which begins again."""
    replicated.db.execute(
        "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, item text, v int DEFAULT 0)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t (item) SELECT 'v' || g FROM generate_series(1, 2000) g",
    )
    replicated.start(limits=PATIENT)
    with writers(replicated.db, insert_some, update_some, delete_some, long_transaction, truncate, alter):
        for _ in range(8):
            report = replicated.verify()
            assert report.equal, report


@pytest.mark.nightly
def test_tables_that_are_written_together(replicated: Replicated) -> None:
    """With the ordering Pipeline a table is compared at one LSN too. Another one is written in the same batches."""
    for name in ("t", "u"):
        replicated.db.execute(
            f"CREATE TABLE {name} (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, item text, v int DEFAULT 0)",  # type: ignore[arg-type]  # made of constants
            f"INSERT INTO {name} (item) SELECT 'v' || g FROM generate_series(1, 500) g",  # type: ignore[arg-type]  # as above
        )
    replicated.start("Pipeline", limits=PATIENT)

    def both(connection: psycopg.Connection, rng: random.Random) -> None:
        with connection.transaction():
            connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", [rng.randint(1, 500)])
            connection.execute("UPDATE u SET v = v - 1 WHERE id = %s", [rng.randint(1, 500)])

    with writers(replicated.db, insert_some, delete_some, both):
        for _ in range(5):
            report = replicated.verify()
            assert report.equal, report
    replicated.wait_caught_up()


@pytest.mark.nightly
def test_a_shadow_copy_is_compared_before_its_swap(replicated: Replicated) -> None:
    """The copy replaces the table's rows, and its comparison is the table's last one."""
    replicated.db.execute(
        "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, item text, v int DEFAULT 0)",
        "INSERT INTO t (item) SELECT 'v' || g FROM generate_series(1, 2000) g",
    )
    replicated.start(verify=VerifyConfig(before_swap=True))
    pipeline = replicated.pipeline
    assert pipeline is not None
    replicated.damage("UPDATE t SET item = 'theirs' WHERE id = 5")
    config = pipeline.config
    with writers(replicated.db, insert_some, update_some, delete_some):
        pipeline.reconfigure(replace(config, tables={T: TableConfig(resync_nonce=1)}))
        done = reach(pipeline, lambda p: p.tables[0].resync_nonce == 1 and p.tables[0].resync is None)
    found = done.tables[0].verified
    assert found is not None
    assert found.equal
    assert replicated.verify().equal


def test_a_changelog_is_refused(replicated: Replicated) -> None:
    """A table without a key holds every change in PostgreSQL, and is not compared."""
    replicated.db.execute(
        "CREATE TABLE t (a text)", "ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES ('x')"
    )
    replicated.start()
    with pytest.raises(NeedsOperator) as refused:
        replicated.verify()
    assert refused.value.code == "verify_unsupported"


def test_a_forgotten_transaction_is_reported(replicated: Replicated) -> None:
    """A request that has waited for long for an open transaction is handled with an error. The next one succeeds."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    replicated.start()
    pipeline = replicated.pipeline
    assert pipeline is not None

    def request(nonce: int, limits: Limits) -> TableProgress:
        tables = {T: TableConfig(verify_nonce=nonce)}
        pipeline.reconfigure(replace(pipeline.config, tables=tables, limits=limits))
        return reach(pipeline, lambda p: p.tables[0].verify_nonce == nonce).tables[0]

    with replicated.db.connect() as forgotten, forgotten.transaction():
        forgotten.execute("INSERT INTO t VALUES (2)")
        error = request(1, Limits(verifications=VerificationLimits(patience_s=1.0))).verify_error
        assert error is not None
        assert error.code == "verify_transactions_open"
        assert replicated.db.query(error.solution)  # type: ignore[arg-type]  # a constant of the project
    done = request(2, Limits())
    assert done.verify_error is None
    assert done.verified is not None
    assert (done.verified.equal, done.verified.rows) == (True, 2)


@contextmanager
def locked(replicated: Replicated) -> Iterator[None]:
    """Let the destination's table take no changes during the block, with one that is not applied yet."""
    pipeline = replicated.pipeline
    assert pipeline is not None
    with replicated.replica.connect() as other, other.transaction():
        # Until the verification asks for them, changes are not due. This lock is no transaction that a snapshot awaits.
        pipeline.reconfigure(replace(pipeline.config, freshness_s=3600.0))
        other.execute("LOCK TABLE shop_public.t IN SHARE MODE")
        replicated.db.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
        yield


def test_a_table_that_cannot_reach_the_lsn(replicated: Replicated) -> None:
    """A table that applies no change is not held for long, and the error says so. The next verification succeeds."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    replicated.start()
    assert replicated.pipeline is not None
    assert replicated.pipeline._replication is not None
    once = replace(replicated.pipeline.config, limits=Limits(verifications=VerificationLimits(attempts=1)))
    impatient = replace(replicated.pipeline._replication.verifier, config_ref=ConfigRef(once), max_held_s=1.0)
    with locked(replicated), pytest.raises(Transient) as refused:
        impatient.run(T, VerifyOptions(), threading.Event())
    assert refused.value.code == "verify_not_reached"
    assert refused.value.message == "public.t did not reach the LSN of its verification within 1 s"
    assert "levada status MANIFEST" in refused.value.hint
    assert replicated.verify().equal


def test_a_table_that_is_released_before_its_lsn_is_known(replicated: Replicated) -> None:
    """On a busy machine the reads of the catalog may take longer than a table is held. The error is the same."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    replicated.start()
    assert replicated.pipeline is not None
    replication = replicated.pipeline._replication
    assert replication is not None

    class Slow(Verifier):
        def _read(self, *arguments: Any, **options: Any) -> Any:
            until(lambda: not replication.supervisor._holds._held)
            return super()._read(*arguments, **options)

    given = {field.name: getattr(replication.verifier, field.name) for field in fields(Verifier)}
    once = replace(replicated.pipeline.config, limits=Limits(verifications=VerificationLimits(attempts=1)))
    slow = Slow(**given | {"config_ref": ConfigRef(once), "max_held_s": 1.0})
    with pytest.raises(Transient, match="t did not reach the LSN of its verification") as refused:
        slow.run(T, VerifyOptions(), threading.Event())
    assert refused.value.code == "verify_not_reached"


def test_a_verification_after_a_cancelled_one(replicated: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled verification may get the table late, and gives it back. The next one waits for that."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    replicated.start()
    pipeline = replicated.pipeline
    assert pipeline is not None
    assert pipeline._replication is not None
    holds = pipeline._replication.supervisor._holds
    write, busy, proceed = PostgresDestination.write_events, threading.Event(), threading.Event()

    def slowly(self: PostgresDestination, events: EventBatch, mark: Watermark) -> Durability:
        busy.set()
        assert proceed.wait(LIMIT_S)
        return write(self, events, mark)

    def verify(cancelled: threading.Event) -> None:
        try:
            outcomes.append(pipeline.verify(T, VerifyOptions(), cancelled))
        except LevadaError as error:
            outcomes.append(error)

    outcomes: list[TableReport | LevadaError] = []
    monkeypatch.setattr(PostgresDestination, "write_events", slowly)
    replicated.db.execute("INSERT INTO t VALUES (2)")
    assert busy.wait(LIMIT_S)
    cancelled = threading.Event()
    first, second = (threading.Thread(target=verify, args=[e]) for e in (cancelled, threading.Event()))
    first.start()
    until(lambda: len(holds._holds) == 1)
    cancelled.set()
    first.join(LIMIT_S)
    second.start()
    until(lambda: len(holds._holds) == 2)
    proceed.set()
    second.join(LIMIT_S)
    ended, compared = outcomes
    assert isinstance(ended, LevadaError)
    assert ended.code == "verify_cancelled"
    assert isinstance(compared, TableReport), compared
    assert compared.equal


def test_every_type_as_text_is_equal(replicated: Replicated) -> None:
    """A type that the manifest chooses changes nothing where the destination has the column's own type."""
    replicated.db.execute(*TYPES, create())  # type: ignore[arg-type]  # made of constants
    replicated.db.execute(insert(1))  # type: ignore[arg-type]  # made of constants
    chosen = StoredTypes.of(dict.fromkeys([*COLUMNS, "id"], "Text"))
    replicated.start(tables={T: TableConfig(stored_types=chosen)})
    replicated.db.execute(insert(11))  # type: ignore[arg-type]  # made of constants
    replicated.wait_caught_up()
    report = replicated.verify()
    assert report.equal, report
    replicated.damage("UPDATE t SET c_timestamptz = c_timestamptz + interval '1 microsecond' WHERE id = 2")
    assert [d.columns for d in replicated.verify().examples] == [("c_timestamptz",)]


def test_a_text_in_place_of_a_table(replicated: Replicated) -> None:
    """The error says what a table is named by, and not that there is no such table."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    replicated.start()
    assert replicated.pipeline is not None
    with pytest.raises(NeedsOperator) as refused:
        replicated.pipeline.verify("public.t")  # type: ignore[arg-type]  # as a program without types may
    assert refused.value.message == "not a QualifiedTable: 'public.t'"
