"""The documentation is built without a warning: no broken link, no page that no other one lists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.lint.public_names import PACKAGES

ROOT = Path(__file__).parents[2]


def test_the_documentation_is_built(tmp_path: Path) -> None:
    """Each link between pages leads to a page and a heading that exist, and each page is in the table of contents."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run([*command, "docs", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()


def test_troubleshooting_names_each_alert() -> None:
    """The page has the alerts that the chart has, and no other."""
    rules = (ROOT / "charts" / "levada" / "templates" / "prometheusrule.yaml").read_text("utf-8")
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text("utf-8")
    assert set(re.findall(r"`(Levada\w+)`", page)) == set(re.findall(r"alert: (\w+)", rules))


def test_the_api_has_each_public_package() -> None:
    """The page of the Python API has every package whose names are a promise, and no other."""
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert sorted(re.findall(r"automodule:: (\S+)", page)) == sorted(PACKAGES)
