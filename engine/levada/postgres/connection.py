"""How to reach the source, and connections made from it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from levada.values import QualifiedTable

__all__ = ["PostgresConnection", "QualifiedTable"]


@dataclass(frozen=True, slots=True)
class PostgresConnection:
    """Where the source is and as whom to log in. Pickled into Spark tasks: it holds paths, never a secret's value.

    ``credentials`` is a folder with the files ``username`` and ``password``, read at each connect so that a rotated
    password needs no restart; None: libpq's own environment and passfile. ``sslmode`` and ``sslrootcert`` are libpq's.
    """

    host: str
    port: int
    database: str
    credentials: Path | None = None
    sslmode: str = "verify-full"
    sslrootcert: Path | None = None
    user: str | None = None
    application_name: str = "levada"
