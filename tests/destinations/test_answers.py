"""A destination's answers are believed only if they are of their type."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

from levada.destinations.answers import perform, require_durability, require_flag, require_watermark
from levada.errors import NeedsOperator
from levada.schema import Kind, TableTarget
from levada.segments.batch import DurabilityRequest
from levada.testing import column, table
from levada.values import Durability, Lsn, Watermark

MARK = Watermark("shop", 1, Lsn(8))


class Mistaken:
    """A destination with mistakes in its methods."""

    def write_events(self) -> Any:
        """Forget the answer."""

    async def drop_table_for_copy(self) -> None:
        """Do nothing when it is called."""


@pytest.mark.parametrize("answer", [None, True, "durable", "DURABLE", 0, MARK])
def test_a_write_that_does_not_answer_is_refused(answer: object) -> None:
    """Only a Durability is one. The message names class, method and type, and never the value."""
    with pytest.raises(NeedsOperator) as refused:
        require_durability(answer, Mistaken().write_events)
    assert refused.value.code == "destination_contract"
    assert "Mistaken.write_events returned" in refused.value.message
    assert ("None" if answer is None else type(answer).__name__) in refused.value.message
    assert "return Durability.DURABLE" in refused.value.hint


def test_right_answers_pass() -> None:
    """A result of the declared type passes unchanged."""
    method = Mistaken().write_events
    assert require_durability(Durability.ACCEPTED, method) is Durability.ACCEPTED
    assert require_flag(False, method) is False
    assert require_watermark(None, method) is None
    assert require_watermark(MARK, method) is MARK
    for wrong in (None, 1, "yes"):
        with pytest.raises(NeedsOperator):
            require_flag(wrong, method)
    with pytest.raises(NeedsOperator):
        require_watermark(Lsn(8), method)


def test_a_coroutine_is_refused_and_closed() -> None:
    """An ``async def`` does nothing when it is called. The hint says so, and no warning of Python's comes after it."""
    with warnings.catch_warnings():
        # Other warnings may come from the garbage of earlier tests.
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(NeedsOperator) as refused:
            perform(Mistaken().drop_table_for_copy)
        gc.collect()
    assert refused.value.code == "destination_contract"
    assert "def instead of async def" in refused.value.hint


def test_a_request_for_durability_is_recognisable() -> None:
    """It has its tables and no changes of them."""
    schema = table(column(1, "id", Kind.INT8))
    request = DurabilityRequest([TableTarget.of(schema)], Lsn(8))
    assert request.only_asks
    assert list(request) == []
    events = request.changes(schema.id)
    assert (events.files, events.truncates, events.versions, events.rows) == ((), (), (schema,), 0)
    assert events.read() is None
