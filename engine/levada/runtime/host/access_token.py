"""The access token in the Secret that a manifest names, for the driver and for the commands that call its HTTP API."""

from __future__ import annotations

from pathlib import Path

from levada.runtime.host.secret_folder import secret_folder
from levada.runtime.report.access_token import AccessToken
from levada.spec import Manifests


def access_token(manifests: Manifests, secrets: Path | None) -> AccessToken | None:
    """Return the token that ``spec.driver.tokenSecretRef`` names, or None without one.

    Raise NeedsOperator ``secret_missing`` if the Secret or its key does not exist.
    """
    reference = manifests.pipeline.spec.driver.token_secret_ref
    if reference is None:
        return None
    return AccessToken(secret_folder(secrets, reference.name, reference.key) / reference.key)


def request_headers(manifests: Manifests, secrets: Path | None) -> dict[str, str]:
    """Return the HTTP headers for requests to a running driver.

    They carry the token if the manifest names one and ``secrets``, the folder with the Secrets, is given.
    """
    reference = manifests.pipeline.spec.driver.token_secret_ref
    if reference is None or secrets is None:
        return {}
    return {"Authorization": f"Bearer {AccessToken(secrets / reference.name / reference.key).read()}"}
