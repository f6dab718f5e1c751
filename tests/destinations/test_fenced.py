"""An older watermark, an older driver and another key are refused by every destination with state."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.destinations.orders import ORDERS

from levada.destinations.fenced import TableState, TableStates, check_same_table, require_epoch
from levada.errors import DestinationChanged, NeedsOperator, StaleEpoch
from levada.values import Lsn, TableId, TableMode


@pytest.mark.parametrize("found", [Lsn(99), None])
def test_a_watermark_that_has_moved_back_is_an_error(found: Lsn | None) -> None:
    """The changes between the two watermarks may not be staged any more. One that was forgotten may be any."""
    state = TableState()
    state.saw("orders", Lsn(50), "hint")
    state.saw("orders", Lsn(100), "hint")
    state.saw("orders", Lsn(100), "hint")
    with pytest.raises(DestinationChanged) as refused:
        state.saw("orders", found, "levada resync MANIFEST public.orders")
    assert (refused.value.code, refused.value.hint) == ("table_rolled_back", "levada resync MANIFEST public.orders")
    state.forget()
    state.saw("orders", found, "hint")
    assert state.seen == found


def test_an_older_driver_is_refused() -> None:
    """A driver writes tables of its own epoch and of older ones. A clean-up has no epoch."""
    require_epoch(7, 7)
    require_epoch(7, 8)
    require_epoch(7, None)
    with pytest.raises(StaleEpoch):
        require_epoch(7, 6)


def test_a_table_has_one_state() -> None:
    """It is the same one for every caller, and another one for another table."""
    states = TableStates(lambda _: TableState())
    assert states.of(TableId(1)) is states.of(TableId(1))
    assert states.of(TableId(1)) is not states.of(TableId(2))


def test_another_mode_or_key_needs_a_copy() -> None:
    """A changelog has no key, so it goes on whatever the key is."""
    upsert, changelog = TableMode.UPSERT, TableMode.CHANGELOG
    check_same_table("orders", ORDERS, upsert, made_as=upsert, same_key=True)
    check_same_table("orders", ORDERS, changelog, made_as=changelog, same_key=False)
    for made_as, same_key, code in (
        (changelog, True, "mode_changed"),
        (None, True, "mode_changed"),
        (upsert, False, "key_changed"),
    ):
        with pytest.raises(NeedsOperator) as refused:
            check_same_table("orders", replace(ORDERS, key=(1,)), upsert, made_as=made_as, same_key=same_key)
        assert refused.value.code == code
        assert "orders" in refused.value.message
