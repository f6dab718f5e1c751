"""The `restricted` Pod Security Standard, for every pod of a Pipeline."""

from __future__ import annotations

from typing import Any, Final

USER: Final = 185
"""The UID and GID of the image's user, the same as in Spark's images."""

CONTAINER_SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}


def pod_security() -> dict[str, Any]:
    """Return the security context of a pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
