"""The tables of a DuckLake catalog: their creation by the specification, and the check of the version.

https://ducklake.select/docs/stable/specification/tables/overview
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from levada.destinations.ducklake.storage import data_path
from levada.errors import NeedsOperator
from levada.postgres.silence import WatchedConnection

VERSION: Final = "1.0"
"""The version that Levada writes and is tested with."""

_TABLES: Final = """
CREATE TABLE ducklake_metadata (key varchar NOT NULL, value varchar NOT NULL, scope varchar, scope_id bigint);
CREATE TABLE ducklake_snapshot (snapshot_id bigint PRIMARY KEY, snapshot_time timestamptz, schema_version bigint,
    next_catalog_id bigint, next_file_id bigint);
CREATE TABLE ducklake_snapshot_changes (snapshot_id bigint PRIMARY KEY, changes_made varchar, author varchar,
    commit_message varchar, commit_extra_info varchar);
CREATE TABLE ducklake_schema (schema_id bigint PRIMARY KEY, schema_uuid uuid, begin_snapshot bigint,
    end_snapshot bigint, schema_name varchar, path varchar, path_is_relative boolean);
CREATE TABLE ducklake_table (table_id bigint, table_uuid uuid, begin_snapshot bigint, end_snapshot bigint,
    schema_id bigint, table_name varchar, path varchar, path_is_relative boolean);
CREATE TABLE ducklake_view (view_id bigint, view_uuid uuid, begin_snapshot bigint, end_snapshot bigint,
    schema_id bigint, view_name varchar, dialect varchar, sql varchar, column_aliases varchar);
CREATE TABLE ducklake_tag (object_id bigint, begin_snapshot bigint, end_snapshot bigint, key varchar, value varchar);
CREATE TABLE ducklake_column_tag (table_id bigint, column_id bigint, begin_snapshot bigint, end_snapshot bigint,
    key varchar, value varchar);
CREATE TABLE ducklake_data_file (data_file_id bigint PRIMARY KEY, table_id bigint, begin_snapshot bigint,
    end_snapshot bigint, file_order bigint, path varchar, path_is_relative boolean, file_format varchar,
    record_count bigint, file_size_bytes bigint, footer_size bigint, row_id_start bigint, partition_id bigint,
    encryption_key varchar, mapping_id bigint, partial_max bigint);
CREATE TABLE ducklake_file_column_stats (data_file_id bigint, table_id bigint, column_id bigint,
    column_size_bytes bigint, value_count bigint, null_count bigint, min_value varchar, max_value varchar,
    contains_nan boolean, extra_stats varchar);
CREATE TABLE ducklake_file_variant_stats (data_file_id bigint, table_id bigint, column_id bigint,
    variant_path varchar, shredded_type varchar, column_size_bytes bigint, value_count bigint, null_count bigint,
    min_value varchar, max_value varchar, contains_nan boolean, extra_stats varchar);
CREATE TABLE ducklake_delete_file (delete_file_id bigint PRIMARY KEY, table_id bigint, begin_snapshot bigint,
    end_snapshot bigint, data_file_id bigint, path varchar, path_is_relative boolean, format varchar,
    delete_count bigint, file_size_bytes bigint, footer_size bigint, encryption_key varchar, partial_max bigint);
CREATE TABLE ducklake_column (column_id bigint, begin_snapshot bigint, end_snapshot bigint, table_id bigint,
    column_order bigint, column_name varchar, column_type varchar, initial_default varchar, default_value varchar,
    nulls_allowed boolean, parent_column bigint, default_value_type varchar, default_value_dialect varchar);
CREATE TABLE ducklake_table_stats (table_id bigint, record_count bigint, next_row_id bigint, file_size_bytes bigint);
CREATE TABLE ducklake_table_column_stats (table_id bigint, column_id bigint, contains_null boolean,
    contains_nan boolean, min_value varchar, max_value varchar, extra_stats varchar);
CREATE TABLE ducklake_partition_info (partition_id bigint, table_id bigint, begin_snapshot bigint,
    end_snapshot bigint);
CREATE TABLE ducklake_partition_column (partition_id bigint, table_id bigint, partition_key_index bigint,
    column_id bigint, transform varchar);
CREATE TABLE ducklake_file_partition_value (data_file_id bigint, table_id bigint, partition_key_index bigint,
    partition_value varchar);
CREATE TABLE ducklake_files_scheduled_for_deletion (data_file_id bigint, path varchar, path_is_relative boolean,
    schedule_start timestamptz);
CREATE TABLE ducklake_inlined_data_tables (table_id bigint, table_name varchar, schema_version bigint);
CREATE TABLE ducklake_column_mapping (mapping_id bigint, table_id bigint, type varchar);
CREATE TABLE ducklake_name_mapping (mapping_id bigint, column_id bigint, source_name varchar,
    target_field_id bigint, parent_column bigint, is_partition boolean);
CREATE TABLE ducklake_schema_versions (begin_snapshot bigint, schema_version bigint, table_id bigint);
CREATE TABLE ducklake_macro (schema_id bigint, macro_id bigint, macro_name varchar, begin_snapshot bigint,
    end_snapshot bigint);
