"""The storage of partitions: whether they were created as such, and whether their changes fit the published root."""

from __future__ import annotations

from typing import Any, LiteralString, cast

import psycopg
import pytest
from tests.rigs.database import Database

from levada.postgres.identity_remedies import identity_statements
from levada.postgres.preflight import PreflightRequest, Severity, preflight
from levada.postgres.publications import unidentified_relations
from levada.postgres.storage import read_flaws, read_storage
from levada.schema.flaws import flaw_error
from levada.values import QualifiedTable, TableId

ROOT = "CREATE TABLE r ({}) PARTITION BY LIST (k)"
BORN = {
    "plain": (ROOT.format("id int, k int"), "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)"),
    "key": (ROOT.format("id int, k int, PRIMARY KEY (id, k)"), "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)"),
    "defaults": (
        ROOT.format("id serial, k int DEFAULT 1 NOT NULL CHECK (k > 0)"),
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)",
    ),
    "own defaults": (
        ROOT.format("id int, k int"),
        "CREATE TABLE r_1 PARTITION OF r (id DEFAULT 1, k DEFAULT 1) FOR VALUES IN (1)",
    ),
    "identity": (
        ROOT.format("id int GENERATED ALWAYS AS IDENTITY, k int, PRIMARY KEY (id, k)"),
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)",
    ),
    "generated": (
        ROOT.format("k int NOT NULL, g int GENERATED ALWAYS AS (k + 1) STORED"),
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)",
    ),
    "level": (
        ROOT.format("id int, k int"),
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES IN (1) PARTITION BY LIST (id)",
        "CREATE TABLE r_1 PARTITION OF r_0 DEFAULT",
    ),
    "altered": (
        ROOT.format("id int, k int"),
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)",
        "ALTER TABLE r ALTER id SET NOT NULL",
    ),
}
ATTACH = "ALTER TABLE r ATTACH PARTITION r_1 FOR VALUES IN (1)"
ROWS = "INSERT INTO r_1 VALUES (1, 1)"
ATTACHED = {
    "plain": (ROOT.format("id int, k int"), "CREATE TABLE r_1 (id int, k int)", ROWS, ATTACH),
    "like": (ROOT.format("id int, k int, PRIMARY KEY (id, k)"), "CREATE TABLE r_1 (LIKE r)", ROWS, ATTACH),
    "query": (ROOT.format("id int, k int"), "CREATE TABLE r_1 AS SELECT 1 AS id, 1 AS k", ATTACH),
    "again": (
        ROOT.format("id int, k int"),
        "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)",
        "ALTER TABLE r DETACH PARTITION r_1",
        ROWS,
        ATTACH,
    ),
    "inherited before": (
        ROOT.format("id int, k int"),
        "CREATE TABLE p (x int, id int, k int)",
        "CREATE TABLE r_1 () INHERITS (p)",
        "ALTER TABLE p DROP x",
        "ALTER TABLE r_1 NO INHERIT p",
        ROWS,
        ATTACH,
    ),
    "undone": (
        ROOT.format("id int, k int"),
        "CREATE TABLE r_1 (id int, k int)",
        ROWS,
        ATTACH,
        "SAVEPOINT s",
        "ALTER TABLE r ALTER id SET STATISTICS 5",
        "ROLLBACK TO s",
    ),
}

