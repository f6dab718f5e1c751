"""Lets Arrow take the memory of this process from the C library. Import it before pyarrow is loaded.

Arrow's own allocator keeps freed memory for each thread: 40 MB of an engine with five tables, and 95 MB after a burst
of wide rows. It takes as much CPU. The processes that this one starts, which read and write rows for a copy, keep it.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
_M_ARENA_MAX: Final = -8
_M_MMAP_THRESHOLD: Final = -3
"""The parameters of glibc's mallopt."""
_OWN_PAGES: Final = 1 << 20


def _choose() -> None:
    if _POOL in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        # By default each thread gets an arena, which keeps freed memory as well. Buffers of this size have pages of
        # their own, which the system gets back at once. By default the size grows with the largest buffer.
        mallopt(_M_ARENA_MAX, 2)
        mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES)
    os.environ[_POOL] = "system"
    try:
        # `pyarrow.set_memory_pool` would not change the pool of Arrow's own functions.
        import pyarrow as pa

        pa.default_memory_pool()
    finally:
        del os.environ[_POOL]


_choose()
