"""``levada run`` that compares the catalog each second: ``python short_polls.py python -m levada run ...``.

With ``small`` before the command, a hundred rows take the ways of a million: files, batches and slices are small.
"""

from __future__ import annotations

import runpy
import sys
from dataclasses import fields

from levada.capture.in_progress import InProgressLimits
from levada.capture.message_stream import SliceLimits
from levada.runtime.stages import discovery, storage_poller
from levada.segments.limits import BatchLimits, FileLimits


def main() -> None:
    """Run the command after the name of this file and that of the interpreter."""
    storage_poller.poll_interval_s = lambda tables: 1.0
    discovery.check_interval_s = lambda tables: 1.0
    discovery.discovery_interval_s = lambda configured_s, tables: 1.0
    del sys.argv[0]
    if sys.argv[0] == "small":
        del sys.argv[0]
        _make_small()
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _make_small() -> None:
    """Replace the sizes that no manifest sets."""
    for limits, sizes in (
        (FileLimits, {"inline_bytes": 0, "row_group_bytes": 1 << 13, "transaction_rows": 7, "early_rows": 40}),
        (BatchLimits, {"piece_rows": 50, "task_rows": 100}),
        (SliceLimits, {"messages": 40}),
        (InProgressLimits, {"chunk_messages": 10}),
    ):
        limits.__init__.__defaults__ = tuple(sizes.get(f.name, f.default) for f in fields(limits))


if __name__ == "__main__":
    main()
