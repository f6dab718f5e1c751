"""Values of every type, written to a real PostgreSQL: the stream and the copy must both hold what PostgreSQL prints."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.pgoutput.source import Resolver, connect, copy, create_slot, decoded, printed, read_schema, stream, types
from tests.rigs.database import Database
from tests.rigs.extension_types import add_hstore, add_text_type

from levada.destinations.arrow_text import map_text
from levada.destinations.postgres.copy_text import value_text
from levada.pgoutput.changes import TableChanges
from levada.pgoutput.decoder import Decoder
from levada.schema.changes import UNREPRESENTABLE
from levada.schema.stored_types import StoredTypes, with_stored_types

VALUES = 40
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=("Cs",))


@dataclass(frozen=True)
class Case:
    """A type, its values as SQL text, and PostgreSQL's expression for a value that Arrow must hold."""

    sql: str
    texts: st.SearchStrategy[str]
    expected: str = "v"
    refused: str = "false"
    """An SQL condition over ``v``: the value has no place in the Arrow type."""
    read: Callable[[pa.Array], list[Any]] = lambda array: array.to_pylist()
    stored: str = ""
    """The type that the manifest chooses."""
    made: str = ""
    """The SQL expression of the value of a text ``e``, instead of a cast."""

    @property
    def name(self) -> str:
        """Return the name of the test's case."""
        return f"{self.sql} as {self.stored}" if self.stored else self.sql


def integers(bits: int) -> st.SearchStrategy[str]:
    """Signed integers of so many bits."""
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1).map(str)


def numbers(array: pa.Array) -> list[Any]:
    """The integers under dates and times."""
    return array.view(pa.int32() if array.type == pa.date32() else pa.int64()).to_pylist()


def decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    """Numbers that a numeric of this precision and scale holds, and NaN."""
    exact = st.integers(-(10**precision) + 1, 10**precision - 1).map(lambda n: f"{n}e-{scale}")
    limit = min(10**precision - 1, 20_000)
    small = st.integers(-limit, limit).map(lambda n: f"{n}e-{scale}")
    return exact | small | st.sampled_from(["0", "-0", "NaN"])


