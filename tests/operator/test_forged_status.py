"""A status that was forged, lost, or restored from a backup. Nothing in it decides what is done to source or lake."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.samples import (
    NOON,
    deleting,
    job,
    merge,
    observed,
    owned,
    owner,
    pipeline,
    pod,
    progress,
    running,
    table_document,
    table_sync,
    upgraded,
)

from levada_operator.crds.status import PIPELINE_STATUS, TABLE_SYNC_STATUS
from levada_operator.decide.plan import Plan
from levada_operator.decide.reconcile import Memos, reconcile
from levada_operator.names import READY
from levada_operator.observe.objects import ObjectKey, OwnedObjects, Refusal
from levada_operator.observe.observed import Observed
from levada_operator.observe.stored_status import readable_status

_STOPPED = owned(owner(), running=False)
_MANUAL = {"approval": "Manual"}
_SMALL = _MANUAL | {"approvalAbove": "2Gi"}
_LOST = OwnedObjects({key: body for key, body in _STOPPED.bodies.items() if key.kind != "ConfigMap"})
_TWO = table_sync(), table_sync("events")
_REPORT = progress(table_document(), table_document("events"))
_ENDS = (Refusal(ObjectKey("Job", "shop-cleanup"), "no", namespace_terminating=True),)

_MEMOS = Memos()
"""One for all, as an operator has: most of a pass is the text of a manifest, and no status changes it."""

_DRIVER = ObjectKey("StatefulSet", "shop-driver")
_SCALED_DOWN = dict(owned(owner(suspend=True, **_MANUAL), running=False).bodies)
_SCALED_DOWN[_DRIVER] = merge(dict(_SCALED_DOWN[_DRIVER]), {"metadata": {"annotations": {READY: "0"}}})
_SUSPENDED = OwnedObjects(_SCALED_DOWN)

SEEN = {
    "it streams": running(*_TWO, report=_REPORT),
    "no pod is there yet": running(pods=(), report=None),
    "it is new": observed(),
    "it is suspended": running(
        body=pipeline(spec={"suspend": True}), owned=owned(owner(suspend=True), running=False), pods=(), report=None
    ),
    "another operator's version": upgraded(),
    "a change restarts the driver": running(body=pipeline(spec={"driver": {"image": "other:2"}})),
    "a change copies again": running(
        *_TWO, body=pipeline(spec=_MANUAL | {"onUnrepresentable": "Text"}), owned=owned(owner(**_MANUAL)),
        report=_REPORT,
    ),
    "a change copies again while it is suspended": running(
        *_TWO, body=pipeline(spec=_MANUAL | {"suspend": True, "onUnrepresentable": "Text"}),
        owned=owned(owner(suspend=True, **_MANUAL), running=False), pods=(), report=None,
    ),
    "a table's change copies again while it is suspended": running(
        table_sync(mode="Changelog"), table_sync("events"),
        body=pipeline(spec=_MANUAL | {"suspend": True}), owned=_SUSPENDED, pods=(), report=None,
    ),
    "a table is refused while it is suspended": running(
        table_sync(copy={"driver": "Dedicated", "executors": 2}),
        body=pipeline(spec=_MANUAL | {"suspend": True}), owned=_SUSPENDED, pods=(), report=None,
    ),
    "a small change copies again": running(
        *_TWO, body=pipeline(spec=_SMALL | {"onUnrepresentable": "Text"}), owned=owned(owner(**_SMALL)),
        report=_REPORT,
    ),
    "a large change copies again": running(
        *_TWO, body=pipeline(spec=_SMALL | {"approvalAbove": "1Gi", "onUnrepresentable": "Text"}),
        owned=owned(owner(**_SMALL)), report=_REPORT,
    ),
    "a small change copies again while it is suspended": running(
        *_TWO, body=pipeline(spec=_SMALL | {"suspend": True, "onUnrepresentable": "Text"}),
        owned=owned(owner(suspend=True, **_SMALL), running=False), pods=(), report=None,
    ),
    "a table is gone": running(*_TWO),
    "the driver is being stopped": deleting(),
    "the clean-up begins": deleting(owned=_STOPPED, pods=()),
    "the clean-up runs": deleting(owned=_STOPPED, pods=(), jobs=(job(),)),
    "the clean-up failed": deleting(owned=_STOPPED, pods=(), jobs=(job(failed=True),)),
    "the clean-up begins without the manifest": deleting(owned=_LOST, pods=()),
}  # fmt: skip
"""The state of a Pipeline when its status is forged."""


_VALUES: dict[str, tuple[Any, ...]] = {"integer": (0, 1, 2**60), "boolean": (True, False)}
_TIMES = "2001-01-01T00:00:00Z", NOON.isoformat(), "2099-01-01T00:00:00Z"


def _forged(schema: dict[str, Any], nth: int) -> Any:
    """Return a value that a schema admits, with the nth value in each of its fields."""
    if "properties" in schema:
        return {name: _forged(its, nth) for name, its in schema["properties"].items() if name != "conditions"}
    if "items" in schema:
        return [_forged(schema["items"], nth)] * (nth % 2)
    if schema["type"] == "object":
        return {"Ready": _forged(schema["additionalProperties"], nth)}
    usual = _TIMES if schema.get("format") == "date-time" else _VALUES.get(schema["type"], ("forged", "0/1", ""))
    values = schema.get("enum", usual)
    return values[nth % len(values)]


def _each(schema: dict[str, Any], true: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the true status with all of its fields forged, one condition forged, or one field lost."""
    yield {}
    for name in true:
        yield {key: value for key, value in true.items() if key != name}
    for nth in range(12):
        yield _forged(schema, nth) | {"conditions": true.get("conditions", [])}
    for forged in true.get("conditions", ()):
        others = [known for known in true["conditions"] if known != forged]
        for status in {"True", "False"} - {forged["status"]}:
            yield true | {"conditions": [*others, forged | {"status": status, "lastTransitionTime": _TIMES[0]}]}


