"""The short Jobs: samples of the slot while no driver runs, and dedicated copies."""

from __future__ import annotations

import json
from typing import Any

from tests.operator.decisions import SUSPENDED, conditions, copies, statuses
from tests.operator.samples import (
    at,
    merge,
    owned,
    owner,
    pipeline,
    pod,
    progress,
    running,
    table_document,
    waiting,
    written,
)

from levada_operator.decide.conditions import Condition
from levada_operator.decide.reconcile import reconcile
from levada_operator.decide.slot import slot_sample
from levada_operator.observe.objects import read_job
from levada_operator.observe.observed import Observed


def test_lag_is_sampled_by_a_job_while_no_driver_runs() -> None:
    """A Job is due while no driver runs: suspended, crash-looping or unschedulable.

    None is while the driver reports.
    """
    down = pod(**waiting("driver", "CrashLoopBackOff", exitCode=1))
    for seen, due in (
        (running(), False),
        (running(body=SUSPENDED), False),
        (running(body=SUSPENDED, pods=(), report=None), True),
        (running(pods=(down,), report=None), True),
        (running(pods=(down,), report=None, body=pipeline(spec={"health": {"lagProbeSeconds": 0}})), False),
    ):
        assert ("Job" in {b["kind"] for b in reconcile(seen).apply}) is due


def test_sample_of_a_job_is_told() -> None:
    """The message of the Job's pod becomes status.slot. A slot that is gone is an alarm."""
    sample = {"name": "levada_shop", "lagBytes": 5 << 30, "retainedBytes": 6 << 30, "walStatus": "extended",
              "safeWalBytes": None, "active": False, "sampledAt": "2026-01-31T11:59:00+00:00"}  # fmt: skip

    def ended(message: str) -> dict[str, Any]:
        state = {"name": "lag", "state": {"terminated": {"exitCode": 0, "message": message}}}
        return {"phase": "Succeeded", "containerStatuses": [state]}

    probe = pod("lag", "shop-lag-1-x", **ended(json.dumps(sample)))
    plan = reconcile(running(body=SUSPENDED, pods=(probe,), report=None))
    status = next(w.status for w in plan.statuses if w.key.kind == "Pipeline")
    assert (status["slot"]["lagBytes"], status["display"]["lag"]) == (5 << 30, "5Gi")
    gone = pod("lag", "shop-lag-2-x", **ended(json.dumps(dict.fromkeys(sample) | {"name": "levada_shop"})))
    body = merge(SUSPENDED, {"status": {"slot": {"sampledAt": "2026-01-31T11:00:00Z"}}})
    assert conditions(running(body=body, pods=(gone,), report=None))["SlotHealthy"].reason == "Missing"


def test_the_newest_sample_counts() -> None:
    """A Job that sampled before the driver's last report shows less than that report does."""
    sample = {"name": "levada_shop", "lagBytes": 5 << 30, "retainedBytes": 6 << 30, "walStatus": "extended"}
    state = {"name": "lag", "state": {"terminated": {"exitCode": 0, "message": json.dumps(sample)}}}
    probe = pod("lag", "shop-lag-1-x", phase="Succeeded", containerStatuses=[state])
    for reported, lag in ((-500, 1_258_291), (-900, 5 << 30)):
        found = slot_sample(running(body=SUSPENDED, pods=(probe,), report=progress(fetched=reported)))
        assert found is not None
        assert found.report is not None
        assert found.report.lag_bytes == lag


