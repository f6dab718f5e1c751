"""Pods, and why a pod does not run.

If several causes apply, the first in a fixed order is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from levada import codes
from levada_operator.names import DRIVER_CONTAINER, ROLE_LABEL
from levada_operator.observe.objects import Body, read_time

PREFLIGHT_CONTAINER: Final = "preflight"

_ERROR_LINE: Final = re.compile(r"^error: (?P<message>.*) \[(?P<code>[a-z0-9_]+)\]$", re.MULTILINE)
_HINT_LINE: Final = re.compile(r"^  hint: (?P<hint>.*)$", re.MULTILINE)
_IMAGE_REASONS: Final = ("ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull")
_CRASH_REASONS: Final = ("CrashLoopBackOff", "CreateContainerError", "RunContainerError")
_ADD_NODE: Final = "add a node"
_NO_NODE: Final = (
    (
        "(?i)persistentvolumeclaim|volume node affinity|persistent volumes to bind",
        "see: kubectl describe pvc -n {namespace}",
    ),
    ("Insufficient |Too many pods", "lower spec.driver.resources, or add a node"),
    (
        r"were unschedulable|node\.kubernetes\.io/unschedulable",
        "let pods on a cordoned node again: kubectl uncordon NODE",
    ),
    (r"taint(?!.*node\.kubernetes\.io/unschedulable)", "tolerate the taint in spec.driver.podTemplate"),
    ("node affinity/selector", "correct the node selector or the affinity in spec.driver.podTemplate"),
)
"""A pattern in the scheduler's message, which counts the nodes by their causes, and the remedy of each."""
_STARTING_REASONS: Final = ("", "ContainerCreating", "PodInitializing")
_FIRST_REPORT: Final = timedelta(seconds=10)
"""The time after which a kubelet that has taken a pod has reported its conditions."""


@dataclass(frozen=True, slots=True)
class PodFailure:
    """Why a pod does not run.

    ``reason`` is a reason of the condition DriverAvailable. ``message`` includes the remedy. ``code`` is that of the
    engine's error, or empty.
    """

    reason: str
    message: str
    code: str = ""
    runs_since: datetime | None = None
    """When the container was started again after the failure, or None if it was not."""

    @property
    def text(self) -> str:
        """The message, with the error's code appended unless it has the code already."""
        code = f"[{self.code}]"
        return self.message if not self.code or code in self.message else f"{self.message} {code}"


@dataclass(frozen=True, slots=True)
class Termination:
    """The end of a container. ``code`` and ``message`` are those of the engine's error."""

    reason: str
    exit_code: int
    code: str
    message: str
    at: str


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod of a Pipeline."""

    name: str
    role: str
    created: datetime
    ready: bool
    ended: bool
    deleting_since: datetime | None
    restarts: int
    failure: PodFailure | None
    last_termination: Termination | None
    output: str
    """The termination message of a container that exited with 0, else empty."""
    revision: str = ""
    """The revision of the StatefulSet that the pod is of."""
    spec: Body = field(default_factory=dict, repr=False, compare=False)
    began: bool = False
    """True if the driver's container has run in this pod, at least for a moment."""
    was_ready: bool = False
    """True if the pod is not Ready and has been before."""
    node: str = ""
    """The node that the pod is on, with the word that it is lost if it does not report."""
    preflight_passed: datetime | None = None
    """When the preflight ended, if it found no error."""
    preflight_failures: int = 0
    """The times that the preflight was started again."""


