"""Rolling updates: limit how many drivers restart together when an upgrade of the operator changes their pods.

A restart does not wait if it follows from a user's change of the spec, or if the driver is not ready and so nothing is
interrupted. Such a restart takes no turn either: a tenant who changes a spec again and again, or whose driver is never
ready, would keep the update from all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from levada.spec import Change
from levada_operator.decide.comparison import is_within, with_annotation
from levada_operator.desired.manifest import MANIFEST_FILE, read_manifest
from levada_operator.names import TEMPLATE, UPDATED_AT
from levada_operator.observe.objects import Body, read_time
from levada_operator.observe.observed import Observed

_SKEW: Final = timedelta(seconds=60)
_RESTARTING: Final = (Change.RESTART, Change.RESYNC)


@dataclass(frozen=True, slots=True)
class Rollout:
    """The desired objects that may be applied now.

    ``updates`` is True if they replace the driver's pod, ``takes_turn`` if other drivers have to wait for it.
    ``waits`` is True if the driver is left out because other drivers are restarting.
    """

    objects: tuple[dict[str, Any], ...]
    updates: bool = False
    takes_turn: bool = False
    waits: bool = False


def limit_updates(
    desired: list[dict[str, Any]], observed: Observed, changes: Mapping[str, Change], *, held: bool = False
) -> Rollout:
    """Return the objects to apply, without those that would restart a driver before its turn.

    ``changes`` are the fields of the accepted spec that changed since the manifest was last applied. With ``held`` no
    running driver is restarted, because the API server refuses the pod that would follow.
    """
    wanted = next(body for body in desired if body["kind"] == "StatefulSet")
    live = observed.owned.get("StatefulSet", wanted["metadata"]["name"])
    updates = live is not None and replaces_pod(live, wanted)
    if updates and held:
        return Rollout(tuple(_without_driver(desired, wanted, observed)))
    takes_turn = updates and not (_by_user(changes) or _interrupts_nothing(observed))
    if takes_turn and not _has_turn(observed):
        return Rollout(tuple(_without_driver(desired, wanted, observed)), waits=True)
    last = update_time(live)
    updated_at = _written(observed.now) if takes_turn else None if last is None else _written(last)
    stamped = wanted if updated_at is None else with_annotation(wanted, UPDATED_AT, updated_at)
    return Rollout(tuple(stamped if body is wanted else body for body in desired), updates, takes_turn)


def is_updating(stateful_set: Body, pod: Body | None, now: datetime, deadline: timedelta) -> bool:
    """Return True while an updated driver is not Ready yet and its deadline has not passed."""
    updated_at = update_time(stateful_set)
    # either way: a time in the future was written by hand, or by a clock that was ahead, and would hold a turn for ever
    if updated_at is None or not _runs(stateful_set) or not -_SKEW <= now - updated_at <= deadline:
        return False
    status, metadata = stateful_set.get("status") or {}, stateful_set["metadata"]
    if pod is None or status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return True
    revision = (pod["metadata"].get("labels") or {}).get("controller-revision-hash")
    conditions = {c["type"]: c["status"] for c in (pod.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready") == "True" and not pod["metadata"].get("deletionTimestamp")
    return not ready or revision != status.get("updateRevision")


def is_former_pod(stateful_set: Body, revision: str) -> bool:
    """Return True if a pod of this revision is not of a StatefulSet's newest template, by its status."""
    status, metadata = stateful_set.get("status") or {}, stateful_set["metadata"]
    if "observedGeneration" not in status:
        return False
    return status["observedGeneration"] < metadata.get("generation", 0) or revision != status.get("updateRevision")


def update_time(stateful_set: Body | None) -> datetime | None:
    """Return when a change of the template last took a turn, or None. It may be written by hand."""
    try:
        return read_time(_annotations(stateful_set).get(UPDATED_AT, ""))
    except (ValueError, OverflowError):
        return None


def replaces_pod(live: Body, wanted: Body) -> bool:
    """Return True if applying a StatefulSet ends the pod that runs, because its template differs."""
    if not _runs(live) or wanted["spec"]["replicas"] != 1:
        return False
    # The digest reveals a field that is no longer set. The comparison reveals a field that was changed by hand.
    same = _annotations(live).get(TEMPLATE) == _annotations(wanted)[TEMPLATE]
    return not (same and is_within(wanted["spec"]["template"], live["spec"].get("template")))


def _by_user(changes: Mapping[str, Change]) -> bool:
    return any(change in _RESTARTING for change in changes.values())


def _interrupts_nothing(observed: Observed) -> bool:
    return observed.driver is None or not observed.driver.ready


def _has_turn(observed: Observed) -> bool:
    return observed.updating < observed.defaults.updates.max_concurrent


def _without_driver(desired: list[dict[str, Any]], wanted: dict[str, Any], observed: Observed) -> list[dict[str, Any]]:
    """Return the objects without the StatefulSet, and without the manifest if only its serialization changed.

    The running driver may be older and may not know a field that this operator writes.
    """
    kept = []
    for body in desired:
        if body is wanted:
            continue
        if MANIFEST_FILE in (body.get("data") or {}):
            live = observed.owned.get("ConfigMap", body["metadata"]["name"])
            if live is not None and read_manifest(live) == read_manifest(body):
                continue
        kept.append(body)
    return kept


def _runs(stateful_set: Body | None) -> bool:
    return ((stateful_set or {}).get("spec") or {}).get("replicas") == 1


def _annotations(body: Body | None) -> Mapping[str, str]:
    return ((body or {}).get("metadata") or {}).get("annotations") or {}


def _written(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
