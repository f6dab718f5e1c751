"""The demo, smaller."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "shop" / "demo.py"


@pytest.mark.nightly
@pytest.mark.usefixtures("own_jvm")
def test_demo_ends_with_both_sides_equal() -> None:
    """Copy, traffic, a new column, SIGKILL: every row and column is equal, and nothing is left at the source."""
    done = subprocess.run(
        [sys.executable, str(DEMO), "--scale", "0.02", "--seconds", "4"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": equal at ") == 6
    assert "the engine ended cleanly, exit code 0" in done.stdout
    assert "slot levada_shop: dropped" in done.stdout
