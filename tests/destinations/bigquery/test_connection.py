"""Errors and credentials of the connection to BigQuery."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from tests.destinations.bigquery.warehouse import Warehouse, copy, error_of
from tests.servers.bigquery import PROJECT
from tests.servers.ports import free_port

from levada.destinations.bigquery.connection import Connection
from levada.destinations.bigquery.failures import failure
from levada.destinations.bigquery.settings import Settings
from levada.errors import AccessDenied, LevadaError, LoginFailed, NeedsOperator, Transient


def test_no_server(warehouse: Warehouse) -> None:
    """A server that does not answer is Transient, for the REST API and for the Storage Write API."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    stream.insert(id=4, item="d", note=None)
    batch = stream.batch()
    warehouse.manifest["endpoint"] = {**warehouse.server.endpoint, "storage": f"127.0.0.1:{free_port()}"}
    away = warehouse.destination()
    assert isinstance(error_of(lambda: away.write_events(batch, warehouse.mark(batch.until))), Transient)
    warehouse.manifest["endpoint"] = {"rest": f"http://127.0.0.1:{free_port()}", "storage": "127.0.0.1:1"}
    assert isinstance(error_of(warehouse.destination), Transient)
    destination.write_events(batch, warehouse.mark(batch.until))
    assert len(warehouse.items()) == 4


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind", "code"),
    [
        (403, "accessDenied", "x", AccessDenied, "destination_denied"),
        (403, "quotaExceeded", "x", Transient, "destination_unavailable"),
        (403, "rateLimitExceeded", "x", Transient, "destination_unavailable"),
        (0, "backendError", "x", Transient, "destination_unavailable"),
        (503, "", "x", Transient, "destination_unavailable"),
        (401, "", "x", LoginFailed, "destination_login_failed"),
        (0, "invalidQuery", "Transaction is aborted due to concurrent update", Transient, "commit_conflict"),
        (403, "quotaExceeded", "Too many partitions produced by query", NeedsOperator, "destination_error"),
        (404, "notFound", "Not found: Dataset p:d", NeedsOperator, "destination_table_missing"),
        (400, "invalidQuery", "secret value", NeedsOperator, "destination_error"),
    ],
)
def test_errors(status: int, reason: str, message: str, kind: type[LevadaError], code: str) -> None:
    """BigQuery's reasons decide who resolves an error, and no value of a row is in the message."""
    error = failure("write t", status, reason, message, has_rows=True)
    assert isinstance(error, kind)
    assert error.code == code
    assert "secret" not in str(error)


def test_credentials(tmp_path: Path) -> None:
    """A service account's key opens a session and a channel. Any other text is LoginFailed, and is in no message."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    account = {
        "type": "service_account",
        "private_key": key.decode(),
        "client_email": "levada@project-1.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    connection = Connection.of(Settings.model_validate({"project": PROJECT}), tmp_path)
    federation = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com/v1/token",
        "credential_source": {"file": "/var/run/token"},
    }
    file = tmp_path / "credentials.json"
    for good in (account, federation):
        file.write_text(json.dumps(good))
        connection.session().close()
        connection.channel().close()
    for text in ("secret", '"secret"', '{"type": "secret"}', json.dumps({**account, "private_key": "secret"})):
        file.write_text(text)
        for opened in (connection.session, connection.channel):
            error = error_of(opened)
            assert (type(error), error.code) == (LoginFailed, "credentials_unreadable")
            assert "secret" not in str(error)
    file.unlink()
    assert error_of(connection.session).code == "credentials_unreadable"
