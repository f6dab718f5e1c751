"""Spark on Kubernetes in client mode: the driver's properties, and the executors' pod template."""

from __future__ import annotations

from typing import Any, Final

from levada.spec import DriverMode, parse_bytes
from levada_operator.desired.owner import Owner
from levada_operator.desired.resources import executor_resources
from levada_operator.desired.secrets import secret_mounts, secret_volumes, task_secret_names
from levada_operator.desired.security import CONTAINER_SECURITY, pod_security
from levada_operator.desired.templates import merged
from levada_operator.names import driver_name, driver_pod, executor_name, labels

DRIVER_PORT: Final = 7078
BLOCK_PORT: Final = 7079
EXECUTOR_ROLE: Final = "executor"
POD_NAME: Final = "LEVADA_POD_NAME"
POD_IP: Final = "LEVADA_POD_IP"
POD_VARIABLES: Final = (
    {"name": POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
)
"""Environment variables of a pod with its own name and address."""
_CONFIG: Final = "/etc/levada"
_MIB: Final = 1 << 20
_MAX_PREFIX: Final = 36
"""Spark allows 47 characters. The driver appends eleven."""


def copy_spark_properties(executors: int) -> str:
    """Return the properties in which a dedicated copy differs from the driver. They refer to `POD_VARIABLES`."""
    settings = {
        # The pod of a Job has no DNS name.
        "spark.driver.host": f"$({POD_IP})",
        "spark.kubernetes.driver.pod.name": f"$({POD_NAME})",
        # A copy has work for all of them until it ends.
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.instances": str(executors),
    }
    return _written(settings)


def spark_properties(owner: Owner) -> str:
    """Return the properties that the operator sets, in the format of spark-defaults.conf."""
    resources, instances = executor_resources(owner), owner.executor.instances
    memory = parse_bytes(resources.get("requests", {}).get("memory") or "2Gi")
    cpu = resources.get("requests", {}).get("cpu") or "1"
    cores = str(max(1, round(parse_cpu(cpu))))
    settings = {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.submit.deployMode": "client",
        "spark.driver.host": f"{driver_name(owner.name)}.{owner.namespace}.svc",
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        "spark.kubernetes.namespace": owner.namespace,
        "spark.kubernetes.driver.pod.name": driver_pod(owner.name),
        # The driver has rights over pods only. Without these properties Spark logs that it lacks others.
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        # The driver appends the time of its start, because pods of the previous one may still exist.
        "spark.kubernetes.executor.podNamePrefix": executor_name(owner.name)[:_MAX_PREFIX].rstrip("-"),
        "spark.kubernetes.executor.podTemplateFile": f"{_CONFIG}/executor.yaml",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_ROLE,
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.container.image": owner.image,
        "spark.kubernetes.authenticate.executor.serviceAccountName": owner.executor_account,
        # Spark generates a secret at each start of the driver, and passes it to executors in their environment.
        "spark.authenticate": "true",
        "spark.executor.cores": cores,
        "spark.kubernetes.executor.request.cores": cpu,
        # Copies run in Python, outside the heap. Compaction runs in the JVM.
        "spark.executor.memory": f"{memory // 2 // _MIB}m",
        "spark.executor.memoryOverhead": f"{(memory - memory // 2) // _MIB}m",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(instances.min),
        "spark.dynamicAllocation.maxExecutors": str(instances.max),
        "spark.dynamicAllocation.executorIdleTimeout": "60s",
        "spark.decommission.enabled": "true",
    }
    return _written(settings)


def _written(settings: dict[str, str]) -> str:
    return "".join(f"{key} {value}\n" for key, value in sorted(settings.items()))


def build_executor_template(owner: Owner) -> dict[str, Any] | None:
    """Return the pod template of the executors, or None if Spark's tasks run in the driver's pod."""
    if owner.spec.driver.mode is not DriverMode.CLUSTER:
        return None
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": labels(owner.name, EXECUTOR_ROLE)},
        "spec": {
            "serviceAccountName": owner.executor_account,
            "automountServiceAccountToken": False,
            "securityContext": pod_security(owner),
            "containers": [
                {
                    "name": EXECUTOR_ROLE,
                    "image": owner.image,
                    "resources": executor_resources(owner),
                    "securityContext": CONTAINER_SECURITY,
                    # Spark writes to its working directory. It adds the volume for SPARK_LOCAL_DIRS itself.
                    "workingDir": "/tmp",
                    "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *secret_mounts(task_secret_names(owner))],
                }
            ],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *secret_volumes(task_secret_names(owner))],
        },
    }
    return merged(owner.executor.pod_template, template)


def parse_cpu(text: str) -> float:
    """Parse a CPU quantity such as 2 or 500m into a number of cores."""
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
