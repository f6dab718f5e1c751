"""The ``levada`` command: parses arguments, calls the library, and prints the results."""

from levada.cli.app import app as main

__all__ = ["main"]
