"""`levada retry` and `levada resync`: request them, and print the tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from levada.cli.exit_codes import Exit
from levada.cli.hints import runnable
from levada.cli.local_engine import engine_runs
from levada.cli.output import console
from levada.runtime.host.table_requests import resync_tables, retry_tables
from levada.runtime.tables.rules import needs_resync
from levada.spec import Manifests
from levada.stores.phases import Errored


def retry(manifests: Manifests, manifest: Path, secrets: Path | None, names: Sequence[str] | None) -> Exit:
    """Request a retry of the named tables, or of every errored table if ``names`` is None."""
    phases = retry_tables(manifests, names, secrets=secrets)
    for table, phase in phases.items():
        if isinstance(phase, Errored) and needs_resync(phase):
            _print(runnable(f"{table}: cannot be retried, only copied again: {phase.solution}"))
        elif isinstance(phase, Errored):
            _print(f"{table}: will be retried")
        else:
            _print(f"{table}: {'not started' if phase is None else phase.name}, there is nothing to retry")
    if names is None and not phases:
        _print("no table is errored")
    if any(isinstance(phase, Errored) and not needs_resync(phase) for phase in phases.values()):
        _print_start(manifests, manifest, secrets)
    return Exit.OK


def resync(manifests: Manifests, manifest: Path, secrets: Path | None, names: Sequence[str] | None) -> Exit:
    """Request a resync of the named tables, or of all tables if ``names`` is None."""
    tables = resync_tables(manifests, names, secrets=secrets)
    for table in tables:
        _print(f"{table}: will be copied again")
    if not tables:
        _print("spec.tables selects no table")
    if tables:
        _print_start(manifests, manifest, secrets)
    return Exit.OK


def _print_start(manifests: Manifests, manifest: Path, secrets: Path | None) -> None:
    """Say when the requests take effect if no engine runs."""
    if not engine_runs(manifests, manifest, secrets):
        _print(runnable("no engine runs, so this begins with the next start: levada run MANIFEST"))


def _print(line: str) -> None:
    console().print(line, markup=False)
