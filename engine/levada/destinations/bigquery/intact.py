"""Comparisons of a served table with what its last copy made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levada.destinations.bigquery.ownership import MADE, label
from levada.destinations.bigquery.served_table import ServedTable
from levada.destinations.bigquery.state import StoredState
from levada.errors import DestinationChanged
from levada.values import resync_command


def check_made(served: ServedTable, state: StoredState, resource: Mapping[str, Any]) -> None:
    """Raise DestinationChanged if the table is not the one that the last copy created.

    A driver that was paused between a comparison and its DDL statement may have replaced it with an empty one.
    """
    if label(resource, MADE) != state.description.made:
        raise DestinationChanged(
            "destination_table_missing",
            f"{served.name} was replaced by another process after its copy, and lacks rows",
            hint=f"copy the table again: {resync_command(state.description.source)}",
        )