def test_old_sample_is_unknown() -> None:
    """A sample that is older than twice its interval counts no more: the status has its time and no figures."""
    sample = {"name": "levada_shop", "lagBytes": 5 << 30, "walStatus": "reserved", "sampledAt": "2026-01-31T11:50:00Z"}
    state = {"name": "lag", "state": {"terminated": {"exitCode": 0, "message": json.dumps(sample)}}}
    probe = pod("lag", "shop-lag-1-x", phase="Succeeded", containerStatuses=[state])
    of_driver = {"slot": {"sampledAt": "2026-01-31T11:57:00.000+00:00"}, "at": "2026-01-31T12:00:00.000+00:00"}
    for seen, known in (
        (running(body=SUSPENDED, pods=(probe,), report=None), True),
        (running(body=SUSPENDED, pods=(probe,), report=None, now=at(1)), False),
        (running(), True),
        (running(report=progress(**of_driver)), False),
        (running(pods=(), report=progress(), now=at(590)), True),
        (running(pods=(), report=progress(), now=at(610)), False),
    ):
        status, _ = statuses(seen)
        healthy = conditions(seen)["SlotHealthy"]
        assert ("lagBytes" in status["slot"], healthy.status is True) == (known, known)
        assert (status["display"]["lag"] == "unknown") is not known
        assert "sampledAt" in status["slot"]
        assert known or "sampled last at 2026-01-31T11:5" in healthy.message
    slot = {"name": "levada_shop", "lagBytes": 1, "active": True, "sampledAt": "2026-01-31T11:40:00Z"}
    body = merge(SUSPENDED, {"status": {"slot": slot}})
    assert statuses(running(body=body, pods=(), report=None))[0]["slot"].keys() == {"name", "sampledAt"}
    assert statuses(running(body=body, report=None))[0]["slot"]["lagBytes"] == 1


def test_limits_are_compared_while_no_driver_runs() -> None:
    """The WAL of a suspended Pipeline is compared by the Job's sample. An Event has the SQL that drops the slot."""
    guard = {
        "retainedWal": {"warn": "5Gi", "releaseSlot": "7Gi"},
        "retainedWalPercent": {"warn": 50, "parkSlowest": 70},
    }
    body = merge(SUSPENDED, {"spec": {"guard": guard}})

    def sampled(retained: int, **before: Any) -> Observed:
        sample = {"name": "levada_shop", "lagBytes": 1, "retainedBytes": retained << 30, "walStatus": "extended",
                  "safeWalBytes": 4 << 30, "active": False, "sampledAt": "2026-01-31T11:59:00+00:00"}  # fmt: skip
        state = {"name": "lag", "state": {"terminated": {"exitCode": 0, "message": json.dumps(sample)}}}
        probe = pod("lag", "shop-lag-1-x", phase="Succeeded", containerStatuses=[state])
        return running(
            body=merge(body, {"status": {"conditions": [before]}} if before else {}),
            owned=owned(owner(suspend=True, guard=guard), running=False),
            pods=(probe,),
            report=None,
        )

    assert conditions(sampled(3))["WithinLimits"] == Condition("WithinLimits", True, "NoLimitPassed")
    found = conditions(sampled(6))["WithinLimits"]
    assert found.reason == "Warn"
    assert found.message.startswith("passed: guard.retainedWal.warn (5Gi), guard.retainedWalPercent.warn (50%); no dr")
    assert found.message.endswith(": SELECT pg_drop_replication_slot('levada_data__shop')")
    assert conditions(sampled(10))["WithinLimits"].reason == "ReleaseSlot"
    stored = {"type": "WithinLimits", "status": "True", "reason": "NoLimitPassed", "message": ""}
    assert [e.reason for e in reconcile(sampled(6, **stored)).events if e.reason == "LimitPassed"] == ["LimitPassed"]
    staged = {"type": "WithinLimits", "status": "False", "reason": "Warn", "message": "passed: guard.staged.warn (1Gi)"}
    assert conditions(sampled(3, **staged))["WithinLimits"].reason == "Warn"


def test_ordered_copy_gets_one_job() -> None:
    """Each copy that the driver orders gets one Job, also after that Job has ended. Another order gets another Job."""
    told = progress(table_document(phase="DataSync", copyOrder="first"), table_document("events"))
    (job,) = copies(running(report=told))
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][:5] == ["levada", "copy", "/etc/levada/pipeline.yaml", "--table", "public.orders"]
    assert {"name": "LEVADA_COPY_ORDER", "value": "first"} in container["env"]
    made = job | {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    made["metadata"] |= {"creationTimestamp": written(at(-60))}
    assert copies(running(report=told, jobs=(read_job(made),))) == []
    again = progress(table_document(phase="DataSync", copyOrder="second"))
    (other,) = copies(running(report=again, jobs=(read_job(made),)))
    assert other["metadata"]["name"] != job["metadata"]["name"]


def test_copy_is_not_begun_on_old_news() -> None:
    """An old report of a driver orders no copy."""
    told = progress(table_document(phase="DataSync", copyOrder="first"), fetched=-600)
    assert copies(running(report=told)) == []
