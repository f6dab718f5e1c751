"""`levada status` and `levada lag`: read from the running engine, or else from the store and the source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from levada.cli.exit_codes import Exit
from levada.cli.formatting import size
from levada.cli.output import Output, console, write_json
from levada.cli.render import dashboard
from levada.runtime.host.secret_folder import request_headers
from levada.runtime.host.work_dir import (
    engine_elsewhere,
    engine_is_starting,
    engine_process_exists,
    running_progress,
)
from levada.spec import Manifests
from levada.status import PipelineState, Progress

_STARTING: Final = "an engine is starting on this machine. This is the state in the store"


def status(manifests: Manifests, secrets: Path | None, work_dir: Path, output: Output) -> Exit:
    """Print the progress of each table.

    Return `Exit.TABLE_ERRORED` if a table is errored, and `Exit.FAILED` if the pipeline is, or if its engine runs
    elsewhere.
    """
    headers = request_headers(manifests, secrets)
    progress = running_progress(work_dir, manifests.pipeline.metadata.name, headers)
    starting = progress is None and engine_is_starting(work_dir, headers)
    if progress is None:
        # Imported only here, because it takes longer than to ask a running engine.
        from levada.runtime.host.stored_progress import stored_progress
        from levada.runtime.report.snapshot import fatal_progress

        progress = stored_progress(manifests, secrets=secrets, work_dir=work_dir)
        # An engine here may not answer, for example because it asks for a token.
        if progress.slot.active and not engine_process_exists(work_dir):
            progress = replace(progress, error=fatal_progress(engine_elsewhere(progress.slot.name, "status")))
    if output is Output.JSON:
        write_json(progress.to_json())
    else:
        console().print(dashboard(progress))
        if progress.state == PipelineState.STOPPED:
            words = _STARTING if starting else _without_engine(manifests, progress)
            console().print(words, style="dim")
    return verdict(progress)


def verdict(progress: Progress) -> Exit:
    """Return the exit code for scripts: whether the pipeline, or one of its tables, is errored. Pure."""
    if progress.error is not None:
        return Exit.FAILED
    return Exit.TABLE_ERRORED if any(t.error is not None for t in progress.tables) else Exit.OK


def lag(manifests: Manifests, secrets: Path | None, output: Output) -> Exit:
    """Print the slot's lag and its retained WAL."""
    from levada.runtime.host.stored_progress import slot_progress

    slot = slot_progress(manifests, secrets=secrets)
    if output is Output.JSON:
        write_json(slot.to_json())
        return Exit.OK
    if slot.sampled_at is None:
        console().print(f"slot {slot.name} does not exist", markup=False)
        return Exit.OK
    console().print(
        f"slot {slot.name}: lag {size(slot.lag_bytes)}, retained {size(slot.retained_bytes)},"
        f" WAL {slot.wal_status or 'unknown'}, {'active' if slot.active else 'inactive'}",
        markup=False,
    )
    return Exit.OK


def _without_engine(manifests: Manifests, progress: Progress) -> str:
    if manifests.pipeline.spec.store.memory is not None:
        return "no engine answers on this machine. Its store is memory, which does not outlive the process"
    if not progress.tables and progress.slot.sampled_at is None:
        never = f"pipeline {progress.pipeline} has no slot and no tables yet"
        return f"no engine answers on this machine, and {never}. levada run starts it"
    return "no engine answers on this machine. This is the state in the store"
