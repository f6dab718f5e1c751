"""Steps that tests of verifications share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60


def wait(what: Callable[[], Any]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)
