"""The conversion of texts from a database's encoding to UTF-8, as the server itself does it.

A server converts the results of SQL, and raises an error for a text that it cannot convert. The stream of a database
with another encoding than UTF8 has the server's own bytes, which `ServerConversion` converts. Statements that read many
rows leave such texts out by `unconvertible_texts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from levada.pgoutput.encoding import UnconvertibleTexts
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.kept_sessions import SESSIONS

UTF8: Final = "UTF8"
_ASCII: Final = "SQL_ASCII"
_MOST_BYTES: Final = 8 << 20
"""The bytes that the server converts with one statement. It allocates four times as many."""
_CONVERT: Final = "SELECT pg_catalog.convert(%b, pg_catalog.getdatabaseencoding(), 'UTF8')"
_MAX_LENGTH: Final = (
    "SELECT pg_catalog.pg_encoding_max_length(pg_catalog.pg_char_to_encoding(pg_catalog.getdatabaseencoding()))"
)
_CANNOT: Final = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
_HIGH: Final = 0x80
_OCTETS: Final = 256
_LONGEST: Final = 4
"""The most bytes of a character in UTF-8."""

_PAIRS: Final = (
    "SELECT set_byte(set_byte('\\x0000', 0, a), 1, b) AS pair"
    " FROM generate_series(161, 254) a, generate_series(161, 254) b"
)
_KANA: Final = "SELECT '\\x8e'::bytea || set_byte('\\x00', 0, a) FROM generate_series(161, 223) a"
_JAPANESE: Final = f"{_PAIRS} UNION ALL {_KANA} UNION ALL SELECT '\\x8f'::bytea || pair FROM ({_PAIRS}) AS p"
_ANY_FIRST: Final = (
    "SELECT set_byte(set_byte('\\x0000', 0, a), 1, b) AS pair"
    " FROM generate_series(128, 255) a, generate_series(161, 254) b WHERE a NOT IN (142, 143)"
)
"""The server does not check the first byte of these in EUC_TW."""
_PLANES: Final = (
    f"{_ANY_FIRST} UNION ALL SELECT set_byte('\\x8e00', 1, plane) || pair"
    f" FROM generate_series(161, 167) plane, ({_PAIRS}) AS p"
)
_SINGLE: Final = "SELECT set_byte('\\x00', 0, i) FROM generate_series(128, 255) i"
_CODES: Final = {
    "EUC_CN": _PAIRS,
    "EUC_KR": _PAIRS,
    "EUC_JP": _JAPANESE,
    "EUC_JIS_2004": _JAPANESE,
    "EUC_TW": _PLANES,
}
"""The codes of characters in encodings of several bytes (PostgreSQL manual, table "PostgreSQL Character Sets")."""
_SETTING: Final = "levada.unconvertible"
_FIND: Final = """DO $$
DECLARE
    code bytea;
    found bytea := '';
    own text := pg_catalog.getdatabaseencoding();
BEGIN
    FOR code IN {codes} LOOP
        BEGIN
            PERFORM pg_catalog.convert(code, own, own);
        EXCEPTION WHEN OTHERS THEN CONTINUE;
        END;
        BEGIN
            PERFORM pg_catalog.convert(code, own, 'UTF8');
        EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire THEN found := found || code;
        END;
    END LOOP;
    PERFORM pg_catalog.set_config('{setting}', pg_catalog.encode(found, 'hex'), true);
