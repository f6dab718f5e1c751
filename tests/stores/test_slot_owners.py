"""The owners of a slot in the stores of a database."""

from __future__ import annotations

import json

import pytest
from tests.rigs.database import Database

from levada.postgres.identity import read_identity
from levada.postgres.publication_owners import mark_publication
from levada.postgres.server import ServerIdentity
from levada.stores import OwnerRecord, PostgresStore
from levada.stores.slot_owners import SOURCE, other_pipelines, slot_owners
from levada.values import PipelineOwner

OTHER = PipelineOwner("uid-2", "b/bills")
ONE = PipelineOwner("uid-1", "a/shop")


@pytest.mark.parametrize(
    ("source", "counts"),
    [("here", True), ("none", True), ("damaged", True), ("another server", False), ("another database", False)],
)
def test_a_slot_of_another_source_does_not_count(db: Database, source: str, counts: bool) -> None:
    """A store may hold the state of pipelines with other sources, whose slots may have the same name."""
    store = PostgresStore(db.connection, "shop")
    store.change_owner_record(None, OwnerRecord(ONE, "levada_shop", "levada_shop"))
    store.next_epoch()
    with db.connect() as connection:
        system, database = read_identity(connection).split("/")
        identity = {
            "here": ServerIdentity(system, 1, int(database), ""),
            "another server": ServerIdentity("1", 1, int(database), ""),
            "another database": ServerIdentity(system, 1, int(database) + 1, ""),
        }.get(source)
        if source == "damaged":
            store.store_fingerprint(SOURCE, "{")
        elif identity is not None:
            store.store_fingerprint(SOURCE, json.dumps({"server": identity.to_json()}))
        store.close()
        assert slot_owners(connection, "levada_shop") == ((ONE,) if counts else ())
        assert slot_owners(connection, "levada_other") == ()


def test_a_publications_comment_shows_a_pipeline_whose_store_is_elsewhere(db: Database) -> None:
    """Its slot may have any name. A publication without an owner is no pipeline's."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    db.execute("CREATE PUBLICATION bills FOR TABLE t", "CREATE PUBLICATION plain FOR TABLE t")
    with db.connect() as connection:
        assert other_pipelines(connection, "levada_shop", "levada_shop") == frozenset()
        mark_publication(connection, "bills", OTHER)
        assert other_pipelines(connection, "levada_shop", "levada_shop") == {"publication bills"}
        assert other_pipelines(connection, "any", "bills") == frozenset()
