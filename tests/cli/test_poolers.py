"""PgBouncer, as Debian's package has it, between Levada and a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import manifest, on, replicated, run
from tests.rigs.database import Database
from tests.servers.pgbouncer import pgbouncer
from typer.testing import Result

from levada.cli.exit_codes import Exit

__all__ = ["manifest"]


def checked(manifest: Path, document: dict[str, Any]) -> Result:
    """Check a manifest."""
    manifest.write_text(yaml.safe_dump(document))
    return on(manifest, "check")


@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = options"])
def test_a_pooler_in_front_of_the_source_or_the_store(db: Database, manifest: Path, more: str) -> None:
    """Neither works, also where the pooler ignores what it does not know. The error names the field of the address."""
    own = replicated(db)
    source = own["spec"]["source"]
    with pgbouncer(db, more=more) as port:
        stored = {"postgres": {"connection": {**source, "port": port}}}
        for field, document in (
            ("spec.source.host", replicated(db, source={**source, "port": port})),
            ("spec.store.postgres.connection.host", replicated(db, store=stored)),
        ):
            found = checked(manifest, document)
            assert found.exit_code == Exit.PREFLIGHT, found.output
            assert "[pooler_unsupported]" in found.output
            assert f"set {field} to the address of" in " ".join(found.output.split())


@pytest.mark.nightly
def test_a_pooler_in_front_of_the_destination(db: Database, manifest: Path) -> None:
    """A PostgreSQL destination works in transaction mode with PgBouncer's defaults, on two sessions."""
    db.execute("INSERT INTO orders SELECT generate_series(1, 100)")
    with pgbouncer(db, more="default_pool_size = 2") as port:
        document = replicated(db)
        document["spec"]["destination"]["postgres"]["port"] = port
        found = checked(manifest, document)
        assert found.exit_code == Exit.OK, found.output
        run(manifest)
        db.execute("UPDATE orders SET id = -id WHERE id <= 10", "DELETE FROM orders WHERE id > 90", "TRUNCATE items")
        run(manifest)
    assert db.query("SELECT id FROM replica.orders ORDER BY 1") == db.query("SELECT id FROM orders ORDER BY 1")


@pytest.mark.nightly
def test_a_pooler_in_front_of_a_catalog(db: Database, manifest: Path, tmp_path: Path) -> None:
    """DuckLake's catalog works in transaction mode too."""
    db.execute("INSERT INTO orders SELECT generate_series(1, 100)")
    with pgbouncer(db, more="default_pool_size = 2") as port:
        catalog = {"host": "127.0.0.1", "port": port, "database": db.name, "tls": {"mode": "Disable"}, "schema": "lake"}
        lake = {"catalog": catalog, "dataPath": f"{tmp_path}/lake", "credentialsSecretRef": {"name": "shop-cdc"}}
        assert checked(manifest, replicated(db, destination={"ducklake": lake})).exit_code == Exit.OK
        run(manifest)
        db.execute("DELETE FROM orders WHERE id > 90")
        run(manifest)
    assert db.query("SELECT sum(record_count) FROM lake.ducklake_data_file WHERE end_snapshot IS NULL") == [(100,)]
    assert db.query("SELECT sum(delete_count) FROM lake.ducklake_delete_file WHERE end_snapshot IS NULL") == [(10,)]
