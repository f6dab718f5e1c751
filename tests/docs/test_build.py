"""The documentation is built without a warning: no broken link, no page that no other one lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_documentation_is_built(tmp_path: Path) -> None:
    """Each link between pages leads to a page and a heading that exist, and each page is in the table of contents."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run([*command, "docs", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
