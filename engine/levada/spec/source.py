"""The source: where it is, its slot and publication, and which of its tables are meant."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from levada.spec.model import Change, Flag, Model, Whole, setting
from levada.spec.names import Host, Identifier, ObjectName, SlotName
from levada.values import QualifiedTable


class TlsMode(StrEnum):
    """How far the source's TLS certificate is checked; libpq's ``sslmode``."""

    DISABLE = "Disable"
    REQUIRE = "Require"
    VERIFY_CA = "VerifyCA"
    VERIFY_FULL = "VerifyFull"


class OnLostSlot(StrEnum):
    """What becomes of a pipeline whose slot is gone, or lacks changes that its tables need."""

    HOLD = "Hold"
    RESYNC = "Resync"


class PublicationManagement(StrEnum):
    """Who makes and extends the publication."""

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
    """The key in it."""


class Tls(Model):
    """How the connection to the source is encrypted."""

    mode: TlsMode = setting(Change.RESTART, TlsMode.VERIFY_FULL)
    """How far the server's certificate is checked. Disable: no encryption."""
    ca_secret_ref: SecretKeyRef | None = setting(Change.RESTART, None)
    """The certificate authority to trust, in PEM. Without it: those that the image trusts."""


class Slot(Model):
    """The replication slot."""

    name: SlotName = setting(Change.IMMUTABLE, "")
    """The slot's name. Empty: levada_NAME, or levada_NAMESPACE__NAME where there is a namespace, with _ for -. A name
    that is too long or ambiguous is cut and ends with a digest."""
    failover: Flag = setting(Change.RESTART, False)
    """Whether PostgreSQL (17 or later) synchronises the slot to its standbys. false: it does not."""
    on_lost: OnLostSlot = setting(Change.RESTART, OnLostSlot.HOLD)
    """When changes are lost. Hold: stop, or park the table, with the way to recover. Resync: copy the tables again."""


class Publication(Model):
    """The publication."""

    name: Annotated[str, Field(max_length=63)] = setting(Change.RESTART, "")
    """The publication's name. Empty: as the slot's default name."""
    management: PublicationManagement = setting(Change.RESTART, PublicationManagement.MANAGED)
    """Managed: made, and extended by the tables selected. External: never changed, only checked."""


class Source(Model):
    """The source database."""

    host: Host = setting(Change.RESTART)
    """The server's host name or address."""
    port: Whole = setting(Change.RESTART, 5432, ge=1, le=65535)
    """The server's TCP port."""
    database: Identifier = setting(Change.IMMUTABLE)
    """The database's name."""
    credentials_secret_ref: SecretRef | None = setting(Change.RESTART, None)
    """The Secret with the keys username and password; a changed password needs no restart. Without it: what libpq
    finds in its environment and its password file."""
    tls: Tls = setting(Change.RESTART, {})
    """How the connection is encrypted."""
    slot: Slot = setting(Change.RESTART, {})
    """The replication slot that changes are read from."""
    publication: Publication = setting(Change.RESTART, {})
    """The publication that says which tables' changes the slot sends."""
    heartbeat_seconds: Whole = setting(Change.RESTART, 60, ge=0, le=86400)
    """How often, in seconds, a small message is written to the WAL, so that the slot advances while the tables are
    idle. 0: never."""


class TableSelector(Model):
    """Tables by schema and name; * stands for any characters, none included."""

    schema_name: Identifier = setting(Change.HOT, alias="schema")
    """The schema, as the catalog spells it."""
    name: Identifier = setting(Change.HOT, "*")
    """The table's name, as the catalog spells it."""


class Tables(Model):
    """Which tables are replicated: those that an include names and no exclude does."""

    include: tuple[TableSelector, ...] = setting(Change.HOT, min_length=1, max_length=1000)
    """The tables to replicate."""
    exclude: tuple[TableSelector, ...] = setting(Change.HOT, (), max_length=1000)
    """Of those, the ones to leave out."""


def selects(tables: Tables, table: QualifiedTable) -> bool:
    """Tell whether the selectors mean a table; letters are told apart by case."""
    return _named(tables.include, table) and not _named(tables.exclude, table)


def _named(selectors: Iterable[TableSelector], table: QualifiedTable) -> bool:
    return any(_matches(s.schema_name, table.schema) and _matches(s.name, table.name) for s in selectors)


def _matches(pattern: str, name: str) -> bool:
    # Piece by piece and never back: a regular expression takes exponential time for a pattern of many stars.
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
