"""A server that wants a certificate of its clients, as PostgreSQL 15 of Debian does with one line of pg_hba.conf."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import log_in_as, on, replicated, run
from tests.rigs.database import Database, StartPostgres
from tests.servers.certificates import Authority
from tests.servers.older import DEBIAN_15, postgres_15

from levada.cli.exit_codes import Exit

pytestmark = pytest.mark.skipif(not DEBIAN_15.exists(), reason="needs Debian's package postgresql-15")


@pytest.fixture
def authority() -> Authority:
    """The authority of the server's certificate and of its clients'."""
    return Authority()


@pytest.fixture
def strict(start_postgres: StartPostgres, authority: Authority, tmp_path: Path) -> Iterator[Database]:
    """A server that lets the role ``shop@cdc`` in by its certificate alone."""
    assert start_postgres
    with postgres_15() as server:
        db = Database(server, "postgres")
        db.execute('CREATE ROLE "shop@cdc" SUPERUSER LOGIN', "CREATE TABLE orders (id int PRIMARY KEY)")
        authority.write(tmp_path / "server", "127.0.0.1")
        (tmp_path / "server" / "ca.crt").write_bytes(authority.certificate())
        owner = server.data.stat()
        for file in (tmp_path / "server").iterdir():
            shutil.copy(file, copied := server.data / file.name)
            os.chown(copied, owner.st_uid, owner.st_gid)
            copied.chmod(0o600)
        hba = server.data / "pg_hba.conf"
        hba.write_text(f'hostssl all "shop@cdc" 127.0.0.1/32 cert\n{hba.read_text()}')
        for setting in ("ssl_cert_file = 'tls.crt'", "ssl_key_file = 'tls.key'", "ssl_ca_file = 'ca.crt'", "ssl = on"):
            db.execute(f"ALTER SYSTEM SET {setting}")  # type: ignore[arg-type]  # one of these
        db.execute("SELECT pg_reload_conf()")
        yield db


def with_tls(db: Database, **tls: Any) -> dict[str, Any]:
    """Return a Pipeline whose source, store and destination are this server."""
    document = replicated(db, store={"postgres": {}})
    document["spec"]["source"]["tls"] = {"mode": "VerifyFull", "caSecretRef": {"name": "ca", "key": "ca.crt"}, **tls}
    document["spec"]["destination"]["postgres"]["tls"] = {"mode": "VerifyFull"}
    document["spec"]["destination"]["postgres"]["credentialsSecretRef"] = {"name": "target"}
    return document


@pytest.mark.nightly
def test_a_client_certificate(strict: Database, authority: Authority, tmp_path: Path) -> None:
    """A check names the field that is missing. With the Secret of it, and no password, the pipeline runs."""
    path, secrets = tmp_path / "pipeline.yaml", tmp_path / "secrets"
    log_in_as(tmp_path, "shop@cdc")
    for name in ("ca", "target"):
        (secrets / name).mkdir()
        (secrets / name / "ca.crt").write_bytes(authority.certificate())
    path.write_text(yaml.safe_dump(with_tls(strict)))
    found = " ".join(on(path, "check").output.split())
    assert "[source_tls_failed]" in found, found
    assert 'set spec.source.tls.certSecretRef to a Secret with a certificate of role "shop@cdc"' in found
    (secrets / "shop-cdc" / "password").unlink()
    (secrets / "target" / "username").write_text("shop@cdc")
    for name in ("certificate", "target"):
        authority.write(secrets / name, "shop@cdc")
        (secrets / name / "tls.key").chmod(0o644)
    path.write_text(yaml.safe_dump(with_tls(strict, certSecretRef={"name": "certificate"})))
    checked = on(path, "check")
    assert checked.exit_code == Exit.OK, checked.output
    strict.execute("INSERT INTO orders VALUES (7)")
    run(path)
    assert strict.query("SELECT id FROM replica.orders") == [(7,)]
