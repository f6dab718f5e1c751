"""Types of PostgreSQL with values at their edges, as SQL."""

from __future__ import annotations

import random
from typing import Final

VALUES: Final = {
    "smallint": ("0", "-32768", "32767", "9"),
    "integer": ("0", "1", "-1", "2147483647", "-2147483648", "10"),
    "bigint": ("0", "9223372036854775807", "-9223372036854775808", "7"),
    "real": ("0.1", "'NaN'", "'-0'", "'Infinity'", "3.4028235e38", "1.5"),
    "double precision": ("0.1", "'NaN'", "'-0'", "'-Infinity'", "5e-324", "1e300", "1.5"),
    "numeric(10,2)": ("0", "1.50", "-99999999.99", "99999999.99"),
    "numeric(14,4)": ("0", "1.5000", "-9999999999.9999"),
    "numeric": ("0", "1.50", "'NaN'", "1e100", "-0.000001"),
    "boolean": ("true", "false"),
    "text": ("''", "'a'", "'é\U0001f600'", "'NULL'", r"'\N'", "repeat('x', 3000)", "'it''s'", "E'a\\tb\\nc'"),
    "character varying(20)": ("''", "'short'", "'ß'", "'12345678901234567890'"),
    "character(5)": ("'a'", "''", "'abcde'"),
    "bytea": ("''", r"'\x00ff'", "decode(repeat('ab', 2000), 'hex')"),
    "date": ("'2024-02-29'", "'0001-01-01'", "'9999-12-31'", "'1969-12-31'"),
    "time without time zone": ("'00:00'", "'23:59:59.999999'"),
    "timestamp without time zone": ("'2024-02-29 23:59:59.999999'", "'1969-12-31 23:59:59.5'", "'1582-10-10'"),
    "timestamp with time zone": ("'2024-02-29 23:59:59.999999+02'", "'1900-01-01 00:00+00'"),
    "uuid": ("'6f1a2b3c-0000-4000-8000-000000000001'", "'00000000-0000-0000-0000-000000000000'"),
    "jsonb": ("'{}'", """'{"a": [1, "x"]}'""", "'null'", "'1.50'"),
    "integer[]": ("'{}'", "'{1,NULL,-3}'"),
    "text[]": ("'{}'", """'{"a,b",NULL,""}'"""),
    "interval": ("'1 day'", "'-1 mon 3 days 00:00:01.5'"),
    "inet": ("'10.0.0.1/8'", "'::1'"),
    "int4range": ("'[1,5)'", "'empty'"),
    "{s}.mood": ("'good'", "'bad'"),
    "{s}.pair": ("'(1,x)'", "'(,)'"),
    "{s}.positive": ("1", "2147483647"),
}
"""Values of each type. Generated columns and keys have others."""

KEYS: Final = {
    "integer": ("1", "2", "3", "4", "5", "6", "-2147483648"),
    "smallint": ("1", "2", "3", "4"),
    "bigint": ("1", "2", "3", "4", "9223372036854775807"),
    "text": ("'k1'", "'k2'", "'K1'", "''", "'é'"),
    "character varying(20)": ("'k1'", "'k2'", "'K1'", "''"),
    "uuid": VALUES["uuid"],
    "date": VALUES["date"],
    "boolean": ("true", "false"),
    "numeric(10,2)": ("1.50", "1.5", "0", "-1"),
    "numeric": ("1.50", "1.5", "0", "1e30"),
    "timestamp with time zone": VALUES["timestamp with time zone"],
    "double precision": ("0.1", "'-0'", "0", "1.5"),
}
"""Few values of each type, so that keys collide, move and come again."""

COMPUTED: Final = {
    "integer": "(random() * 100)::int",
    "bigint": "(random() * 100)::bigint",
    "double precision": "random()",
    "timestamp with time zone": "clock_timestamp()",
    "uuid": "gen_random_uuid()",
    "text": "md5(random()::text)",
}
"""Defaults that differ for each row."""

WIDER: Final = {
    "smallint": ("integer", "bigint"),
    "integer": ("bigint",),
    "real": ("double precision",),
    "numeric(10,2)": ("numeric(14,4)",),
    "character varying(20)": ("character varying(40)", "text"),
    "{s}.positive": ("integer",),
}
"""Types that hold all values of another one."""


STORED: Final = {
    "numeric(30,9)": ("0", "1.5", "-999999999999999999999.999999999", "0.000000001"),
    "bigint[]": ("'{}'", "'{{1,2},{3,NULL}}'", "'{{9223372036854775807}}'", "'{{NULL},{-1}}'"),
    "daterange": ("'[2024-01-01,2024-02-29)'", "'empty'", "'(,1999-12-31]'", "'(,)'"),
    "numrange": ("'[0.10,1.5]'", "'(,1e30)'", "'empty'", "'(-1,)'"),
    "int4multirange": ("'{}'", "'{[1,3),[7,9)}'", "'{(,0)}'"),
    "tstzmultirange": ("'{}'", "'{[2024-01-01 00:00+00,2024-01-02 12:30:00.5+00)}'"),
    "hstore": ("''", """'"a"=>"1", "b"=>NULL'""", """'"é"=>"x"'"""),
}
"""Values of columns of which a TableSync chooses how they are stored. Each fits the choice."""


def value(rng: random.Random, kind: str, *, key: bool = False) -> str:
    """Return a value of a type for SQL. A type that is not known has DEFAULT only."""
    if key:
        return rng.choice(KEYS.get(kind) or VALUES.get(kind, ("DEFAULT",)))
    if rng.random() < 0.15:
        return "NULL"
    return rng.choice(VALUES.get(kind) or STORED.get(kind, ("NULL",)))
