"""Each fault is tried against an engine of its own, as in the scenarios."""

from __future__ import annotations

import os
import shutil
from typing import Final

import pytest
from tests.cluster.bringup.machine import install
from tests.scenarios.conftest import engine

__all__ = ["engine"]

_PACKAGES: Final = {"faketime": "/usr/bin/faketime"}


@pytest.fixture(scope="session")
def faketime() -> str:
    """Return the command that runs another under a clock that is wrong; installed where that is possible."""
    if os.geteuid() == 0 and shutil.which("apt-get"):
        install(_PACKAGES)
    command = shutil.which("faketime")
    if command is None:
        pytest.skip("there is no command faketime, and no root and apt-get to install it")
    return command
