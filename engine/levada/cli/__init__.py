"""The ``levada`` command: parses arguments, calls the library, and prints the results."""

from levada.cli import startup
from levada.cli.app import app as main

startup.resume_collector()

__all__ = ["main"]
