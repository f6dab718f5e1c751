"""Rollback: a change whose pod does not become Ready goes back to the last spec whose pod did.

The StatefulSet's annotations keep that spec, since when another one is tried, and what was rolled back. They change in
the same write as the pod template, so an operator that starts in between finds both or neither.

Only fields that restart the driver go back. A change that the engine may have begun to apply to tables stays.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from levada import codes
from levada.spec import Change, Manifests, PipelineSpec
from levada.spec.model import changed_fields, keep_fields
from levada.spec.running import Rollback
from levada_operator.decide.acceptance import Acceptance, Rejection, all_changes
from levada_operator.decide.conditions import Condition, shortened
from levada_operator.decide.pipeline_conditions import driver_available
from levada_operator.decide.rollout import is_former_pod
from levada_operator.desired.manifest import (
    accepted_manifest,
    is_valid,
    pipeline_record,
    recorded_pipeline,
    restart_digest,
    restart_fields_digest,
)
from levada_operator.desired.pod import GRACE_S
from levada_operator.memo import Memo
from levada_operator.names import (
    CHANGED_AT,
    DRIVER_CONTAINER,
    READY,
    READY_IMAGE,
    READY_SPEC,
    REJECTED,
    RESTART_ON,
    driver_name,
)
from levada_operator.observe.objects import Body, PipelineKey, read_time
from levada_operator.observe.observed import Observed

_MAX_REASON: Final = 1500
_MAX_FIELDS: Final = 10
_SKEW: Final = timedelta(seconds=60)
_FIRST_POD: Final = timedelta(seconds=GRACE_S + 60)
"""Time after a change in which its first pod is expected. The former pod ends before that."""
_POD_LEVEL: Final = re.compile(r"^spec\.(driver|executor|apply|memory|restartNonce)\b|SecretRef\b")
"""Fields that have no effect on tables, also if the engine has run with them."""
_NEVER: Final = re.compile(r"^spec\.staging\b")
"""A field that does not go back: what is staged at the new place would be lost."""
_AWAY: Final = frozenset((
    codes.SOURCE_UNREACHABLE, codes.SOURCE_SILENT, codes.SOURCE_STARTING, codes.SOURCE_STOPPING,
    codes.SOURCE_OUT_OF_RESOURCES, codes.TOO_MANY_CONNECTIONS, codes.STORE_UNREACHABLE, codes.DESTINATION_UNREACHABLE,
    codes.DESTINATION_UNAVAILABLE,
))  # fmt: skip
"""Codes of errors of a server that is away, which a change of the spec causes only by the fields below."""
_WAY: Final = re.compile(r"^spec\.(source|store|destination|staging|driver\.(podTemplate|serviceAccount))\b")
"""Fields that decide which servers the driver connects to, and from where."""
_CONNECTED_FOR: Final = timedelta(seconds=60)
"""Time in which a driver whose stream is open becomes Ready."""


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """The annotations of a driver's StatefulSet. Each may have been changed by hand.

    ``runs`` is the digest of the spec that its pod has. ``ready`` is that of the last one whose pod became Ready. An
    upgrade of the operator changes ``ready_image`` alone.
    """

    runs: str = ""
    ready: str = ""
    ready_spec: str = ""
    ready_image: str = ""
    changed_at: datetime | None = None
    rejection: Rejection | None = None


def roll_back(observed: Observed, acceptance: Acceptance, known: Memo[PipelineKey, Manifests | None]) -> Acceptance:
    """Return the acceptance without the fields that were rolled back, or are now. ``known`` has the last results."""
    manifests, before, live = acceptance.manifests, acceptance.before, _stateful_set(observed)
    if manifests is None or before is None or live is None or manifests.pipeline.spec.rollback is Rollback.NONE:
        return acceptance
    record = read_record(live)
    if (rejection := record.rejection) is not None:
        if not acceptance.condition.status:
            return replace(acceptance, rejection=rejection)
        inputs = before, manifests, rejection
        former = known.get(observed.pipeline.key, inputs, partial(_again, *inputs))
        if former is not None:
            return _without(acceptance, before, former, rejection)
    cause = _failure(observed, acceptance, manifests, record, live)
    ready = recorded_pipeline(record.ready_spec) if cause else None
    if ready is None or restart_digest(manifests) != record.runs:
        return acceptance
    if _is_away(observed) and not any(_WAY.search(p) for p in changed_fields(ready.spec, manifests.pipeline.spec)):
        return acceptance
    former = _former(ready.spec, manifests, began=observed.driver is not None and observed.driver.began)
    if former is None:
        return acceptance
    reason = f"{_listed(changed_fields(former.pipeline.spec, manifests.pipeline.spec))}: {cause}"
    rejection = Rejection(restart_fields_digest(manifests.pipeline.spec), shortened(reason, _MAX_REASON))
    return _without(acceptance, before, former, rejection)


def with_record(
    desired: dict[str, Any], observed: Observed, acceptance: Acceptance, *, held: bool = False
) -> dict[str, Any]:
    """Return a desired object. The StatefulSet has the record of the last spec that became Ready.

    With ``held`` the newest spec is not tried, so what was rolled back before stays known.
    """
    live = _stateful_set(observed)
    if live is None or desired["kind"] != "StatefulSet":
        return desired
    record, wanted = read_record(live), _restart_on(desired)
    rejection = record.rejection if held else acceptance.rejection
    proven = _has_been_ready(observed, live)
    ready, image = (record.runs, _image(live)) if proven else (record.ready, record.ready_image)
    written = {READY: ready, READY_IMAGE: image, REJECTED: "" if rejection is None else _json(rejection)}
    if ready and wanted != ready:
        written[READY_SPEC] = _ready_spec(observed, acceptance, record, ready, live)
        if desired["spec"]["replicas"]:
            written[CHANGED_AT] = _written(_tried_since(observed, record, wanted, live))
    annotations = desired["metadata"]["annotations"] | {name: value for name, value in written.items() if value}
    return {**desired, "metadata": {**desired["metadata"], "annotations": annotations}}


def begins(observed: Observed, acceptance: Acceptance) -> bool:
    """Return True if the StatefulSet still has the change that is rolled back."""
    live = _stateful_set(observed)
    return acceptance.rejection is not None and live is not None and read_record(live).rejection is None


def read_record(live: Body) -> DriverRecord:
    """Read the annotations of a StatefulSet."""
    annotations = live["metadata"].get("annotations") or {}
    return DriverRecord(
        runs=_restart_on(live),
        ready=annotations.get(READY, ""),
        ready_spec=annotations.get(READY_SPEC, ""),
        ready_image=annotations.get(READY_IMAGE, ""),
        changed_at=_time(annotations.get(CHANGED_AT, "")),
        rejection=_rejection(annotations.get(REJECTED, "")),
    )


def _again(before: Manifests, manifests: Manifests, rejection: Rejection) -> Manifests | None:
    """Return the manifests without a change that was rolled back before, or None if it is another change."""
    if restart_fields_digest(manifests.pipeline.spec) != rejection.digest:
        return None
    return _former(before.pipeline.spec, manifests, began=False)


def _former(former: PipelineSpec, manifests: Manifests, *, began: bool) -> Manifests | None:
    """Return the manifests with former values of what goes back, or None if nothing does.

    ``began`` is True if the engine may have run with the change. A mixture that breaks a rule does not count.
    """

    def goes_back(path: str) -> bool:
        return not _NEVER.search(path) and bool(not began or _POD_LEVEL.search(path))

    spec = keep_fields(former, manifests.pipeline.spec, Change.RESTART, goes_back)
    mixed = replace(manifests, pipeline=manifests.pipeline.model_copy(update={"spec": spec}))
    return mixed if spec != manifests.pipeline.spec and is_valid(mixed) else None


def _without(acceptance: Acceptance, before: Manifests, former: Manifests, rejection: Rejection) -> Acceptance:
    """Return the acceptance of the former manifests. An error in the newest spec is reported first."""
    condition = acceptance.condition
    if condition.status and acceptance.manifests is not None:
        pipeline = acceptance.manifests.pipeline
        nonce = json.dumps({"spec": {"restartNonce": pipeline.spec.restart_nonce + 1}})
        where = f"{pipeline.metadata.name} -n {pipeline.metadata.namespace}"
        command = f"kubectl patch pipeline {where} --type=merge -p '{nonce}'"
        text = f"{rejection.reason}; the driver has the former values; correct them, or to try these again: {command}"
        condition = Condition("Accepted", False, "RolledBack", text)
    changes = all_changes(before, former)
    return replace(acceptance, manifests=former, condition=condition, changes=changes, rejection=rejection)


def _failure(observed: Observed, acceptance: Acceptance, manifests: Manifests, record: DriverRecord, live: Body) -> str:
    """Return why the pod of a change did not become Ready in time, or an empty string."""
    spec, pod, since = manifests.pipeline.spec, observed.driver, record.changed_at
    if since is None or since > observed.now or spec.suspend or observed.pipeline.deleting_since is not None:
        return ""
    status = live.get("status") or {}
    if status.get("observedGeneration", 0) < live["metadata"].get("generation", 0):
        return ""
    if pod is not None and (pod.deleting_since is not None or is_former_pod(live, pod.revision)):
        return ""
    if _has_been_ready(observed, live):
        return ""
    deadline = timedelta(seconds=spec.health.progress_deadline_seconds)
    end = since + deadline
    if pod is not None:
        end = max(since, min(pod.created, since + _FIRST_POD)) + deadline
        # No operator has seen the pods before this one, of which one may have been Ready.
        end = pod.created + deadline if pod.created > end else end
        if pod.preflight_failures and pod.preflight_passed is not None:
            # What held up the preflight is over, for example a source that was away.
            end = max(end, pod.preflight_passed + deadline)
    if observed.now <= end or _has_just_connected(observed):
        return ""
    found = driver_available(observed, acceptance, waits=False)
    why = f"{found.reason}: {found.message}".removesuffix(": ")
    return f"the driver was not ready within {spec.health.progress_deadline_seconds} s: {why}"


def _is_away(observed: Observed) -> bool:
    """Return True if the pod or its engine reports that a server is away."""
    pod, progress = observed.driver, observed.fresh_progress
    errors = () if progress is None else (progress.error, progress.capture.error, progress.store.error)
    codes = {error.code for error in errors if error is not None}
    return not _AWAY.isdisjoint(codes | ({pod.failure.code} if pod is not None and pod.failure is not None else set()))


def _has_just_connected(observed: Observed) -> bool:
    """Return True if the driver's stream is open and was not a minute ago. The source may have been away until then."""
    progress = observed.fresh_progress
    if progress is None or not progress.capture.connected:
        return False
    for known in observed.pipeline.status.get("conditions", ()):
        if known["type"] == "SourceReachable" and known["status"] == "True":
            # either way: a condition's time of the future is replaced
            return observed.now - read_time(known["lastTransitionTime"]) <= _CONNECTED_FOR
    return True


