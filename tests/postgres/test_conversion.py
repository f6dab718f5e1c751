"""The conversion of texts from a database's encoding to UTF-8, compared with what the server converts by itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import psycopg
import pyarrow as pa
import pytest
from tests.rigs.database import Database

from levada.postgres.conversion import ServerConversion, unconvertible_texts

HIGH = [bytes([octet]) for octet in range(0x80, 0x100)]
PAIRS = [bytes(pair) for pair in product(range(0xA1, 0xFF, 3), range(0xA1, 0xFF, 3))]
CODES = {
    "WIN1252": HIGH,
    "LATIN1": HIGH,
    "EUC_JP": PAIRS + [b"\x8f" + pair for pair in PAIRS[::3]] + [b"\x8e\xb1"],
    "EUC_TW": PAIRS + [b"\x8e\xa2" + pair for pair in PAIRS[::3]] + [b"\x80\xa1", b"\xff\xfe"],
    "SQL_ASCII": [
        "\u00e9".encode(),
        "\U0001f600".encode(),
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xe2\x82",
        b"\xf4\x90\x80\x80",
    ],
}
"""Characters of each encoding, of which UTF-8 lacks some, except for LATIN1."""


@pytest.fixture(params=CODES)
def encoded(db: Database, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database with the encoding."""
    name = f"{db.name}_encoded"
    db.execute(f"CREATE DATABASE {name} ENCODING '{request.param}' TEMPLATE template0 LOCALE 'C'")  # type: ignore[arg-type]  # a name of the test
    yield Database(db.server, name)
    db.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]  # as above


def texts_of(encoding: str) -> list[bytes]:
    """Return each character alone, and some within other text."""
    codes = CODES[encoding]
    return [*codes, b"", b"plain", *(b"a\n" + code + b"\x01z" + codes[0] for code in codes[::7])]


def by_server(connection: psycopg.Connection[tuple[bytes]], encoding: str, text: bytes) -> str | None:
    """Return a text as the server converts it, None if it refuses to."""
    try:
        row = connection.execute("SELECT convert(%b, %s, 'UTF8')", [text, encoding]).fetchone()
    except (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire):
        return None
    assert row is not None
    return row[0].decode()


def test_texts_are_converted_as_by_the_server(encoded: Database, request: pytest.FixtureRequest) -> None:
    """Those that it refuses are NULL, and the condition in SQL finds the same ones."""
    encoding = request.node.callspec.params["encoded"]
    texts = texts_of(encoding)
    with encoded.connect(client_encoding="UTF8") as connection:
        wanted = [by_server(connection, encoding, text) for text in texts]
        found = ServerConversion(encoded.connection, encoding).convert(pa.array(texts, pa.binary()))
        assert found.to_pylist() == wanted
        with connection.transaction():
            condition = unconvertible_texts(encoded.connection, connection)
            if condition is None:
                assert None not in wanted
                return
            query = f"SELECT {condition.without('t', '1')} IS NULL FROM unnest(%s::bytea[]) WITH ORDINALITY AS u(v, i),"
            query += f" convert_from(v, '{encoding}') AS t ORDER BY i"
            odd = [row[0] for row in connection.execute(query.encode(), [texts])]
        assert odd == [text is None for text in wanted]


def test_utf8_has_no_condition(db: Database) -> None:
    """Nothing is asked of a server whose texts are UTF-8."""
    with db.connect() as connection:
        assert unconvertible_texts(db.connection, connection) is None
