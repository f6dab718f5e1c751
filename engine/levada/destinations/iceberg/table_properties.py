"""The table properties that a manifest sets: which ones it may set, and how a table follows a change. Pure.

Iceberg ignores a property that its writer does not know. So of Iceberg's own ones only those are allowed that Levada's
writer, its maintenance, or the readers follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final

from pydantic_core import PydanticCustomError

RECORD: Final = "levada.table-properties"
"""The property with those that the manifest has set, in JSON."""
CODEC: Final = "write.parquet.compression-codec"
LEVEL: Final = "write.parquet.compression-level"
TARGET_SIZE: Final = "write.target-file-size-bytes"
MAX_LEVELS: Final[Mapping[str, int]] = {"zstd": 22, "gzip": 9, "snappy": 0, "uncompressed": 0}
"""The highest compression level of each codec, or 0 if it has none.

Others have no reader everywhere: Spark has no brotli, and lz4 has two framings.
"""
DEFAULT_CODEC: Final = "zstd"

DEFAULTS: Final[Mapping[str, str]] = {
    # Otherwise each commit leaves a metadata file behind, up to one per second.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""The properties of a table unless the manifest has others."""

_MAX_TEXT: Final = 1024


def between(low: int, high: int) -> Callable[[str], str]:
    """Return a check that a text is a whole number from ``low`` to ``high``, both inclusive."""
    return lambda text: (
        "" if re.fullmatch("[0-9]{1,18}", text) and low <= int(text) <= high else f"must be {low} to {high}"
    )


def matching(pattern: str, words: str) -> Callable[[str], str]:
    """Return a check that a text matches the pattern, which ``words`` describe."""
    return lambda text: "" if re.fullmatch(pattern, text) else f"must be {words}"


_ALLOWED: Final[Mapping[str, Callable[[str], str]]] = {
    CODEC: matching("|".join(MAX_LEVELS), ", ".join(MAX_LEVELS)),
    LEVEL: between(1, max(MAX_LEVELS.values())),
    TARGET_SIZE: between(1 << 20, 1 << 30),
    "write.metadata.delete-after-commit.enabled": matching("true|false", "true or false"),
    # Levada reads former metadata to detect changes by other writers.
    "write.metadata.previous-versions-max": between(10, 1000),
    "write.metadata.compression-codec": matching("none|gzip", "none or gzip"),
    "write.metadata.metrics.default": matching(
        r"none|counts|full|truncate\([1-9][0-9]{0,3}\)", "none, counts, full or truncate(16)"
    ),
    "write.metadata.metrics.max-inferred-column-defaults": between(0, 100_000),
    "commit.manifest.target-size-bytes": between(1 << 16, 1 << 30),
    "commit.manifest.min-count-to-merge": between(2, 10_000),
}
"""Iceberg's properties that are allowed, each with the check of its value."""
_READERS: Final = "read."
"""Prefix of properties that only readers use. All are allowed."""
_RESERVED: Final = re.compile(
    r"levada\..*|(write|commit|history|gc|encryption|schema|engine|compatibility|format|external|hive)\..*"
    r"|format-version|uuid|snapshot-count|current-snapshot-.*|current-schema|default-(partition-spec|sort-order)"
    # Hive and Glue keep their own parameters among a table's properties.
    r"|location|path|provider|owner|external|table_type|storage_handler|(previous_)?metadata_location|num.*|totalsize",
    re.IGNORECASE | re.DOTALL,
)
"""Names that Levada, Iceberg or a catalog uses for itself."""


def check_properties(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties of a manifest. Raise PydanticCustomError with each one that it must not set, and why."""
    wrong = [f"{name} {why}" for name, text in properties.items() if (why := _wrong(name, text))]
    codec, level = properties.get(CODEC, DEFAULT_CODEC), properties.get(LEVEL, "")
    if not wrong and level and int(level) > MAX_LEVELS[codec]:
        highest = MAX_LEVELS[codec]
        wrong = [f"{LEVEL} must be 1 to {highest} with {codec}" if highest else f"{LEVEL} has no effect with {codec}"]
    if wrong:
        raise PydanticCustomError("table_properties", "{problems}", {"problems": "; ".join(wrong)})
    return properties


def _wrong(name: str, text: str) -> str:
    check = _ALLOWED.get(name)
    if check is not None:
        return check(text)
    if name.startswith(_READERS):
        return ""
    if not name.isprintable() or not name.strip() or max(len(name), len(text)) > _MAX_TEXT:
        return f"must be a printable name, and name and text have at most {_MAX_TEXT} characters"
    if _RESERVED.fullmatch(name):
        return "cannot be set: Levada, Iceberg or the catalog sets it, or nothing that Levada writes follows it"
    return ""


def changes(wanted: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes after which a table has the manifest's properties. None removes a property.

    A table property records those that Levada has set. One that is no longer in the manifest goes back to its default,
    unless another writer has changed it since. All others are left alone.
    """
    recorded = _recorded(properties)
    found: dict[str, str | None] = {
        name: DEFAULTS.get(name)
        for name, text in recorded.items()
        if name not in wanted and properties.get(name) == text
    }
    found |= {name: text for name, text in wanted.items() if properties.get(name) != text}
    if recorded != wanted:
        found[RECORD] = json.dumps(dict(sorted(wanted.items()))) if wanted else None
    return found


def _recorded(properties: Mapping[str, str]) -> dict[str, str]:
    """Parse the property. Return an empty dict if it is missing or invalid, because any writer can set a property."""
    try:
        recorded = json.loads(properties.get(RECORD, "{}"))
    except ValueError:
        return {}
    if not isinstance(recorded, dict):
        return {}
    # What a manifest must not set is not removed either.
    return {n: t for n, t in recorded.items() if isinstance(t, str) and not _wrong(n, t)}


_WITHOUT_BOUNDS: Final = {"write.metadata.metrics.column.": "counts", "write.parquet.stats-enabled.column.": "false"}
"""Prefixes of the properties with which Iceberg writes no bounds of a column, and their values."""


def without_bounds(columns: Collection[str], before: Collection[str] = ()) -> dict[str, str | None]:
    """Return the changes of properties after which Iceberg's library writes no bounds of these columns.

    ``before`` are the columns that had such properties. Iceberg refuses every change of properties while one names a
    column that does not exist.
    """
    found: dict[str, str | None] = {p + c: None for p in _WITHOUT_BOUNDS for c in before}
    return found | {prefix + column: text for prefix, text in _WITHOUT_BOUNDS.items() for column in columns}