YEARS = st.sampled_from(["0001", "0044", "1582", "1899", "1970", "2000", "2024", "9999", "10000", "99999", "200000"])
DAYS = st.tuples(YEARS, st.integers(1, 12), st.integers(1, 28), st.booleans()).map(
    lambda d: (f"{d[0]}-{d[1]:02d}-{d[2]:02d}", " BC" if d[3] and int(d[0]) < 4713 else "")
)
DATES = DAYS.map("".join) | st.sampled_from(
    ["infinity", "-infinity", "5874897-12-31", "4714-11-24 BC", "2000-02-29", "1900-03-01", "0001-12-31 BC"]
)
CLOCKS = st.tuples(st.integers(0, 86_399_999_999), st.sampled_from([1, 10, 1000, 1_000_000])).map(
    lambda t: _clock(t[0] // t[1] * t[1])
)
STAMPS = st.tuples(DAYS, CLOCKS).map(lambda t: f"{t[0][0]} {t[1]}{t[0][1]}") | st.sampled_from(
    [
        "infinity",
        "-infinity",
        "294247-01-10 04:00:54.775806",
        "294247-01-10 04:00:54.775807",
        "294247-01-10 04:00:54.775808",
        "294276-12-31 23:59:59",
        "4714-11-24 00:00:00 BC",
        "1970-01-01 00:00:00",
        "1969-12-31 23:59:59.999999",
        "1999-12-31 23:59:59.5",
    ]
)
TEXTS = st.text(CHARACTERS, max_size=30) | st.sampled_from(
    ["", " ", "NULL", "null", "\\", '"', "{}", "{", ",", "a,b", "\\\\", '\\"', "é", "日本", "t", "x" * 3000, "\n"]
)


def _clock(us: int) -> str:
    s, f = divmod(us, 1_000_000)
    return f"{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}.{f:06d}"


def literal(items: list[str | None]) -> str:
    """An array literal with every element quoted."""
    quoted = ("NULL" if i is None else '"' + i.replace("\\", "\\\\").replace('"', '\\"') + '"' for i in items)
    return "{" + ",".join(quoted) + "}"


def arrays(elements: st.SearchStrategy[str], *odd: str) -> st.SearchStrategy[str]:
    """Return array literals of some elements and NULL, and those that are ``odd``."""
    lists = st.lists(st.none() | elements, max_size=5).map(literal)
    return lists | st.sampled_from(["{}", "{NULL}", *odd])


def hstore(pairs: dict[str, str | None]) -> str:
    """Return the text of an hstore, in the order of PostgreSQL."""
    ordered = sorted(pairs.items(), key=lambda pair: (len(pair[0].encode()), pair[0].encode()))
    texts = ((key, "NULL" if value is None else _quoted(value)) for key, value in ordered)
    return ", ".join(f"{_quoted(key)}=>{text}" for key, text in texts)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def nested(elements: st.SearchStrategy[str], dimensions: int) -> st.SearchStrategy[str]:
    """Return literals of arrays with so many dimensions, and arrays of another form."""

    def filled(sizes: list[int]) -> st.SearchStrategy[str]:
        if len(sizes) == 1:
            return st.lists(st.none() | elements, min_size=sizes[0], max_size=sizes[0]).map(literal)
        inner = st.lists(filled(sizes[1:]), min_size=sizes[0], max_size=sizes[0])
        return inner.map(lambda found: "{" + ",".join(found) + "}")

    sizes = st.lists(st.integers(1, 3), min_size=dimensions, max_size=dimensions)
    other = st.lists(st.integers(1, 2), min_size=1, max_size=4).filter(lambda s: len(s) != dimensions).flatmap(filled)
    bounds = sizes.flatmap(lambda s: filled(s).map(lambda text: "".join(f"[2:{n + 1}]" for n in s) + "=" + text))
    return sizes.flatmap(filled) | st.just("{}") | other | bounds


def odd_dimensions(dimensions: int) -> str:
    """Return the condition of an array that is no list of lists with so many dimensions."""
    lower = "".join(f" OR array_lower(v, {d}) <> 1" for d in range(1, dimensions + 1))
    return f"(array_ndims(v) <> {dimensions}{lower})"


TIME = "(extract(epoch FROM v::time) * 1000000)::int8"
MICROSECONDS = f"((v::date - '1970-01-01'::date)::numeric * 86400000000 + {TIME})::text"
TOO_LATE = "(NOT isfinite(v) OR v > '294247-01-10 04:00:54.775806+00')"
MULTIPLE = "(array_ndims(v) > 1 OR array_lower(v, 1) <> 1)"
ODD_ARRAYS = ("{{1,2},{3,4}}", "[0:1]={1,2}", "{{1}}", "[2:2]={7}")


def _shortest(seconds: re.Match[str]) -> str:
    return f"{seconds[1]}.{seconds[2]}" if seconds[2] else seconds[1]


def of_range(kind: str, bound: str, texts: st.SearchStrategy[str], odd: str = "false") -> Case:
    """Return the case of a range type, whose structs must have PostgreSQL's text. It quotes timestamps, in a zone."""
    pairs = st.tuples(st.just("") | texts, st.just("") | texts, st.sampled_from(["[]", "[)", "(]", "()"])).map("|".join)
    made = (
        f"(SELECT CASE WHEN e IS NULL THEN NULL WHEN e = 'empty' THEN 'empty'::{kind} WHEN a > b THEN {kind}(b, a, f)"
        f" ELSE {kind}(a, b, f) END FROM (SELECT nullif(split_part(e, '|', 1), '')::{bound} AS a,"
        f" nullif(split_part(e, '|', 2), '')::{bound} AS b, split_part(e, '|', 3) AS f) AS parts)"
    )
    refused = " OR ".join(f"coalesce({odd.replace('v', side)}, false)" for side in ("lower(v)", "upper(v)"))
    printed = "replace(replace(concat(v), '\"', ''), '+00', '')"

    def read(array: pa.Array) -> list[Any]:
        found = value_text(array, pa.string()).to_pylist()
        # PostgreSQL prints a timestamp without zeros at the end.
        return [t and re.sub(r"(:\d\d)\.(\d*?)0*(?=[ ,)\]])", _shortest, t) for t in found]

    return Case(kind, pairs | st.just("empty"), printed, f"({refused})", read, stored="Range", made=made)


def of_multirange(kind: str, bound: str, texts: st.SearchStrategy[str], odd: str = "false") -> Case:
    """Return the case of a multirange, whose lists of structs must have PostgreSQL's text."""
    of = of_range(kind.replace("multi", ""), bound, texts, odd)
    made = f"(SELECT range_agg({of.made}) FROM regexp_split_to_table(u.e, ';') AS e)"
    refused = f"EXISTS (SELECT FROM unnest(v) AS r(v) WHERE {of.refused.replace('(v)', '(r.v)')})"
    ranges = st.lists(of.texts, min_size=1, max_size=4).map(";".join)
    return Case(kind, ranges, of.expected, refused, of.read, stored="Multirange", made=made)


CASES = [
    Case("bool", st.sampled_from(["t", "f"])),
    Case("int2", integers(16)),
    Case("int4", integers(32)),
    Case("int8", integers(64)),
    Case("oid", st.integers(0, (1 << 32) - 1).map(str)),
    Case("float4", st.floats(width=32).map(repr), "v::float8"),
    Case("float8", st.floats().map(repr)),
    *(
        Case(f"numeric({p},{s})", decimals(p, s), "nullif(v, 'NaN')", "v = 'NaN'")
        for p, s in ((1, 0), (12, 2), (15, 15), (18, 5), (19, 3), (38, 0), (38, 38), (38, 10), (9, 4))
    ),
    Case("numeric(3,-2)", st.integers(-999, 999).map(lambda n: f"{n}00")),
    Case("numeric", decimals(50, 20), "v::text"),
    Case("text", TEXTS),
    Case("varchar(4000)", TEXTS),
    Case("char(5)", st.text(CHARACTERS, max_size=5)),
    Case('"char"', st.sampled_from(["a", "", "z"])),
    Case("name", st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=60)),
    Case("bytea", st.binary(max_size=40).map(lambda b: "\\x" + b.hex())),
    Case("date", DATES, "CASE WHEN isfinite(v) THEN v - '1970-01-01'::date END", "NOT isfinite(v)", numbers),
    Case("time", CLOCKS | st.just("24:00:00"), TIME, "v = '24:00'", numbers),
    Case("timestamp", STAMPS, MICROSECONDS, TOO_LATE.replace("+00", ""), numbers),
    Case("timestamptz", STAMPS, MICROSECONDS, TOO_LATE, numbers),
    Case("uuid", st.uuids().map(str), "v::text"),
    Case("json", st.sampled_from(['{"a": 1}', ' {"a" :"é"}', "null", "[1,2]"]), "v::text"),
    Case("jsonb", st.sampled_from(['{"a": 1}', '{"b":"é", "a":[]}', "null", "[1,2]", '"x"', "1.50"]), "v::text"),
    Case("mood", st.sampled_from(["glad", "so so", "sad"]), "v::text"),
    Case("inet", st.sampled_from(["1.2.3.4", "10.0.0.0/8", "::1"]), "concat(v)"),
    Case("interval", st.sampled_from(["1 day", "-3 months 2 hours", "0"]), "concat(v)"),
    Case("int4range", st.sampled_from(["[1,5)", "empty", "(,)"]), "concat(v)"),
    Case("pair", st.sampled_from(["(1,a)", "(,)", '(2,"b c")']), "concat(v)"),
    Case("price", decimals(9, 2).filter(lambda t: t != "NaN")),
    Case("int4[]", arrays(integers(32), *ODD_ARRAYS), "v", MULTIPLE),
    Case("int8[]", arrays(integers(64), *ODD_ARRAYS), "v", MULTIPLE),
    Case("bool[]", arrays(st.sampled_from(["t", "f"]))),
    Case("float8[]", arrays(st.floats(allow_nan=False).map(repr), *ODD_ARRAYS), "v", MULTIPLE),
    Case("text[]", arrays(TEXTS, '{{a,b},{c,"d e"}}', "[0:0]={x}"), "v", MULTIPLE),
    Case("char(3)[]", arrays(st.text(CHARACTERS, max_size=3))),
    Case("bytea[]", arrays(st.binary(max_size=9).map(lambda b: "\\x" + b.hex()))),
    Case("uuid[]", arrays(st.uuids().map(str)), "v::text[]"),
    Case("jsonb[]", arrays(st.sampled_from(['{"a": [1, "x"]}', "null", '"\\\\"'])), "v::text[]"),
    Case("numeric(9,3)[]", arrays(decimals(9, 3)), "v", "'NaN' = ANY (v)"),
    Case(
        "date[]",
        arrays(DATES),
        "ARRAY(SELECT e - '1970-01-01'::date FROM unnest(v) WITH ORDINALITY u(e, k) ORDER BY k)",
        "EXISTS (SELECT FROM unnest(v) e WHERE NOT isfinite(e))",
        lambda a: [None if v is None else numbers(v) for v in (s.values for s in a)],
    ),
    Case(
        "timestamptz[]",
        arrays(STAMPS),
        f"ARRAY(SELECT {MICROSECONDS.replace('v::', 'e::')} FROM unnest(v) WITH ORDINALITY u(e, k) ORDER BY k)",
        f"EXISTS (SELECT FROM unnest(v) v WHERE {TOO_LATE})",
        lambda a: [None if v is None else numbers(v) for v in (s.values for s in a)],
    ),
    Case("int4[]", nested(integers(32), 2), "v", odd_dimensions(2), stored="List(2)"),
    Case("text[]", nested(TEXTS, 2), "v", odd_dimensions(2), stored="List(2)"),
    Case(
        "text[]",
        nested(st.sampled_from(["{", '},"\\', "NULL", "[", ",", ""]), 3),
        "v",
        odd_dimensions(3),
        stored="List(3)",
    ),
    Case("float8[]", nested(st.floats(allow_nan=False).map(repr), 2), "v", odd_dimensions(2), stored="List(2)"),
    Case("mood[]", nested(st.sampled_from(["glad", "so so"]), 2), "v::text[]", odd_dimensions(2), stored="List(2)"),
    Case(
        "numeric(9,3)[]",
        nested(decimals(9, 3), 3),
        "v",
        f"({odd_dimensions(3)} IS TRUE OR 'NaN' = ANY (v))",
        stored="List(3)",
    ),
    of_range("int4range", "int4", integers(31)),
    of_range("int8range", "int8", integers(63)),
    of_range("numrange", "numeric", decimals(30, 12)),
    of_range("daterange", "date", DATES.filter(lambda d: not d.startswith("5874897")), "NOT isfinite(v)"),
    of_range("tsrange", "timestamp", STAMPS, TOO_LATE.replace("+00", "")),
    of_range("tstzrange", "timestamptz", STAMPS, TOO_LATE),
    of_multirange("int4multirange", "int4", integers(31)),
    of_multirange("int8multirange", "int8", integers(63)),
    of_multirange("nummultirange", "numeric", decimals(30, 12)),
    of_multirange("datemultirange", "date", DATES.filter(lambda d: not d.startswith("5874897")), "NOT isfinite(v)"),
    of_multirange("tsmultirange", "timestamp", STAMPS, TOO_LATE.replace("+00", "")),
    of_multirange("tstzmultirange", "timestamptz", STAMPS, TOO_LATE),
    Case(
        "hstore",
        st.dictionaries(TEXTS, st.none() | TEXTS, max_size=5).map(hstore),
        "concat(v)",
        read=lambda array: map_text(array).to_pylist(),
        stored="Map",
    ),
    Case(
        "geometry",
        st.binary(max_size=40).map(lambda data: data.hex().upper()),
        "concat(v)",
        read=lambda array: [data if data is None else data.hex().upper() for data in array.to_pylist()],
        stored="Wkb",
    ),
    Case("bool[]", nested(st.sampled_from(["t", "f"]), 6), "v", odd_dimensions(6), stored="List(6)"),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def typed(request: pytest.FixtureRequest, db: Database) -> Iterator[tuple[Case, psycopg.Connection[Any]]]:
    """A table ``t`` with a column of the type, published."""
    with connect(db) as conn:
        _prepare(conn, request.param.sql)
        yield request.param, conn


def _prepare(conn: psycopg.Connection[Any], sql: str) -> None:
    conn.execute("CREATE TYPE mood AS ENUM ('glad', 'so so', 'sad')")
    conn.execute("CREATE TYPE pair AS (a int, b text)")
    conn.execute("CREATE DOMAIN price AS numeric(9,2)")
    add_hstore(conn)
    add_text_type(conn, "geometry")
    conn.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {sql})".encode())
    conn.execute("CREATE PUBLICATION p FOR ALL TABLES")
    create_slot(conn)


