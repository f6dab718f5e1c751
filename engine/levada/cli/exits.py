"""The exit codes of every command; docs/cli.md lists them."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """What a command's end means to who called it."""

    OK = 0
    FAILED = 1
    """The pipeline ended with an error, or what was asked for did not work."""
    USAGE = 2
    """The command line or the manifest is wrong."""
    PREFLIGHT = 3
    """The source is not ready: nothing was started or changed."""
    TIMED_OUT = 4
    """The time was over before the goal was reached; stopped cleanly."""
    TABLE_ERRORED = 5
    """Every other table has reached the goal; at least one is parked until somebody mends it."""
    INTERRUPTED = 130
    """SIGINT came before the goal was reached; stopped cleanly."""
    TERMINATED = 143
    """SIGTERM came before the goal was reached; stopped cleanly."""
