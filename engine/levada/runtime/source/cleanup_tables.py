"""The tables at the destination that a clean-up drops, or retains and lets others write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from levada import codes
from levada.destinations import Destination
from levada.destinations.answers import perform, require_watermark
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, Transient
from levada.printable import counted
from levada.runtime.config import PipelineConfig
from levada.runtime.destination_errors import destination_errors
from levada.runtime.resources.destination_start import start_up
from levada.runtime.tables.requests import table_target
from levada.schema import TableTarget
from levada.stores import PipelineStore

_NOT_CREATED: Final = frozenset({codes.DESTINATION_NAME_UNUSABLE, codes.TABLE_NOT_OURS})
"""Codes of errors for which the pipeline never created the table at the destination."""


class CleanupDestination(Protocol):
    """The destination of a clean-up, which is opened only if a step needs it.

    ``guards`` is True if others cannot write its tables, see `Capabilities`.
    """

    @property
    def guards(self) -> bool:
        """True if the tables have a guard to remove."""

    def open(self) -> AbstractContextManager[Destination]:
        """Return the destination for a block, which is not started."""


class CleanupTables:
    """The tables that the store has, and the destination while it is open."""

    def __init__(self, config: PipelineConfig, store: PipelineStore, destination: CleanupDestination) -> None:
        self._store = store
        self._closed = destination
        self._destination: Destination | None = None
        self._targets = _targets(config, store)

    @property
    def guarded(self) -> bool:
        """True if the tables have a guard to remove."""
        return self._closed.guards

    @property
    def keeping_rows(self) -> int:
        """The number of tables that keep rows which the source does not have."""
        return sum(target.keeps_rows for target in self._targets)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the destination for the block, unless there are no tables. Raise its error if it cannot be opened."""
        if not self._targets:
            yield
            return
        with self._closed.open() as destination:
            try:
                destination.keep_metadata_in(self._store)
                start_up(destination)
                self._destination = destination
                yield
            finally:
                self._destination = None
                destination.shutdown()

    def drop(self) -> str:
        """Drop the tables of the opened destination. Return a line for the user."""
        destination = self._destination
        if destination is None:
            return "destination: no tables in the store"
        # Asked first, because dropping a missing table is no error.
        dropped, kept = 0, []
        for target in self._targets:
            there = _is_there(destination, target)
            error = drop_table(destination, target, self._store)
            if error is not None:
                kept.append(f"kept: {error.message}")
            dropped += there and error is None
        absent = len(self._targets) - dropped - len(kept)
        missing = [f"{counted(absent, 'table')} had no copy there"] if absent else []
        return ", ".join([f"destination: {counted(dropped, 'table')} dropped", *missing, *kept])

    def release(self) -> str:
        """Let others write the retained tables. Return a line for the user, also if the destination cannot be opened.

        An unreachable destination must not keep the state and the ownership from being released.
        """
        if not self._targets:
            return "destination: no tables in the store"
        try:
            with self.opened():
                return self._release()
        except LevadaError as error:
            if error.code == codes.STALE_EPOCH:
                raise
            return f"destination: its tables stay read-only: {error.message}"

    def _release(self) -> str:
        destination, kept = self._destination, []
        assert destination is not None
        for target in self._targets:
            self._store.require_epoch()
            try:
                with destination_errors(type(destination), "release_table"):
                    perform(destination.release_table, target)
            except NeedsOperator as error:
                kept.append(f"read-only: {error.message}")
        released = counted(len(self._targets) - len(kept), "table")
        return ", ".join([f"destination: {released} may be written by others", *kept])


def drop_table(destination: Destination, target: TableTarget, store: PipelineStore) -> NeedsOperator | None:
    """Drop the table. Return the error if it stays: it belongs to another owner, or was never created.

    Raise StaleEpoch if an engine has started since this process took the pipeline over. Only the store's epoch counts,
    because a restored store has a lower epoch than the tables.
    """
    store.require_epoch()
    try:
        destination.drop_table_for_copy(target)
    except NeedsOperator as error:
        if not isinstance(error, DestinationChanged) and error.code not in _NOT_CREATED:
            raise
        return error
    return None


def _is_there(destination: Destination, target: TableTarget) -> bool:
    """Return True if the destination has a copy of the table, or has no watermarks to find that out.

    Raise Transient for a destination that does not answer now, at which nothing can be dropped either.
    """
    if not destination.capabilities.watermark:
        return True
    try:
        return require_watermark(destination.applied(target.id), destination.applied) is not None
    except Transient:
        raise
    except LevadaError as error:
        # Any other error is one of a table that exists.
        return error.code != codes.DESTINATION_TABLE_MISSING


def _targets(config: PipelineConfig, store: PipelineStore) -> list[TableTarget]:
    store.load_table_schemas()
    store.load_table_controls()
    store.load_fingerprints()
    newest = {schema.id: schema for schema in store.get_table_schemas()}
    return [table_target(store, config, schema) for schema in newest.values()]
