"""Each test begins without a command line, as a process does."""

from __future__ import annotations

import pytest
from tests.rigs.command_line import folder, manifest

from levada.cli.hints import set_invocation

__all__ = ["folder", "manifest"]


@pytest.fixture(autouse=True)
def no_command_line() -> None:
    """Forget the manifest that an earlier command in this process named."""
    set_invocation(None)
