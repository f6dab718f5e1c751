"""Statements that change rows that existed, without streaming them: the table is parked, or it is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig

import levada.runtime.source.preparation

_RETYPED = (
    ("int", "7", "TYPE bigint USING v * 10"),
    ("int", "7", "TYPE int USING v * 10"),
    ("bigint", "7", "TYPE int"),
    ("char(5)", "'a'", "TYPE text"),
    ("varchar(5)", "'abcde'", "TYPE varchar(3) USING left(v, 3)"),
    ("varchar(5)", "'a'", "TYPE varchar(9) USING upper(v)"),
    ("text", "'a'", 'TYPE varchar COLLATE "C" USING upper(v)'),
    ("json", '\'{"b": 1, "a":2}\'', "TYPE jsonb"),
    ("timestamp", "'2024-01-02 03:04:05.6'", "TYPE timestamp(0)"),
    ("timestamp", "'2024-01-02 03:04:05.6'", "TYPE timestamptz USING v AT TIME ZONE 'Asia/Tokyo'"),
    ("text", "'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'", "TYPE uuid USING v::uuid"),
    ("numeric(10,4)", "1.2345", "TYPE numeric(10,2)"),
    ("bytea", "'\\x6161'", "TYPE text USING encode(v, 'escape')"),
    ("int[]", "'{1}'", "TYPE bigint[] USING ARRAY[9]"),
    ("positive", "7", "TYPE int USING v + 1"),
    ("cidr", "'10.0.0.1/32'", "TYPE inet"),
    ("date", "'2024-01-02'", "TYPE text"),
)
_OTHERS = {
    "k": (
        "CREATE TABLE k (id int PRIMARY KEY); INSERT INTO k VALUES (1)",
        "ALTER TABLE k ALTER id TYPE bigint USING id * 2",
    ),
    # The trigger of the INSERT runs another ALTER TABLE within the same query.
    "mixed": (
        "CREATE TABLE mixed (id int PRIMARY KEY, v int); INSERT INTO mixed VALUES (1, 1);"
        " CREATE TABLE mixed_log (id int PRIMARY KEY);"
        " CREATE FUNCTION alter_mixed() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN ALTER TABLE mixed ALTER v TYPE bigint USING v * 2; RETURN NEW; END';"
        " CREATE TRIGGER alter_mixed BEFORE INSERT ON mixed_log FOR EACH ROW EXECUTE FUNCTION alter_mixed()",
        "INSERT INTO mixed_log VALUES (9); ALTER TABLE mixed ALTER v TYPE bigint",
    ),
    "generated": (
        "CREATE TABLE generated (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE generated ALTER g DROP EXPRESSION",
    ),
    "filled": (
        "CREATE TABLE filled (id int PRIMARY KEY, v int); INSERT INTO filled VALUES (1);"
        " ALTER TABLE filled ADD w int DEFAULT 4",
        "ALTER TABLE filled ALTER w TYPE int USING w + 1",
    ),
    "labels": ("CREATE TABLE labels (id int PRIMARY KEY, m label[])", "ALTER TYPE label RENAME VALUE 'a' TO 'b'"),
    "composite": ("CREATE TABLE composite (id int PRIMARY KEY, p pair)", "ALTER TYPE pair ADD ATTRIBUTE c int"),
}
_PARTITIONS = {
    "attached": "ALTER TABLE attached ATTACH PARTITION aside.attached_full FOR VALUES FROM (10) TO (20)",
    "detached": "ALTER TABLE detached DETACH PARTITION detached_1",
    "dropped": "DROP TABLE dropped_1",
    "truncated": "TRUNCATE truncated_1",
}
_SAFE = {
    "s_varchar": ("varchar(5)", "ALTER TABLE s_varchar ALTER v TYPE varchar(9)"),
    "s_text": ("varchar(5)", "ALTER TABLE s_text ALTER v TYPE text"),
    "s_numeric": ("numeric(8,2)", "ALTER TABLE s_numeric ALTER v TYPE numeric(12,2)"),
    "s_vacuum": ("int", "VACUUM FULL s_vacuum"),
    "s_filled": ("int", "VACUUM FULL s_filled"),
    "s_clustered": ("int", "CLUSTER s_clustered USING s_clustered_pkey"),
    "s_null": ("int DEFAULT 5", "ALTER TABLE s_null ALTER v SET NOT NULL"),
    "s_cluster": ("int", "CLUSTER s_cluster USING s_cluster_pkey"),
    "s_unlogged": ("mood", "ALTER TYPE mood ADD VALUE 'new'"),
}
_PLAIN = {
    "p_int": ("int", "ALTER TABLE p_int ALTER v TYPE bigint"),
    "p_float": ("float4", "BEGIN; ALTER TABLE public.p_float ALTER COLUMN v SET DATA TYPE float8; COMMIT"),
    "p_using": (
        "int",
        "INSERT INTO s_null VALUES (2); CREATE INDEX ON p_using (v);"
        " ALTER TABLE p_using ALTER v TYPE bigint USING v::bigint",
    ),
    "p_twice": (
        "mood",
        "ALTER TABLE p_twice ALTER v TYPE text; ALTER TABLE p_twice ALTER id TYPE bigint, ADD w int",
    ),
    "p_text": ("mood", "ALTER TABLE p_text ALTER v TYPE text"),
    "p_other": ("mood", "ALTER TABLE p_other ALTER v TYPE new_mood USING v::text::new_mood"),
    "p_mood": ("text", "ALTER TABLE p_mood ALTER v TYPE mood USING v::mood"),
}


def retyped() -> dict[str, tuple[str, str, str]]:
    """Return a table for each way to retype a column: its type, a value, the action."""
    return {f"r{i}": row for i, row in enumerate(_RETYPED)}


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of a table for each statement, not started."""
    with db.connect() as c:
        c.execute("CREATE TYPE mood AS ENUM ('good', 'bad')")
        c.execute("CREATE TYPE new_mood AS ENUM ('good', 'fair', 'bad')")
        c.execute("CREATE TYPE label AS ENUM ('a')")
        c.execute("CREATE TYPE pair AS (a int, b text)")
        c.execute("CREATE DOMAIN positive AS int CHECK (value > 0)")
        for name, (kind, value, _) in retyped().items():
            c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})")
            c.execute(f"INSERT INTO {name} VALUES (1, {value})")
        for create, _ in _OTHERS.values():
            c.execute(create)
        for name, (kind, _) in {**_SAFE, **_PLAIN}.items():
            c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})")
            c.execute(f"INSERT INTO {name} (id) VALUES (1)")
        for name in ("s_filled", "s_clustered"):
            c.execute(f"ALTER TABLE {name} ADD w int DEFAULT 4")
        for name in [*_PARTITIONS, "quiet"]:
            c.execute(f"CREATE TABLE {name} (id int PRIMARY KEY) PARTITION BY RANGE (id)")
            c.execute(f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (10)")
            c.execute(f"INSERT INTO {name} VALUES (1)")
        c.execute("CREATE SCHEMA aside")
        c.execute("CREATE TABLE aside.attached_full (id int PRIMARY KEY)")
        c.execute("INSERT INTO aside.attached_full VALUES (11)")
    made = Rig(db, tmp_path)
    made.change(selects=lambda table: table.schema == "public", copy_tables=8)
    yield made
    made.stop()


@pytest.mark.sampled
@pytest.mark.parametrize("announced", [True, False], ids=["trigger", "catalog"])
def test_rewrites_park_the_table(rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch, announced: bool) -> None:
    """Any change of existing rows parks the table. Provably harmless statements and everyday partitions do not."""
    if not announced:
        monkeypatch.setattr(levada.runtime.source.preparation, "install_ddl_trigger", lambda connection: False)
    rig.start()
    rig.wait_caught_up()
    expected = dict.fromkeys([*retyped(), "k", "mixed", "generated", "filled"], "table_rewritten")
    expected |= {"labels": "type_changed", "composite": "type_changed"}
    expected |= dict.fromkeys(_PARTITIONS, "partition_changed")
    if not announced:
        # Nothing proves that the statement had no USING.
        expected |= dict.fromkeys(_PLAIN, "table_rewritten")
    with db.connect() as c:
        for name, (_, _, action) in retyped().items():
            c.execute(f"ALTER TABLE {name} ALTER v {action}")
        statements = [s for _, s in [*_OTHERS.values(), *_SAFE.values(), *_PLAIN.values()]]
        for statement in [*statements, *_PARTITIONS.values()]:
            c.execute(statement)
        c.execute("CREATE TABLE quiet_2 PARTITION OF quiet FOR VALUES FROM (10) TO (20)")
        c.execute("INSERT INTO quiet VALUES (11)")
    found = rig.wait(lambda p: {t.table.name for t in p.tables if t.error} >= expected.keys())
    assert {t.table.name: t.error.code for t in found.tables if t.error} == expected
    hints = {t.error.solution for t in found.tables if t.error}
    assert "levada resync MANIFEST public.r0" in hints


def test_a_rewrite_while_the_engine_is_down_is_found(rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage that a table was copied from is kept in the store and compared at the next start."""
    monkeypatch.setattr(levada.runtime.source.preparation, "install_ddl_trigger", lambda connection: False)
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    db.execute("ALTER TABLE r0 ALTER v TYPE int USING v * 10", "TRUNCATE quiet", "INSERT INTO quiet VALUES (3)")
    rig.start()
    found = rig.wait(lambda p: any(t.error for t in p.tables))
    assert [(t.table.name, t.error.code) for t in found.tables if t.error] == [("r0", "table_rewritten")]


@pytest.mark.nightly
def test_a_rewrite_by_a_statement_that_drops_the_key(rig: Rig, db: Database) -> None:
    """It is found although the trigger lends the table an identity in the same statement, and the key comes back."""
    rig.start()
    rig.wait_caught_up()
    with db.connect() as holder, db.connect() as c:
        holder.execute(f"BEGIN; ALTER PUBLICATION levada_{db.name} ADD TABLE aside.attached_full")  # type: ignore[arg-type]
        c.execute("ALTER TABLE r0 DROP CONSTRAINT r0_pkey, ALTER v TYPE int USING v * 10")
        assert db.query("SELECT given::text FROM levada_ddl.lent") == [("f",)]
        c.execute("ALTER TABLE r0 ADD PRIMARY KEY (id)")
        holder.execute("ROLLBACK")
    found = rig.wait(lambda p: any(t.error for t in p.tables))
    assert [(t.table.name, t.error.code) for t in found.tables if t.error] == [("r0", "table_rewritten")]


@pytest.mark.nightly
def test_a_pipeline_is_not_caught_up_before_it_has_looked(
    rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite right before the question is found before the answer, also where no message announces it."""
    monkeypatch.setattr(levada.runtime.source.preparation, "install_ddl_trigger", lambda connection: False)
    rig.start()
    rig.wait_caught_up()
    db.execute("TRUNCATE truncated_1")
    assert rig.running is not None
    caught_up = rig.running.caught_up()
    found = rig.wait(lambda p: any(t.error for t in p.tables) or caught_up(p))
    assert [t.table.name for t in found.tables if t.error] == ["truncated"]
