"""`levada copy`: the command of a dedicated copy. The operator runs it in Jobs."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import levada.cli.allocator  # noqa: F401 - first, because it has no effect once pyarrow is loaded
from levada.cli.exit_codes import Exit
from levada.cli.output import console
from levada.cli.signals import StopSignals
from levada.runtime.host.dedicated_copy import DedicatedCopy
from levada.runtime.watching import repeated
from levada.spec import Manifests

_POLL_S: Final = 0.2


def copy(manifests: Manifests, secrets: Path | None, work_dir: Path, name: str, order: str) -> Exit:
    """Copy the table if the pipeline's driver has ordered a copy by another process. Raise the error that ended it.

    ``order`` is the token of the only order to take. Empty: any.
    """
    dedicated = DedicatedCopy(manifests, name, secrets=secrets, work_dir=work_dir, order=order)
    copied, cancelled, end = None, threading.Event(), "no dedicated copy is ordered"
    if dedicated.is_ordered:
        with StopSignals() as signals, _cancel_on_signal(signals, cancelled):
            copied = dedicated.run(cancelled)
        end = "nothing is left to copy here" if copied is None else f"copied as of {copied.lsn}"
    console().print(f"{dedicated.table}: {end}", markup=False)
    return Exit.OK


def _cancel_on_signal(signals: StopSignals, cancelled: threading.Event) -> AbstractContextManager[None]:
    """Set ``cancelled`` when a signal is received during the block."""

    def poll(_: threading.Event) -> bool:
        if signals.received is not None:
            cancelled.set()
        return not cancelled.is_set()

    return repeated(poll, _POLL_S, "levada-signals")
