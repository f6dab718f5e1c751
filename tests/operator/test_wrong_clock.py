"""Times that a clock wrote which was ahead, and is right again: the operator waits for none of them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tests.operator.samples import NOON, at, observed, progress, running

from levada_operator.act.events import REPEAT_AFTER, About, EventAggregator
from levada_operator.act.refusals import RefusalCache
from levada_operator.decide.comparison import status_changed
from levada_operator.decide.conditions import Condition, conditions_json, timestamp
from levada_operator.decide.events import EventDraft
from levada_operator.decide.slot import SlotSample, outdated_since
from levada_operator.kube.interface import RequestFailed
from levada_operator.observe.objects import ObjectKey

AHEAD = pytest.mark.parametrize("wrong", [NOON + timedelta(days=1), NOON + timedelta(days=400)], ids=str)


@AHEAD
def test_what_a_driver_reported_does_not_stay_fresh(wrong: datetime) -> None:
    """Its report is stale until the next one, and so is its sample of the slot."""
    ahead = progress(fetched=(wrong - NOON).total_seconds())
    assert running(report=ahead).fresh_progress is None
    assert running(report=progress(fetched=1)).fresh_progress is not None, "it was fetched while others were observed"
    assert outdated_since(observed(report=ahead), SlotSample(None, wrong), None) == wrong


@AHEAD
def test_a_condition_has_changed_by_now(wrong: datetime) -> None:
    """A time of the future is replaced, because deadlines count from it."""
    before = {"type": "Ready", "status": "True", "lastTransitionTime": timestamp(wrong)}
    [written] = conditions_json([Condition("Ready", True, "Streaming")], [before], 1, NOON)
    assert written["lastTransitionTime"] == timestamp(NOON)
    same = before | {k: v for k, v in written.items() if k != "lastTransitionTime"}
    assert status_changed({"conditions": [same]}, {"conditions": [written]}), "the status is written, whatever else is"
    past = before | {"lastTransitionTime": timestamp(at(-60))}
    [kept] = conditions_json([Condition("Ready", True, "Streaming")], [past], 1, NOON)
    assert kept["lastTransitionTime"] == timestamp(at(-60))


@AHEAD
def test_events_and_refused_objects_are_tried_again(wrong: datetime) -> None:
    """An Event is written again, and an object is applied again, at the usual time or before."""
    draft = EventDraft(ObjectKey("Pipeline", "shop"), "SlotUnhealthy", "lost")
    events, about = EventAggregator(), About("data", "u", draft)
    assert events.event(about, wrong) is not None
    assert events.event(about, NOON) is not None
    assert events.event(about, NOON + REPEAT_AFTER / 2) is None
    refusals, body = RefusalCache(), {"kind": "Service", "metadata": {"name": "shop"}}
    assert refusals.failed("data", body, RequestFailed(403, "no"), wrong) is not None
    assert refusals.known("data", body, wrong) is not None
    assert refusals.known("data", body, NOON) is None
