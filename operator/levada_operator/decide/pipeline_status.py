"""A Pipeline's status: the conditions, and rounded numbers. Fields without a current value keep their last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC
from typing import Any, Final

from levada.values import age_of
from levada_operator.decide.acceptance import Acceptance
from levada_operator.decide.conditions import Condition, conditions_json, shortened, timestamp
from levada_operator.decide.phase import pipeline_phase
from levada_operator.decide.pipeline_conditions import errored_tables
from levada_operator.decide.rounding import rounded_bytes, size_text
from levada_operator.decide.slot import longest_age, outdated_since, slot_sample
from levada_operator.decide.table_phase import table_phases, unreported_since
from levada_operator.names import driver_pod
from levada_operator.observe.objects import read_time
from levada_operator.observe.observed import Observed

MAX_ATTENTION: Final = 20
_MAX_ATTENTION_TEXT: Final = 256


def pipeline_status(observed: Observed, acceptance: Acceptance, conditions: Mapping[str, Condition]) -> dict[str, Any]:
    """Return the complete status. Every field that `kubectl get` prints is set from the first status on."""
    pipeline, before = observed.pipeline, observed.pipeline.status
    slot = _slot(observed, acceptance)
    tables = _tables(observed)
    status = {
        "observedGeneration": pipeline.generation,
        "phase": pipeline_phase(conditions, deleting=pipeline.deleting_since is not None).value,
        "display": {
            "tables": f"{tables.get('byPhase', {}).get('Ready', 0)}/{tables.get('total', 0)}",
            "lag": _size(slot, "lagBytes"),
            "retained": _size(slot, "retainedBytes"),
        },
        "conditions": conditions_json(
            conditions.values(), before.get("conditions", ()), pipeline.generation, observed.now
        ),
        "driver": _driver(observed, acceptance),
        "slot": slot,
        "tables": tables,
        **_cuts(observed),
        **({"cleanup": before["cleanup"]} if before.get("cleanup") else {}),
        **({"operator": observed.defaults.identity} if observed.defaults.identity else {}),
    }
    progress_at = timestamp(observed.report.fetched_at) if observed.report else before.get("progressAt")
    return status | ({"progressAt": progress_at} if progress_at else {})


def _driver(observed: Observed, acceptance: Acceptance) -> dict[str, Any]:
    before = observed.pipeline.status.get("driver", {})
    pod, progress = observed.driver, observed.progress
    image = acceptance.manifests.pipeline.spec.driver.image if acceptance.manifests else ""
    driver: dict[str, Any] = {
        "pod": driver_pod(observed.pipeline.name),
        "image": image or observed.defaults.image,
        "epoch": progress.epoch if progress else before.get("epoch", 0),
        "restarts": pod.restarts if pod else 0,
    }
    started = timestamp(progress.started_at.astimezone(UTC)) if progress else before.get("startedAt")
    if started:
        driver["startedAt"] = started
    ended = pod.last_termination if pod else None
    if ended is not None:
        last: dict[str, Any] = {"reason": ended.reason, "exitCode": ended.exit_code, "code": ended.code}
        driver["lastTermination"] = last | ({"at": ended.at} if ended.at else {})
    elif "lastTermination" in before:
        driver["lastTermination"] = before["lastTermination"]
    return driver


def _slot(observed: Observed, acceptance: Acceptance) -> dict[str, Any]:
    name = acceptance.manifests.pipeline.slot_name if acceptance.manifests else ""
    before = dict(observed.pipeline.status.get("slot", {})) | {"name": name}
    sample = slot_sample(observed)
    report = sample.report if sample else None
    if sample is None or report is None or report.sampled_at is None:
        return _without_figures(before) if _is_outdated(observed, acceptance, before) else before
    slot = {
        "name": name,
        "lagBytes": rounded_bytes(report.lag_bytes),
        "retainedBytes": rounded_bytes(report.retained_bytes),
        "walStatus": report.wal_status,
        "safeWalBytes": rounded_bytes(report.safe_wal_bytes),
        "active": report.active,
        "sampledAt": timestamp(report.sampled_at.astimezone(UTC)),
    }
    known = {key: value for key, value in slot.items() if value is not None}
    outdated = outdated_since(observed, sample, acceptance.manifests) is not None
    return _without_figures(known) if outdated else known


def _is_outdated(observed: Observed, acceptance: Acceptance, before: Mapping[str, Any]) -> bool:
    """Return True if the stored figures are too old to count. A ready driver reports new ones within seconds."""
    asks = observed.driver is not None and observed.driver.ready
    if asks or "sampledAt" not in before:
        return False
    return age_of(read_time(before["sampledAt"]), observed.now) > longest_age(observed, acceptance.manifests)


def _without_figures(slot: Mapping[str, Any]) -> dict[str, Any]:
    return {key: slot[key] for key in ("name", "sampledAt")}


def _size(slot: Mapping[str, Any], field: str) -> str:
    outdated = "sampledAt" in slot and slot.keys() <= {"name", "sampledAt"}
    return "unknown" if outdated else size_text(slot.get(field))


def _cuts(observed: Observed) -> dict[str, Any]:
    """Return the field of the newest complete cut, without the field if there is none."""
    if observed.progress is None:
        before = observed.pipeline.status.get("cuts")
        return {"cuts": before} if before else {}
    last = observed.progress.cuts.last_complete
    if last is None or last.at is None:
        return {}
    return {"cuts": {"lastComplete": {"name": last.name, "lsn": str(last.lsn), "at": timestamp(last.at)}}}


def _tables(observed: Observed) -> dict[str, Any]:
    progress = observed.progress
    if progress is None:
        return _last_known_tables(observed)
    counts = Counter(phase.value for _, phase in table_phases(observed))
    attention = [
        {
            "name": f"{t.schema}.{t.name}",
            "phase": str(t.phase),
            "reason": t.error.code if t.error else "",
            "message": shortened(t.error.reason if t.error else "", _MAX_ATTENTION_TEXT),
        }
        for t in errored_tables(progress.tables)[:MAX_ATTENTION]
    ]
    tables: dict[str, Any] = {"total": len(progress.tables), **_by_phase(counts)}
    return tables | ({"attention": attention} if attention else {})


def _by_phase(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the field of the counts, without the field if there are none.

    If an empty map is applied where there were counts, the API server makes null of it, which it then refuses.
    """
    return {"byPhase": dict(sorted(counts.items()))} if counts else {}


def _last_known_tables(observed: Observed) -> dict[str, Any]:
    """Return the stored counts. Tables that were Ready count as Stale while no driver reports."""
    tables: dict[str, Any] = observed.pipeline.status.get("tables", {"total": 0})
    if unreported_since(observed) is None:
        return tables
    stored: Mapping[str, int] = tables.get("byPhase", {})
    counts = Counter({"Stale" if phase == "Ready" else phase: 0 for phase in stored})
    for phase, count in stored.items():
        counts["Stale" if phase == "Ready" else phase] += count
    return tables | _by_phase(counts)
