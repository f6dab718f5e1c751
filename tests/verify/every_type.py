"""A table with a column of every type that Levada knows, and values at the edges of each. ``{n}`` is the row's number.

`COLUMNS` has the column's type, the values of three rows, and a value that differs from the first by as little as
possible.
"""

from __future__ import annotations

from typing import Final

COLUMNS: Final[dict[str, tuple[str, tuple[str, str, str], str]]] = {
    "c_bool": ("boolean", ("true", "false", "NULL"), "false"),
    "c_int2": ("smallint", ("-32768", "32767", "0"), "-32767"),
    "c_int4": ("integer", ("-2147483648", "2147483647", "0"), "-2147483647"),
    "c_int8": ("bigint", ("-9223372036854775808", "9223372036854775807", "0"), "-9223372036854775807"),
    "c_oid": ("oid", ("4294967295", "0", "1"), "4294967294"),
    "c_float4": ("real", ("'NaN'", "'-0'", "1e-45"), "'Infinity'"),
    "c_float8": ("double precision", ("'-0'", "'NaN'", "5e-324"), "0"),
    "c_float8b": ("double precision", ("0.1", "'-Infinity'", "1e308"), "0.1::float8 + 1.4e-17"),
    "c_numeric": ("numeric", ("1.10", "'NaN'", "1e-50"), "1.1"),
    "c_numeric_10_2": ("numeric(10,2)", ("-99999999.99", "0", "0.01"), "-99999999.98"),
    "c_numeric_38_20": ("numeric(38,20)", ("1e-20", "0", "-999999999999999999.99999999999999999999"), "2e-20"),
    "c_numeric_50_10": ("numeric(50,10)", ("12345678901234567890123456789012345678.5", "0", "-1"), "1"),
    "c_text": ("text", ("''", "E'a|b:~\\n\\t\\\\ \U0001f40d'", "NULL"), "NULL"),
    "c_collated": ('text COLLATE "C"', ("'\u00e9'", "'e\u0301'", "'E'"), "'e\u0301'"),
    "c_varchar": ("varchar(20)", ("'x '", "''", "'~|'"), "'x'"),
    "c_char": ("char(5)", ("'ab'", "''", "'abcde'"), "'abc'"),
    "c_name": ("name", ("'n'", "''", "'m'"), "'o'"),
    "c_onechar": ('"char"', ("'c'", "'d'", "''"), "'e'"),
    "c_bytea": ("bytea", ("'\\x'", "'\\x00ff'", "NULL"), "'\\x00'"),
    "c_date": ("date", ("'0044-03-15 BC'", "'9999-12-31'", "'1582-10-10'"), "'0044-03-16 BC'"),
    "c_time": ("time", ("'23:59:59.999999'", "'00:00'", "'12:00:00.5'"), "'23:59:59.999998'"),
    "c_timetz": ("timetz", ("'23:59:59.999999+02'", "'00:00-12'", "'24:00+00'"), "'23:59:59.999999+03'"),
    "c_timestamp": (
        "timestamp",
        ("'0001-01-01 00:00:00.000001'", "'4713-01-01 BC'", "'2024-03-31 02:30'"),
        "'0001-01-01 00:00:00.000002'",
    ),
    "c_timestamptz": (
        "timestamptz",
        ("'1900-01-01 00:00:00.000001+00'", "'12024-03-31 01:30+02'", "'1582-10-10 12:00+00'"),
        "'1900-01-01 00:00:00.000001+01'",
    ),
    "c_interval": ("interval", ("'1 mon 2 days -03:04:05.000006'", "'0'", "NULL"), "'1 mon 2 days -03:04:05.000007'"),
    "c_uuid": (
        "uuid",
        ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'00000000-0000-0000-0000-000000000000'", "NULL"),
        "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12'",
    ),
    "c_json": ("json", ("'{\"a\":  1}'", "'null'", "'[1.0]'"), "'{\"a\": 1}'"),
    "c_jsonb": ("jsonb", ('\'{"b": 1, "a": null}\'', "'null'", "'1.00'"), "'{\"b\": 1}'"),
    "c_enum": ("mood", ("'sad'", "'very happy'", "NULL"), "'very happy'"),
    "c_domain": ("price", ("1.50", "2.00", "NULL"), "1.51"),
    "c_composite": ("pair", ("ROW(NULL, NULL)", "ROW(1, 'x,\"y')", "NULL"), "NULL"),
    "c_range": ("int4range", ("'[1,5)'", "'empty'", "NULL"), "'[1,6)'"),
    "c_inet": ("inet", ("'10.0.0.1'", "'10.0.0.1/24'", "'::1'"), "'10.0.0.1/31'"),
    "c_point": ("point", ("'(0.1,-0)'", "'(NaN,1)'", "NULL"), "'(0.1,0)'"),
    "c_tsvector": ("tsvector", ("'a:1 b'", "''", "NULL"), "'a:2 b'"),
    "c_bit": ("bit varying(9)", ("'101'", "''", "NULL"), "'1010'"),
    "c_money": ("money", ("1.5", "-2", "NULL"), "1.51"),
    "c_int_array": ("integer[]", ("'{1,NULL,-3}'", "'{}'", "NULL"), "'{1,-3}'"),
    "c_float_array": ("double precision[]", ("'{NaN,-0,NULL}'", "'{}'", "'{1e-300,Infinity}'"), "'{NaN,0,NULL}'"),
    "c_real_array": ("real[]", ("'{0.1}'", "NULL", "'{NULL}'"), "'{0.1,0.1}'"),
    "c_text_array": ("text[]", ('\'{"",NULL,"NULL","a|b"}\'', "'{}'", "'{\"1:x\"}'"), '\'{"",NULL,NULL,"a|b"}\''),
    "c_char_array": ("char(3)[]", ("'{a,bc}'", "'{}'", "NULL"), "'{a,bcd}'"),
    "c_decimal_array": ("numeric(30,12)[]", ("'{0,1e-12}'", "'{}'", "'{NULL}'"), "'{0,2e-12}'"),
    "c_numeric_array": ("numeric[]", ("'{NaN,1.10}'", "'{}'", "NULL"), "'{NaN,1.1}'"),
    "c_timestamp_array": ("timestamptz[]", ("'{\"2024-01-01 00:00:00+00\"}'", "'{}'", "'{NULL}'"), "'{}'"),
    "c_date_array": ("date[]", ("'{2024-01-01,NULL}'", "'{}'", "NULL"), "'{2024-01-01}'"),
    "c_time_array": ("time[]", ("'{12:00}'", "'{}'", "'{NULL}'"), "'{12:00:00.000001}'"),
    "c_bool_array": ("boolean[]", ("'{t,f,NULL}'", "'{}'", "NULL"), "'{t,f}'"),
    "c_bytea_array": ("bytea[]", ("ARRAY['\\x00'::bytea, '']", "'{}'", "'{NULL}'"), "ARRAY[''::bytea, '\\x00']"),
    "c_uuid_array": ("uuid[]", ("'{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}'", "'{}'", "NULL"), "'{NULL}'"),
    "c_jsonb_array": ("jsonb[]", ("ARRAY['{\"a\": 1}'::jsonb]", "'{}'", "NULL"), "ARRAY['{\"a\": 2}'::jsonb]"),
    "c_enum_array": ("mood[]", ("'{sad,NULL}'", "'{}'", "NULL"), "'{sad,sad}'"),
    "c_pair_array": ("pair[]", ("ARRAY[ROW(1,NULL)::pair, NULL]", "'{}'", "NULL"), "ARRAY[ROW(1,'')::pair, NULL]"),
    "c_domain_array": ("price[]", ("'{1.50,NULL}'", "'{}'", "NULL"), "'{1.50}'"),
}

TYPES: Final = (
    "CREATE TYPE mood AS ENUM ('sad', 'very happy')",
    "CREATE DOMAIN price AS numeric(8,2)",
    "CREATE TYPE pair AS (a int, b text)",
)


def create(table: str = "t") -> str:
    """Return the statement that creates the table with its key ``id``."""
    columns = ", ".join(f'"{name}" {kind}' for name, (kind, _, _) in COLUMNS.items())
    return f"CREATE TABLE {table} (id bigint PRIMARY KEY, {columns})"


def insert(first: int, table: str = "t") -> str:
    """Return the statement that inserts three rows and one of NULLs, with the keys from ``first`` on."""
    rows = [f"({first + i}, {', '.join(values[i] for _, values, _ in COLUMNS.values())})" for i in range(3)]
    nulls = f"({first + 3}, {', '.join('NULL' for _ in COLUMNS)})"
    return f"INSERT INTO {table} VALUES {', '.join([*rows, nulls])}"
