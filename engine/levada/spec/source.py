"""The manifest's ``source``: the database, its slot and publication, and the selected tables."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from levada.spec.model import Change, Model, StrictBool, StrictInt, setting
from levada.spec.names import Host, Identifier, ObjectName, SlotName
from levada.values import (
    Deletes,
    GeneratedColumns,
    Keyless,
    MetadataColumn,
    OnPartitionGone,
    OnUnstreamable,
    QualifiedTable,
)


class TlsMode(StrEnum):
    """The check of the server's TLS certificate: libpq's ``sslmode``."""

    DISABLE = "Disable"
    REQUIRE = "Require"
    VERIFY_CA = "VerifyCA"
    VERIFY_FULL = "VerifyFull"


class OnLostSlot(StrEnum):
    """The reaction to a slot that is gone, or that lacks changes that the tables need."""

    HOLD = "Hold"
    RESYNC = "Resync"
    COMPARE = "Compare"


class PublicationManagement(StrEnum):
    """The party that creates and extends the publication."""

    MANAGED = "Managed"
    EXTERNAL = "External"


class SecretRef(Model):
    """A Secret in the same namespace, mounted as files."""

    name: ObjectName = setting(Change.RESTART)
    """The Secret's name."""


class SecretKeyRef(Model):
    """A key of a Secret in the same namespace, mounted as a file."""

    name: ObjectName = setting(Change.RESTART)
    """The Secret's name."""
    key: str = setting(Change.RESTART, min_length=1, max_length=253)
    """The key in the Secret."""


class Tls(Model):
    """Encryption of the connection."""

    mode: TlsMode = setting(Change.RESTART, TlsMode.VERIFY_FULL)
    """The check of the server's certificate, as libpq's sslmode. Disable: the connection is not encrypted."""
    ca_secret_ref: SecretKeyRef | None = setting(Change.RESTART, None)
    """The certificate authority to trust, in PEM. Unset: the image's certificate authorities."""
    cert_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret with the keys tls.crt and tls.key: the client's certificate and its key, in PEM, for a server that wants
    one. The Secret of the credentials then needs no password. A renewed certificate needs no restart.
    """


class SessionAttrs(StrEnum):
    """The servers that a connection accepts: libpq's ``target_session_attrs``."""

    ANY = "Any"
    READ_WRITE = "ReadWrite"
    READ_ONLY = "ReadOnly"
    PRIMARY = "Primary"
    STANDBY = "Standby"


class Keepalive(Model):
    """The detection of a server that vanished, by TCP."""

    idle_seconds: StrictInt = setting(Change.RESTART, 30, ge=1, le=7200)
    """Seconds without a byte until the server is asked for a sign of life."""
    interval_seconds: StrictInt = setting(Change.RESTART, 10, ge=1, le=7200)
    """Seconds between two of these questions."""
    count: StrictInt = setting(Change.RESTART, 3, ge=1, le=100)
    """Questions without an answer after which the connection is closed."""


class Slot(Model):
    """The replication slot."""

    name: SlotName = setting(Change.IMMUTABLE, "")
    """The slot's name. Empty: levada_NAME, or levada_NAMESPACE__NAME if there is a namespace, with - replaced by _. A
    name that is too long or ambiguous is cut and ends with a digest.
    """
    failover: StrictBool = setting(Change.RESTART, False)
    """true: PostgreSQL (17 or later) synchronises the slot to its standbys. false: it does not."""
    on_lost: OnLostSlot = setting(Change.RESTART, OnLostSlot.HOLD)
    """Reaction to a lost slot. Hold: the pipeline stops, with the command that recovers it. Resync: a new slot is
    created, and all tables are copied again. Compare: a new slot is created, each table is compared with the source,
    and only the rows that differ are written. A table that cannot be compared is copied again.
    """