def read_pod(body: Body) -> PodState:
    """Parse a pod."""
    metadata, status = body["metadata"], body.get("status") or {}
    deleting = metadata.get("deletionTimestamp")
    driver = _container(status, DRIVER_CONTAINER)
    conditions = {c["type"]: c for c in status.get("conditions") or ()}
    return PodState(
        name=metadata["name"],
        role=(metadata.get("labels") or {}).get(ROLE_LABEL, ""),
        created=read_time(metadata["creationTimestamp"]),
        ready=conditions.get("Ready", {}).get("status") == "True",
        ended=status.get("phase") in ("Succeeded", "Failed"),
        deleting_since=read_time(deleting) if deleting else None,
        restarts=int(driver.get("restartCount") or 0),
        failure=None if deleting else _failure(body, conditions),
        last_termination=_last_termination(status),
        output=_output(status),
        revision=(metadata.get("labels") or {}).get("controller-revision-hash", ""),
        spec=body.get("spec") or {},
        node=_node(body, conditions),
        preflight_passed=_preflight_passed(status),
        preflight_failures=int(_container(status, PREFLIGHT_CONTAINER).get("restartCount") or 0),
        began=_has_run(driver),
        was_ready=_was_ready(status, conditions.get("Ready", {})),
    )


def _has_run(container: Mapping[str, Any]) -> bool:
    states = (container.get("state") or {}).keys() | (container.get("lastState") or {}).keys()
    return bool(states & {"running", "terminated"} or container.get("restartCount"))


def _was_ready(status: Mapping[str, Any], ready: Mapping[str, Any]) -> bool:
    """Return True if the condition Ready became False after the kubelet's first report, in which it is False too."""
    started, changed = status.get("startTime"), ready.get("lastTransitionTime")
    if ready.get("status") != "False" or not started or not changed:
        return False
    return read_time(changed) - read_time(started) > _FIRST_REPORT


def _preflight_passed(status: Mapping[str, Any]) -> datetime | None:
    ended = (_container(status, PREFLIGHT_CONTAINER).get("state") or {}).get("terminated") or {}
    at = ended.get("finishedAt") if ended.get("exitCode") == 0 else None
    return read_time(at) if at else None


def _node(body: Body, conditions: Mapping[str, Any]) -> str:
    name = str((body.get("spec") or {}).get("nodeName") or "")
    return f"{name} (which does not report)" if name and _is_node_lost(body, conditions) else name


def _is_node_lost(body: Body, conditions: Mapping[str, Any]) -> bool:
    """Return True if the node's controller has marked the pod, because its kubelet does not report.

    It sets the pod's condition Ready and leaves that of the containers as the kubelet reported it.
    """
    if (body.get("status") or {}).get("reason") == "NodeLost":
        return True
    if conditions.get("DisruptionTarget", {}).get("reason") == "DeletionByTaintManager":
        return True
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    marked = ready.get("status") != "True" and containers.get("status") == "True"
    return bool(marked and ready.get("reason") != "ReadinessGatesNotReady")


def _failure(body: Body, conditions: Mapping[str, Any]) -> PodFailure | None:
    return next(_failures(body, conditions), None)


def _failures(body: Body, conditions: Mapping[str, Any]) -> Iterator[PodFailure]:
    namespace, status = body["metadata"]["namespace"], body.get("status") or {}
    if _is_node_lost(body, conditions):
        node = (body.get("spec") or {}).get("nodeName")
        remedy = f"see: kubectl describe node {node}. The pod moves once Kubernetes, or you, delete it"
        yield PodFailure("NodeLost", f"node {node} does not report; {remedy}")
    if status.get("reason") == "Evicted":
        yield PodFailure("Evicted", f"the node evicted the pod: {status.get('message', '')}")
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("reason") == "Unschedulable":
        message = scheduled.get("message", "")
        remedies = [text.format(namespace=namespace) for word, text in _NO_NODE if re.search(word, message)]
        yield PodFailure("Unschedulable", f"no node takes the pod: {message}; {', or '.join(remedies) or _ADD_NODE}")
    for container in _containers(status):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason, message = waiting.get("reason", ""), waiting.get("message", "")
        if reason in _IMAGE_REASONS:
            yield PodFailure("ImagePullFailed", f"{message or reason}; check spec.driver.image and its pull secret")
        elif reason == "CreateContainerConfigError":
            missing = "SecretMissing" if "secret" in message.lower() else "ConfigMissing"
            yield PodFailure(missing, message)
        elif reason in _CRASH_REASONS or (
            reason in _STARTING_REASONS and (_failed(container) or _failed_before(container))
        ):
            yield replace(_crash(container, message), runs_since=_runs_since(container))


