"""Lets Arrow take the memory of this process from the C library. Import it before pyarrow is loaded.

Arrow's own allocator keeps freed memory for each thread: 40 MB of an engine with five tables. It also takes a third
more CPU for capture, which allocates a few megabytes for each segment. The processes that this one starts, which read
and write rows for a copy, keep Arrow's own.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
_M_ARENA_MAX: Final = -8
"""The parameter of glibc's mallopt."""


def _choose() -> None:
    if _POOL in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # By default each thread gets an arena, which keeps freed memory as well.
        mallopt(_M_ARENA_MAX, 2)
    os.environ[_POOL] = "system"
    try:
        # `pyarrow.set_memory_pool` would not change the pool of Arrow's own functions.
        import pyarrow as pa

        pa.default_memory_pool()
    finally:
        del os.environ[_POOL]


_choose()
