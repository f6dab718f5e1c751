"""The allocator of the command's process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

LOOK = (
    "import os, levada.cli, levada.cli.run, levada.cli.copy, pyarrow as pa;"
    "print(pa.default_memory_pool().backend_name, os.environ.get('ARROW_DEFAULT_MEMORY_POOL'))"
)


@pytest.mark.nightly
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize(("given", "found"), [(None, "system None"), ("mimalloc", "mimalloc mimalloc")])
def test_arrow_uses_the_c_library(given: str | None, found: str) -> None:
    """A user's own choice counts. The processes that the command starts do not inherit its own."""
    environment = {k: v for k, v in os.environ.items() if k != "ARROW_DEFAULT_MEMORY_POOL"}
    if given is not None:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = given
    done = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == found
