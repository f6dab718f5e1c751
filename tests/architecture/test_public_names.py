"""The public names can be imported."""

from __future__ import annotations

import importlib
import subprocess
import sys

from tests.lint.public_names import GOLDEN, PACKAGES
from tests.lint.tree import ROOT


def test_every_public_name_is_there() -> None:
    """Each exported name can be imported, also those that are loaded on demand."""
    for name in (ROOT / GOLDEN).read_text().splitlines():
        package, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(package), attribute), name


def test_dir_has_every_public_name(own_process: None) -> None:
    """`dir` of a public package has what can be imported from it, also before anything was imported."""
    code = (
        f"import importlib; names = {PACKAGES!r}\n"
        "for name in names:\n"
        "    package = importlib.import_module(name)\n"
        "    assert set(package.__all__) <= set(dir(package)), (name, set(package.__all__) - set(dir(package)))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
