"""Types of extensions: the extension's own where the server has it, and else a base type of that name with texts.

A base type whose functions are those of text prints what was put in. So values that a test writes in the extension's
own form pass through Levada as they would, in a server without the extension. ``--server 15`` runs a test on Debian's
server, which has hstore, and PostGIS if ``postgresql-15-postgis-3`` is installed.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql


def add_hstore(connection: psycopg.Connection[Any], schema: str = "public") -> None:
    """Create the type hstore in a schema."""
    _add(connection, "hstore", "hstore", schema)


def add_geometry(connection: psycopg.Connection[Any], schema: str = "public") -> None:
    """Create the type geometry in a schema. Its values are written as the hexadecimal digits of PostGIS."""
    _add(connection, "postgis", "geometry", schema)


def _add(connection: psycopg.Connection[Any], extension: str, name: str, schema: str) -> None:
    query = "SELECT FROM pg_catalog.pg_available_extensions WHERE name = %s"
    if connection.execute(query, [extension]).fetchone() is None:
        add_text_type(connection, name, schema)
        return
    connection.execute(
        sql.SQL("CREATE EXTENSION {} SCHEMA {}").format(sql.Identifier(extension), sql.Identifier(schema))
    )


def add_text_type(connection: psycopg.Connection[Any], name: str, schema: str = "public") -> None:
    """Create a base type that prints the text that was put in."""
    made = sql.Identifier(schema, name)
    into, out = (sql.Identifier(schema, f"{name}_{way}") for way in ("in", "out"))
    create = "CREATE FUNCTION {}({}) RETURNS {} LANGUAGE internal IMMUTABLE STRICT AS {}"
    cstring = sql.SQL("cstring")
    with connection.transaction():
        # The messages of a function over a shell type are of no interest.
        connection.execute("SET LOCAL client_min_messages = error")
        connection.execute(sql.SQL("CREATE TYPE {}").format(made))
        connection.execute(sql.SQL(create).format(into, cstring, made, sql.Literal("textin")))
        connection.execute(sql.SQL(create).format(out, made, cstring, sql.Literal("textout")))
        connection.execute(sql.SQL("CREATE TYPE {} (INPUT = {}, OUTPUT = {}, LIKE = text)").format(made, into, out))
