"""The names of tables in the catalog. Pure."""

from __future__ import annotations

import json
from typing import Final

from levada.destinations.collisions import TargetName
from levada.destinations.ducklake.tables import FullName
from levada.errors import NeedsOperator
from levada.values import QualifiedTable

_NAME_BYTES: Final = 255


def full_name(template: str, source: QualifiedTable, name: QualifiedTable) -> FullName:
    """Return the table's name in the catalog. ``template`` is the name of schemas, with ``{schema}``.

    ``source`` is the source table, and ``name`` is `TableTarget.name`. Raise NeedsOperator
    ``destination_name_unusable``.
    """
    made = FullName(template.replace("{schema}", name.schema), name.name)
    for part in (made.schema, made.name):
        if not part or len(part.encode()) > _NAME_BYTES or "\0" in part:
            raise NeedsOperator(
                "destination_name_unusable",
                f"{source} cannot be the table {made} in DuckLake: a name is empty or has more than {_NAME_BYTES}"
                " bytes",
                hint="set destinationTable in the table's TableSync, or another schema in the destination's settings",
            )
    return made


def target_name(made: FullName) -> TargetName:
    """Return the name in the form that other layers compare. DuckDB ignores the case of names."""
    return TargetName(str(made), json.dumps([made.schema.lower(), made.name.lower()]))
