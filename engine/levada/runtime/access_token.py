"""The token that a driver asks for before it answers `/v1/progress` and `/metrics`."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from pathlib import Path

from levada.runtime.manifest import secret
from levada.spec import Manifests


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token in a file. It is read for each request, so a changed Secret needs no restart."""

    file: Path

    def admits(self, authorization: str) -> bool:
        """Return True if a request's header ``Authorization`` has the token. No token in the file admits no one."""
        scheme, _, given = authorization.partition(" ")
        token = self.read()
        same = hmac.compare_digest(given.strip().encode(), token.encode())
        return bool(token) and scheme.lower() == "bearer" and same

    def read(self) -> str:
        """Return the token, empty if it cannot be read."""
        try:
            return self.file.read_text().strip()
        except (OSError, ValueError):
            return ""


def access_token(manifests: Manifests, secrets: Path | None) -> AccessToken | None:
    """Return the manifest's token, None if it names none. Raise NeedsOperator ``secret_missing`` if it is not there."""
    reference = manifests.pipeline.spec.driver.token_secret_ref
    if reference is None:
        return None
    return AccessToken(secret(secrets, reference.name, reference.key) / reference.key)


def request_headers(manifests: Manifests, secrets: Path | None) -> dict[str, str]:
    """Return the headers with which a command asks a running driver. Without the Secret there is no token in them."""
    reference = manifests.pipeline.spec.driver.token_secret_ref
    if reference is None or secrets is None:
        return {}
    return {"Authorization": f"Bearer {AccessToken(secrets / reference.name / reference.key).read()}"}
