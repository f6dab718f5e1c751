"""The names of aliases, indices and fields, from which the source's names can be read again. Pure.

OpenSearch's names of indices are lower case and exclude some characters. Each byte that has no place in them is ``~``
and two hexadecimal digits. The first underscore or hyphen of a name is encoded too.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from levada.destinations.collisions import TargetName
from levada.errors import NeedsOperator
from levada.values import QualifiedTable

GENERATION: Final = "~~"
"""It is between the alias and the generation's number. No encoded name contains it."""
_EPOCH: Final = "~E"
"""It is between the index and the epoch in the name of a writer's alias.

The upper case matters: an alias may have it, an index may not. So a bulk request to a removed alias cannot create an
index of that name.
"""
_PLAIN: Final = re.compile("[a-z0-9_-]")
_MAX_ALIAS_BYTES: Final = 220
_METADATA: Final = frozenset(
    f"_{name}"
    for name in (
        *("id", "index", "source", "type", "routing", "version", "seq_no", "primary_term", "ignored", "field_names"),
        *("nested_path", "doc_count", "size", "meta", "feature", "tier", "timestamp", "ttl", "parent", "all", "uid"),
        "recovery_source",
    )
)


@dataclass(frozen=True, slots=True)
class Naming:
    """The names below one prefix."""

    prefix: str

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's alias. Raise NeedsOperator ``destination_name_unusable`` if it is too long."""
        alias = f"{self.prefix}{_encode(name.schema, first=not self.prefix)}.{_encode(name.name)}"
        if len(alias) > _MAX_ALIAS_BYTES:
            raise NeedsOperator(
                "destination_name_unusable",
                f"the index of {table} would have a name of {len(alias)} bytes, above {_MAX_ALIAS_BYTES}",
                hint="set destinationTable in the table's TableSync",
            )
        return TargetName(alias, alias)

    @property
    def state_index(self) -> str:
        """The index of Levada's own documents. It has no dot, so it is no table's alias."""
        return f"{self.prefix}levada-state"

    @property
    def all_generations(self) -> str:
        """The pattern of the names of all indices of tables."""
        return f"{self.prefix}*{GENERATION}*"


def new_generation(alias: str) -> str:
    """Return the name of a new index for the alias. It is random, so no other driver writes to it by accident."""
    return f"{alias}{GENERATION}{secrets.token_hex(5)}"


def writer_alias(index: str, epoch: int) -> str:
    """Return the alias through which the driver with this epoch writes to the index."""
    return f"{index}{_EPOCH}{epoch}"


def place_alias(alias: str, epoch: int | None = None) -> str:
    """Return the alias of Levada's own index that stands for the right to give ``alias`` its first index.

    Without an epoch, return the beginning of that name.
    """
    return f"{alias}{GENERATION}{_EPOCH}{'' if epoch is None else epoch}"


def writer_epoch(alias: str) -> int | None:
    """Return the epoch of a writer's alias, or None for another alias."""
    epoch = alias.rpartition(_EPOCH)[2]
    return int(epoch) if _EPOCH in alias and epoch.isdecimal() else None


def field_name(column: str) -> str:
    """Return the field of a column.

    A dot would make an object of it, and some names that begin with an underscore are OpenSearch's own.
    """
    encoded = column.replace("~", "~7e").replace(".", "~2e")
    if encoded in _METADATA:
        return "~5f" + encoded[1:]
    return "".join(f"~{b:02x}" for b in encoded.encode()) if not encoded.strip() else encoded


def _encode(name: str, *, first: bool = False) -> str:
    return "".join(
        c if _PLAIN.fullmatch(c) and not (first and i == 0 and c in "_-") else "".join(f"~{b:02x}" for b in c.encode())
        for i, c in enumerate(name)
    )
