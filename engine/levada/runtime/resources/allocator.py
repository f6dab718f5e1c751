"""The allocator of a process that runs an engine and nothing else."""

from __future__ import annotations

import ctypes
from typing import Final

import pyarrow as pa

_M_ARENA_MAX: Final = -8
"""The parameter of glibc's mallopt."""


def use_small_allocator() -> None:
    """Let Arrow take its memory from the C library, which has two arenas from now on.

    Arrow's own allocator keeps freed memory for each thread: 40 MB of an engine with five tables. It also takes a third
    more CPU for capture, which allocates a few megabytes for each segment.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)
    pa.set_memory_pool(pa.system_memory_pool())