class Publication(Model):
    """The publication."""

    name: Annotated[str, Field(max_length=63)] = setting(Change.RESTART, "")
    """The publication's name. Empty: the same as the slot's default name."""
    management: PublicationManagement = setting(Change.RESTART, PublicationManagement.MANAGED)
    """Managed: Levada creates the publication and adds the selected tables. External: the publication is only
    checked.
    """


class DdlTrigger(StrEnum):
    """The event trigger that announces schema changes."""

    MANAGED = "Managed"
    NONE = "None"


class PostgresServer(Model):
    """A database of a PostgreSQL server, and the login."""

    host: Host = setting(Change.RESTART)
    """The server's host name or address."""
    other_hosts: tuple[Host, ...] = setting(Change.RESTART, (), max_length=16)
    """Further hosts, which are tried in this order when `host` does not answer, or is not the server that
    `targetSessionAttrs` wants: the members of a cluster.
    """
    target_session_attrs: SessionAttrs = setting(Change.RESTART, SessionAttrs.ANY)
    """The server that a connection accepts, as libpq's target_session_attrs. Primary: no standby."""
    port: StrictInt = setting(Change.RESTART, 5432, ge=1, le=65535)
    """The TCP port of each host."""
    database: Identifier = setting(Change.IMMUTABLE)
    """The database's name."""
    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """A Secret with the keys username and password. A changed password needs no restart. Unset: libpq's environment
    variables and password file are used.
    """
    tls: Tls = setting(Change.RESTART, {})
    """Encryption of the connection."""
    keepalive: Keepalive = setting(Change.RESTART, {})
    """The detection of a server that vanished, by TCP."""


class Source(PostgresServer):
    """The source database."""

    slot: Slot = setting(Change.RESTART, {})
    """The replication slot from which changes are read."""
    publication: Publication = setting(Change.RESTART, {})
    """The publication that defines the tables whose changes the slot sends."""
    ddl_trigger: DdlTrigger = setting(Change.RESTART, DdlTrigger.MANAGED)
    """Managed: as a superuser, Levada creates an event trigger that writes changes of published tables into the WAL.
    None: it creates none. It compares the catalog instead, and some changes of columns need a resync.
    """
    heartbeat_seconds: StrictInt = setting(Change.RESTART, 60, ge=0, le=86400)
    """Seconds between two small messages in the WAL, with which the slot advances while the tables are idle. 0: no
    messages are written.
    """


class TableSelector(Model):
    """Selects tables by schema and name. `*` matches any sequence of characters, including none."""

    schema_name: Identifier = setting(Change.HOT, alias="schema")
    """The schema, as the catalog spells it."""
    name: Identifier = setting(Change.HOT, "*")
    """The table's name, as the catalog spells it."""

    @property
    def exact(self) -> QualifiedTable | None:
        """The table that is named, None with a ``*``."""
        return None if "*" in self.schema_name + self.name else QualifiedTable(self.schema_name, self.name)

    @property
    def parts(self) -> tuple[str, str]:
        """The schema and the name as they are written."""
        return self.schema_name, self.name

    def matches(self, table: QualifiedTable) -> bool:
        """Return True if the entry names the table. Case is significant."""
        return _matches(self.schema_name, table.schema) and _matches(self.name, table.name)

    def __str__(self) -> str:
        return f"{self.schema_name}.{self.name}"


class IncludedTables(TableSelector):
    """Selects tables by schema and name, and their rows by a filter. `*` matches any sequence of characters, including
    none. If several entries match a table, the first one decides about its rows.
    """

    where: Annotated[str, Field(min_length=1, max_length=2000)] | None = setting(Change.HOT, None)
    """The rows that are replicated, as the condition of a row filter of a publication: PostgreSQL 15 or newer. It may
    use columns of the replica identity only, and must not fail for any row. A changed condition copies the tables
    again. Unset: all rows.
    """


