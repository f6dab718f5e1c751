"""The managed publication of a pipeline, made without one."""

from __future__ import annotations

from tests.rigs.database import Database

from levada.postgres.publication_owners import mark_publication
from levada.postgres.publications import ensure_coverage
from levada.values import PipelineOwner, QualifiedTable

OWNER = PipelineOwner("local-1", "shop")


def published(db: Database) -> set[str]:
    """Return the members of all publications."""
    return {name for (name,) in db.query("SELECT prrelid::regclass::text FROM pg_publication_rel")}


def manage(db: Database, *tables: str) -> None:
    """Publish the tables as a pipeline does."""
    with db.connection.connect() as c:
        ensure_coverage(c, "p", {QualifiedTable("public", t) for t in tables}, manage=True)
        mark_publication(c, "p", OWNER)
