"""The owner of a table that a destination records: a pipeline, its source database, and one source table."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from levada.destinations.interface import DestinationContext, Source
from levada.errors import DestinationChanged, LevadaError
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableOwner:
    """The owner of one table. ``pipeline`` is the pipeline's full name.

    ``source_name`` is the source table's name when the table was created.
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

    def of(self, schema: ReplicatedTableSchema) -> TableOwner:
        """Return the owner of the table of a source table."""
        return TableOwner(self.context.full_name, self.source_id, schema.id, schema.name)

    def owns(self, owner: TableOwner, table: TableId) -> bool:
        """Return True if ``owner`` is this pipeline's source table."""
        return owner.table == table and owner.source_id == self.source_id and self._is_ours(owner)

    def require_replaceable(self, name: object, owner: TableOwner, schema: ReplicatedTableSchema) -> None:
        """Raise DestinationChanged unless a copy of the source table may replace the table of ``owner``.

        It may replace its own table, that of a dropped source table of the same name, and any table of the pipeline's
        former source. The code is ``table_not_ours`` for a table of another owner, and ``destination_collision`` for
        that of another source table. ``name`` is the table's name at the destination, as its errors print it.
        """
        source, ours = self.context.source, self._is_ours(owner)
        if ours and source is not None and source.is_former(owner.source_id):
            _log.warning("%s is a table of the former source of pipeline %s", name, self.context.full_name)
            return
        if not ours or owner.source_id != self.source_id:
            whose = f"Pipeline {owner.pipeline}" + (" with another source database" if ours else "")
            raise not_ours(name, f"belongs to {whose}, but this is Pipeline {self.context.full_name}")
        if owner.table == schema.id:
            return
        if source is not None and owner.source_name == schema.name and not source.has_table(owner.table):
            _log.warning("%s is the table of an earlier %s, which was dropped", name, schema.name)
            return
        raise collision(name, owner.table, owner.source_name, source, schema.id, schema.name)

    def _is_ours(self, owner: TableOwner) -> bool:
        # Check the former names last, because reading them needs the store.
        return owner.pipeline == self.context.full_name or owner.pipeline in self.context.former_names()


def collision(
    name: object,
    owner: TableId,
    copied_as: QualifiedTable | None,
    source: Source | None,
    table: TableId,
    wanted: QualifiedTable | None = None,
    *,
    otherwise: str = "",
) -> DestinationChanged:
    """Return the error for a place that has the table of the source table ``owner``, when ``table`` needs it.

    ``copied_as`` is the owner's name at its copy, and ``wanted`` the name of ``table``. None if they are unknown.
    ``otherwise`` is another solution, which begins with "or".
    """
    now = None
    if source is not None:
        with suppress(LevadaError):
            now = source.table_name(owner)
    whose = f"the source table with OID {int(owner)}" if copied_as is None else f"{copied_as} (OID {int(owner)})"
    if now is not None and now != copied_as:
        whose += f", which is called {now} now"
    hint = f"set destinationTable in a TableSync of {wanted or 'one of the two'}"
    if now is not None and copied_as == wanted:
        hint += f". Or, if {now} is not needed any more, drop it at the source"
    elif otherwise:
        hint += f", {otherwise}"
    return DestinationChanged(
        "destination_collision",
        f"{name} at the destination has the rows of {whose}, and not those of the table with OID {int(table)}",
        hint=f"{hint}. Then: levada retry MANIFEST TABLE",
    )


def not_ours(name: object, why: str) -> DestinationChanged:
    """Return the error for a table that this pipeline does not own. ``why`` completes the sentence."""
    return DestinationChanged(
        "table_not_ours",
        f"{name} exists at the destination and {why}",
        hint="set destinationTable in the table's TableSync, or rename or remove what has the name",
    )
