"""Jobs that sample the slot while no driver runs, make a dedicated copy, or clean up before a Pipeline is deleted."""

from __future__ import annotations

from typing import Any, Final

from levada.spec import DriverMode
from levada.spec.table_sync import TableCopy
from levada.values import QualifiedTable
from levada_operator.desired.manifest import SPARK_FILE
from levada_operator.desired.owner import Owner, build_object
from levada_operator.desired.pod import (
    CONFIG_DIR,
    MANIFEST,
    SPARK_PROPERTIES,
    STAGING_VOLUME,
    WORK_DIR,
    build_job_template,
)
from levada_operator.desired.resources import copy_resources
from levada_operator.desired.secrets import SECRETS_DIR
from levada_operator.desired.spark import POD_VARIABLES, copy_spark_properties
from levada_operator.names import CLEANUP_ROLE, COPY_ROLE, cleanup_name, copy_name, lag_name

LAG_ROLE: Final = "lag"


def build_lag_job(owner: Owner, turn: int) -> dict[str, Any]:
    """Return the Job that samples the slot in interval ``turn``. The sample is the container's termination message."""
    template = _without_staging(build_job_template(owner, LAG_ROLE, []))
    container = template["spec"]["containers"][0]
    # The operator may not read logs. The kubelet copies this file into the pod's status.
    line = f"exec levada lag {MANIFEST} --secrets {SECRETS_DIR} -o json > /dev/termination-log"
    container |= {"command": ["sh", "-c"], "args": [line], "resources": _SMALL}
    spec = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": 60,
        "ttlSecondsAfterFinished": 3600,
        "template": template,
    }
    return build_object(owner, "Job", "batch/v1", lag_name(owner.name, turn), LAG_ROLE, {"spec": spec})


def build_copy_job(owner: Owner, schema: str, table: str, order: str) -> dict[str, Any]:
    """Return the Job of a dedicated copy. A pod that dies is replaced. The next one continues the copy.

    A failed copy reports its error to the driver through the store. The driver's retry is a new order and a new Job.
    Pods of the former Job may still be started, and end without taking the new order.
    """
    command = ["copy", MANIFEST, "--table", f"{schema}.{table}", "--secrets", SECRETS_DIR, "--work-dir", WORK_DIR]
    template = _without_staging(build_job_template(owner, COPY_ROLE, command))
    container = template["spec"]["containers"][0]
    copy = _table_copy(owner, QualifiedTable(schema, table))
    container["resources"] = copy_resources(owner, copy)
    # By a variable, because an image of an earlier release does not know the option.
    container["env"] += [{"name": "LEVADA_COPY_ORDER", "value": order}]
    if copy.executors and owner.spec.driver.mode is DriverMode.CLUSTER:
        container["env"] += [*POD_VARIABLES, *_spark_variables(copy.executors)]
    spec = {"backoffLimit": 3, "ttlSecondsAfterFinished": 3600, "template": template}
    name = copy_name(owner.name, schema, table, order)
    return build_object(owner, "Job", "batch/v1", name, COPY_ROLE, {"spec": spec})


def _without_staging(template: dict[str, Any]) -> dict[str, Any]:
    """Remove the staging volume from a Job's pod that does not use it. Only one node can mount it at a time."""
    pod, container = template["spec"], template["spec"]["containers"][0]
    pod["volumes"] = [v for v in pod["volumes"] if v["name"] != STAGING_VOLUME]
    container["volumeMounts"] = [m for m in container["volumeMounts"] if m["name"] != STAGING_VOLUME]
    return template


def _table_copy(owner: Owner, table: QualifiedTable) -> TableCopy:
    found = (t.spec.copy_ for t in owner.manifests.table_syncs if t.spec.table.qualified == table)
    return next(found, TableCopy())


def _spark_variables(executors: int) -> list[dict[str, str]]:
    # Kubernetes inserts the values of the variables before them.
    variables = {SPARK_PROPERTIES: f"{CONFIG_DIR}/{SPARK_FILE}", "LEVADA_SPARK_CONF": copy_spark_properties(executors)}
    return [{"name": name, "value": value} for name, value in variables.items()]


def build_cleanup_job(owner: Owner) -> dict[str, Any]:
    """Return the Job that executes the deletionPolicy. It is idempotent, and is retried until cleanupTimeoutSeconds."""
    command = ["cleanup", MANIFEST, "--secrets", SECRETS_DIR, "--work-dir", WORK_DIR, "--yes"]
    spec = {
        "backoffLimit": 6,
        "activeDeadlineSeconds": owner.spec.deletion_policy.cleanup_timeout_seconds,
        "template": build_job_template(owner, CLEANUP_ROLE, command),
    }
    return build_object(owner, "Job", "batch/v1", cleanup_name(owner.name), CLEANUP_ROLE, {"spec": spec})


_SMALL: Final = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}
