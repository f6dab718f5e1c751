"""Roles as administrators make them: names that need quotes, settings, limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from psycopg import sql
from tests.rigs.command_line import log_in_as, manifest, on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

__all__ = ["manifest"]

ODD = """svc@proj.iam "A" b's"""
"""A name that needs quotes for each reason there is."""


def alter(db: Database, statement: str, *names: str) -> None:
    """Run a statement with quoted names."""
    with db.connect() as admin:
        admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))  # type: ignore[arg-type]  # only names vary


@pytest.fixture
def odd(db: Database, manifest: Path) -> Iterator[str]:
    """The pipeline's role, which is no superuser."""
    alter(db, "CREATE ROLE {} LOGIN REPLICATION", ODD)
    alter(db, "GRANT CREATE ON DATABASE {} TO {}", db.name, ODD)
    for table in ("orders", "items"):
        alter(db, "ALTER TABLE {} OWNER TO {}", table, ODD)
    log_in_as(manifest.parent, ODD)
    yield ODD
    alter(db, "DROP OWNED BY {}", ODD)
    alter(db, "DROP ROLE {}", ODD)


def test_a_role_whose_name_needs_quotes(db: Database, manifest: Path, odd: str) -> None:
    """It may be the role of the source, of the store and of the destination."""
    manifest.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}})))
    db.execute("INSERT INTO orders VALUES (1)")
    for number in (2, 3):
        checked = on(manifest, "check")
        assert checked.exit_code == Exit.OK, checked.output
        run(manifest)
        db.execute(f"INSERT INTO orders VALUES ({number})")  # type: ignore[arg-type]  # a number
    run(manifest)
    assert db.query("SELECT id FROM replica.orders ORDER BY 1") == [(1,), (2,), (3,)]
