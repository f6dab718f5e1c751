"""The ``levada`` command. Parses arguments and prints; whatever it does, a Python caller can do too."""

from levada.cli.app import app as main

__all__ = ["main"]
