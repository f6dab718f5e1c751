"""The owners of a database's slots, according to its stores. PostgreSQL has no comments on slots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.postgres.identity import read_identity
from levada.postgres.lock_holders import store_holder_named
from levada.postgres.publication_owners import owned_publications
from levada.postgres.server import ServerIdentity
from levada.postgres.slots import database_slots, parse_slot_name
from levada.spec.names import append_name
from levada.stores.codecs import FINGERPRINT, OWNER
from levada.stores.storage import decoded
from levada.values import PipelineOwner

# Other roles' tables are not read: their row-level policies would run with this role's privileges.
_STORES: Final = """
SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'documents' AND c.relkind = 'r' AND NOT c.relrowsecurity
AND (pg_catalog.pg_has_role(current_user, c.relowner, 'USAGE')
    OR EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.oid = c.relowner AND r.rolsuper))
AND pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT')
AND EXISTS (SELECT FROM pg_catalog.pg_class m WHERE m.relnamespace = n.oid AND m.relname = 'store_migrations'
    AND m.relkind = 'r' AND m.relowner = c.relowner)
AND (SELECT count(*) FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
    AND a.attname IN ('pipeline', 'kind', 'name', 'content')) = 4
ORDER BY 1
"""
_OWNERS: Final = """
SELECT o.content, s.content FROM {documents} o
LEFT JOIN {documents} s ON s.pipeline = o.pipeline AND s.kind = %(record)s AND s.name = %(source)s
WHERE o.kind = %(owner)s
"""

SOURCE: Final = "source"
"""The name of the fingerprint that records a pipeline's source, as JSON. ``server`` is a `ServerIdentity`."""


@source_errors("looking for the owner of the slot")
def slot_owners(conn: psycopg.Connection[Any], slot: str) -> tuple[PipelineOwner, ...]:
    """Return the Pipelines whose state belongs to the slot, in any store of this database that the role may read.

    A store of this database may also hold the state of a pipeline with another source, whose slot has the same name.
    """
    return tuple(owner for name, owner in _claims(conn) if name == slot)


@source_errors("looking for other pipelines of the database")
def other_pipelines(conn: psycopg.Connection[Any], slot: str, publication: str) -> frozenset[str]:
    """Return the other slots and publications of this database that belong to pipelines, as words for a message.

    A slot belongs to a pipeline according to its name or to a store. A store in another place is not searched, and the
    comment of a publication shows its pipeline too.
    """
    publications = owned_publications(conn) - {publication, append_name(publication)}
    return frozenset(f"slot {name}" for name in _other_slots(conn, slot)) | {f"publication {n}" for n in publications}


def _other_slots(conn: psycopg.Connection[Any], slot: str) -> frozenset[str]:
    claimed = {name for name, _ in _claims(conn)}
    others = database_slots(conn) - {slot}
    return frozenset(n for n in others if n in claimed or ((p := parse_slot_name(n)) is not None and p[1] is None))


def _claims(conn: psycopg.Connection[Any]) -> Iterator[tuple[str, PipelineOwner]]:
    """Yield each slot of this database that a store in it names, with its owner."""
    here = read_identity(conn)
    for (schema,) in conn.execute(_STORES).fetchall():
        query = sql.SQL(_OWNERS).format(documents=sql.Identifier(schema, "documents"))
        parameters = {"owner": OWNER.name, "record": FINGERPRINT.name, "source": SOURCE}
        doing = f"looking for the owners of slots in the store in schema {schema}"
        with store_holder_named(conn, schema), source_errors(doing):
            rows = conn.execute(query, parameters).fetchall()
        for content, source in rows:
            where = f"a pipeline's {FINGERPRINT.name} in the store in schema {schema}"
            if source is not None and _database(decoded(FINGERPRINT, source, where)) not in ("", here):
                continue
            record = decoded(OWNER, content, f"a pipeline's {OWNER.name} in the store in schema {schema}")
            if record.owner is not None:
                yield record.slot, record.owner


def _database(record: str) -> str:
    """Return the identity of the database in a pipeline's record of its source, or an empty string if it has none."""
    try:
        identity = ServerIdentity.from_json(json.loads(record)["server"])
    except (ValueError, LookupError, TypeError):
        return ""
    return "" if identity is None else identity.source
