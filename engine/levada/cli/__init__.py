"""The ``levada`` command: parses arguments, calls the library, and prints the results."""

import levada.cli.allocator  # noqa: F401 - first, because it has no effect once pyarrow is loaded
from levada.cli import collector
from levada.cli.app import app as main

collector.resume()

__all__ = ["main"]