END $$"""

# The table of well-formed byte sequences in the Unicode standard, chapter 3, in hexadecimal.
_NEXT: Final = "[89ab]."
_WELL_FORMED: Final = "|".join(
    (
        "[0-7].",
        f"c[2-9a-f]{_NEXT}",
        f"d.{_NEXT}",
        f"e0[ab].{_NEXT}",
        f"e[1-9abcef]{_NEXT}{_NEXT}",
        f"ed[89].{_NEXT}",
        f"f0[9ab].{_NEXT}{_NEXT}",
        f"f[123]{_NEXT}{_NEXT}{_NEXT}",
        f"f48.{_NEXT}{_NEXT}",
    )
)
_NOT_UTF8: Final = "pg_catalog.encode(pg_catalog.convert_to(TEXT, 'SQL_ASCII'), 'hex') !~ '^(?:" + _WELL_FORMED + ")*$'"

_found: dict[tuple[PostgresConnection, str], UnconvertibleTexts | None] = {}
"""The results of `unconvertible_texts`, because a process reads many ranges of a copy."""


class ServerConversion:
    """Converts texts of the database that a connection leads to, which has this encoding. For one thread."""

    def __init__(self, connection: PostgresConnection, encoding: str) -> None:
        self._connection = connection
        self._encoding = encoding
        self._table: _OctetTable | None = None
        self._longest = 0

    def convert(self, texts: pa.Array) -> pa.Array:
        """Return texts, which are binary and not NULL, as strings. One that cannot be converted is NULL.

        Raise the errors of the source.
        """
        if self._encoding == _ASCII:
            return _each(texts, _validated)
        if self._table is not None:
            return self._table.convert(texts)
        where = f"converting texts of {self._connection.where} to UTF-8"
        with SESSIONS.session(self._connection, "texts") as conn, source_errors(where):
            if not self._longest:
                row = conn.execute(_MAX_LENGTH).fetchone()
                self._longest = int(row[0]) if row else 0
            if self._longest != 1:
                return _each(texts, lambda some: _by_server(conn, some))
            octets = pa.array([bytes([o]) for o in range(_HIGH, _OCTETS)], pa.binary())
            self._table = _OctetTable(_each(octets, lambda some: _by_server(conn, some)))
        return self._table.convert(texts)


class _OctetTable:
    """The characters of an encoding with one byte for each."""

    def __init__(self, high: pa.Array) -> None:
        """Take the characters of the octets from 128 on. One without a character is NULL."""
        self._sizes = np.ones(_OCTETS, np.int64)
        self._octets = np.zeros((_OCTETS, _LONGEST), np.uint8)
        self._octets[:, 0] = np.arange(_OCTETS)
        for octet, character in enumerate(high.to_pylist(), _HIGH):
            encoded = (character or "").encode()
            self._sizes[octet] = len(encoded)
            self._octets[octet, : len(encoded)] = list(encoded)

    def convert(self, texts: pa.Array) -> pa.Array:
        """Return texts as strings. One with an octet that has no character is NULL."""
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
        octets = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
        sizes = self._sizes[octets]
        start = np.concatenate([[0], np.cumsum(sizes)])
        out = np.zeros(int(start[-1]), np.uint8)
        for place in range(_LONGEST):
            longer = sizes > place
            out[start[:-1][longer] + place] = self._octets[octets[longer], place]
        missing = np.concatenate([[0], np.cumsum(sizes == 0)])
        at = ends - ends[0]
        valid = missing[at[1:]] == missing[at[:-1]]
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
        places = pa.py_buffer(start[at].astype(np.int64))
        large = pa.Array.from_buffers(pa.large_string(), len(texts), [bits, places, pa.py_buffer(out)])
        return large.cast(pa.string())


def unconvertible_texts(server: PostgresConnection, conn: psycopg.Connection[Any]) -> UnconvertibleTexts | None:
    """Return the condition of texts that the server cannot convert to UTF-8. None if there are none, or for UTF8.

    ``conn`` is a session of the server in a transaction. In the encoding MULE_INTERNAL the condition is not known.
    """
    encoding = conn.info.parameter_status("server_encoding") or UTF8
    if encoding == UTF8:
        return None
    if (server, encoding) not in _found:
        with source_errors(f"looking for characters of {encoding} that UTF-8 lacks"):
            _found[server, encoding] = _find(conn, encoding)
    return _found[server, encoding]


def _find(conn: psycopg.Connection[Any], encoding: str) -> UnconvertibleTexts | None:
    if encoding == _ASCII:
        return UnconvertibleTexts(_NOT_UTF8)
    row = conn.execute(_MAX_LENGTH).fetchone()
    codes = _SINGLE if row and row[0] == 1 else _CODES.get(encoding)
    if codes is None:
        return None
    conn.execute(_FIND.format(codes=codes, setting=_SETTING).encode())
    row = conn.execute("SELECT pg_catalog.current_setting(%s)", [_SETTING]).fetchone()
    found = str(row[0]) if row else ""
    if not found:
        return None
    # No character of several bytes, or above ASCII, means anything within the brackets of a regular expression.
    characters = f"(SELECT '[' || pg_catalog.convert_from('\\x{found}'::bytea, '{encoding}') || ']')"
    # A collation that is not deterministic has no regular expressions.
    return UnconvertibleTexts(f'TEXT COLLATE pg_catalog."C" ~ {characters}')


def _each(texts: pa.Array, attempt: Callable[[pa.Array], pa.Array | None]) -> pa.Array:
    """Return the result of ``attempt``, which is None if one of the texts fails. That one is NULL."""
    if not len(texts):
        return pa.array([], pa.string())
    if (found := attempt(texts)) is not None:
        return found
    if len(texts) == 1:
        return pa.nulls(1, pa.string())
    middle = len(texts) // 2
    return pa.concat_arrays([_each(texts.slice(0, middle), attempt), _each(texts.slice(middle), attempt)])


def _validated(texts: pa.Array) -> pa.Array | None:
    try:
        return texts.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _by_server(conn: psycopg.Connection[Any], texts: pa.Array) -> pa.Array | None:
    """Return texts as the server converts them, None if it refuses one, or if they are too many for one statement."""
    separator = _separator(texts)
    if len(texts) > 1 and (separator is None or texts.nbytes > _MOST_BYTES):
        return None
    whole = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(whole, separator or b"")[0].as_py()
    try:
        row = conn.execute(_CONVERT, [joined]).fetchone()
    except _CANNOT:
        return None
    text = pa.array([row[0] if row else b""], pa.binary()).cast(pa.string())
    if len(texts) == 1:
        return text
    assert separator is not None
    return pc.split_pattern(text, separator.decode())[0].values


def _separator(texts: pa.Array) -> bytes | None:
    """Return a control character that no text has, None if they have all. It is the same in every encoding."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    used = np.bincount(np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], minlength=_OCTETS)
    return next((bytes([octet]) for octet in range(1, 32) if not used[octet]), None)