def _has_been_ready(observed: Observed, live: Body) -> bool:
    """Return True if the pod of the StatefulSet's newest template is Ready, or was."""
    pod = observed.driver
    if pod is None or pod.deleting_since is not None or is_former_pod(live, pod.revision):
        return False
    return pod.ready or pod.was_ready


def _ready_spec(observed: Observed, acceptance: Acceptance, record: DriverRecord, ready: str, live: Body) -> str:
    """Return the record of the last Pipeline that became Ready: the one that runs until now, or the one kept before."""
    if record.runs != ready:
        return record.ready_spec
    for manifests in (accepted_manifest(None, live), acceptance.before):
        if manifests is not None and restart_digest(manifests) == ready:
            return pipeline_record(manifests.pipeline)
    return ""


def _tried_since(observed: Observed, record: DriverRecord, wanted: str, live: Body) -> datetime:
    known = record.changed_at
    if known is None or record.runs != wanted or not live["spec"].get("replicas") or known > observed.now + _SKEW:
        return observed.now
    return known


def _stateful_set(observed: Observed) -> Body | None:
    return observed.owned.get("StatefulSet", driver_name(observed.pipeline.name))


def _restart_on(stateful_set: Body) -> str:
    template = ((stateful_set.get("spec") or {}).get("template") or {}).get("metadata") or {}
    return str((template.get("annotations") or {}).get(RESTART_ON, ""))


def _image(stateful_set: Body) -> str:
    pod = ((stateful_set.get("spec") or {}).get("template") or {}).get("spec") or {}
    return next((c.get("image", "") for c in pod.get("containers") or () if c.get("name") == DRIVER_CONTAINER), "")


def _listed(fields: Mapping[str, Change]) -> str:
    names = sorted(fields)
    more = f" and {len(names) - _MAX_FIELDS} more" if len(names) > _MAX_FIELDS else ""
    return ", ".join(names[:_MAX_FIELDS]) + more


def _json(rejection: Rejection) -> str:
    return json.dumps({"digest": rejection.digest, "reason": rejection.reason}, ensure_ascii=False)


def _rejection(text: str) -> Rejection | None:
    try:
        found = json.loads(text)
        return Rejection(str(found["digest"]), shortened(str(found["reason"]), _MAX_REASON))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _time(text: str) -> datetime | None:
    try:
        return read_time(text)
    except (ValueError, OverflowError):
        return None


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
