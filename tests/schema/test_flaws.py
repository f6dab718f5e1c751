"""Partitions whose changes do not fit the table that they are streamed as."""

from __future__ import annotations

from levada.schema.flaws import LeafFlaw, flaw_error
from levada.schema.storage import LeafStorage, TableStorage
from levada.values import QualifiedTable, TableId

TABLE = QualifiedTable("public", "r")


def flaw(name: str, kind: str = "identity") -> LeafFlaw:
    """Return the flaw of a partition."""
    action = "SET LOGGED" if kind == "unlogged" else "REPLICA IDENTITY FULL"
    return LeafFlaw(kind, QualifiedTable("public", name), f"ALTER TABLE public.{name} {action}")


def test_the_error_names_the_partition_and_its_remedy() -> None:
    """Each kind has a code of its own, and the hint corrects all partitions before the table is copied again."""
    assert flaw_error(TABLE, ()) is None
    error = flaw_error(TABLE, [flaw("r_2", "unlogged"), flaw("r_1")])
    assert error is not None
    assert error.code == "partition_identity"
    assert error.message.startswith("table public.r: partition public.r_1 has another replica identity")
    assert error.hint == (
        "ALTER TABLE public.r_1 REPLICA IDENTITY FULL; ALTER TABLE public.r_2 SET LOGGED;"
        " then levada resync MANIFEST public.r"
    )
    unlogged = flaw_error(TABLE, [flaw("r_2", "unlogged")])
    assert unlogged is not None
    assert unlogged.code == "partition_unlogged"
    assert unlogged.message == "table public.r: partition public.r_2 is unlogged, so its changes are not in the WAL"


def test_a_hint_stays_short() -> None:
    """A root with hundreds of partitions has a message with their number."""
    error = flaw_error(TABLE, [flaw(f"r_{n:03}") for n in range(200)])
    assert error is not None
    assert error.message.endswith(", and 199 more partitions alike")
    assert error.hint == (
        "in psql: SELECT format('ALTER TABLE %s REPLICA IDENTITY FULL', relid)"
        """ FROM pg_partition_tree('"public"."r"') JOIN pg_class ON oid = relid"""
        r" WHERE relkind = 'r' AND relreplident NOT IN ('f') \gexec; then levada resync MANIFEST public.r"
    )


def test_flaws_are_kept_as_text() -> None:
    """The store returns the flaw of a leaf."""
    leaves = {TableId(1): LeafStorage(5, 6, False, True, flaw("r_1")), TableId(2): LeafStorage(7, 6, False, True)}
    storage = TableStorage(leaves, {}, {})
    assert TableStorage.from_text(storage.to_text()) == storage
    assert storage.flaws == (flaw("r_1"),)
