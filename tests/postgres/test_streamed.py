"""The relations that a publication streams, as the catalog tables show them."""

from __future__ import annotations

from tests.rigs.database import Database

from levada.postgres.streamed import streamed_names


def test_the_same_relations_as_the_server_lists(versions: Database) -> None:
    """Roots, partitions, schemas and inheritance children are streamed as pg_publication_tables says."""
    versions.execute(
        "CREATE SCHEMA other",
        "CREATE TABLE plain (id int PRIMARY KEY)",
        "CREATE TABLE parent (id int)",
        "CREATE TABLE child () INHERITS (parent)",
        "CREATE UNLOGGED TABLE fast (id int)",
        "CREATE TABLE root (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF root FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high PARTITION OF root FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
        "CREATE TABLE other.highest PARTITION OF high FOR VALUES FROM (15) TO (20)",
        "CREATE TABLE other.alone (id int)",
    )
    members = ["FOR ALL TABLES", "", *(f"FOR TABLE {t}" for t in ("plain", "ONLY parent", "parent", "root", "low"))]
    members += ["FOR TABLE high", "FOR TABLE root, low", "FOR TABLE high, other.highest", "FOR TABLE low, plain"]
    [(version,)] = versions.query("SELECT current_setting('server_version_num')::int")
    if version >= 150000:
        members += [f"FOR TABLES IN SCHEMA {s}" for s in ("public", "other", "public, other")]
        members.append("FOR TABLES IN SCHEMA other, TABLE root")
    with versions.connect() as connection:
        for number, member in enumerate(members):
            for via_root in ("true", "false"):
                name = f"p{number}_{via_root}%"
                connection.execute(
                    f'CREATE PUBLICATION "{name}" {member} WITH (publish_via_partition_root = {via_root})'.encode()
                )
                expected = connection.execute(
                    "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s", [name]
                ).fetchall()
                assert {str(t) for t in streamed_names(connection, name)} == {t for (t,) in expected}, (member, name)
        assert streamed_names(connection, "absent") == frozenset()
