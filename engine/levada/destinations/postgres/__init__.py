"""Tables in another PostgreSQL database, written by COPY and by INSERT … ON CONFLICT.

The watermark of each table is a row in the same database, which changes in the same transaction as the table. Nothing
here reads the source: that is in `levada.postgres`, whose connections and error texts this package uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names

if TYPE_CHECKING:
    from levada.destinations.postgres.destination import PostgresDestination

__all__ = ["PostgresDestination"]

_LAZY_EXPORTS = {"PostgresDestination": "levada.destinations.postgres.destination"}

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
