"""The owner of a publication, a Pipeline, which the publication's comment names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.postgres.publications import read_publication
from levada.postgres.table_locks import publication_holder_named
from levada.values import PipelineOwner

OWNED: Final = r"^Levada pipeline (\S+), owner (\S+)$"
"""The form of the comment of a publication that a Pipeline owns: its name and its UID. SQL reads it too."""
_OWNED: Final = re.compile(OWNED)


@source_errors("reading the owner of the publication")
def read_publication_owner(conn: psycopg.Connection[Any], name: str) -> PipelineOwner | None:
    """Return the Pipeline in the publication's comment, or None if there is no such comment or no publication."""
    match = _OWNED.fullmatch(_read_comment(conn, name) or "")
    return None if match is None else PipelineOwner(match[2], match[1])


def owned_publications(conn: psycopg.Connection[Any]) -> frozenset[str]:
    """Return the publications of this database whose comments name a Pipeline as the owner."""
    rows = conn.execute("SELECT pubname, obj_description(oid, 'pg_publication') FROM pg_publication").fetchall()
    return frozenset(name for name, comment in rows if comment is not None and _OWNED.fullmatch(comment))


def mark_publication(
    conn: psycopg.Connection[Any],
    name: str,
    owner: PipelineOwner | None,
    *,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Write the owner into the publication's comment, or remove the comment if ``owner`` is None.

    A comment of another form is kept. Nothing changes on a standby, or if this role does not own the publication.
    ``check`` is called before the change, and raises an error to prevent it.
    """
    found = read_publication(conn, name)
    if found is None or not found.owned:
        return
    doing = f"marking publication {name} with its owner"
    with publication_holder_named(conn, name), source_errors(doing):
        if conn.execute("SHOW transaction_read_only").fetchone() == ("on",):
            return
        kept = _read_comment(conn, name)
        wanted = None if owner is None else f"Levada pipeline {owner.name}, owner {owner.uid}"
        if kept == wanted or (kept is not None and not _OWNED.fullmatch(kept)):
            return
        check()
        comment = sql.SQL("COMMENT ON PUBLICATION {} IS {}").format(sql.Identifier(name), sql.Literal(wanted))
        conn.execute(comment)


def _read_comment(conn: psycopg.Connection[Any], name: str) -> str | None:
    row = conn.execute(
        "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = %s", [name]
    ).fetchone()
    return None if row is None else row[0]
