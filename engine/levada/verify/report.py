"""The result of comparing one table, as values and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from levada.errors import NeedsOperator
from levada.printable import counted
from levada.values import Lsn, QualifiedTable, resync_command
from levada.verify.differences import Difference, Kind


@dataclass(frozen=True, slots=True)
class TableReport:
    """The result for one table at the LSN ``lsn``.

    ``counts`` has the number of keys by the way in which they differ. ``unexamined`` is the number of chunks that
    differ, and whose keys were not examined because there are too many. ``problems`` are differences of the table as a
    whole, such as a damaged file. ``not_compared`` names columns and why they were left out. ``repaired`` is the number
    of keys whose rows were written again. ``repaired_equal`` is True if the table was then compared and equal.
    ``parked`` is the code of the error of a parked table. Such a table is behind the source, and the changes that it
    has not applied are differences too. ``kept`` is the number of rows that the source has deleted and the destination
    keeps. If these are marked, ``lake_rows`` does not count them.
    """

    table: QualifiedTable
    lsn: Lsn
    applied: Lsn
    source_rows: int
    lake_rows: int
    key: tuple[str, ...] = ()
    sample: float = 1.0
    counts: Mapping[Kind, int] = field(default_factory=dict)
    examples: tuple[Difference, ...] = ()
    unexamined: int = 0
    problems: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    repaired: int = 0
    repaired_equal: bool = False
    parked: str = ""
    kept: int = 0

    @property
    def differences(self) -> int:
        """The number of keys that were found to differ."""
        return sum(self.counts.values())

    @property
    def equal(self) -> bool:
        """True if no difference was found."""
        return not (self.differences or self.unexamined or self.problems)

    @property
    def only_extra(self) -> bool:
        """True if all differences are rows of the destination that the source does not have, or has fewer times."""
        others = (count for kind, count in self.counts.items() if kind not in (Kind.EXTRA, Kind.REPEATED))
        return not (any(others) or self.unexamined or self.problems) and self.lake_rows >= self.source_rows

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {
            "table": str(self.table),
            "equal": self.equal,
            "lsn": str(self.lsn),
            "appliedLsn": str(self.applied),
            "rows": {"source": self.source_rows, "destination": self.lake_rows},
            "sample": self.sample,
            "differences": {kind.value: count for kind, count in self.counts.items() if count},
            "examples": [self._example(d) for d in self.examples],
            "unexaminedChunks": self.unexamined,
            "problems": list(self.problems),
            "notCompared": list(self.not_compared),
            "repaired": self.repaired,
            "repairedEqual": self.repaired_equal,
            "parked": self.parked,
            "kept": self.kept,
        }

    def _example(self, difference: Difference) -> dict[str, Any]:
        key = dict(zip(self.key, difference.key, strict=False))
        found: dict[str, Any] = {"kind": difference.kind.value, "key": key, "columns": list(difference.columns)}
        if difference.values:
            pairs = zip(difference.columns, difference.values, strict=True)
            found["values"] = {c: {"source": source, "destination": lake} for c, (source, lake) in pairs}
        return found


class NotRepaired(NeedsOperator):
    """A table that differs and was not repaired, for the reason of another error. ``report`` has its differences."""

    def __init__(self, reason: NeedsOperator, report: TableReport) -> None:
        super().__init__(reason.code, reason.message, hint=reason.hint)
        self.report = report


def difference(report: TableReport) -> str:
    """Return the LSN of a comparison and what differs there, without a value of a row."""
    counts = ", ".join(f"{count} {kind.value}" for kind, count in report.counts.items() if count)
    columns = sorted({column for found in report.examples for column in found.columns})
    found = [f"in {counted(report.differences, 'key')} ({counts})"] if counts else []
    found += [f"in the columns {', '.join(columns)}"] if columns else []
    found += [f"and {report.unexamined} chunks of rows were not examined"] if report.unexamined else []
    found += report.problems
    return f"at {report.lsn} {' '.join(found)}"


def copy_differs(report: TableReport) -> NeedsOperator:
    """Return the error of a shadow copy that differs from the source."""
    return NeedsOperator(
        "copy_differs",
        f"the new copy of {report.table} differs from the source: {difference(report)}",
        hint=f"the table stays as it was. To copy it again: {resync_command(report.table)}",
    )
