"""The time between the acceptance of a change and the moment at which the driver runs it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import dropwhile, takewhile

from levada_operator.decide.rollout import is_former_pod, replaces_pod
from levada_operator.desired.manifest import MANIFEST_FILE
from levada_operator.names import MANIFEST_DIGEST, driver_name, manifest_name
from levada_operator.observe.objects import Body, ObjectKey
from levada_operator.observe.observed import Observed
from levada_operator.observe.progress import error_text


def updating(observed: Observed, applied: Iterable[Body]) -> str:
    """Return why the driver does not run the accepted manifest and pod template yet, or an empty string if it does.

    ``applied`` are the objects that the same plan applies, in their order. A refused one and those after it stay as
    they are, so that the driver keeps what it runs.
    """
    refused = {refusal.key for refusal in observed.refusals}
    tried = takewhile(lambda body: _key(body) not in refused, applied)
    if any(_changes(observed, body) for body in tried):
        return "the change is being applied"
    name, pod = observed.pipeline.name, observed.driver
    stateful_set = observed.owned.get("StatefulSet", driver_name(name))
    if pod is None or not pod.ready or pod.deleting_since is not None:
        return "the driver's pod is not ready"
    if stateful_set is not None and is_former_pod(stateful_set, pod.revision):
        return f"pod {pod.name} is about to be replaced"
    return _unread_manifest(observed, pod.created <= observed.report.fetched_at if observed.report else False)


def unapplied_kinds(observed: Observed, applied: Iterable[Body], *, held: bool) -> frozenset[str]:
    """Return the kinds of the driver's objects that a refusal keeps from the written spec: ConfigMap, StatefulSet.

    ``applied`` are the objects of the written spec, in their order. They wait from the first refused one on, or all of
    them with ``held``.
    """
    refused = {refusal.key for refusal in observed.refusals}
    held_back = dropwhile(lambda body: not held and _key(body) not in refused, applied)
    return frozenset(body["kind"] for body in held_back if _changes(observed, body))


def _unread_manifest(observed: Observed, reported: bool) -> str:
    """Return why the driver's manifest is not the accepted one. ``reported`` is True if its pod has reported."""
    progress = observed.fresh_progress
    if progress is None or not reported:
        return "the driver has not reported yet"
    config_map = observed.owned.get("ConfigMap", manifest_name(observed.pipeline.name))
    accepted = (((config_map or {}).get("metadata") or {}).get("annotations") or {}).get(MANIFEST_DIGEST, "")
    # A driver of an earlier version reports no digest.
    if progress.manifest.digest in ("", accepted):
        return ""
    error = progress.manifest.error
    return "the driver has not read the changed manifest yet" + ("" if error is None else f": {error_text(error)}")


def _changes(observed: Observed, body: Body) -> bool:
    """Return True if applying the object changes what the driver runs. Other fields may be restored at any time."""
    live = observed.owned.get(body["kind"], body["metadata"]["name"])
    if body["kind"] == "StatefulSet":
        return (
            live is None or replaces_pod(live, body) or bool(live["spec"].get("replicas") != body["spec"]["replicas"])
        )
    if body["kind"] == "ConfigMap" and MANIFEST_FILE in (body.get("data") or {}):
        return bool(((live or {}).get("data") or {}).get(MANIFEST_FILE) != body["data"][MANIFEST_FILE])
    return False


def _key(body: Body) -> ObjectKey:
    return ObjectKey(body["kind"], body["metadata"]["name"])
