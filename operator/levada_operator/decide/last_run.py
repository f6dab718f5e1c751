"""The image and the pod template that a driver was Ready with last, as its StatefulSet and its pod show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levada.spec import Manifests
from levada_operator.decide.comparison import with_annotation
from levada_operator.decide.rollout import is_former_pod
from levada_operator.desired.last_run import LastRun, last_run_record, read_last_run
from levada_operator.desired.manifest import accepted_manifest
from levada_operator.names import DRIVER_CONTAINER, LAST_RUN, TEMPLATE, driver_name
from levada_operator.observe.objects import Body
from levada_operator.observe.observed import Observed


def last_run(observed: Observed) -> LastRun | None:
    """Return what ran last, or None if that is the newest template, or is not known."""
    live = observed.owned.get("StatefulSet", driver_name(observed.pipeline.name))
    return None if live is None or _runs(observed, live) else read_last_run(_annotations(live).get(LAST_RUN, ""))


def with_last_run(wanted: dict[str, Any], observed: Observed, before: Manifests | None) -> dict[str, Any]:
    """Return the desired StatefulSet with the record of what ran last, unless that is what it desires.

    ``before`` is the last accepted manifest.
    """
    live = observed.owned.get("StatefulSet", wanted["metadata"]["name"])
    if live is None:
        return wanted
    record, runs = _annotations(live).get(LAST_RUN, ""), _runs(observed, live)
    if _annotations(live).get(TEMPLATE) == _annotations(wanted).get(TEMPLATE):
        record = "" if runs else record
    elif runs or (not record and observed.pipeline.status.get("slot", {}).get("sampledAt")):
        # While the newest template has not run, an earlier record stays. Without one, the live template has run.
        record = _record_of(live, before)
    return with_annotation(wanted, LAST_RUN, record) if record else wanted


def _runs(observed: Observed, live: Body) -> bool:
    """Return True if the driver is Ready with the newest template."""
    pod = observed.driver
    return pod is not None and pod.ready and pod.deleting_since is None and not is_former_pod(live, pod.revision)


def _record_of(live: Body, before: Manifests | None) -> str:
    template = ((live.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = [c for c in template.get("containers") or () if c.get("name") == DRIVER_CONTAINER]
    # The manifest in the ConfigMap may be newer than the StatefulSet.
    accepted = accepted_manifest(None, live) or before
    if not containers or accepted is None:
        return ""
    return last_run_record(LastRun(containers[0].get("image", ""), accepted.pipeline.spec.driver.pod_template))


def _annotations(body: Body) -> Mapping[str, str]:
    return (body.get("metadata") or {}).get("annotations") or {}
