"""Pauses the garbage collector while the modules of the command are imported, a tenth of the CPU of its start."""

from __future__ import annotations

import gc
from typing import Final

_COLLECTS: Final = gc.isenabled()


def resume() -> None:
    """Collect garbage again if it was collected before, but not among what the imports have made."""
    if _COLLECTS:
        gc.freeze()
        gc.enable()


gc.disable()
