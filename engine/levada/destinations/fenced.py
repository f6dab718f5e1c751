"""What destinations with state have in common: the epochs of drivers, the watermark, and the table that was copied."""

from __future__ import annotations

from levada.destinations.interface import Destination, TableMode, TableTarget
from levada.destinations.schema_changes import resync_hint
from levada.errors import DestinationChanged, NeedsOperator, StaleEpoch
from levada.schema import ReplicatedTableSchema


class FencedDestination(Destination):
    """A destination that stores the epoch and the watermark of each table."""

    def effective_mode(self, target: TableTarget) -> TableMode:
        """Return the configured mode, or CHANGELOG for a table without a usable key."""
        key = target.schema.key
        keyed = bool(key) and target.schema.by_attnum.keys() >= set(key)
        return target.mode if keyed else TableMode.CHANGELOG


def require_epoch(held: int, epoch: int | None) -> None:
    """Raise StaleEpoch if a driver newer than ``epoch`` has written the table. None compares nothing."""
    if epoch is not None and held > epoch:
        raise StaleEpoch(epoch, held)


def rolled_back(name: object, hint: str) -> DestinationChanged:
    """Return the error for a table whose watermark is lower than one that was read or written before.

    The changes between the two are no longer staged.
    """
    return DestinationChanged(
        "table_rolled_back",
        f"the watermark of {name} has moved back: another writer restored an earlier state, or replaced the table",
        hint=hint,
    )


def check_same_table(
    name: object, schema: ReplicatedTableSchema, mode: TableMode, *, made_as: str | None, same_key: bool
) -> None:
    """Raise NeedsOperator if the table was copied in another mode, or has rows of another key."""
    if made_as != mode.value:
        raise NeedsOperator(
            "mode_changed",
            f"{name} was created as {made_as}, but {schema.name} is now written as {mode.value}",
            hint=resync_hint(schema),
        )
    if mode is TableMode.UPSERT and not same_key:
        raise NeedsOperator(
            "key_changed",
            f"the key of {schema.name} is now ({', '.join(c.name for c in schema.key_columns)}),"
            f" but {name} was written with another key",
            hint=resync_hint(schema),
        )
