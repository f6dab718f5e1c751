"""The modules that a short command imports, which take most of its time."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pyarrow", "numpy", "psycopg", "pyspark", "levada.runtime.supervisor")


@pytest.mark.usefixtures("own_process")
def test_a_status_of_a_running_engine_needs_neither_arrow_nor_a_driver() -> None:
    """It only asks the engine. What reads the store is imported if no engine answers."""
    code = (
        "import sys, levada.cli, levada.cli.manifests, levada.cli.status;"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
