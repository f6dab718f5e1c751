"""Batches as changes: what the streams of a library user have in common."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from levada.capture.acks import Ack
from levada.capture.interface import Change, ChangeStream
from levada.pgoutput.changes import ChangeBatch, LogicalMessage
from levada.pgoutput.events import Begin, Commit, Event, RelationEvent, batch_events
from levada.values import Lsn

MOVES_NOTHING: Final = Ack(lambda: None)


def last_in_transaction(batch: ChangeBatch) -> Iterator[tuple[Event, bool]]:
    """Walk a batch's rows, truncates and relations; tell of each whether it is its transaction's last."""
    items = tuple(i for i in batch.items if not isinstance(i, LogicalMessage))
    events = (e for e in batch_events(replace(batch, items=items)) if not isinstance(e, Begin | Commit))
    for first, second in itertools.pairwise(itertools.chain(events, [None])):
        assert first is not None
        cut = second is None and batch.in_transaction
        yield first, not cut and (second is None or second.commit_lsn != first.commit_lsn)


class BatchedStream(ChangeStream):
    """A stream whose changes are a view over its batches."""

    def __iter__(self) -> Iterator[Change]:
        for batch in self._decoded():
            for event, last in last_in_transaction(batch):
                # Every session tells the relations anew, so there is nothing to confirm.
                relation = isinstance(event, RelationEvent)
                ack = MOVES_NOTHING if relation else self._ack(event.commit_lsn, last=last)
                yield Change(event, event.commit_lsn, event.tx_ordinal, last, ack)
            self._passed(batch)

    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Yield Arrow columns of whole transactions, with the ack that confirms them."""
        for batch in self._decoded():
            yield batch, self._batch_ack(batch)

    @abstractmethod
    def _decoded(self) -> Iterator[ChangeBatch]:
        """Yield slices that end outside of a transaction, or in one that is too large for a slice."""

    def _ack(self, commit_lsn: Lsn, *, last: bool) -> Ack:
        """Register a change of the transaction that commits at ``commit_lsn``."""
        return MOVES_NOTHING

    def _batch_ack(self, batch: ChangeBatch) -> Ack:
        """Register a batch."""
        return MOVES_NOTHING

    def _passed(self, batch: ChangeBatch) -> None:
        """Take note that every change of the batch was handed out."""
