"""Failures of StatefulSets and Jobs to create their pods. Kubernetes reports them only as Events of the controllers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from levada_operator.observe.objects import Body, ObjectKey, read_time
from levada_operator.observe.plain_text import plain_text

FAILED: Final = "FailedCreate"
"""The reason of these Events, for both controllers."""

# StatefulSets write "create Pod p in StatefulSet s failed error: ...", Jobs write "Error creating: ...".
_PREFIX: Final = re.compile(r"^(create Pod \S+ in StatefulSet \S+ failed error|Error creating): ")
_SOLUTIONS: Final = (
    (r"violates PodSecurity", "remove what it names from spec.driver.podTemplate, or widen the namespace's standard:"
     " kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=LEVEL --overwrite"),
    (r"failed quota: .*must specify", "set what it names in spec.driver.resources"),
    (r"exceeded quota: \S+, requested: (count/)?pods=\d+, used", "raise the quota, or end other pods:"
     " kubectl edit resourcequota -n {namespace}"),
    (r"exceeded quota", "lower spec.driver.resources, or raise the quota: kubectl edit resourcequota -n {namespace}"),
    (r"(maximum|minimum) \S+ usage per|limit to request ratio", "set spec.driver.resources within the range of:"
     " kubectl describe limitrange -n {namespace}"),
    (r"must be less than or equal to \S+ limit of", "set the limits in spec.driver.resources. One that is not set there"
     " is the default of: kubectl describe limitrange -n {namespace}"),
    (r"no PriorityClass with name", "correct priorityClassName in spec.driver.podTemplate, or create it"),
    (r"error looking up service account", "create the account, or correct spec.driver.serviceAccount.name"),
    (r"admission webhook", "change what the webhook refuses, in spec.driver"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CreationFailure:
    """The last failure of a controller to create a pod. ``owner_uid`` is the UID of the StatefulSet or Job."""

    owner_uid: str
    message: str
    at: datetime


def read_creation_failure(event: Body) -> CreationFailure:
    """Read an Event of the reason FailedCreate."""
    involved = event.get("involvedObject") or {}
    series = (event.get("series") or {}).get("lastObservedTime")
    at = series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    reason = _PREFIX.sub("", plain_text(str(event.get("message") or ""))).strip()
    return CreationFailure(str(involved.get("uid", "")), reason, read_time(at))


def name_taken(owner: Body, pods: Iterable[Body], now: datetime) -> CreationFailure | None:
    """Return the failure of a StatefulSet whose pod's name a pod has that is not its own. No Event reports that.

    Kubernetes gives up a pod whose labels are changed. It runs on, and keeps the name.
    """
    name, uid = owner["metadata"]["name"], owner["metadata"].get("uid", "")
    for pod in pods:
        metadata = pod["metadata"]
        owners = [(o.get("kind"), o.get("name")) for o in metadata.get("ownerReferences") or ()]
        # That of a deleted StatefulSet of the name ends with it.
        if not metadata.get("deletionTimestamp") and ("StatefulSet", name) not in owners:
            text = (
                f"pod {metadata['name']} is there, and is not the StatefulSet's: another person made it, or changed its"
                f" labels; delete it: kubectl -n {metadata['namespace']} delete pod {metadata['name']}"
            )
            return CreationFailure(uid, text, now)
    return None


def creation_text(failure: CreationFailure, namespace: str) -> str:
    """Return the API server's message, followed by a remedy if the cause is a known one."""
    found = remedy(failure.message, namespace)
    return failure.message + (f"; {found}" if found else "")


def remedy(message: str, namespace: str) -> str:
    """Return what to do after the API server refused a driver's pod, or an empty string if it is not known."""
    found = next((s for pattern, s in _SOLUTIONS if re.search(pattern, message)), "")
    return found.format(namespace=namespace)


def owners_without_pods(children: Mapping[ObjectKey, Body]) -> Iterator[tuple[ObjectKey, Body]]:
    """Yield the StatefulSets and unfinished Jobs that should have a pod and have none."""
    owners = {o.get("uid") for k, b in children.items() if k.kind == "Pod"
              for o in b["metadata"].get("ownerReferences") or ()}  # fmt: skip
    for key, body in children.items():
        status = body.get("status") or {}
        wants = key.kind == "StatefulSet" and (body.get("spec") or {}).get("replicas", 1) > 0
        wants |= key.kind == "Job" and not any(c["status"] == "True" for c in status.get("conditions") or ())
        # A pod that was created by hand has no owner.
        named = ObjectKey("Pod", f"{key.name}-0") in children
        if wants and not named and body["metadata"].get("uid") not in owners:
            yield key, body
