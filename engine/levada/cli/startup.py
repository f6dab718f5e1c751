"""The start of a command's process: its standard streams, and the garbage collector around its imports."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_COLLECTS: Final = gc.isenabled()


def resume_collector() -> None:
    """Collect garbage again if it was collected before, but not among what the imports have made."""
    if _COLLECTS:
        gc.freeze()
        gc.enable()


def open_standard_streams() -> None:
    """Open the null device for a standard stream that is closed.

    Otherwise the next file or connection has its number, and gets what Spark and other processes print.
    """
    for number, mode in enumerate(("r", "w", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
            name = ("stdin", "stdout", "stderr")[number]
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the process ends
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


open_standard_streams()
# The imports of a command are a tenth of the CPU of its start, with the collector.
gc.disable()
