"""Commands without an engine while another session has a table of the store locked."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
import yaml
from tests.rigs.command_line import manifest, on, replicated
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

__all__ = ["manifest"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("check",), Exit.PREFLIGHT),
        (("verify",), Exit.FAILED),
        (("resync", "--all"), Exit.FAILED),
        (("retry", "--all"), Exit.FAILED),
        (("cleanup", "--yes"), Exit.FAILED),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_command_names_the_session_that_has_the_store_locked(
    manifest: Path, db: Database, command: tuple[str, ...], code: Exit
) -> None:
    """The error has the session's PID, role, application and table, and the hint has the SQL that ends it."""
    manifest.write_text(yaml.safe_dump(replicated(db)))
    done = on(manifest, "run", "--until", "caught-up")
    assert done.exit_code == Exit.OK, done.output
    with closing(db.connect(application_name="nightly report")) as other, other.transaction():
        other.execute("LOCK TABLE levada.documents")
        found = on(manifest, *command)
        pid = other.info.backend_pid
    words = " ".join(found.output.split())
    assert (found.exit_code, "[store_locked]" in words) == (code, True), found.output
    assert f"PID {pid} (role postgres, application nightly report, idle in transaction since" in words
    assert "has table levada.documents in mode AccessExclusiveLock" in words
    assert f"SELECT pg_terminate_backend({pid})" in words
