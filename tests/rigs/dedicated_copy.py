"""A dedicated copy under `levada run`."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.rigs.engine import Engine


def dedicated(name: str) -> dict[str, Any]:
    """Return a TableSync whose copy is left to another process."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": f"shop-{name}"},
        "spec": {
            "pipelineRef": {"name": "shop"},
            "table": {"schema": "public", "name": name},
            "copy": {"driver": "Dedicated"},
        },
    }


def copy_job(engine: Engine, number: int) -> subprocess.Popen[bytes]:
    """Start ``levada copy``, as the operator's Job does, with a work folder of its own."""
    command = [
        "copy",
        *engine.options(),
        "--work-dir",
        str(engine.folder / f"job-{number}"),
        "--table",
        "public.orders",
    ]
    with open(engine.folder / "engine.log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "levada", *command], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
