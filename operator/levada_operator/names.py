"""Names, labels and annotations of owned objects. The limit of a Pipeline's name leaves room for every derived name."""

from __future__ import annotations

import hashlib
import re
from typing import Final

GROUP: Final = "levada.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
FIELD_MANAGER: Final = "levada-operator"
FINALIZER: Final = f"{GROUP}/cleanup"

PIPELINE_LABEL: Final = f"{GROUP}/pipeline"
ROLE_LABEL: Final = f"{GROUP}/role"
STATE_ROLE: Final = "state"
"""The role label of the ConfigMaps whose content only the driver writes."""
CLEANUP_ROLE: Final = "cleanup"
"""The role label of the Job that cleans up, and the name of its container."""
COPY_ROLE: Final = "copy"
"""The role label of dedicated copies."""
DRIVER_CONTAINER: Final = "driver"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
SKIP_CLEANUP: Final = f"{GROUP}/skip-cleanup"
"""Annotation of a Pipeline: ``"true"`` skips the clean-up when the Pipeline is deleted."""
TAKE_OVER_FROM: Final = f"{GROUP}/take-over-from"
"""Annotation of a Pipeline: UID of the Pipeline whose state, slot, publication and staged changes it takes over."""
APPROVE: Final = f"{GROUP}/approve"
"""Annotation of a Pipeline: the digest of a change that waits for approval, as the condition Approved names it."""
PAUSED: Final = f"{GROUP}/paused"
"""Annotation of a Pipeline: ``"true"`` keeps the operator from changing any object of it. Its driver runs on."""
OPERATOR: Final = f"{GROUP}/operator"
"""Annotation of the driver's StatefulSet: the namespace and the Lease of the installation that manages the Pipeline."""
RESTART_ON: Final = f"{GROUP}/restart-on"
"""Annotation of the driver's pod: the digest of all fields that take effect only after a restart."""
APPLIED: Final = f"{GROUP}/applied"
"""Annotation of every owned object: the digest of the applied content. It reveals a field that is no longer applied."""
TEMPLATE: Final = f"{GROUP}/template"
"""Annotation of the driver's StatefulSet: the digest of its pod template."""
MANIFEST_DIGEST: Final = f"{GROUP}/manifest"
"""Annotation of the ConfigMap with the accepted manifest: the digest of the manifest. It reveals a change by hand."""
ACCEPTED: Final = f"{GROUP}/accepted"
"""Annotation of the driver's StatefulSet: the accepted manifest. It counts if the ConfigMap is gone or was changed."""
READY: Final = f"{GROUP}/ready"
"""Annotation of the driver's StatefulSet: the digest, as in `RESTART_ON`, of the last spec whose pod became Ready."""
READY_SPEC: Final = f"{GROUP}/ready-spec"
"""Annotation of the driver's StatefulSet: the Pipeline of that spec, while the StatefulSet has another one."""
READY_IMAGE: Final = f"{GROUP}/ready-image"
"""Annotation of the driver's StatefulSet: the image of the last pod that became Ready."""
CHANGED_AT: Final = f"{GROUP}/changed-at"
"""Annotation of the driver's StatefulSet: since when a spec runs whose pod has not become Ready yet."""
REJECTED: Final = f"{GROUP}/rejected"
"""Annotation of the driver's StatefulSet: the digest of the spec that was rolled back, and why."""
UPDATED_AT: Final = f"{GROUP}/updated-at"
"""Annotation of the driver's StatefulSet: when an update, in its turn, last replaced a ready pod."""

DEFAULT_STORAGE_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
"""Annotations of Kubernetes: ``"true"`` makes a StorageClass the default of claims that name none."""

MAX_NAME: Final = 253


def driver_name(pipeline: str) -> str:
    """Return the name of the driver's StatefulSet, Service, ServiceAccount, Role and NetworkPolicy."""
    return f"{pipeline}-driver"


def driver_pod(pipeline: str) -> str:
    """Return the name that the StatefulSet gives the driver's pod."""
    return f"{driver_name(pipeline)}-0"


def exec_prefix(namespace: str, pipeline: str) -> str:
    """Return the words that run a command in the driver's container."""
    return f"kubectl -n {namespace} exec {driver_pod(pipeline)} -c {DRIVER_CONTAINER} --"


def executor_name(pipeline: str) -> str:
    """Return the name of the executors' ServiceAccount, which is also the prefix of their pods' names."""
    return f"{pipeline}-executor"


def copies_name(pipeline: str) -> str:
    """Return the name of the NetworkPolicy of dedicated copies."""
    return f"{pipeline}-copies"


def manifest_name(pipeline: str) -> str:
    """Return the name of the ConfigMap with the accepted manifest."""
    return f"{pipeline}-manifest"


def staging_name(pipeline: str) -> str:
    """Return the name of the PersistentVolumeClaim of the staging area."""
    return f"{pipeline}-staging"


def cleanup_name(pipeline: str) -> str:
    """Return the name of the clean-up Job."""
    return f"{pipeline}-cleanup"


def copy_name(pipeline: str, schema: str, table: str, order: str) -> str:
    """Return the name of the Job that makes a dedicated copy. ``order`` identifies the driver's request for it."""
    return f"{pipeline}-copy-{digest(chr(0).join((schema, table, order)))}"


def lag_name(pipeline: str, turn: int) -> str:
    """Return the name of the Job that samples the slot in that interval. ``turn`` is the interval's number."""
    return f"{pipeline}-lag-{turn}"


def table_sync_name(pipeline: str, schema: str, table: str) -> str:
    """Return the name of a table's TableSync.

    A digest is appended where the table's name is no valid object name, or where two tables could get the same one.
    """
    plain = f"{pipeline}-{schema}-{table}"
    if re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", plain) and "-" not in schema + table and len(plain) <= MAX_NAME:
        return plain
    safe = re.sub(r"[^a-z0-9]+", "-", f"{schema}-{table}".lower()).strip("-")
    return f"{pipeline}-{safe}".rstrip("-") + "-" + digest(f"{schema}\0{table}")[:8]


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of the text's SHA-256, for names and annotations."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def labels(pipeline: str, role: str) -> dict[str, str]:
    """Return the labels of an owned object."""
    return {PIPELINE_LABEL: pipeline, ROLE_LABEL: role, MANAGED_BY: FIELD_MANAGER}
