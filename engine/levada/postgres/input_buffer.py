"""The size of libpq's input buffer, which bounds how much one read of the socket receives."""

from __future__ import annotations

from typing import Final

GROW: Final = "SELECT pg_catalog.repeat('x', 65536)"
"""A query after which libpq's input buffer of the connection has 128 KiB.

It begins with 16 KiB, grows only for a message that does not fit, and stays as it is. A stream of small messages would
be read in pieces of 16 KiB, each with a wait and a read of its own.
"""
