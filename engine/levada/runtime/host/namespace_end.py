"""The end of a driver whose namespace is being deleted.

No Job can start in such a namespace, so the driver itself executes the deletionPolicy once its engine has ended. It
needs no operator for it. Since Kubernetes 1.33 the pods of a namespace end before its other objects are deleted.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import urllib.request
from pathlib import Path
from typing import Any, Final

from levada.direct_http import open_directly
from levada.errors import LevadaError
from levada.runtime.host.cleanup import open_cleanup
from levada.spec import Manifests

_log = logging.getLogger(__name__)

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S: Final = 10.0
_MAX_TEXT: Final = 1024


class Namespace:
    """The namespace of this pod, by the API server. ``account`` is the folder of the pod's token."""

    def __init__(self, server: str, name: str, account: Path = _ACCOUNT) -> None:
        self._server = server
        self._name = name
        self._account = account

    def is_deleted(self) -> bool:
        """Return True if the namespace is being deleted. Raise OSError or ValueError if that is not known."""
        found = self._ask("GET", f"/api/v1/namespaces/{self._name}")
        return "deletionTimestamp" in found["metadata"]

    def report(self, pipeline: str, text: str) -> None:
        """Write into the Pipeline's status that nothing is left to clean up. Raise OSError if it is refused."""
        path = f"/apis/levada.dev/v1alpha1/namespaces/{self._name}/pipelines/{pipeline}/status"
        self._ask("PATCH", path, {"status": {"cleanup": text[:_MAX_TEXT]}})

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        token = (self._account / "token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + path, data, headers, method=method)
        with open_directly(request, _TIMEOUT_S, *self._tls()) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def _tls(self) -> list[urllib.request.BaseHandler]:
        if not self._server.startswith("https:"):
            return []
        context = ssl.create_default_context(cafile=self._account / "ca.crt")
        return [urllib.request.HTTPSHandler(context=context)]


def own_namespace() -> Namespace | None:
    """Return the namespace of this driver's pod, or None outside of a cluster, or without a token."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    name = os.environ.get("LEVADA_NAMESPACE", "")
    if not host or not name or not (_ACCOUNT / "token").is_file():
        return None
    return Namespace(f"https://{f'[{host}]' if ':' in host else host}:{port}", name)


def clean_up_with_namespace(
    namespace: Namespace | None, manifests: Manifests, *, secrets: Path | None, work_dir: Path | None
) -> None:
    """Execute the deletionPolicy if the namespace is being deleted. A failure is logged, and left to the operator."""
    try:
        if namespace is None or not namespace.is_deleted():
            return
        _log.info("the namespace is being deleted: executing the deletionPolicy")
        with open_cleanup(manifests, secrets=secrets, work_dir=work_dir) as found:
            done = [*found.kept, *found.run()]
        namespace.report(manifests.pipeline.metadata.name, "; ".join(done))
    except (OSError, ValueError, KeyError, LevadaError) as error:
        _log.warning("nothing is cleaned up with the namespace: %s", error)
