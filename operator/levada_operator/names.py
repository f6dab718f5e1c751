"""Names and labels that the operator gives; what is derived from a Pipeline's name fits where it is used."""

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
"""The role of the ConfigMaps whose content is the driver's."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
SKIP_CLEANUP: Final = f"{GROUP}/skip-cleanup"
"""An annotation: ``"true"`` lets a Pipeline go without its clean-up."""
TAKE_OVER_FROM: Final = f"{GROUP}/take-over-from"
"""An annotation: the UID of the Pipeline whose state, slot, publication and staged changes this one takes over."""
RESTART_ON: Final = f"{GROUP}/restart-on"
"""An annotation of the driver's pod: the digest of all that cannot change while it runs."""
APPLIED: Final = f"{GROUP}/applied"
"""An annotation of every owned object: the digest of what was applied, by which a field given up is seen."""
TEMPLATE: Final = f"{GROUP}/template"
"""An annotation of the driver's StatefulSet: the digest of its pod template."""
UPDATED_AT: Final = f"{GROUP}/updated-at"
"""An annotation of the driver's StatefulSet: when a change of its template last replaced a running pod."""

MAX_NAME: Final = 253


def driver_name(pipeline: str) -> str:
    """Name the driver's StatefulSet, Service, ServiceAccount, Role and NetworkPolicy."""
    return f"{pipeline}-driver"


def driver_pod(pipeline: str) -> str:
    """Name the driver's pod, as its StatefulSet does."""
    return f"{driver_name(pipeline)}-0"


def executor_name(pipeline: str) -> str:
    """Name the executors' ServiceAccount, and what their pods' names begin with."""
    return f"{pipeline}-executor"


def manifest_name(pipeline: str) -> str:
    """Name the ConfigMap with the accepted manifest."""
    return f"{pipeline}-manifest"


def staging_name(pipeline: str) -> str:
    """Name the volume claim of the staging area."""
    return f"{pipeline}-staging"


def cleanup_name(pipeline: str) -> str:
    """Name the clean-up Job."""
    return f"{pipeline}-cleanup"


def copy_name(pipeline: str, schema: str, table: str, order: str) -> str:
    """Name the Job that makes the copy of a table that was ordered under that token."""
    return f"{pipeline}-copy-{digest(chr(0).join((schema, table, order)))}"


def lag_name(pipeline: str, turn: int) -> str:
    """Name the Job that samples the slot in that turn."""
    return f"{pipeline}-lag-{turn}"


def table_sync_name(pipeline: str, schema: str, table: str) -> str:
    """Name a table's TableSync; where the source's spelling is no object name, a digest tells names apart."""
    plain = f"{pipeline}-{schema}-{table}"
    if re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", plain) and "-" not in schema + table and len(plain) <= MAX_NAME:
        return plain
    safe = re.sub(r"[^a-z0-9]+", "-", f"{schema}-{table}".lower()).strip("-")
    return f"{pipeline}-{safe}".rstrip("-") + "-" + digest(f"{schema}\0{table}")[:8]


def digest(text: str) -> str:
    """Return a short, stable digest for names and annotations."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def labels(pipeline: str, role: str) -> dict[str, str]:
    """Return the labels of an owned object."""
    return {PIPELINE_LABEL: pipeline, ROLE_LABEL: role, MANAGED_BY: FIELD_MANAGER}
