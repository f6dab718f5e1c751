"""`levada cleanup`: lists the objects to remove, asks for confirmation, and removes them."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from levada.cli.exit_codes import Exit
from levada.cli.output import console
from levada.runtime.host.cleanup import open_cleanup
from levada.runtime.host.pod import TERMINATION_LOG
from levada.spec import Manifests


def cleanup(manifests: Manifests, secrets: Path | None, work_dir: Path, *, confirmed: bool) -> Exit:
    """List the objects to remove, ask for confirmation unless ``confirmed``, and remove them."""
    out = console()
    with open_cleanup(manifests, secrets=secrets, work_dir=work_dir) as found:
        for step in found.steps:
            out.print(f"will remove: {step.what}", markup=False)
        for line in (*found.kept, *found.retained):
            # Statements are copied from the terminal, so they have no line breaks of its width.
            out.print(f"will stay: {line}", markup=False, soft_wrap=True)
        if not confirmed and not typer.confirm("Remove them?"):
            raise typer.Abort
        done = []
        for line in found.run():
            out.print(line, markup=False)
            done.append(line)
        if found.kept and (log := os.environ.get(TERMINATION_LOG)):
            # The operator reports what the policy would have removed.
            Path(log).write_text("\n".join([*found.kept, *done]), "utf-8")
    return Exit.OK
