"""The ``levada`` command: parses arguments, calls the library, and prints the results."""

from levada.cli import collector
from levada.cli.app import app as main

collector.resume()

__all__ = ["main"]
