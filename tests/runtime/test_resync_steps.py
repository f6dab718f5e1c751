"""The steps of a resync with a shadow copy, and the requests to the resync stage."""

from __future__ import annotations

import pytest

from levada.runtime.tables.resync_state import ResyncState, ShadowCopy
from levada.runtime.tables.resync_steps import RESYNC_TRANSITIONS, Step
from levada.runtime.tables.retries import RetryState
from levada.values import Lsn


def test_every_step_has_its_followers_and_can_be_reached_and_left() -> None:
    """No step is missing from the table of transitions, and a resync can always end."""
    assert set(RESYNC_TRANSITIONS) == set(Step)
    reached = {Step.NO_COPY}
    for _ in Step:
        reached |= {after for step in reached for after in RESYNC_TRANSITIONS[step]}
    assert reached == set(Step)
    for step in set(Step) - {Step.NO_COPY, Step.ABANDONED}:
        assert Step.ABANDONED in RESYNC_TRANSITIONS[step]
    assert RESYNC_TRANSITIONS[Step.ABANDONED] == {Step.NO_COPY}


@pytest.mark.parametrize("old", Step)
@pytest.mark.parametrize("new", Step)
def test_only_listed_transitions_are_possible(old: Step, new: Step) -> None:
    """Any other transition raises ValueError and leaves the step."""
    state = ResyncState(step=old)
    if new in RESYNC_TRANSITIONS[old]:
        state.enter(new)
        assert state.step is new
    else:
        with pytest.raises(ValueError, match=f"{new.value} cannot follow {old.value}"):
            state.enter(new)
        assert state.step is old


def test_a_request_begins_with_the_first_step() -> None:
    """The error after which an earlier resync was given up is forgotten, with its attempts."""
    state = ResyncState(retries=RetryState(attempts=3), not_before=7.0)
    state.request()
    assert (state.step, state.outdated, state.given_up) == (Step.WAITING, False, None)
    assert (state.retries, state.not_before) == (RetryState(), 0.0)


@pytest.mark.parametrize("step", [Step.COPYING, Step.CATCHING_UP])
def test_a_second_request_discards_the_copy(step: Step) -> None:
    """The running copy ends early, and the stage begins again after that."""
    state = ResyncState(step=step, running=True, shadow=ShadowCopy(lsn=Lsn(100)))
    state.request()
    assert state.outdated
    assert state.cancelled.is_set()
    assert state.step is step
    state.begin_again()
    assert (state.step, state.outdated, state.shadow) == (Step.WAITING, False, ShadowCopy())


def test_an_abandoned_copy_ends_without_another_step() -> None:
    """It is removed, even if it was outdated too. Only then can another resync be requested."""
    state = ResyncState(step=Step.CATCHING_UP, shadow=ShadowCopy(lsn=Lsn(100)))
    state.restart()
    state.abandon()
    with pytest.raises(ValueError, match="Waiting cannot follow Abandoned"):
        state.begin_again()
    state.finish()
    assert not state.has_copy
    assert not state.outdated
    state.request()
    assert state.step is Step.WAITING
