"""``levada run`` that compares the catalog each second: ``python short_polls.py python -m levada run ...``."""

from __future__ import annotations

import runpy
import sys

from levada.runtime.stages import discovery, storage_poller


def main() -> None:
    """Run the command after the name of this file and that of the interpreter."""
    storage_poller.poll_interval_s = lambda tables: 1.0
    discovery.check_interval_s = lambda tables: 1.0
    discovery.discovery_interval_s = lambda configured_s, tables: 1.0
    sys.argv = sys.argv[3:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
