"""The token of a manifest: of the Secret that it names, for the driver and for a command that asks it."""

from __future__ import annotations

from pathlib import Path

from levada.runtime.host.assembly import secret
from levada.runtime.report.access_token import AccessToken
from levada.spec import Manifests


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
