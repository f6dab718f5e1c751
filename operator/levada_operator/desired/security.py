"""The `restricted` Pod Security Standard, for every pod of a Pipeline."""

from __future__ import annotations

from typing import Any, Final

from levada_operator.desired.owner import Owner

USER: Final = 185
"""The UID and GID of the image's user, the same as in Spark's images."""

CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def pod_security(owner: Owner) -> dict[str, Any]:
    """Return the security context of a pod. Its user and groups are the image's, or those that the cluster assigns."""
    user = {} if owner.defaults.assigned_user else {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {
        "runAsNonRoot": True,
        **user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
