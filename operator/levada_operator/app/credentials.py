"""The API server's address and this process's credentials, from the pod's service account or a kubeconfig."""

from __future__ import annotations

import os
import shlex
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import kopf
import yaml

from levada.errors import NeedsOperator

_REREAD_S: Final = 60.0
"""The kubelet replaces the token of a service account when four fifths of its time are over, an hour by default."""


def read_connection() -> kopf.ConnectionInfo | None:
    """Return the address and the credentials, or None if there are none.

    A pod uses the API server's address in its environment, as client-go does, and needs no DNS for it.
    """
    options = kopf.OperatorSettings()
    info = kopf.login_with_service_account(settings=options)
    if info is None:
        return kopf.login_with_kubeconfig(settings=options)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        return info
    return replace(info, server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The API server's address, how its certificate is verified, and the headers of a request."""

    server: str
    context: ssl.SSLContext
    headers: Callable[[], Mapping[str, str]]


def read_credentials(reread_s: float = _REREAD_S) -> Credentials:
    """Return the credentials. They are read again every ``reread_s`` seconds.

    Raise NeedsOperator ``operator_outside_cluster`` without any, and ``kubeconfig_invalid``.
    """
    try:
        info = read_connection()
        if info is None:
            raise NeedsOperator(
                "operator_outside_cluster",
                "the operator runs outside of a cluster, and there is no kubeconfig",
                hint="set KUBECONFIG to the path of one",
            )
        headers = _Headers(lambda: read_connection(), info, reread_s)
        return Credentials(info.server.rstrip("/"), info.as_ssl_context(), headers)
    except (kopf.LoginError, yaml.YAMLError, LookupError, ValueError, TypeError, AttributeError, OSError) as error:
        path = os.environ.get("KUBECONFIG") or "~/.kube/config"
        raise NeedsOperator(
            "kubeconfig_invalid",
            f"the kubeconfig {path} cannot be used: {_reason(error)}",
            hint=f"kubectl --kubeconfig {shlex.quote(path)} config view",
        ) from error


def _reason(error: Exception) -> str:
    """Return what is wrong with a kubeconfig. The text of other errors may contain its secrets."""
    match error:
        case OSError(strerror=str(reason), filename=str(path)):
            return f"{path}: {reason}"
        case KeyError():
            return f"it has no entry {error}"
        case kopf.LoginError():
            return str(error)
        case yaml.YAMLError() | UnicodeDecodeError():
            return "it is not YAML"
        case ValueError() | OSError():
            return "a certificate or a key in it is invalid"
        case _:
            return "it is not a kubeconfig"


class _Headers:
    """The headers with the credentials, read again every ``reread_s`` seconds. Several threads may call it."""

    def __init__(
        self, read: Callable[[], kopf.ConnectionInfo | None], first: kopf.ConnectionInfo, reread_s: float
    ) -> None:
        self._read = read
        self._reread_s = reread_s
        self._lock = threading.Lock()
        self._headers = first.as_http_headers()
        self._read_at = time.monotonic()

    def __call__(self) -> Mapping[str, str]:
        with self._lock:
            if time.monotonic() - self._read_at >= self._reread_s:
                self._read_at = time.monotonic()
                if (info := self._read()) is not None:
                    self._headers = info.as_http_headers()
            return self._headers