@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_a_value_is_what_postgresql_prints(typed: tuple[Case, psycopg.Connection[Any]], data: st.DataObject) -> None:
    """Stream and copy have PostgreSQL's values. A value that Arrow cannot hold is NULL, and its text is kept."""
    case, conn = typed
    texts = data.draw(st.lists(st.none() | case.texts, min_size=VALUES, max_size=VALUES))
    conn.execute("TRUNCATE t")
    made = case.made or f"e::{case.sql}"
    conn.execute(
        f"INSERT INTO t SELECT k - 1, {made} FROM unnest(%s::text[]) WITH ORDINALITY u(e, k)".encode(), [texts]
    )
    catalog = types(conn)
    schema = read_schema(conn, "t", catalog)
    if case.stored:
        schema = with_stored_types(schema, StoredTypes.of({"v": case.stored}), catalog)
    changes = [
        item.rows
        for item in Decoder(Resolver({schema.id: schema})).decode(stream(conn)).items
        if isinstance(item, TableChanges)
    ]
    assert len(changes) == 1
    copied = decoded(schema, copy(conn, schema))
    refused = f"coalesce({case.refused}, false)"
    exact = f"CASE WHEN NOT {refused} THEN {case.expected} END"
    rows = printed(conn, ["id", "v IS NOT DISTINCT FROM NULL", exact, refused, "concat(v)"], "t")
    for batch in (changes[0], copied):
        batch.validate(full=True)
        assert batch.column("id").to_pylist() == list(range(VALUES))
        for row, value, told in zip(rows, case.read(batch.column("v")), _told(batch), strict=True):
            _, null, exact, refused, text = row
            assert told == ({2: text} if refused and not null else None), row
            assert value is None if refused or null else _same(value, exact), (value, row)


def _told(batch: pa.RecordBatch) -> list[dict[int, str] | None]:
    if UNREPRESENTABLE not in batch.schema.names:
        return [None] * batch.num_rows
    return [None if told is None else dict(told) for told in batch.column(UNREPRESENTABLE).to_pylist()]


def _same(value: Any, exact: Any) -> bool:
    if isinstance(value, float) and isinstance(exact, float) and math.isnan(value):
        return math.isnan(exact)
    if isinstance(value, int) and isinstance(exact, str):
        return str(value) == exact
    if isinstance(value, list) and isinstance(exact, list):
        pairs = list(zip(value, exact, strict=True))
        return all((v is None and e is None) or _same(v, e) for v, e in pairs)
    return bool(value == exact)
