"""Pod templates of the driver and of the Jobs. Their containers run Levada's command line."""

from __future__ import annotations

from typing import Any, Final

from levada.spec import DeletionAction, DriverMode
from levada_operator.desired.manifest import MANIFEST_FILE, SPARK_FILE, restart_digest
from levada_operator.desired.owner import Owner
from levada_operator.desired.resources import driver_resources
from levada_operator.desired.secrets import SECRETS_DIR, secret_mounts, secret_names, secret_volumes
from levada_operator.desired.security import CONTAINER_SECURITY, pod_security
from levada_operator.desired.spark import BLOCK_PORT, DRIVER_PORT
from levada_operator.desired.templates import merged
from levada_operator.names import (
    CLEANUP_ROLE,
    DRIVER_CONTAINER,
    RESTART_ON,
    exec_prefix,
    labels,
    manifest_name,
    staging_name,
)
from levada_operator.observe.pods import PREFLIGHT_CONTAINER

HTTP_PORT: Final = 8080
GRACE_S: Final = 300
"""Seconds that a driver has to finish its batch and confirm its position."""
HUNG_GRACE_S: Final = 20
"""Seconds that a hung driver has to end. It has no batch to finish."""

CONFIG_DIR: Final = "/etc/levada"
WORK_DIR: Final = "/var/lib/levada"
STAGING_VOLUME: Final = "staging"
MANIFEST: Final = f"{CONFIG_DIR}/{MANIFEST_FILE}"
SPARK_PROPERTIES: Final = "LEVADA_SPARK_PROPERTIES"


def build_driver_template(owner: Owner) -> dict[str, Any]:
    """Return the driver's pod template. It changes only if the driver must be restarted."""
    ours = {
        "metadata": {
            "labels": labels(owner.name, DRIVER_CONTAINER),
            "annotations": {RESTART_ON: restart_digest(owner.manifests)},
        },
        "spec": {
            "serviceAccountName": owner.account,
            "automountServiceAccountToken": needs_token(owner) or cleans_up(owner),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _grace_s(owner),
            "securityContext": pod_security(owner),
            "initContainers": [
                build_container(
                    owner, PREFLIGHT_CONTAINER, ["check", MANIFEST, "--secrets", SECRETS_DIR, "--work-dir", WORK_DIR]
                )
            ],
            "containers": [_driver(owner)],
            "volumes": _volumes(owner),
        },
    }
    return merged(owner.spec.driver.pod_template, ours)


def build_job_template(owner: Owner, role: str, command: list[str]) -> dict[str, Any]:
    """Return the pod template of a Job. The user's template for the driver applies to it, except for the containers."""
    ours = {
        "metadata": {"labels": labels(owner.name, role)},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": owner.account,
            "automountServiceAccountToken": needs_token(owner),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 10,
            "securityContext": pod_security(owner),
            "containers": [build_container(owner, role, command)],
            "volumes": _volumes(owner),
        },
    }
    template = owner.spec.driver.pod_template
    pod = {k: v for k, v in (template.get("spec") or {}).items() if k not in ("containers", "initContainers")}
    return merged({**template, "spec": pod}, ours)


