"""The places of tables at the destination, and the errors of tables whose place another table has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.destinations.answers import perform, require_flag
from levada.destinations.collisions import Collision, Place, TargetName, find_later
from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.catalog import read_table_descriptions
from levada.postgres.kept_sessions import SESSIONS
from levada.runtime.config import PipelineConfig
from levada.runtime.destination_errors import destination_errors
from levada.runtime.tables.requests import CopySettings, last_copy_settings
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.postgres.catalog import StreamedTable
    from levada.schema import TableTarget
    from levada.stores.interface import PipelineStore

TargetNameOf = Callable[[QualifiedTable, QualifiedTable], TargetName | None]
"""`levada.destinations.Destination.target_name`."""

MISPLACED: Final = frozenset({codes.DESTINATION_COLLISION, codes.DESTINATION_NAME_UNUSABLE})
"""Codes of tables that are parked until their place is free or the manifest has another ``destinationTable``."""


_REPORTED: Final = 10
_TAKEN: Final = frozenset(
    {
        codes.TABLE_NOT_OURS,
        codes.DESTINATION_COLLISION,
        codes.DESTINATION_PRIVILEGE_MISSING,
        codes.KEPT_ROWS_REPLACED,
    }
)
"""Codes that do not depend on what only a run creates at the destination."""


def find_misplaced(
    config: PipelineConfig, target: TargetNameOf, tables: Mapping[TableId, tuple[QualifiedTable, CopySettings | None]]
) -> dict[TableId, NeedsOperator]:
    """Return the error of each table that must not be copied. ``tables`` has the settings of each table's last copy."""
    places, reasons = _places(config, target, tables)
    wanted = {place.id: place.wanted.name for place in places}
    for table, owner in find_later(places).items():
        reasons[table] = Collision(wanted[table], (owner.table, tables[table][0])).error()
    return reasons


def refuse_collisions(
    config: PipelineConfig, store: PipelineStore, target: TargetNameOf, tables: Iterable[StreamedTable]
) -> None:
    """Raise NeedsOperator ``destination_collision`` if the manifest gives one place to several tables.

    See `place_problems` for the collisions that park a table instead.
    """
    known = {t.id: (t.name, last_copy_settings(store.get_table_controls(t.id))) for t in tables}
    for error, refused in place_problems(config, target, known):
        if refused:
            raise error


def check_sources(
    config: PipelineConfig,
    destination: Destination,
    tables: Mapping[TableId, tuple[QualifiedTable, CopySettings | None]],
) -> None:
    """Raise NeedsOperator ``destination_is_source`` as `Destination.check_sources` does, or another error of its own.

    A table without a name at the destination has an error of its own.
    """
    places: dict[QualifiedTable, QualifiedTable] = {}
    for name, before in tables.values():
        place = CopySettings.of(config, name, before).place
        with suppress(NeedsOperator):
            destination.target_name(name, place)
            places[name] = place
    # A table that a pipeline creates is in no publication of the user's that lists its tables.
    selects = config.is_selected if config.publication.managed else lambda _: False
    with destination_errors(type(destination), "check_sources"):
        perform(destination.check_sources, places, selects)


def taken_places(
    config: PipelineConfig, destination: Destination, names: Collection[QualifiedTable]
) -> Iterator[LevadaError]:
    """Yield the first ten errors of new tables whose copies `Destination.check_place` refuses, or kept rows prevent.

    A table that stays locked for a second is not checked.
    """
    with SESSIONS.session(config.source, "check") as connection, suppress(LevadaError), connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '1s'")
        found = read_table_descriptions(connection, names)
        errors = 0
        for name, described in sorted(found.items()):
            target = CopySettings.of(config, name, None).target(described.schema(), config)
            try:
                with destination_errors(type(destination), "check_place"):
                    perform(destination.check_place, target)
                with destination_errors(type(destination), "has_table"):
                    require_no_kept_rows(destination, target)
            except LevadaError as error:
                if error.code in _TAKEN:
                    yield error
                    errors += 1
            if errors == _REPORTED:
                return


def require_no_kept_rows(destination: Destination, target: TableTarget) -> None:
    """Raise NeedsOperator ``kept_rows_replaced`` if a first copy would replace a table that may have kept rows."""
    find, table = destination.has_table, target.schema.name
    if not target.keeps_rows or not require_flag(find(target), find):
        return
    raise NeedsOperator(
        codes.KEPT_ROWS_REPLACED,
        f"a first copy of {table} would replace the table that is at the destination, with all rows that only that"
        " one has, such as deleted ones",
        hint="rename it at the destination, or set another destinationTable in the TableSync of the table. Or set"
        " deletes: Apply and onPartitionGone: Delete in the TableSync, which removes these rows, until the table is"
        f" Ready. Then: levada retry MANIFEST {table.argument}",
    )


def place_problems(
    config: PipelineConfig, target: TargetNameOf, tables: Mapping[TableId, tuple[QualifiedTable, CopySettings | None]]
) -> Iterator[tuple[NeedsOperator, bool]]:
    """Yield an error per table without a place of its own, and True if it keeps the pipeline from starting.

    A table whose place already has another table's copy is parked. A new table of a pipeline with copied tables is
    parked too, so that a CREATE TABLE at the source never stops the other tables. A manifest that gives one place to
    several tables is refused.
    """
    places, unusable = _places(config, target, tables)
    yield from ((error, False) for error in unusable.values())
    by_id, begun = {p.id: p for p in places}, any(before is not None for _, before in tables.values())
    for table, owner in find_later(places).items():
        wanted, both_new = by_id[table].wanted, owner.held is None and by_id[table].held is None
        held = owner.held is not None and owner.held.identity == wanted.identity
        yield (
            Collision(owner.wanted.name, (owner.table, by_id[table].table)).error(),
            not held and not (begun and both_new),
        )


def _places(
    config: PipelineConfig, target: TargetNameOf, tables: Mapping[TableId, tuple[QualifiedTable, CopySettings | None]]
) -> tuple[list[Place], dict[TableId, NeedsOperator]]:
    places, unusable = [], {}
    for table, (name, before) in tables.items():
        try:
            wanted = target(name, CopySettings.of(config, name, before).place)
        except NeedsOperator as error:
            unusable[table] = error
            continue
        if wanted is not None:
            places.append(Place(table, name, wanted, _held(target, name, before)))
    return places, unusable


def _held(target: TargetNameOf, name: QualifiedTable, before: CopySettings | None) -> TargetName | None:
    try:
        return None if before is None else target(name, before.place)
    except LevadaError:
        return None


def target_name(target: TargetNameOf, name: QualifiedTable, settings: CopySettings) -> str:
    """Return the table's name at the destination, empty if it has none."""
    found = _held(target, name, settings)
    return "" if found is None else found.name