CREATE TABLE ducklake_macro_impl (macro_id bigint, impl_id bigint, dialect varchar, sql varchar, type varchar);
CREATE TABLE ducklake_macro_parameters (macro_id bigint, impl_id bigint, column_id bigint, parameter_name varchar,
    parameter_type varchar, default_value varchar, default_value_type varchar);
CREATE TABLE ducklake_sort_info (sort_id bigint, table_id bigint, begin_snapshot bigint, end_snapshot bigint);
CREATE TABLE ducklake_sort_expression (sort_id bigint, table_id bigint, sort_key_index bigint, expression varchar,
    dialect varchar, sort_direction varchar, null_order varchar);
INSERT INTO ducklake_snapshot VALUES (0, now(), 0, 1, 0);
INSERT INTO ducklake_snapshot_changes VALUES (0, 'created_schema:"main"', NULL, NULL, NULL)
"""

INDEXES: Final = """
CREATE INDEX ducklake_table_id ON ducklake_table (table_id);
CREATE INDEX ducklake_column_table ON ducklake_column (table_id, end_snapshot);
CREATE INDEX ducklake_data_file_table ON ducklake_data_file (table_id, end_snapshot);
CREATE INDEX ducklake_delete_file_table ON ducklake_delete_file (table_id, end_snapshot);
CREATE INDEX ducklake_file_column_stats_table ON ducklake_file_column_stats (table_id, column_id);
CREATE INDEX ducklake_table_stats_table ON ducklake_table_stats (table_id);
CREATE INDEX ducklake_table_column_stats_table ON ducklake_table_column_stats (table_id, column_id);
"""
"""DuckDB makes no index, so each commit and each query would read what all tables ever had."""

_HINT: Final = "set another catalog.schema in the destination's settings, in which Levada creates a catalog"


@dataclass(frozen=True, slots=True)
class CatalogFormat:
    """The settings of a catalog. ``data_path`` ends with a slash."""

    data_path: str


def read_format(connection: WatchedConnection, where: str, wanted: str) -> CatalogFormat | None:
    """Return the catalog's settings, or None if there is no catalog. ``wanted`` is the data path of the manifest.

    Raise NeedsOperator ``catalog_unsupported`` for a catalog that Levada cannot write, and ``data_path_mismatch`` for
    one with another data path.
    """
    found = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'ducklake_metadata'),"
        " current_setting('server_encoding')"
    ).fetchone()
    assert found is not None
    if found[1] != "UTF8":
        raise NeedsOperator(
            "catalog_unsupported",
            f"the database of the DuckLake catalog at {where} has the encoding {found[1]}, but Levada needs UTF8",
            hint="set catalog.database in the destination's settings to a database with ENCODING 'UTF8'",
        )
    if not found[0]:
        return None
    rows = connection.execute("SELECT key, value FROM ducklake_metadata WHERE scope IS NULL").fetchall()
    kept: Mapping[str, str] = dict(rows)
    require_version(where, kept.get("version"))
    if kept.get("encrypted", "false") != "false":
        raise NeedsOperator(
            "catalog_unsupported",
            f"the DuckLake catalog at {where} encrypts its files, which Levada does not support",
            hint=_HINT,
        )
    if kept.get("require_commit_message", "false") == "true":
        raise NeedsOperator(
            "catalog_unsupported",
            f"the DuckLake catalog at {where} requires commit messages, which Levada does not write",
            hint=_HINT,
        )
    path = data_path(kept["data_path"])
    if wanted and data_path(wanted) != path:
        raise NeedsOperator(
            "data_path_mismatch",
            f"the DuckLake catalog at {where} has the data path {path}, but dataPath is {wanted}",
            hint=f"set dataPath in the destination's settings to {path}, or leave it out",
        )
    return CatalogFormat(path)


def require_version(where: str, version: str | None) -> None:
    """Raise NeedsOperator ``catalog_unsupported`` for a version that Levada cannot write."""
    if version != VERSION:
        raise NeedsOperator(
            "catalog_unsupported",
            f"the DuckLake catalog at {where} has version {version}, but Levada writes {VERSION}",
            hint=_HINT,
        )


def create_catalog(connection: WatchedConnection, schema: str, where: str, wanted: str) -> CatalogFormat:
    """Create the catalog if there is none, and return its settings. Raise NeedsOperator as `read_format` does."""
    # Two processes that start at the same moment must not both create it.
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 20416))", [schema])
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    found = read_format(connection, where, wanted)
    if found is not None:
        return found
    if not wanted:
        raise NeedsOperator(
            "data_path_unusable",
            f"there is no DuckLake catalog at {where} yet",
            hint="set dataPath in the destination's settings to the folder of its files, and Levada creates it",
        )
    path = data_path(wanted)
    connection.execute(_TABLES)
    connection.execute(INDEXES)
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO ducklake_metadata (key, value) VALUES (%s, %s)",
            [("version", VERSION), ("created_by", "Levada"), ("data_path", path), ("encrypted", "false")],
        )
    connection.execute("INSERT INTO ducklake_schema VALUES (0, %s, 0, NULL, 'main', 'main/', true)", [uuid.uuid4()])
    return CatalogFormat(path)
