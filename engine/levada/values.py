"""Small value types that all layers share: positions, names, watermarks.

Nothing in this module depends on connections, files or configuration.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_MAX_OID: Final = (1 << 32) - 1
_SKEW: Final = timedelta(seconds=5)


def age_of(at: datetime, now: datetime) -> timedelta:
    """Return how old a time of the machine's clock is, ``timedelta.max`` if the clock was seconds ahead at ``at``.

    So whatever waits for a time to pass is due as soon as a clock that was ahead is right again.
    """
    return max(now - at, timedelta()) if at <= now + _SKEW else timedelta.max


class Lsn(int):
    """A position in the write-ahead log, in bytes since its beginning. It prints as ``0/16B3748``."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse PostgreSQL's ``pg_lsn`` text. Raise ValueError for anything else."""
        match = _LSN.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r}")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    @property
    def hex(self) -> str:
        """The position as sixteen hexadecimal digits. Such names sort in the order of positions."""
        return f"{int(self):016x}"

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        """Return the schema for models of pydantic: PostgreSQL's text."""
        from pydantic_core import core_schema  # a process without models does not import it

        text = core_schema.str_schema(pattern=rf"^{_LSN.pattern}$")
        return core_schema.no_info_after_validator_function(
            cls.parse, text, serialization=core_schema.plain_serializer_function_ser_schema(str, return_schema=text)
        )


class SnapshotId(Lsn):
    """The version of a table's schema: the LSN from which it is valid. 0/0 is the version of a copy."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Witness:
    """A committed transaction of the source, as evidence of the source's history.

    Two histories of one server may share LSNs. They do not share the same transaction at the same LSN. ``commit_ts_us``
    is in microseconds since 1970-01-01 UTC.
    """

    commit_lsn: Lsn
    xid: int
    commit_ts_us: int

    def __str__(self) -> str:
        return f"transaction {self.xid} at {self.commit_lsn}"

    def to_json(self) -> list[Any]:
        """Return the transaction as plain values for JSON."""
        return [str(self.commit_lsn), self.xid, self.commit_ts_us]

    @classmethod
    def from_json(cls, raw: list[Any] | None) -> Self | None:
        """Parse the result of `to_json`. Return None for None."""
        return None if raw is None else cls(Lsn.parse(raw[0]), int(raw[1]), int(raw[2]))


class TableId(int):
    """The OID of a table in its database."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"TableId({int(self)})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        """Return the schema for models of pydantic: a number."""
        from pydantic_core import core_schema  # a process without models does not import it

        number = core_schema.int_schema(ge=0, le=_MAX_OID)
        return core_schema.no_info_after_validator_function(
            cls, number, serialization=core_schema.plain_serializer_function_ser_schema(int, return_schema=number)
        )


_PLAIN_NAME: Final = re.compile(r"[^\s\".]+")
_NAME_PART: Final = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')


@dataclass(frozen=True, slots=True, order=True)
class QualifiedTable:
    """A table's schema and name, unquoted. It prints as ``schema.name``."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``schema.name``. A name without a dot is in schema ``public``.

        A part that contains a dot, a space or a quote is written in double quotes, as in SQL. Without quotes,
        everything after the first dot is the name.
        """
        parts = [m[1].replace('""', '"') if m[1] is not None else m[2] for m in _NAME_PART.finditer(text)]
        if '"' in text and len(parts) <= 2 and _quoted(parts, text):
            return cls("public", parts[0]) if len(parts) == 1 else cls(*parts)
        schema, dot, name = text.partition(".")
        return cls(schema, name) if dot else cls("public", text)

    @property
    def quoted(self) -> str:
        """The table in the form that `parse` reads."""
        return ".".join(_argument_part(part) for part in (self.schema, self.name))

    @property
    def sql(self) -> str:
        """The table in SQL, with both parts in double quotes."""
        return ".".join(quote_identifier(part) for part in (self.schema, self.name))

    @property
    def argument(self) -> str:
        """The table as an argument of the command line: its `quoted` form, quoted for a shell."""
        return shlex.quote(self.quoted)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


