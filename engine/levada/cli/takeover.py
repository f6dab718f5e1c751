"""`levada takeover`: makes this pipeline the owner of what a former owner has. The command can be repeated."""

from __future__ import annotations

from pathlib import Path

import typer

from levada.cli.exit_codes import Exit
from levada.cli.output import console
from levada.runtime.host.takeover import take_over_pipeline
from levada.spec import Manifests


def takeover(manifests: Manifests, secrets: Path | None, work_dir: Path, former: str, *, confirmed: bool) -> Exit:
    """Take over, after asking for confirmation unless ``confirmed``. A running engine of the former owner ends."""
    if not confirmed and not typer.confirm(f"End every engine of {former}, and take over what it owns?"):
        raise typer.Abort
    done = take_over_pipeline(manifests, former, secrets=secrets, work_dir=work_dir)
    nothing = "" if done.places else f" already: nothing of it belongs to UID {former}"
    console().print(f"the owner of pipeline {manifests.pipeline.metadata.name} is {done.owner}{nothing}", markup=False)
    return Exit.OK
