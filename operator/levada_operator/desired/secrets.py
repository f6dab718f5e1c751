"""Mounts of the user's Secrets in the driver, the Jobs and the executors, where `levada --secrets` reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from levada.spec.source import PostgresServer
from levada_operator.desired.owner import Owner

SECRETS_DIR: Final = "/var/run/levada/secrets"


def secret_names(owner: Owner) -> tuple[str, ...]:
    """Return the distinct names of the Secrets that the manifest refers to, sorted."""
    return tuple(sorted(set(_secret_names(owner))))


def secret_volumes(owner: Owner) -> list[dict[str, Any]]:
    """Return a volume for each Secret."""
    # Optional, because a pod that waits for a Secret reports no error, while the preflight reports the missing one.
    return [
        {"name": f"secret-{i}", "secret": {"secretName": name, "optional": True}}
        for i, name in enumerate(secret_names(owner))
    ]


def secret_mounts(owner: Owner) -> list[dict[str, Any]]:
    """Return a mount for each volume of `secret_volumes`."""
    return [
        {"name": f"secret-{i}", "mountPath": f"{SECRETS_DIR}/{name}", "readOnly": True}
        for i, name in enumerate(secret_names(owner))
    ]


def _secret_names(owner: Owner) -> Iterator[str]:
    destination, store = owner.spec.destination.section, owner.spec.store
    state = None if store.postgres is None else store.postgres.connection
    if owner.spec.driver.token_secret_ref is not None:
        yield owner.spec.driver.token_secret_ref.name
    for section in (destination, owner.spec.source, store.custom, state):
        if section is not None and section.credentials_secret_ref is not None:
            yield section.credentials_secret_ref.name
        if isinstance(section, PostgresServer) and section.tls.ca_secret_ref is not None:
            yield section.tls.ca_secret_ref.name