KEYED: LiteralString = "CREATE TABLE r (id int, k int, a int NOT NULL, PRIMARY KEY (id, k)) PARTITION BY LIST (k)"
KEYLESS: LiteralString = "CREATE TABLE r (id int, k int, a int NOT NULL) PARTITION BY LIST (k)"
LEAVES: tuple[LiteralString, ...] = (
    "CREATE TABLE r_1 PARTITION OF r FOR VALUES IN (1)",
    # Its columns have other attnums than the root's.
    "CREATE TABLE r_2 (a int NOT NULL, gone int, k int NOT NULL, id int NOT NULL)",
    "ALTER TABLE r_2 DROP gone",
    "ALTER TABLE r ATTACH PARTITION r_2 FOR VALUES IN (2)",
    "CREATE UNIQUE INDEX two ON r_2 (a)",
    "CREATE UNIQUE INDEX two_wide ON r_2 (a, id, k)",
)
FULL = "ALTER TABLE {} REPLICA IDENTITY FULL"
FLAWS: dict[str, tuple[LiteralString, tuple[str, ...], dict[str, str]]] = {
    "no change": (KEYED, (), {}),
    "full leaf": (KEYED, (FULL.format("r_2"),), {}),
    "full": (KEYED, (FULL.format("r_1"), FULL.format("r_2"), FULL.format("r")), {}),
    "full root": (KEYED, (FULL.format("r"), FULL.format("r_2")), {"r_1": "REPLICA IDENTITY FULL"}),
    "full root by an index": (
        KEYED,
        (FULL.format("r"), FULL.format("r_1"), "ALTER TABLE r_2 REPLICA IDENTITY USING INDEX two"),
        {"r_2": "REPLICA IDENTITY FULL"},
    ),
    "index of a leaf": (
        KEYED,
        ("ALTER TABLE r_2 REPLICA IDENTITY USING INDEX two",),
        {"r_2": "REPLICA IDENTITY DEFAULT"},
    ),
    "index with the key": (KEYED, ("ALTER TABLE r_2 REPLICA IDENTITY USING INDEX two_wide",), {}),
    "index of the root": (
        KEYED,
        ("CREATE UNIQUE INDEX root_index ON r (a, k)", "ALTER TABLE r REPLICA IDENTITY USING INDEX root_index"),
        {"r_1": "REPLICA IDENTITY USING INDEX r_1_a_k_idx", "r_2": "REPLICA IDENTITY USING INDEX r_2_a_k_idx"},
    ),
    "no identity": (KEYLESS, ("CREATE UNIQUE INDEX one ON r_1 (a)",), {}),
    "refused by PostgreSQL": (
        KEYED,
        (FULL.format("r"), FULL.format("r_1"), "ALTER TABLE r_2 REPLICA IDENTITY NOTHING"),
        {},
    ),
    "key of a leaf": (
        KEYLESS,
        ("ALTER TABLE r_1 ADD PRIMARY KEY (id)", FULL.format("r")),
        {"r_1": "REPLICA IDENTITY FULL"},
    ),
    "unlogged": (KEYED, ("CREATE UNLOGGED TABLE r_3 PARTITION OF r FOR VALUES IN (3)",), {"r_3": "SET LOGGED"}),
}
R = QualifiedTable("public", "r")


def execute(db: Database, *statements: str) -> None:
    """Run statements that are made of parts, each in a transaction of its own."""
    db.execute(*(cast("LiteralString", statement) for statement in statements))


def is_born(db: Database) -> bool:
    """Return True if partition r_1 counts as created as a partition of r."""
    root, leaf = (TableId(db.query("SELECT %s::regclass::oid", name)[0][0]) for name in ("r", "r_1"))
    with db.connection.connect() as c:
        return read_storage(c, [root]).tables[root].leaves[leaf].born


@pytest.mark.parametrize("new", [False, True], ids=["the same", "a new one"])
def test_empty_partitions_beside_new_ones(db: Database, monkeypatch: pytest.MonkeyPatch, new: bool) -> None:
    """A partition counts as empty only if no other one was made until the end of the look, which may have its rows."""
    execute(db, ROOT.format("k int"), "CREATE TABLE r_d PARTITION OF r DEFAULT")
    root, leaf = (TableId(db.query("SELECT %s::regclass::oid", name)[0][0]) for name in ("r", "r_d"))
    with db.connection.connect() as c:
        execute_now = c.execute

        def execute_late(query: Any, params: Any = None, **more: Any) -> psycopg.Cursor[Any]:
            if new and params == [[int(leaf)]]:
                execute(db, "CREATE TABLE r_2 PARTITION OF r FOR VALUES IN (2)", "INSERT INTO r VALUES (2)")
            return execute_now(query, params, **more)

        monkeypatch.setattr(c, "execute", execute_late)
        look = read_storage(c, [root], {leaf: None})
    assert look.emptied == (frozenset() if new else {leaf})


@pytest.mark.parametrize("together", [True, False], ids=["one query", "statements"])
@pytest.mark.parametrize("name", BORN)
def test_partitions_that_are_created_as_such(versions: Database, name: str, together: bool) -> None:
    """All their rows are streamed as the root's, whatever their columns have and however they are created."""
    execute(versions, *(["; ".join(BORN[name])] if together else BORN[name]))
    assert is_born(versions)


@pytest.mark.parametrize("name", ATTACHED)
def test_partitions_that_are_attached_in_the_transaction_of_their_rows(versions: Database, name: str) -> None:
    """They had rows before, also if they were created, filled and attached by a few commands of one transaction."""
    execute(versions, "BEGIN; " + "; ".join(ATTACHED[name]) + "; COMMIT")
    assert not is_born(versions)


