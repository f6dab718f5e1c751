"""Shell scripts, checked by their linter."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.servers.debian import install

ROOT = Path(__file__).parents[2]


def test_shellcheck_finds_nothing() -> None:
    """Every script of the project is free of what ShellCheck warns of."""
    if not shutil.which("shellcheck"):
        if os.geteuid() or not shutil.which("apt-get"):
            pytest.skip("shellcheck is not installed, and cannot be")
        install({"shellcheck": "/usr/bin/shellcheck"})
    listed = subprocess.run(["git", "ls-files", "*.sh"], cwd=ROOT, capture_output=True, text=True, check=True)
    scripts = listed.stdout.split()
    assert "examples/quickstart/quickstart.sh" in scripts
    done = subprocess.run(["shellcheck", *scripts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