def _acts(seen: Observed) -> tuple[Any, ...]:
    """Return what the plan does outside of the status."""
    plan: Plan = reconcile(seen, _MEMOS)
    return plan.apply, plan.delete, plan.release, plan.rehearse, plan.held, bool(plan.abandoned), plan.takes_turn


def _with(seen: Observed, of_pipeline: dict[str, Any], of_table: dict[str, Any] | None = None) -> Observed:
    tables = seen.table_syncs
    if of_table is not None and tables:
        tables = (replace(tables[0], status=readable_status(of_table)), *tables[1:])
    return replace(seen, pipeline=replace(seen.pipeline, status=readable_status(of_pipeline)), table_syncs=tables)


def _settled(seen: Observed) -> Observed:
    """Return the same with the status that the operator writes."""
    written = {write.key: dict(write.status) for write in reconcile(seen, _MEMOS).statuses}
    tables = tuple(replace(t, status=written.get(ObjectKey("TableSync", t.name), {})) for t in seen.table_syncs)
    status = written.get(ObjectKey("Pipeline", seen.pipeline.name), {})
    return replace(seen, pipeline=replace(seen.pipeline, status=status), table_syncs=tables)


@pytest.mark.parametrize("name", SEEN)
def test_forged_status_changes_no_act(name: str) -> None:
    """With any field of the status forged or lost the operator applies, deletes and releases the same objects."""
    seen = _settled(SEEN[name])
    usual, true = _acts(seen), dict(seen.pipeline.status)
    for status in _each(PIPELINE_STATUS, true):
        assert _acts(_with(seen, status)) == usual, status
    if seen.table_syncs:
        for status in _each(TABLE_SYNC_STATUS, dict(seen.table_syncs[0].status)):
            assert _acts(_with(seen, true, status)) == usual, status


def test_report_of_the_driver_counts_in_a_namespace_that_is_being_deleted() -> None:
    """Only there no Job can run. Elsewhere the clean-up runs, whatever status.cleanup says."""
    body = pipeline(status={"cleanup": "slot levada_data__shop: dropped"})
    assert not reconcile(deleting(body=body, owned=_STOPPED, pods=()), Memos()).release
    assert reconcile(deleting(body=body, owned=_STOPPED, pods=(), refusals=_ENDS), Memos()).release
    assert not reconcile(deleting(body=body, owned=_STOPPED, pods=(pod(),)), Memos()).release