def build_container(owner: Owner, name: str, command: list[str]) -> dict[str, Any]:
    """Return a container that runs a command of Levada, with the variables and mounts of the driver's container."""
    environment = {
        "HOME": WORK_DIR,
        "LEVADA_LOG_FORMAT": "json" if name == DRIVER_CONTAINER else "text",
    }
    if owner.spec.destination.spark:
        environment["SPARK_LOCAL_DIRS"] = f"{WORK_DIR}/spark"
    environment |= {"LEVADA_PIPELINE_UID": owner.uid, "LEVADA_NAMESPACE": owner.namespace}
    if owner.take_over_from and name in (DRIVER_CONTAINER, PREFLIGHT_CONTAINER):
        environment["LEVADA_TAKE_OVER_FROM"] = owner.take_over_from
    if name == DRIVER_CONTAINER:
        environment["LEVADA_DEDICATED_COPIES"] = "1"
        # For commands by kubectl exec.
        environment |= {"LEVADA_MANIFEST": MANIFEST, "LEVADA_SECRETS": SECRETS_DIR, "LEVADA_WORK_DIR": WORK_DIR}
        environment["LEVADA_COMMAND_PREFIX"] = exec_prefix(owner.namespace, owner.name)
    if name in (DRIVER_CONTAINER, PREFLIGHT_CONTAINER, CLEANUP_ROLE):
        environment["LEVADA_TERMINATION_LOG"] = "/dev/termination-log"
    if owner.spec.driver.mode is DriverMode.CLUSTER and name == DRIVER_CONTAINER:
        # Of the Jobs, only dedicated copies may start executors.
        environment[SPARK_PROPERTIES] = f"{CONFIG_DIR}/{SPARK_FILE}"
    ours = {
        "name": name,
        "image": owner.image,
        # args, not command: the image's entry point reaps child processes.
        "args": ["levada", *command],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "resources": driver_resources(owner),
        "securityContext": CONTAINER_SECURITY,
        # The end of a failed container's log is then in the pod's status, where the operator reads it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(owner),
    }
    return merged(_template_environment(owner), ours)


def needs_token(owner: Owner) -> bool:
    """Return True if the driver and its Jobs make requests to the API server."""
    return owner.spec.driver.mode is DriverMode.CLUSTER or owner.spec.store.config_map is not None


def cleans_up(owner: Owner) -> bool:
    """Return True if the driver removes something at the source or the destination with its namespace."""
    policy = owner.spec.deletion_policy
    return DeletionAction.DELETE in (policy.slot, policy.publication, policy.destination_tables)


def _template_environment(owner: Owner) -> dict[str, Any]:
    """Return the variables and mounts of the driver's container in the user's pod template.

    Every container gets them, because a preflight or a clean-up without the driver's files would fail.
    """
    containers = (owner.spec.driver.pod_template.get("spec") or {}).get("containers") or []
    driver: dict[str, Any] = next((c for c in containers if c.get("name") == DRIVER_CONTAINER), {})
    return {key: driver[key] for key in ("env", "envFrom", "volumeMounts") if key in driver}


def _grace_s(owner: Owner) -> int:
    """Return the seconds that the driver has to end: fewer than `GRACE_S` if the user's pod template has fewer."""
    given = (owner.spec.driver.pod_template.get("spec") or {}).get("terminationGracePeriodSeconds")
    return min(GRACE_S, given) if type(given) is int and given >= 0 else GRACE_S


def _driver(owner: Owner) -> dict[str, Any]:
    options = ["--secrets", SECRETS_DIR, "--work-dir", WORK_DIR, "--host", "::", "--port", str(HTTP_PORT)]
    ports = [{"name": "http", "containerPort": HTTP_PORT}]
    if owner.spec.driver.mode is DriverMode.CLUSTER:
        ports += [{"name": "spark", "containerPort": DRIVER_PORT}, {"name": "blocks", "containerPort": BLOCK_PORT}]
    return build_container(owner, DRIVER_CONTAINER, ["run", MANIFEST, *options]) | {
        "ports": ports,
        "startupProbe": _probe("/livez", period_s=5, failures=60),
        "livenessProbe": _probe("/livez", period_s=20, failures=3) | {"terminationGracePeriodSeconds": HUNG_GRACE_S},
        "readinessProbe": _probe("/readyz", period_s=10, failures=3),
    }


def _probe(path: str, *, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _volumes(owner: Owner) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "manifest", "configMap": {"name": manifest_name(owner.name)}},
        {"name": "work", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if owner.spec.staging.volume_claim is not None:
        volumes.append({"name": STAGING_VOLUME, "persistentVolumeClaim": {"claimName": staging_name(owner.name)}})
    return volumes + secret_volumes(secret_names(owner))


def _mounts(owner: Owner) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": "manifest", "mountPath": CONFIG_DIR, "readOnly": True},
        {"name": "work", "mountPath": WORK_DIR},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if owner.spec.staging.volume_claim is not None:
        mounts.append({"name": STAGING_VOLUME, "mountPath": f"{WORK_DIR}/staging"})
    return mounts + secret_mounts(secret_names(owner))
