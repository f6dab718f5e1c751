"""The exit codes of every command. docs/cli.md lists them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    """The pipeline ended with an error, or the command failed."""
    USAGE = 2
    """The command line or the manifest is invalid."""
    PREFLIGHT = 3
    """The pipeline cannot start. Nothing was started or changed."""
    TIMED_OUT = 4
    """The timeout passed before the goal was reached. The pipeline was stopped cleanly."""
    TABLE_ERRORED = 5
    """Every other table has reached the goal. At least one is parked until its cause is resolved."""
    DIFFERENT = 6
    """A verified table differs from the source."""
    INTERRUPTED = 130
    """SIGINT came before the goal was reached. The pipeline was stopped cleanly."""
    TERMINATED = 143
    """SIGTERM came before the goal was reached. The pipeline was stopped cleanly."""