@pytest.mark.parametrize("name", FLAWS)
def test_partitions_whose_changes_do_not_fit_their_root(versions: Database, name: str) -> None:
    """Old rows need the columns of the root's identity, and changes need the WAL. The remedy gives both."""
    root, statements, expected = FLAWS[name]
    versions.execute(root, *LEAVES, "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)")
    execute(versions, *statements)
    with versions.connection.connect() as c:
        flaws = read_flaws(c, "p", [R]).get(R, [])
        assert {f.name.name: f.remedy for f in flaws} == {n: f"ALTER TABLE public.{n} {x}" for n, x in expected.items()}
        execute(versions, *(f.remedy for f in flaws))
        assert read_flaws(c, "p", [R]) == {}


def test_partitions_that_are_tables_of_their_own_need_no_root(versions: Database) -> None:
    """Without publish_via_partition_root each partition is streamed with its own identity."""
    versions.execute(KEYED, *LEAVES, "ALTER TABLE r REPLICA IDENTITY FULL", "CREATE PUBLICATION p FOR TABLE r")
    with versions.connection.connect() as c:
        assert read_flaws(c, "p", [R]) == {}


def test_check_names_flawed_partitions(db: Database) -> None:
    """A warning for each table, with the code and the SQL of the copy that is refused. Other tables can start."""
    db.execute(KEYED, *LEAVES, "ALTER TABLE r REPLICA IDENTITY FULL", "CREATE TABLE t (id int PRIMARY KEY)")
    (problem,) = preflight(db.connection, PreflightRequest("s", "p", True, lambda table: True, 2))
    assert (problem.severity, problem.code) == (Severity.WARNING, "partition_identity")
    assert problem.message.startswith("table public.r: partition public.r_1 has another replica identity")
    assert problem.hint == (
        "ALTER TABLE public.r_1 REPLICA IDENTITY FULL; ALTER TABLE public.r_2 REPLICA IDENTITY FULL;"
        " then levada resync MANIFEST public.r"
    )


def test_a_hint_identifies_partitions_too(versions: Database) -> None:
    """REPLICA IDENTITY FULL of a root changes no partition, so the hint names those that need it, and the root last."""
    versions.execute(
        KEYLESS,
        *LEAVES,
        "ALTER TABLE r_1 ADD PRIMARY KEY (id)",
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
        "INSERT INTO r VALUES (1, 1, 1), (2, 2, 2)",
    )
    with versions.connection.connect() as c:
        relations = unidentified_relations(c, [R])[R]
        assert [r.name for r in relations] == ["r_1", "r_2", "r"]
        execute(versions, identity_statements(c, [R])[R])
        assert read_flaws(c, "p", [R]) == {}
        versions.execute("UPDATE r SET id = id + 10", "ALTER TABLE r_2 REPLICA IDENTITY NOTHING")
        assert unidentified_relations(c, [R]) == {R: (QualifiedTable("public", "r_2"),)}


def test_a_hint_that_lists_no_partitions_alters_all(versions: Database) -> None:
    """The statements of many partitions are made by a query, which leaves out those that need none."""
    versions.execute(
        KEYLESS,
        "CREATE TABLE r_0 PARTITION OF r FOR VALUES IN (0) PARTITION BY LIST (id)",
        *(f"CREATE TABLE r_0{n} PARTITION OF r_0 FOR VALUES IN ({n})" for n in range(12)),
        "CREATE PUBLICATION p FOR TABLE r WITH (publish_via_partition_root)",
    )
    with versions.connection.connect() as c:
        execute(versions, *psql(c, identity_statements(c, [R])[R]))
        assert read_flaws(c, "p", [R]) == {}
        versions.execute("INSERT INTO r SELECT i, 0, i FROM generate_series(0, 11) i", "UPDATE r SET id = id")
        execute(versions, *(f"ALTER TABLE r_0{n} SET UNLOGGED" for n in range(11)))
        execute(versions, "ALTER TABLE r_011 ADD PRIMARY KEY (id)", "ALTER TABLE r_011 REPLICA IDENTITY DEFAULT")
        error = flaw_error(R, read_flaws(c, "p", [R])[R])
        assert error is not None
        execute(versions, *psql(c, error.hint.rpartition("; then ")[0]))
        assert read_flaws(c, "p", [R]) == {}


def psql(connection: psycopg.Connection[Any], script: str) -> list[str]:
    r"""Return the statements of a hint for psql, whose ``\gexec`` runs the results of a query."""
    made: list[str] = []
    for statement in script.removeprefix("in psql: ").split("; "):
        query, gexec, _ = statement.partition(r" \gexec")
        made += [row[0] for row in connection.execute(query.encode())] if gexec else [statement]
    return made