def _failed_before(container: Mapping[str, Any]) -> bool:
    """Return True if the container was restarted after a failure and is not ready yet, so the cause may persist."""
    state, before = container.get("state") or {}, (container.get("lastState") or {}).get("terminated") or {}
    return "running" in state and not container.get("ready") and int(before.get("exitCode") or 0) != 0


def _runs_since(container: Mapping[str, Any]) -> datetime | None:
    if container["name"] == PREFLIGHT_CONTAINER:
        # The preflight exits as soon as a start would succeed. Until then its failure persists, however long it runs.
        return None
    started = ((container.get("state") or {}).get("running") or {}).get("startedAt")
    return read_time(started) if started else None


def _failed(container: Mapping[str, Any]) -> bool:
    ended = (container.get("state") or {}).get("terminated") or {}
    return int(ended.get("exitCode") or 0) != 0


def _crash(container: Mapping[str, Any], waiting: str) -> PodFailure:
    ended = _termination_of(container)
    message, code = parse_errors(ended.get("message", ""))
    if ended.get("reason") == "OOMKilled":
        message = "the container used more memory than its limit; raise spec.driver.resources.limits.memory"
        return PodFailure("OutOfMemory", message)
    if ended and not message:
        message = f"{container['name']} ended with {ended.get('exitCode')}; see: kubectl logs --previous"
    message = message or waiting
    if code == codes.SECRET_MISSING:
        return PodFailure("SecretMissing", message, code)
    return PodFailure("PreflightFailed" if container["name"] == PREFLIGHT_CONTAINER else "CrashLooping", message, code)


def parse_errors(output: str) -> tuple[str, str]:
    """Return the errors in a command's output, each with its hint, and the code of the first error.

    Both are empty if there is no error. Several errors are separated by newlines, each followed by its code. The same
    error of several checks stands once.
    """
    errors = list(_ERROR_LINE.finditer(output or ""))
    texts = []
    for error in errors:
        hint = _HINT_LINE.match(output, error.end() + 1)
        said = hint is None or hint["hint"] in error["message"]
        texts.append(error["message"] + ("" if hint is None or said else f"; {hint['hint']}"))
    if not errors:
        return "", ""
    lines = list(dict.fromkeys(f"{t} [{e['code']}]" for t, e in zip(texts, errors, strict=True)))
    return ("\n".join(lines) if len(lines) > 1 else texts[0]), errors[0]["code"]


def output_document(pod: PodState) -> Mapping[str, Any] | None:
    """Return the JSON object in the termination message of a Job's pod, or None if there is none."""
    try:
        document = json.loads(pod.output)
    except (ValueError, RecursionError):
        # The image is the tenant's, and may print anything.
        return None
    return document if isinstance(document, dict) else None


def _containers(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _container(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((c for c in _containers(status) if c["name"] == name), {})


def _termination_of(container: Mapping[str, Any]) -> Mapping[str, Any]:
    now = (container.get("state") or {}).get("terminated")
    before = (container.get("lastState") or {}).get("terminated")
    return now or before or {}


def _last_termination(status: Mapping[str, Any]) -> Termination | None:
    """Return the last end of the main container, else that of the preflight if it failed."""
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        ended = _termination_of(container)
        if ended and (container["name"] != PREFLIGHT_CONTAINER or ended.get("exitCode")):
            message, code = parse_errors(ended.get("message", ""))
            return Termination(
                ended.get("reason", ""), int(ended.get("exitCode") or 0), code, message, ended.get("finishedAt") or ""
            )
    return None


def _output(status: Mapping[str, Any]) -> str:
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode") == 0:
            return str(ended.get("message") or "")
    return ""
