"""Functions that open a destination in a process that is killed, apart from tests, whose imports it then avoids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from levada.destinations import Destination, DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings


def open_postgres(settings: dict[str, Any], work: Path) -> Destination:
    """Return a destination in PostgreSQL."""
    return PostgresDestination.from_settings(Settings.model_validate(settings), DestinationContext("shop", work))
