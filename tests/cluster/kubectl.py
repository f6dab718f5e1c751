"""The real kubectl, requests to the API server, and the one way to wait."""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tests.cluster.api_server import MERGE, api_server
from tests.rigs.waiting import until

LIMIT_S: Final = 600
"""The limit of every wait: much longer than anything takes on a busy machine."""

PATIENCE: Final = f"--timeout={LIMIT_S}s"
"""The same for kubectl and helm."""

_T = TypeVar("_T")
_seen: dict[tuple[str, str, str], Any] = {}
"""Answers that were read while `eventually` waited, by namespace, kind and name or selector."""


@dataclass(frozen=True)
class Kubectl:
    """The real kubectl, in one namespace. Methods with a name are requests to the API server, without a process."""

    namespace: str = "default"

    def run(self, *arguments: str, stdin: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        # With a namespace, kubectl refuses to delete objects of others.
        scope = [] if "--all-namespaces" in arguments else ["-n", self.namespace]
        command = ["kubectl", *scope, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=600, check=False)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr}")
        return done

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        return self.run(*arguments, stdin=stdin).stdout

    def apply(self, *bodies: dict[str, Any], options: tuple[str, ...] = ()) -> None:
        """Apply the objects by one kubectl."""
        self("apply", *options, "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": bodies}))

    def create(self, body: dict[str, Any]) -> None:
        """Create an object."""
        resource = api_server().resource(body["kind"])
        assert api_server().ask("POST", resource.path(self.namespace), body), f"there is no namespace {self.namespace}"

    def get(self, kind: str, name: str = "", *, labels: str = "", fields: str = "") -> Any:
        """Return an object, or the list of all of some kinds that the selectors choose, or None if there is none."""
        query = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
        found: list[Any] | None = []
        for word in kind.split(","):
            resource = api_server().resource(word)
            answer = api_server().ask("GET", resource.path(self.namespace, name), query=query)
            if name:
                _seen[self.namespace, kind, name] = answer
                return answer
            if answer is None:
                found = None
                break
            found += [{"apiVersion": resource.version, "kind": resource.kind, **item} for item in answer["items"]]
        _seen[self.namespace, kind, labels + fields] = found
        return found

    def patch(self, kind: str, name: str, patch: dict[str, Any], subresource: str = "") -> None:
        """Merge the patch into an object, or into a subresource of it."""
        path = api_server().resource(kind).path(self.namespace, name, subresource)
        assert api_server().ask("PATCH", path, patch, content=MERGE) is not None, f"there is no {kind} {name}"

    def make_namespace(self, name: str) -> Kubectl:
        """Make a namespace that enforces the restricted Pod Security Standard."""
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
        return Kubectl(name)

    def remove_namespace(self) -> None:
        """Let the namespace be deleted, and end its pods. No finalizer of a Pipeline or a pod holds that up."""
        self._release("pipeline")
        self.delete("namespace", self.namespace)
        # Only now: no controller makes another pod in a namespace that is being deleted.
        self.delete_all("pods", gracePeriodSeconds=1)
        self._release("pod")
        eventually(lambda: not self.get("pods"))

    def _release(self, kind: str) -> None:
        # A test may have removed the CRDs.
        for body in self.get(kind) or ():
            if body["metadata"].get("finalizers"):
                path = api_server().resource(kind).path(self.namespace, body["metadata"]["name"])
                api_server().ask("PATCH", path, {"metadata": {"finalizers": None}}, content=MERGE)

    def delete(self, kind: str, name: str) -> None:
        """Let an object be deleted, if it is there."""
        path = api_server().resource(kind).path(self.namespace, name)
        api_server().ask("DELETE", path, {"propagationPolicy": "Background"})

    def delete_all(self, kind: str, **options: object) -> None:
        """Let all objects of a kind be deleted."""
        api_server().ask("DELETE", api_server().resource(kind).path(self.namespace), options)


def eventually(check: Callable[[], _T], limit_s: float = LIMIT_S) -> _T:
    """Return the first true answer. Fail with the last one, and with what was read for it. Tests set no other limit."""
    _seen.clear()
    return until(check, report=lambda: _message(check), limit_s=limit_s)


def allowed(kubectl: Kubectl, account: str, *actions: str) -> None:
    """Wait until the API server knows of an account's rights, such as ``get pods``. It reads roles a moment later."""
    for action in actions:
        asked = ("auth", "can-i", *action.split(), f"--as={account}")
        eventually(lambda asked=asked: not kubectl.run(*asked, check=False).returncode)  # type: ignore[misc]  # bound on purpose


def established(kubectl: Kubectl, *named: str) -> None:
    """Wait until the API server serves the CRDs. kubectl's own wait fails for one that has no status yet."""
    eventually(lambda: not kubectl.run("wait", "--for=condition=Established", *named, check=False).returncode)


def _message(check: Callable[[], object]) -> str:
    code = "the condition"
    with suppress(OSError, TypeError):
        code = inspect.getsource(check).strip()
    read = [f"{' '.join(key)}: {json.dumps(value, indent=1)[:6000]}" for key, value in _seen.items()]
    return "\n".join([f"never: {code}", "last read:", *read])
