"""The wait for a state of the pipeline's progress."""

from __future__ import annotations

import pytest
from tests.runtime import samples

from levada.errors import NeedsOperator
from levada.runtime.report.catch_up import wait_for_progress
from levada.status import Progress


def test_the_progress_for_which_it_was_waited_is_returned() -> None:
    """Each look takes the newest progress."""
    snapshots = [samples.progress(), samples.progress(samples.table(rows_applied=101))]
    newest = snapshots[1]

    def done(progress: Progress) -> bool:
        return progress is newest

    assert wait_for_progress("shop", done, lambda: snapshots.pop(0), lambda: False, None) is newest
    assert snapshots == []


def test_a_pipeline_that_ends_is_not_waited_for() -> None:
    """A stop by another thread ends the wait with an error that names the pipeline."""
    with pytest.raises(NeedsOperator, match="pipeline shop was stopped") as raised:
        wait_for_progress("shop", lambda p: False, samples.progress, lambda: True, None)
    assert raised.value.code == "pipeline_stopped"


def test_the_wait_ends_at_its_deadline() -> None:
    """The progress is looked at once more before that."""
    with pytest.raises(TimeoutError, match="pipeline shop did not get there in 0 s"):
        wait_for_progress("shop", lambda p: False, samples.progress, lambda: False, 0)
