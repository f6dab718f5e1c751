"""Connections to BigQuery: HTTP sessions and gRPC channels, with the credentials of the manifest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from levada.destinations.bigquery.settings import Settings
from levada.destinations.credentials import read_credentials
from levada.errors import LoginFailed, NeedsOperator

if TYPE_CHECKING:
    import grpc
    import requests

REST: Final = "https://bigquery.googleapis.com"
STORAGE: Final = "bigquerystorage.googleapis.com:443"
KEY: Final = "credentials.json"
_SCOPES: Final = ("https://www.googleapis.com/auth/bigquery",)
_MESSAGE_BYTES: Final = 64 << 20
_CHANNEL: Final = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MESSAGE_BYTES),
    # A server that is gone is noticed within a minute, also during an upload of hours.
    ("grpc.keepalive_time_ms", 40_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


@dataclass(frozen=True, slots=True)
class Connection:
    """The addresses of BigQuery, and the folder of the credentials. It is pickled into other processes.

    An address without TLS gets no credentials.
    """

    rest: str
    storage: str
    credentials: Path | None

    @classmethod
    def of(cls, settings: Settings, credentials: Path | None) -> Connection:
        """Return the connection of a manifest's settings. ``credentials`` is the folder of the Secret, or None."""
        if settings.endpoint is None:
            return cls(REST, STORAGE, credentials)
        return cls(settings.endpoint.rest, settings.endpoint.storage, credentials)

    @property
    def anonymous(self) -> bool:
        """Whether the connection has no TLS, and so no credentials."""
        return self.rest.startswith("http://")

    @staticmethod
    def require_client() -> None:
        """Raise NeedsOperator ``destination_broken`` if the client of the Storage Write API is not installed."""
        try:
            found = find_spec("google.cloud.bigquery_storage_v1")
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise NeedsOperator(
                "destination_broken",
                "the client of BigQuery is not installed",
                hint="pip install 'levada[bigquery]'",
            )

    def session(self) -> requests.Session:
        """Return a new HTTP session. Raise LoginFailed if the credentials cannot be read."""
        import requests
        from google.auth.transport.requests import AuthorizedSession

        return requests.Session() if self.anonymous else AuthorizedSession(self._login())

    def channel(self) -> grpc.Channel:
        """Return a new channel to the Storage Write API. Raise LoginFailed if the credentials cannot be read."""
        import grpc

        if self.anonymous:
            return grpc.insecure_channel(self.storage, options=_CHANNEL)
        from google.auth.transport.grpc import AuthMetadataPlugin
        from google.auth.transport.requests import Request

        login = grpc.metadata_call_credentials(AuthMetadataPlugin(self._login(), Request()))
        secured = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(), login)
        return grpc.secure_channel(self.storage, secured, options=_CHANNEL)

    def _login(self) -> Any:
        import google.auth
        from google.auth.exceptions import GoogleAuthError

        try:
            if self.credentials is None:
                return google.auth.default(scopes=_SCOPES)[0]
            found = read_credentials(self.credentials).get(KEY)
            if found is None:
                raise _unreadable(f"the Secret {self.credentials.name} has no key {KEY}")
            return _parse(json.loads(found))
        except (ValueError, AttributeError, TypeError):
            # The text of the error may contain the key.
            raise _unreadable("the credentials are no key of a service account, and no federation's") from None
        except GoogleAuthError as error:
            raise _unreadable(f"no credentials: {type(error).__name__}") from error


def _parse(found: Any) -> Any:
    """Return the credentials of a service account's key, or of workload identity federation by a file or a URL.

    Other kinds of federation run programs, so they are refused.
    """
    from google.auth import identity_pool
    from google.oauth2 import service_account

    if found.get("type") == "external_account":
        return identity_pool.Credentials.from_info(found, scopes=_SCOPES)
    return service_account.Credentials.from_service_account_info(found, scopes=_SCOPES)


def _unreadable(what: str) -> LoginFailed:
    return LoginFailed(
        "credentials_unreadable",
        f"BigQuery: {what}",
        hint=f"give the Secret of spec.destination.bigquery.credentialsSecretRef the key {KEY},"
        " or leave it unset and give the pod an identity",
    )
