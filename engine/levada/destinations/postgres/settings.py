"""The settings of a PostgreSQL destination in a manifest."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from levada.spec.model import Change, Model, StrictInt, setting
from levada.spec.names import Host, Identifier
from levada.spec.section import DestinationSettings
from levada.spec.source import SecretRef, TlsMode
from levada.values import TableMode


class TableOrdering(StrEnum):
    """The extent of one transaction at the destination."""

    TABLE = "Table"
    PIPELINE = "Pipeline"


class Tls(Model):
    """Encryption of the connection to the destination."""

    mode: TlsMode = setting(Change.RESTART, TlsMode.VERIFY_FULL)
    """The check of the server's certificate, as libpq's sslmode. Disable: the connection is not encrypted. A
    certificate authority of its own is the key ca.crt of the destination's Secret, in PEM. A certificate of the client
    is its keys tls.crt and tls.key.
    """


class Settings(DestinationSettings):
    """Tables in a PostgreSQL database."""

    keeps_deleted: ClassVar[bool] = True

    host: Host = setting(Change.RESTART)
    """The server's host name or address."""
    port: StrictInt = setting(Change.RESTART, 5432, ge=1, le=65535)
    """The server's TCP port."""
    database: Identifier = setting(Change.IMMUTABLE)
    """The database's name."""
    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret with the keys username and password, and ca.crt for a certificate authority of its own. A changed
    password needs no restart. Unset: libpq's environment variables and password file are used.
    """
    tls: Tls = setting(Change.RESTART, {})
    """Encryption of the connection."""
    schema_name: Annotated[str, Field(pattern=r"^([^{}]|\{schema\})+$", max_length=255)] = setting(
        Change.RESYNC, "{schema}", alias="schema"
    )
    """The schema of the tables. {schema} is replaced by the source table's schema. A missing schema is created."""
    mode: TableMode = setting(Change.RESYNC, TableMode.UPSERT)
    """Upsert: the tables hold the last state of each row. Changelog: they hold one row per change."""
    ordering: TableOrdering = setting(Change.RESTART, TableOrdering.TABLE)
    """Table: the transactions of different tables are independent, and run in parallel. Pipeline: one transaction has
    the changes of all tables, so that foreign keys hold and each commit is a state that the source had.
    """
    state_schema: Identifier = setting(Change.IMMUTABLE, "levada")
    """The schema of Levada's own tables: the owner, the columns and the watermark of each table."""
