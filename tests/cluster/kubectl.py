"""The real kubectl, and waits for its output."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Kubectl:
    """The real kubectl, in one namespace."""

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
        for body in bodies:
            self("apply", *options, "-f", "-", stdin=json.dumps(body))

    def get(self, kind: str, name: str = "", *options: str) -> Any:
        """Return an object, or the list of all. None if it is missing."""
        done = self.run("get", kind, *([name] if name else []), *options, "-o", "json", check=False)
        if done.returncode:
            if "NotFound" in done.stderr:
                return None
            raise AssertionError(done.stderr)
        found = json.loads(done.stdout)
        return found if name else found["items"]

    def patch(self, kind: str, name: str, patch: dict[str, Any], *options: str) -> None:
        self("patch", kind, name, "--type=merge", "-p", json.dumps(patch), *options)


def eventually(check: Callable[[], _T], seconds: float = 90.0) -> _T:
    """Return the first true answer. Fail with the last answer if there is none."""
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {answer!r}"
        time.sleep(0.3)
    return answer
