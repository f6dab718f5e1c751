"""`levada cleanup`: lists the objects to remove, asks for confirmation, and removes them."""

from __future__ import annotations

from pathlib import Path

import typer

from levada.cli.exit_codes import Exit
from levada.cli.output import console
from levada.runtime.host.cleanup import open_cleanup
from levada.spec import Manifests


def cleanup(manifests: Manifests, secrets: Path | None, work_dir: Path, *, confirmed: bool) -> Exit:
    """List the objects to remove, ask for confirmation unless ``confirmed``, and remove them."""
    out = console()
    with open_cleanup(manifests, secrets=secrets, work_dir=work_dir) as found:
        for step in found.steps:
            out.print(f"will remove: {step.what}", markup=False)
        if found.foreign is not None:
            out.print(f"will stay: {found.foreign.message}", markup=False)
        if not confirmed and not typer.confirm("Remove them?"):
            raise typer.Abort
        for line in found.run():
            out.print(line, markup=False)
    return Exit.OK