class Tables(Model):
    """The replicated tables: those that an include selects and no exclude does."""

    include: tuple[IncludedTables, ...] = setting(Change.HOT, min_length=1, max_length=1000)
    """The tables to replicate."""
    exclude: tuple[TableSelector, ...] = setting(Change.HOT, (), max_length=1000)
    """Tables among the included ones that are not replicated."""
    on_unstreamable: OnUnstreamable = setting(Change.HOT, OnUnstreamable.RESYNC)
    """Reaction to changes of a table that are not in the stream, such as rewritten rows. Resync: the table is copied
    again by itself, and stays readable meanwhile. Hold: it is parked, with the command that copies it again. A table in
    mode Changelog is held, because a copy removes its history, unless its TableSync has Resync.
    """
    deletes: Deletes = setting(Change.RESYNC, Deletes.APPLY)
    """The effect of DELETE and TRUNCATE on tables in mode Upsert. Apply: the rows are removed. Ignore: they stay as
    they were. Mark: they stay, and the column _levada_deleted_at has the time of the delete, until a row with the same
    key is inserted. A key that is changed by UPDATE is deleted and inserted. Resyncs keep these rows. Tables without a
    key, and those in mode Changelog, have their history anyway, so that the setting has no effect on them.
    """
    metadata: Annotated[tuple[MetadataColumn, ...], Field(max_length=5)] = setting(Change.RESYNC, ())
    """Columns that describe the last change of each row, in tables in mode Upsert with a key. CommitTime:
    _levada_commit_time. Lsn: _levada_lsn, that of the commit. Operation: _levada_operation, which is I, U, D, or R for
    a row that a copy has read. TransactionId: _levada_transaction_id. Source: _levada_source, the Pipeline's name,
    after its namespace if it has one. A change copies the tables again. Empty: none.
    """
    mask_key_secret_ref: SecretKeyRef | None = setting(Change.RESTART, None)
    """The key of masks by HMAC, as at least 16 bytes. With another key the masked tables are copied again."""
    keyless: Keyless = setting(Change.HOT, Keyless.LEAVE_OUT)
    """Treatment of tables without a replica identity, which are those without a primary key, unless they were given
    one. LeaveOut: they are not replicated. Append: they are copied, and their INSERTs and TRUNCATEs are streamed
    through a second publication, with which PostgreSQL refuses none of their UPDATEs and DELETEs. These are not seen,
    so it is for tables that are only appended to. Needs a managed publication.
    """
    generated_columns: GeneratedColumns = setting(Change.RESTART, GeneratedColumns.LEAVE_OUT)
    """Treatment of generated columns. LeaveOut: they are not replicated. Replicate: from PostgreSQL 18 on, the managed
    publication streams those that are STORED, and copies have them too. A change copies the tables again that have
    some, or drops their columns. An External publication decides by its own publish_generated_columns. columns.exclude
    leaves out single ones.
    """
    on_partition_gone: OnPartitionGone = setting(Change.HOT, OnPartitionGone.DELETE)
    """The effect of a partition that is detached, dropped or truncated on tables in mode Upsert with a key. Delete: its
    rows are deleted, as the field deletes says. Keep: they stay as they were, nothing is copied, and resyncs keep them.
    """


def selects(include: Iterable[TableSelector], exclude: Iterable[TableSelector], table: QualifiedTable) -> bool:
    """Return True if the selectors select the table. Case is significant."""
    return _named(include, table) and not _named(exclude, table)


def _named(selectors: Iterable[TableSelector], table: QualifiedTable) -> bool:
    return any(selector.matches(table) for selector in selectors)


def _matches(pattern: str, name: str) -> bool:
    # Each piece is searched once, without backtracking: a regular expression takes exponential time for many stars.
    head, *pieces = pattern.split("*")
    if not pieces:
        return pattern == name
    *inner, tail = pieces
    at, end = len(head), len(name) - len(tail)
    if at > end or not name.startswith(head) or not name.endswith(tail):
        return False
    for piece in inner:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
