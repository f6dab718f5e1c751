"""Tables in another PostgreSQL database, written by COPY and by INSERT … ON CONFLICT.

The watermark of each table is a row in the same database, which changes in the same transaction as the table. Nothing
here reads the source: that is in `levada.postgres`, whose connections and error texts this package uses.
"""

from levada.destinations.postgres.destination import PostgresDestination

__all__ = ["PostgresDestination"]
