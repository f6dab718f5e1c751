"""Mounts of the user's Secrets in the driver, the Jobs and the executors, where `levada --secrets` reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from levada.spec.section import Section
from levada.spec.source import PostgresServer
from levada_operator.desired.owner import Owner

SECRETS_DIR: Final = "/var/run/levada/secrets"


def secret_names(owner: Owner) -> tuple[str, ...]:
    """Return the distinct names of the Secrets that the manifest refers to, sorted."""
    store, token = owner.spec.store, owner.spec.driver.token_secret_ref
    names = {*task_secret_names(owner), *_secret_names(store.custom)}
    if store.postgres is not None:
        names |= set(_secret_names(store.postgres.connection))
    return tuple(sorted(names if token is None else {*names, token.name}))


def task_secret_names(owner: Owner) -> tuple[str, ...]:
    """Return those of the Secrets that copies and writes need, which executors do."""
    names = {*_secret_names(owner.spec.source), *_secret_names(owner.spec.destination.section)}
    key = owner.spec.tables.mask_key_secret_ref
    return tuple(sorted(names if key is None else {*names, key.name}))


def secret_volumes(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a volume for each Secret."""
    # Optional, because a pod that waits for a Secret reports no error, while the preflight reports the missing one.
    return [{"name": f"secret-{i}", "secret": {"secretName": name, "optional": True}} for i, name in enumerate(names)]


def secret_mounts(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a mount for each volume of `secret_volumes`."""
    return [
        {"name": f"secret-{i}", "mountPath": f"{SECRETS_DIR}/{name}", "readOnly": True} for i, name in enumerate(names)
    ]


def _secret_names(section: Section | PostgresServer | None) -> Iterator[str]:
    if section is not None and section.credentials_secret_ref is not None:
        yield section.credentials_secret_ref.name
    if isinstance(section, PostgresServer):
        references = (section.tls.ca_secret_ref, section.tls.cert_secret_ref)
        yield from (reference.name for reference in references if reference is not None)
