"""The catalog's server and the object store of a destination, from its settings and its Secret."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from levada.destinations.credentials import read_credentials
from levada.destinations.ducklake.settings import Settings
from levada.postgres.client_key import CERTIFICATE
from levada.postgres.connection import PostgresConnection
from levada.postgres.tls import SSL_MODES, trusted_certificates

_AUTHORITY: Final = "ca.crt"
"""The key of the Secret that has the certificate authority of the catalog's server."""
_LOGIN: Final = ("username", "password", _AUTHORITY)


def server_of(settings: Settings, credentials: Path | None) -> PostgresConnection:
    """Return the connection parameters of the catalog's server."""
    catalog = settings.catalog
    authority = None if credentials is None else credentials / _AUTHORITY
    # A Secret may have only the keys of the object store.
    login = credentials if credentials is not None and (credentials / _LOGIN[0]).is_file() else None
    return PostgresConnection(
        catalog.host,
        catalog.port,
        catalog.database,
        credentials=login,
        sslmode=SSL_MODES[catalog.tls.mode],
        sslrootcert=authority
        if authority is not None and authority.is_file()
        else trusted_certificates(catalog.tls.mode),
        pooled=True,
        certificate=credentials if credentials is not None and (credentials / CERTIFICATE).is_file() else None,
    )


def store_properties(settings: Settings, credentials: Path | None) -> Mapping[str, str]:
    """Return the properties of the object store, with those of the Secret. Raise LoginFailed for an unreadable key."""
    secret = {} if credentials is None else read_credentials(credentials)
    return {**settings.properties, **{name: text for name, text in secret.items() if name not in _LOGIN}}
