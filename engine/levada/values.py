"""Small values that every layer speaks: positions, names, marks.

Nothing here knows of a connection, a file or a configuration.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Final, Self

_LSN: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A position in the write-ahead log, in bytes since its beginning; prints as ``0/16B3748``."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read PostgreSQL's ``pg_lsn`` text; raise ValueError for anything else."""
        match = _LSN.fullmatch(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r}")
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    @property
    def hex(self) -> str:
        """Sixteen hexadecimal digits, so that names sort as positions do."""
        return f"{int(self):016x}"

    def __str__(self) -> str:
        return f"{int(self) >> 32:X}/{int(self) & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class SnapshotId(Lsn):
    """The version of a table's schema: the LSN from which it holds; 0/0 is the copy's version."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Witness:
    """A committed transaction of the source, which recognises its history.

    Two histories of one server may have the same LSNs. They do not have the same transaction at the same LSN.
    ``commit_ts_us`` is in microseconds since 1970-01-01 UTC.
    """

    commit_lsn: Lsn
    xid: int
    commit_ts_us: int

    def __str__(self) -> str:
        return f"transaction {self.xid} at {self.commit_lsn}"

    def to_json(self) -> list[Any]:
        """Return the transaction for a JSON document."""
        return [str(self.commit_lsn), self.xid, self.commit_ts_us]

    @classmethod
    def from_json(cls, raw: list[Any] | None) -> Self | None:
        """Read what `to_json` returned; None for none."""
        return None if raw is None else cls(Lsn.parse(raw[0]), int(raw[1]), int(raw[2]))


class TableId(int):
    """The OID of a table in its database."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"TableId({int(self)})"


_PLAIN_NAME: Final = re.compile(r"[^\s\".]+")
_NAME_PART: Final = re.compile(r'"((?:[^"]|"")*)"|([^".]+)')


@dataclass(frozen=True, slots=True, order=True)
class QualifiedTable:
    """A table's schema and name, unquoted; prints as ``schema.name``."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``schema.name``; a name without a dot is in ``public``.

        A part with a dot, a space or a quote in it is written in double quotes, as in SQL. Without quotes, all after
        the first dot is the name.
        """
        parts = [m[1].replace('""', '"') if m[1] is not None else m[2] for m in _NAME_PART.finditer(text)]
        if '"' in text and len(parts) <= 2 and _quoted(parts, text):
            return cls("public", parts[0]) if len(parts) == 1 else cls(*parts)
        schema, dot, name = text.partition(".")
        return cls(schema, name) if dot else cls("public", text)

    @property
    def argument(self) -> str:
        """The table as an argument of the command line: what `parse` reads, quoted for a shell."""
        return shlex.quote(".".join(_argument_part(part) for part in (self.schema, self.name)))

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def resync_command(table: QualifiedTable) -> str:
    """Return the command that copies a table again. A command line that shows it puts its manifest for MANIFEST."""
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
"""The beginning of an owner's UID that an engine outside of Kubernetes has generated."""


@dataclass(frozen=True, slots=True)
class PipelineOwner:
    """The identity of one Pipeline, which tells it from another one of the same name.

    ``uid`` is the object's UID in Kubernetes, else a generated one. ``name`` has the namespace in front, if there is
    one.
    """

    uid: str
    name: str

    @property
    def local(self) -> bool:
        """Return True if the UID was generated by an engine outside of Kubernetes."""
        return self.uid.startswith(LOCAL_OWNER)

    def __str__(self) -> str:
        return f"Pipeline {self.name} (UID {self.uid})"


@dataclass(frozen=True, slots=True)
class Watermark:
    """What a destination commit carries: every transaction with a commit LSN below ``lsn`` is in it.

    ``epoch`` numbers the incarnation of the pipeline's driver that wrote it.
    """

    pipeline: str
    epoch: int
    lsn: Lsn


class Durability(Enum):
    """How far a destination answers for a write."""

    DURABLE = "durable"
    """This write and every earlier one accepted for the table survive a crash."""
    ACCEPTED = "accepted"
    """The destination owns the write; a later DURABLE covers it."""


class OnUnrepresentable(StrEnum):
    """What becomes of a value that has no place in the destination's type (an infinite date, a NaN numeric)."""

    ERROR = "Error"
    """The table is parked with an error that names the column; nothing is lost."""
    NULL = "Null"
    """The value becomes NULL, and is counted."""
    TEXT = "Text"
    """Columns whose type has such values are kept as PostgreSQL's text, all of them."""


class TableMode(StrEnum):
    """What a destination's table holds."""

    UPSERT = "Upsert"
    """The last state of each row."""
    CHANGELOG = "Changelog"
    """Every change, one row each."""


class OnSchemaChange(StrEnum):
    """What becomes of a change of a source table's columns."""

    PROPAGATE = "Propagate"
    FAIL = "Fail"
    """The table is parked with an error that names the change."""
    IGNORE = "Ignore"
    """The destination keeps its columns: new ones are left out, dropped ones become NULL."""