UNKNOWN_DEFAULT: Final = (
    "with a default whose values in existing rows are not known: PostgreSQL computed them for each row, or wrote the"
    " table again in the same statement, and it does not stream them"
)
"""Completes "column c was added". The catalog keeps a constant default only while no statement rewrites the table."""


def resync_command(table: QualifiedTable) -> str:
    """Return the command that resyncs a table.

    The command line replaces MANIFEST by its manifest before it shows the command.
    """
    return f"levada resync MANIFEST {table.argument}"


MAX_PIPELINE_NAME: Final = 40
"""The longest name of a pipeline, so that the name of a copy's slot has no more than PostgreSQL's 63 bytes."""


def source_object_name(pipeline: str, namespace: str = "") -> str:
    """Return the name that a pipeline's objects in its source begin with: ``levada_<namespace>__<pipeline>``.

    A slot's name has no ``-``, so it becomes ``_``.
    """
    name = f"levada_{namespace}__{pipeline}" if namespace else f"levada_{pipeline}"
    return name.replace("-", "_")


def quote_identifier(name: str) -> str:
    """Quote a name for SQL, and for the replication protocol."""
    return '"' + name.replace('"', '""') + '"'


def _argument_part(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else quote_identifier(name)


def _quoted(parts: list[str], text: str) -> bool:
    """Return True if the text is just these parts, each quoted or plain, with dots between."""
    return bool(re.fullmatch(rf"(?:{_NAME_PART.pattern})(?:\.(?:{_NAME_PART.pattern}))?", text)) and bool(parts)


LOCAL_OWNER: Final = "local-"
"""The prefix of an owner's UID that an engine outside of Kubernetes generated."""


@dataclass(frozen=True, slots=True)
class PipelineOwner:
    """The identity of one Pipeline, which distinguishes it from another one of the same name.

    ``uid`` is the object's UID in Kubernetes, or else a generated one. ``name`` has the namespace as a prefix, if there
    is one.
    """

    uid: str
    name: str
    new: bool = field(default=False, compare=False)
    """True if the UID was generated by this process, and no store has it yet."""

    @property
    def local(self) -> bool:
        """Return True if the UID was generated by an engine outside of Kubernetes."""
        return self.uid.startswith(LOCAL_OWNER)

    @property
    def namespace(self) -> str:
        """Return the namespace in Kubernetes, or an empty string."""
        return self.name.rpartition("/")[0]

    def __str__(self) -> str:
        # A UID that no store has is another one at each call.
        return f"Pipeline {self.name}{', which has no state in its store' if self.new else f' (UID {self.uid})'}"


@dataclass(frozen=True, slots=True)
class Watermark:
    """The marker in a destination commit: it contains every transaction with a commit LSN below ``lsn``.

    ``epoch`` is the epoch of the driver that wrote it.
    """

    pipeline: str
    epoch: int
    lsn: Lsn


class Durability(Enum):
    """The extent of a destination's guarantee for a write."""

    DURABLE = "durable"
    """This write and every earlier one accepted for the table survive a crash."""
    ACCEPTED = "accepted"
    """The destination has taken the write over. A later DURABLE covers it."""


class MaskMethod(StrEnum):
    """The way in which the mask of a column changes a value."""

    HMAC = "HMAC"
    """The HMAC-SHA256 of the value's text, as 64 hexadecimal digits."""
    NULL = "Null"
    TRUNCATE = "Truncate"
    """The first characters of the text."""
    LAST = "Last"
    """The last characters of the text."""


class OnUnrepresentable(StrEnum):
    """The treatment of a value that the destination's type cannot hold, such as an infinite date or a NaN numeric."""

    ERROR = "Error"
    """The table is parked with an error that names the column. Nothing is lost."""
    NULL = "Null"
    """The value becomes NULL and is counted."""
    TEXT = "Text"
    """Columns whose type has such values are stored as PostgreSQL's text, with all their values."""


def unrepresentable_hint(*, key: bool, chosen: bool = False) -> str:
    """Return the first half of a hint: how to get a type that holds the value, or NULL. A ``key`` must not become NULL.

    Rows whose keys become NULL would be one row. ``chosen`` is True if columns.types has chosen the column's type.
    """
    # The policy Text does not change a type that columns.types has chosen, and not every key may have the type Text.
    if key and chosen:
        return "remove the column from columns.types of the table's TableSync, which copies the table again"
    policies = "Text" if key else '"Null" (in quotes)'
    own = "" if key else "give the column the type Text in columns.types of the table's TableSync, or "
    return f"{own}set spec.onUnrepresentable to {policies}, which copies tables again: levada plan MANIFEST lists them"


def unconvertible_hint(*, key: bool) -> str:
    """Return the first half of the hint for a text that cannot be converted to UTF-8, which no type can hold."""
    null = (
        'set spec.onUnrepresentable to "Null" (in quotes), which copies tables again: levada plan MANIFEST lists them'
    )
    return "" if key else f"{null}. Or "


class TableMode(StrEnum):
    """The content of a destination's table."""

    UPSERT = "Upsert"
    """The last state of each row."""
    CHANGELOG = "Changelog"
    """Every change, one row each."""


class CopyMode(StrEnum):
    """The rows of a table that its copy takes."""

    ALL = "All"
    NONE = "None"
    """No row: the table begins empty, and receives the changes since then."""


class Keyless(StrEnum):
    """The treatment of tables without a replica identity, whose UPDATEs and DELETEs cannot be streamed."""

    LEAVE_OUT = "LeaveOut"
    APPEND = "Append"
    """Their INSERTs and TRUNCATEs are streamed into a changelog."""


class GeneratedColumns(StrEnum):
    """The treatment of generated columns, which the source computes from others of their row."""

    LEAVE_OUT = "LeaveOut"
    REPLICATE = "Replicate"
    """Those that PostgreSQL stores, if it streams them."""


class CopiedRows(StrEnum):
    """The part of a table's rows at the time of its copy that the copy took."""

    ALL = "All"
    NONE = "None"
    PART = "Part"


class OnUnstreamable(StrEnum):
    """The reaction to a change of a source table whose effect on its rows is not in the stream."""

    RESYNC = "Resync"
    """The table is copied again by itself."""
    HOLD = "Hold"
    """The table is parked until a user resyncs it."""


class Deletes(StrEnum):
    """The effect of a DELETE or TRUNCATE at the source on the rows of a destination's table."""

    APPLY = "Apply"
    """The rows are removed."""
    IGNORE = "Ignore"
    """The rows stay as they were."""
    MARK = "Mark"
    """The rows stay, and a column has the time of the delete."""


class MetadataColumn(StrEnum):
    """A column that describes the last change of a row, in a destination's table with the last state of each row."""

    COMMIT_TIME = "CommitTime"
    """The time of the transaction's commit."""
    LSN = "Lsn"
    """The LSN of the transaction's commit."""
    OPERATION = "Operation"
    """The change: an insert, an update, a delete, or a read by a copy."""
    TRANSACTION_ID = "TransactionId"
    """The ID of the transaction."""
    SOURCE = "Source"
    """The name of the pipeline."""


class OnPartitionGone(StrEnum):
    """The effect of a partition that is detached, dropped or truncated on its rows in a destination's table."""

    DELETE = "Delete"
    """They are deleted, as `Deletes` says."""
    KEEP = "Keep"
    """They stay as they were."""


class OnSchemaChange(StrEnum):
    """The reaction to a change of a source table's columns."""

    PROPAGATE = "Propagate"
    FAIL = "Fail"
    """The table is parked with an error that describes the change."""
    IGNORE = "Ignore"
    """The destination's columns stay. New columns are left out, and dropped ones become NULL."""
