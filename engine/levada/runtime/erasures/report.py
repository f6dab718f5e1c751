"""The result of the erasure of keys from one table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from levada.destinations.erasure import Erased, Remaining
from levada.values import Lsn, QualifiedTable


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """The result. No change of the table below ``lsn`` comes later.

    ``keys`` is the number of the given keys, and ``at_source`` of those that the source still has. With ``dry_run``,
    ``erased`` is what would be removed.
    """

    table: QualifiedTable
    lsn: Lsn
    dry_run: bool
    keys: int
    at_source: int
    erased: Erased

    def also(self, place: Remaining) -> ErasureReport:
        """Return the report with one more place that may have values of the rows, before the others."""
        return replace(self, erased=replace(self.erased, remaining=(place, *self.erased.remaining)))

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values for JSON. It has no value of a row."""
        return {
            "table": str(self.table),
            "lsn": str(self.lsn),
            "dryRun": self.dry_run,
            "keys": self.keys,
            "atSource": self.at_source,
            **self.erased.to_json(),
        }
