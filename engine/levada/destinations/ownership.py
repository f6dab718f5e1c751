"""The owner of a table that a destination records: a pipeline, its source database, and one source table."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from levada import codes
from levada.destinations.context import DestinationContext, Source
from levada.errors import DestinationChanged, LevadaError
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)

ANOTHERS: Final = frozenset({codes.TABLE_NOT_OURS, codes.DESTINATION_COLLISION})
"""The codes of the errors for a table that is not this pipeline's, or not that of the source table."""
UNKNOWN: Final = QualifiedTable("", "")
"""The name of a source table that a destination cannot read any more."""


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The owner of one table. ``pipeline`` is the pipeline's full name, or empty if Levada did not create the table.

    ``source_name`` is the source table's name when the table was created, or UNKNOWN.
    """

    pipeline: str
    source_id: str
    table: TableId
    source_name: QualifiedTable


@dataclass(frozen=True, slots=True)
class Owner:
    """This pipeline with its source. It also owns the tables of its former owners."""

    context: DestinationContext

    @property
    def source_id(self) -> str:
        """The identity of the source database."""
        return "" if self.context.source is None else str(self.context.source)

    def names(self) -> list[str]:
        """Return the pipeline's full name and those of its former owners."""
        return [self.context.full_name, *self.context.former_names()]

    def name_among(self, pipelines: Iterable[str]) -> str | None:
        """Return the first of the full names that is this pipeline's or a former owner's, None without one."""
        return next(filter(self._is_own_name, pipelines), None)

    def of(self, schema: ReplicatedTableSchema) -> TableOwner:
        """Return the owner of the table of a source table."""
        return TableOwner(self.context.full_name, self.source_id, schema.id, schema.name)

    def owns(self, owner: TableOwner, table: TableId) -> bool:
        """Return True if ``owner`` is this pipeline's source table."""
        return owner.table == table and owner.source_id == self.source_id and self._is_ours(owner)

    def wrote(self, owner: TableOwner) -> bool:
        """Return True if ``owner`` is this pipeline, with its source or a former one."""
        source = self.context.source
        former = source is not None and source.is_former(owner.source_id)
        return (former or owner.source_id == self.source_id) and self._is_ours(owner)

    def require(
        self,
        name: object,
        owner: TableOwner,
        table: TableId,
        wanted: QualifiedTable | None = None,
        *,
        otherwise: str = "",
    ) -> None:
        """Raise DestinationChanged unless ``owner`` is this pipeline's source table.

        The code is ``table_not_ours`` for a table of another owner, and ``destination_collision`` for that of another
        source table. ``name`` is the table's name at the destination, as its errors print it, ``wanted`` that of the
        source table, if it is known, and ``otherwise`` another solution of a collision.
        """
        ours = self._is_ours(owner)
        if not owner.pipeline:
            raise not_ours(name)
        if not ours or owner.source_id != self.source_id:
            whose = f"Pipeline {owner.pipeline}" + (" with another source database" if ours else "")
            raise not_ours(name, f"belongs to {whose}, but this is Pipeline {self.context.full_name}")
        if owner.table != table:
            raise collision(name, owner, self.context.source, table, wanted, otherwise=otherwise)

    def require_replaceable(
        self, name: object, owner: TableOwner, schema: ReplicatedTableSchema, *, otherwise: str = ""
    ) -> None:
        """Raise DestinationChanged as `require` does, unless a copy of the source table may replace the table.

        It may replace that of a dropped source table of the same name, and any table of the pipeline's former source.
        """
        source = self.context.source
        if source is not None and self._is_ours(owner):
            if source.is_former(owner.source_id):
                _log.warning("%s is a table of the former source of pipeline %s", name, self.context.full_name)
                return
            same = owner.source_id == self.source_id and owner.source_name == schema.name
            if same and owner.table != schema.id and not source.has_table(owner.table):
                _log.warning("%s is the table of an earlier %s, which was dropped", name, schema.name)
                return
        self.require(name, owner, schema.id, schema.name, otherwise=otherwise)

    def _is_ours(self, owner: TableOwner) -> bool:
        return bool(owner.pipeline) and self._is_own_name(owner.pipeline)

    def _is_own_name(self, name: str) -> bool:
        # Check the former names last, because reading them needs the store.
        return name == self.context.full_name or name in self.context.former_names()


def collision(
    name: object,
    owner: TableOwner,
    source: Source | None,
    table: TableId,
    wanted: QualifiedTable | None = None,
    *,
    otherwise: str = "",
) -> DestinationChanged:
    """Return the error for a place that has the table of another source table, when ``table`` needs it.

    ``wanted`` is the name of ``table``, or None. ``otherwise`` is another solution, which begins with "or".
    """
    now, copied_as = None, owner.source_name
    if source is not None:
        with suppress(LevadaError):
            now = source.table_name(owner.table)
    oid = f"OID {int(owner.table)}"
    whose = f"the source table with {oid}" if copied_as == UNKNOWN else f"{copied_as} ({oid})"
    if now is not None and now != copied_as:
        whose += f", which is called {now} now"
    hint = f"set destinationTable in a TableSync of {wanted or 'one of the two'}"
    if now is not None and copied_as == (wanted or UNKNOWN):
        hint += f". Or, if {now} is not needed any more, drop it at the source"
    elif otherwise:
        hint += f", {otherwise}"
    return DestinationChanged(
        "destination_collision",
        f"{name} at the destination has the rows of {whose}, and not those of the table with OID {int(table)}",
        hint=f"{hint}. Then: levada retry MANIFEST TABLE",
    )


def not_ours(name: object, why: str = "was not created by Levada") -> DestinationChanged:
    """Return the error for a table that this pipeline does not own. ``why`` completes the sentence."""
    return DestinationChanged(
        "table_not_ours",
        f"{name} exists at the destination and {why}",
        hint="set destinationTable in the table's TableSync, or rename or remove what has the name",
    )
