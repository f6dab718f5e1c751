"""The common part of destinations with state: the states of tables, the epochs of drivers, and the watermark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from levada.destinations.interface import Destination, TableMode, TableTarget
from levada.destinations.schema_changes import resync_hint
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, StaleEpoch
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OP
from levada.segments.batch import EventBatch, TableEvents
from levada.values import Durability, Lsn, QualifiedTable, TableId, Watermark, resync_command

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class TableState:
    """The state of one table that a process keeps between calls. The lock guards all other attributes.

    Everything in it can be read again from the destination, or built again.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    seen: Lsn | None = None
    """The watermark that was read or written last."""

    def saw(self, name: object, lsn: Lsn | None, hint: str) -> None:
        """Remember the stored watermark. Raise DestinationChanged ``table_rolled_back`` if it has moved back.

        ``name`` is the table's name at the destination.
        """
        if self.seen is not None and (lsn is None or lsn < self.seen):
            raise rolled_back(name, hint)
        self.seen = lsn

    def begins(self, name: object, hint: str, held: tuple[int, Lsn], mark: Watermark) -> bool:
        """Return True if a batch up to ``mark`` is still to be applied to the table, whose epoch and LSN are ``held``.

        Raise StaleEpoch if a newer driver has written the table, and DestinationChanged as `saw` does.
        """
        epoch, lsn = held
        require_epoch(epoch, mark.epoch)
        self.saw(name, lsn, hint)
        return mark.lsn > lsn

    def forget(self) -> None:
        """Discard the state, because the table was dropped, or copied by another process."""
        self.seen = None


S = TypeVar("S", bound=TableState)
T = TypeVar("T")


class TableStates(Generic[S]):
    """The states of tables by OID. ``new`` returns the one of a table of which nothing is known."""

    def __init__(self, new: Callable[[TableId], S]) -> None:
        self._new = new
        self._lock = threading.Lock()
        self._states: dict[TableId, S] = {}

    def of(self, table: TableId) -> S:
        """Return the state of the table."""
        with self._lock:
            if table not in self._states:
                self._states[table] = self._new(table)
            return self._states[table]

    def known(self) -> dict[TableId, S]:
        """Return the states of all tables so far."""
        with self._lock:
            return dict(self._states)


class FencedDestination(Destination, Generic[S]):
    """A destination that stores the epoch and the watermark of each table."""

    _states: TableStates[S]

    def _apply(self, state: S, events: TableEvents, mark: Watermark) -> None:
        """Apply the changes that the table does not have yet, and store ``mark``. The lock of the state is held.

        A destination that commits several tables together has its own `write_events` instead.
        """
        raise NotImplementedError

    def effective_mode(self, target: TableTarget) -> TableMode:
        """Return the configured mode, or CHANGELOG for a table without a usable key."""
        key = target.schema.key
        keyed = bool(key) and target.schema.by_attnum.keys() >= set(key)
        return target.mode if keyed else TableMode.CHANGELOG

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        """Apply each table's changes with ``mark``. A table without changes stores ``mark`` too."""
        for table in () if events.only_asks else events.tables:
            changes = events.changes(table)
            state = self._table_of(changes.target)
            with state.lock:
                self._apply(state, changes, mark)
        return Durability.DURABLE

    def maintain(self, table: TableId) -> None:
        """Raise DestinationChanged if another writer changed the table."""
        self.applied(table)

    def copied_elsewhere(self, target: TableTarget) -> None:
        """Forget the table of the last copy."""
        state = self._table_of(target)
        with state.lock:
            state.forget()

    def _table_of(self, target: TableTarget) -> S:
        return self._states.of(target.id)

    def _require_last_rows(self, target: TableTarget, system: str) -> None:
        """Raise NeedsOperator ``verify_unsupported`` for a changelog, in the words of a destination that has SQL."""
        if self.effective_mode(target) is TableMode.CHANGELOG:
            raise NeedsOperator(
                "verify_unsupported",
                f"{target.schema.name} cannot be compared with the source: its table in {system} has every change",
            )


def committed(commit: Callable[[], T], attempts: int, may_succeed: Callable[[LevadaError], bool]) -> T:
    """Call ``commit`` up to ``attempts`` times, while ``may_succeed`` says that its error came from another writer."""

    def passes(error: BaseException) -> bool:
        return isinstance(error, LevadaError) and may_succeed(error)

    def told(state: RetryCallState) -> None:
        _log.info("retrying a commit: %s", None if state.outcome is None else state.outcome.exception())

    retrying = Retrying(
        stop=stop_after_attempt(attempts), retry=retry_if_exception(passes), before_sleep=told, reraise=True
    )
    return retrying(commit)


def require_epoch(held: int, epoch: int | None) -> None:
    """Raise StaleEpoch if a driver newer than ``epoch`` has written the table. None compares nothing."""
    if epoch is not None and held > epoch:
        raise StaleEpoch(epoch, held)


def copied_constants(mode: TableMode, lsn: Lsn) -> Mapping[str, str | int]:
    """Return the values of a changelog's additional columns in the rows of a copy as of ``lsn``."""
    return {OP: "I", COMMIT_LSN: int(lsn)} if mode is TableMode.CHANGELOG else {}


def missing(name: object, table: QualifiedTable | None, why: str = "") -> DestinationChanged:
    """Return the error for a table that another writer dropped or renamed. ``table`` is its name at the source."""
    hint = "levada resync MANIFEST TABLE" if table is None else resync_command(table)
    message = f"{name} {why or 'is no longer at the destination'}"
    return DestinationChanged("destination_table_missing", message, hint=hint)


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
        raise key_changed(name, schema)


def key_changed(name: object, schema: ReplicatedTableSchema, why: str = "") -> NeedsOperator:
    """Return the error for a table whose rows another key identifies, ``why`` it cannot take the new one."""
    return NeedsOperator(
        "key_changed",
        f"the key of {schema.name} is now ({', '.join(c.name for c in schema.key_columns)}),"
        f" but {name} was written with another key" + (f", and {why}" if why else ""),
        hint=resync_hint(schema),
    )
